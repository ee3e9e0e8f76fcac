"""The non-autoregressive Transformer: vanilla, glancing, and conditional masked (CMLM).

One network serves three ways of training, which differ in what the decoder is shown:

- vanilla (Gu et al. 2018, https://arxiv.org/abs/1711.02281): none of the target (``--glancing 0``);
- glancing, GLAT (Qian et al. 2021, https://arxiv.org/abs/2008.07905): the more of it the worse the first
  pass is (``--glancing 0.5:0.3@300k``);
- CMLM (Ghazvininejad et al. 2019, https://arxiv.org/abs/1904.09324): any share of it
  (``--decoder-input mask --glancing-strategy cmlm``), for mask-predict.

The length is predicted from the source. It says where eos is, so eos always stands in its position, as in the
papers' programs: it is shown, and no loss is taken there.
Symbols: B rows, S source positions, T positions of the canvas, D features, V words, C length classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nartk.architectures.nat import NatConfig
from nartk.models.glancing import is_best, reveal, same_dropout
from nartk.models.lengths import length_loss, pool, predictor
from nartk.models.losses import Losses, Training, label_smoothed_cross_entropy
from nartk.models.nar import ParallelDecoding, uniform_copy, wide
from nartk.models.transformer import Encoded
from nartk.vocab import MASK

_QUERIES = 32  # positions of a soft copy come in multiples of this
_FEATURES = 16  # and features of this


class Nat(ParallelDecoding):
    """Fills a canvas of positions at once, and predicts how many there are."""

    config: NatConfig

    def __init__(self, config: NatConfig) -> None:
        super().__init__(config)
        self.lengths = predictor(config.tree["lengths"])

    def decoder_losses(self, source: Encoded, target: Tensor, *, training: Training, update: int) -> Losses:
        """The training loss of encoded sources and targets [B,T] with eos.

        While validating, nothing is shown, as when decoding; but CMLM shows what it shows in training.
        """
        words = self._words_of(target)
        shown = torch.zeros_like(words)
        share = training.schedule.at(update) if self.training else 0.0
        strategy = training.glancing_strategy
        glancing = share > 0.0 and strategy != "cmlm"
        second = same_dropout(target.device, when=glancing)
        if strategy == "cmlm":
            shown = reveal(words, words, share, strategy)
        elif glancing:
            with torch.no_grad():
                logits = self.output(self._read_target(source, target, shown))
            shown = reveal(~is_best(logits, target), words, share, strategy)
        with second:
            return self.losses_showing(shown, source, target, training=training)

    def losses_showing(self, shown: Tensor, source: Encoded, target: Tensor, *, training: Training) -> Losses:
        """The loss where the words at positions `shown` [B,T] are given (Qian et al. 2021, equation 8).

        Args:
            target: [B,T] with eos, which is given as well.
        """
        words = self._words_of(target)
        wanted = words & ~shown
        hidden = self._read_target(source, target, shown)
        loss, nll, tokens = label_smoothed_cross_entropy(
            self.output(hidden[wanted])[None],
            target[wanted][None],
            epsilon=training.label_smoothing,
            pad=self.config.pad,
        )
        lengths = target.ne(self.config.pad).sum(1)
        length = length_loss(self.length_logits(source), lengths - source.lengths)
        count = tokens.clamp(min=1)
        parts = {
            "words": (nll / count).detach(),
            "length": length.detach(),
            "shown": shown.sum() / words.sum().clamp(min=1),
        }
        return Losses(loss + training.length_factor * length * tokens, tokens, parts)

    def inputs(self, canvas: Tensor, lengths: Tensor, source: Encoded) -> Tensor:
        """Decoder inputs of a canvas [B,T], of which lengths [B] positions count -> [B,T,D].

        A word stands for itself, `MASK` for what the configuration's `decoder_input` says.
        """
        words = self.embed_words(canvas)
        if self.config.decoder_input == "mask":
            return words
        vectors = self.source_vectors(source)
        if self.config.decoder_input == "uniform-copy":
            copied = uniform_copy(vectors, source.lengths, lengths, canvas.shape[1])
        else:
            copied = soft_copy(
                vectors, source.lengths, lengths, canvas.shape[1], self.config.copy_temperature
            )
        return torch.where((canvas == MASK)[:, :, None], self.embed_vectors(copied), words)

    def length_logits(self, source: Encoded) -> Tensor:
        """Logits [B,C] of the output's length minus the source's, from -length_difference on."""
        logits: Tensor = self.lengths(pool(source.memory, source.kept))
        return logits

    def _words_of(self, target: Tensor) -> Tensor:
        """The positions [B,T] of words: all but padding and the eos before it."""
        lengths = target.ne(self.config.pad).sum(1)
        return torch.arange(target.shape[1], device=target.device) < lengths[:, None] - 1

    def _read_target(self, source: Encoded, target: Tensor, shown: Tensor) -> Tensor:
        """Features [B,T,D] of a target of which only the words `shown` [B,T], and eos, are given."""
        canvas = target.masked_fill(self._words_of(target) & ~shown, MASK)
        kept = target.ne(self.config.pad)
        return self.fill(self.inputs(canvas, kept.sum(1), source), kept, source.memory, source.mask)


def soft_copy(
    source: Tensor, source_lengths: Tensor, lengths: Tensor, width: int, temperature: float
) -> Tensor:
    """Means of the vectors of source [B,S,D], the nearer to the position's share of the length the heavier.

    Place j of T gets the source's vector i of S with a weight of exp(-abs(i - j (S-1)/(T-1)) / temperature),
    divided by the sum of these (Wei et al. 2019, https://arxiv.org/abs/1906.02041; their positions are not
    scaled, those of Li et al. 2019, https://arxiv.org/abs/1909.06708, are).

    Returns:
        [B,width,D]. A position's bits depend neither on other rows nor on the width.
    """
    # An attention to nothing but a mask, since of attention it is known from which shapes on it is exact:
    # the number of queries and the features are filled up to what suits every device.
    rows, features = -(-width // _QUERIES) * _QUERIES, source.shape[2]
    position = torch.arange(rows, device=source.device)
    ratio = (source_lengths - 1).float() / (lengths - 1).clamp(min=1).float()
    column = torch.arange(source.shape[1], device=source.device)
    distance = (column - position[:, None] * ratio[:, None, None]).abs()  # [B,rows,S]
    weights = (-distance / temperature).masked_fill(column >= source_lengths[:, None, None], float("-inf"))
    v = F.pad(wide(source), (0, -features % _FEATURES))[:, None]  # [B,1,S,D]
    q = v.new_zeros(v.shape[0], 1, rows, v.shape[3])
    with torch.autocast(source.device.type, enabled=False):
        y = F.scaled_dot_product_attention(q, v.detach(), v, attn_mask=weights[:, None].to(v.dtype))
    return y[:, 0, :width, :features].to(source.dtype)
