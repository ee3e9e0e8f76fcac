"""The CTC Transformer: frames that each emit a word or nothing (Libovický and Helcl 2018, arXiv:1811.04719).

Every source token becomes several frames, all decoded at once, and a target is emitted by every labelling of
the frames that becomes it when runs are merged and blanks are left out. A target has no eos here: it ends
where the frames do. Training may glance at the likeliest labelling (Qian et al. 2021, arXiv:2008.07905;
Gu and Kong 2021, arXiv:2012.15833).
Symbols: B rows, S source positions, T frames, U target words, D features, V words.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nartk.architectures.ctc import CtcConfig
from nartk.models.ctc_alignment import ctc_best_states, fewest_frames, labels_of
from nartk.models.glancing import reveal, same_dropout
from nartk.models.losses import Losses, Training
from nartk.models.match_scores import match_scores
from nartk.models.nar import ParallelDecoding
from nartk.models.transformer import Encoded
from nartk.vocab import MASK as BLANK

_CHUNK = 256  # frames at a time whose words are all there
_NEG_INF = -1e9  # log-probability of a label that is another's twin: its probability is exactly 0


class CtcNat(ParallelDecoding):
    """Reads a source and predicts all frames."""

    config: CtcConfig

    def frames(self, source: Encoded) -> Tensor:
        """The decoder's input without positions, of the source's words or what was encoded -> [B,T,D].

        Frames 0 to `upsample` - 1 are the first position's, and so on.
        """
        x = source.memory if self.config.decoder_input == "memory" else self.source_vectors(source)
        return x.repeat_interleave(self.config.upsample, 1)

    def decoder_losses(self, source: Encoded, target: Tensor, *, training: Training, update: int) -> Losses:
        """The negative log-likelihood of the targets, summed over all labellings that become them.

        Targets that need more frames than there are count for nothing; ``dropped`` is how many. Label
        smoothing has no part in it. Glancing is for training mode alone: frames are shown words of the
        likeliest labelling, a blank the word that comes next, the last ones the last word; the more, the more
        labels the first pass had wrong. As in the program of Qian et al. 2021 (GLAT's `glat_ctc`) the loss is
        that of all frames, shown ones too. There each frame is shown or not by a draw of its own; here
        as many are shown as these draws show on average, rounded down. A target without words shows none.
        """
        pad, memory, mask = self.config.pad, source.memory, source.mask
        counts = target.ne(pad).sum(1) - 1  # without eos
        lengths = self.config.upsample * source.lengths
        fits = fewest_frames(target, counts) <= lengths
        x = self.frames(source)
        kept = torch.arange(x.shape[1], device=x.device) < lengths[:, None]

        labels, label_ids = _own_labels(target)
        share, strategy = training.schedule.at(update), training.glancing_strategy
        shown = torch.zeros_like(kept)
        glancing = self.training and (share > 0.0 or strategy == "cmlm")
        second = same_dropout(x.device, when=glancing)
        if glancing:
            with torch.no_grad():
                hidden = self.fill(self.embed_vectors(x), kept, memory, mask)
                scores, top = self._first_pass(hidden, labels)
                states = ctc_best_states(scores, label_ids, lengths, counts, blank=0)
            known, best = states >= 0, labels_of(states, label_ids, blank=0).clamp(min=0)
            wrong = scores.gather(2, best[:, :, None]).squeeze(2) < top
            words = torch.minimum(states.clamp(min=0) // 2, counts[:, None] - 1).clamp(min=0)
            shown = reveal(wrong & known, known & (counts > 0)[:, None], share, strategy)
            given = self.decoder.embedding.vectors(target.gather(1, words))
            x = torch.where(shown[:, :, None], given.to(x.dtype), x)
        with second:
            hidden = self.fill(self.embed_vectors(x), kept, memory, mask)
        scores = match_scores(self.output, hidden, labels, graph_lengths=lengths)  # [B,1+U,T]
        loss = _ctc_loss(scores, label_ids, lengths, counts).masked_fill(~fits, 0.0).sum()
        tokens = (counts + 1).masked_fill(~fits, 0).sum()  # with eos, as other models count them
        parts = {
            "words": loss.detach() / tokens.clamp(min=1),
            "shown": shown.sum() / kept.sum(),
            "dropped": (~fits).sum(),
        }
        return Losses(loss, tokens, parts)

    def _first_pass(self, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities [B,T,C] of labels [B,C] at features [B,T,D], and that of the best word [B,T]."""
        scores, top = [], []
        own = labels[:, None].expand(-1, hidden.shape[1], -1).flatten(0, 1)
        for x, some in zip(hidden.flatten(0, 1).split(_CHUNK), own.split(_CHUNK), strict=True):
            logits = self.output(x)
            each = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
            scores.append(each.gather(1, some))
            top.append(each.amax(1))
        return torch.cat(scores).unflatten(0, hidden.shape[:2]), torch.cat(top).view(hidden.shape[:2])


def _own_labels(target: Tensor) -> tuple[Tensor, Tensor]:
    """The labels of a target [B,U] -> [B,1+U], blank first, and the index of each word among them -> [B,U].

    Equal words take the index of the first: what is one label must be one number. A target has few words
    of all, so that a loss over these alone never holds the log-probabilities of all words at all frames.
    """
    labels = F.pad(target, (1, 0), value=BLANK)
    return labels, 1 + (target[:, :, None] == target[:, None]).int().argmax(2)


def _ctc_loss(scores: Tensor, label_ids: Tensor, lengths: Tensor, counts: Tensor) -> Tensor:
    """torch's CTC loss [B] over a target's own labels.

    torch's gradient is right for log-probabilities that sum to 1 alone, so each frame is normalised over the
    labels, and what that took away is given back.

    Args:
        scores: [B,1+U,T], log-probability of each label at each frame, blank first.
        label_ids: [B,U] label of each word.
    """
    used = torch.zeros(scores.shape[:2], dtype=torch.bool, device=scores.device)
    used = used.scatter(1, F.pad(label_ids, (1, 0)), True)
    inside = torch.arange(scores.shape[2], device=scores.device) < lengths[:, None]  # [B,T]
    # Minus infinity would make gradients that are no numbers.
    scores = scores.masked_fill(~used[:, :, None], _NEG_INF).masked_fill(~inside[:, None], 0.0)
    mass = scores.logsumexp(1)  # [B,T]
    each = F.ctc_loss(
        (scores - mass[:, None]).permute(2, 0, 1),
        label_ids,
        lengths,
        counts,
        blank=0,
        reduction="none",
        zero_infinity=True,
    )
    return each - mass.masked_fill(~inside, 0.0).sum(1)
