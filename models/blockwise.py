"""The blockwise drafter of generalized aggressive decoding (GAD, Xia et al. 2022).

"Speculative Decoding: Exploiting Speculative Execution for Accelerating Seq2seq Generation",
https://arxiv.org/abs/2203.16487, section 3.1: behind the words that are already known come `block` masked
positions, which it fills at once. An autoregressive model verifies what it drafts.
Symbols: B rows, T target positions, W positions of the canvas, V words.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nartk.architectures.blockwise import BlockwiseConfig
from nartk.models.distil_losses import tokens_a_pass
from nartk.models.glancing import is_best, reveal, same_dropout
from nartk.models.losses import Losses, Training, label_smoothed_cross_entropy
from nartk.models.nar import ParallelDecoding
from nartk.models.transformer import Encoded
from nartk.vocab import MASK

STARTS = 4  # positions of each target where it is validated


class Blockwise(ParallelDecoding):
    """Fills the masked positions behind a prefix."""

    config: BlockwiseConfig

    def logits(self, canvas: Tensor, kept: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        """Logits [B,W,V] of a canvas [B,W] of which `kept` [B,W] counts, over an encoded source."""
        logits: Tensor = self.output(self.fill(self.embed_words(canvas), kept, memory, mask))
        return logits

    def decoder_losses(self, source: Encoded, target: Tensor, *, training: Training, update: int) -> Losses:
        """The loss of the words behind a prefix of random length, those that glancing shows left out."""
        logits, wanted, shown = self.training_forward(source, target, training=training, update=update)
        pad = self.config.pad
        words = wanted[wanted.ne(pad)]
        loss, nll, tokens = label_smoothed_cross_entropy(
            logits[None], words[None], epsilon=training.label_smoothing, pad=pad
        )
        return Losses(loss, tokens, {"words": nll / tokens.clamp(min=1), "shown": shown})

    def training_forward(
        self, source: Encoded, target: Tensor, *, training: Training, update: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Fills the positions behind a prefix of random length, of which glancing in training shows some.

        Returns:
            Logits [N,V] of the N positions it had to fill, the words wanted there, [B,W] with padding
            elsewhere, and the share of the positions that were shown.
        """
        pad = self.config.pad
        memory, mask = source.memory, source.mask
        lengths = target.ne(pad).sum(1)
        start = (torch.rand(lengths.shape, device=target.device) * lengths).long()
        target, known, kept, slots = self.canvas(target, start)
        wanted = target.masked_fill(~slots, pad)
        share, strategy = training.schedule.at(update), training.glancing_strategy
        glancing = self.training and (share > 0.0 or strategy == "cmlm")
        second = same_dropout(target.device, when=glancing)
        hidden = wanted.ne(pad)
        shown = torch.zeros_like(hidden)
        if glancing:
            with torch.no_grad():
                logits = self.logits(known, kept, memory, mask)
            shown = reveal(~is_best(logits, target), hidden, share, strategy)
        wanted = wanted.masked_fill(shown, pad)
        with second:
            features = self.fill(self.embed_words(torch.where(shown, target, known)), kept, memory, mask)
        return self.output(features[wanted.ne(pad)]), wanted, shown.sum() / hidden.sum()

    def canvas(self, target: Tensor, start: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Lays out targets [B,T] that are known up to `start` [B], as far as the last block goes.

        Returns:
            The targets [B,W], the same with their blocks masked, which positions count and which are masked.
        """
        width = min(int(start.max()) + self.config.block, self.config.max_target_len)
        target = F.pad(target, (0, max(0, width - target.shape[1])), value=self.config.pad)[:, :width]
        columns = torch.arange(width, device=target.device)
        kept = columns < start[:, None] + self.config.block  # [B,W]
        slots = kept & (columns >= start[:, None])
        return target, target.masked_fill(slots, MASK), kept, slots

    def drafted_passes(self, source: Encoded, target: Tensor, best: Tensor) -> tuple[Tensor, Tensor]:
        """Passes and tokens of its blocks at `STARTS` positions of each target [B,T].

        Positions that fall together in a short target count once.

        Args:
            best: [B,T] the verifier's words, -1 behind the end.
        """
        lengths = best.ge(0).sum(1)
        memory, mask = source.memory, source.mask
        passes = tokens = torch.zeros((), dtype=torch.int64, device=target.device)
        before = torch.full_like(lengths, -1)
        for part in range(STARTS):
            start = lengths * part // STARTS
            _, known, kept, slots = self.canvas(target, start)
            theirs = best.new_full(known.shape, -1)
            width = min(best.shape[1], known.shape[1])
            theirs[:, :width] = best[:, :width]
            asked = slots & (theirs >= 0)
            features = self.fill(self.embed_words(known), kept, memory, mask)
            agree = torch.zeros_like(asked)
            agree[asked] = self.output(features[asked]).max(-1).indices == theirs[asked]
            given = tokens_a_pass(agree, lengths, self.config.block).gather(1, start[:, None]).squeeze(1)
            fresh = start > before
            passes, tokens = passes + fresh.sum(), tokens + (given * fresh).sum()
            before = start
        return passes, tokens
