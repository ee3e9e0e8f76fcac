"""The blockwise drafter of generalized aggressive decoding (GAD, Xia et al. 2022).

"Speculative Decoding: Exploiting Speculative Execution for Accelerating Seq2seq Generation",
https://arxiv.org/abs/2203.16487, section 3.1: behind the words that are already known stand `block` masked
places, which it fills at once. It is no decoder of its own: an autoregressive model verifies what it says.
Symbols: B rows, T target positions, W places of the canvas, V words.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nartk.models.glancing import reveal
from nartk.models.nar import Losses, NarTraining, NonAutoregressive, align_left
from nartk.models.nar_scorer import NarScorer, NarState
from nartk.models.transformer import TransformerConfig, label_smoothed_cross_entropy, setting
from nartk.vocab import SPECIALS

MASK = SPECIALS.index("<s>")  # a word that no target has


@dataclass(frozen=True)
class BlockwiseConfig(TransformerConfig):
    """The shape of a blockwise drafter."""

    decoder_positions: str = setting("learned", "target positions", choices=("sinusoidal", "learned", "none"))
    block: int = setting(25, "places that are filled at once")


class Blockwise(NonAutoregressive):
    """Fills the masked places behind a prefix."""

    config: BlockwiseConfig
    Config = BlockwiseConfig

    def logits(self, canvas: Tensor, kept: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        """Logits [B,W,V] of a canvas [B,W] of which `kept` [B,W] counts, over an encoded source."""
        return self.output(self.fill(self.place_words(canvas), kept, memory, mask))

    def losses(self, src_tokens: Tensor, target: Tensor, *, training: NarTraining, update: int) -> Losses:
        """The loss of the words behind a prefix of random length, those that glancing shows left out."""
        pad, block = self.config.pad, self.config.block
        memory, mask = self.encode(align_left(src_tokens, pad))
        lengths = target.ne(pad).sum(1)
        start = (torch.rand(lengths.shape, device=target.device) * lengths).long()
        width = min(int(start.max()) + block, self.config.max_target_len)
        target = F.pad(target, (0, max(0, width - target.shape[1])), value=pad)[:, :width]
        columns = torch.arange(width, device=target.device)
        slots = (columns >= start[:, None]) & (columns < start[:, None] + block)  # [B,W]
        kept = columns < start[:, None] + block
        wanted = target.masked_fill(~slots, pad)
        known = target.masked_fill(slots, MASK)
        share = training.schedule.at(update)
        hidden = wanted.ne(pad)
        shown = torch.zeros_like(hidden)
        if share > 0.0 or training.glancing_strategy == "cmlm":
            with torch.no_grad():
                guess = self.logits(known, kept, memory, mask).argmax(-1)
            shown = reveal(guess != target, hidden, share, training.glancing_strategy)
        logits = self.logits(torch.where(shown, target, known), kept, memory, mask)
        loss, nll, tokens = label_smoothed_cross_entropy(
            logits, wanted.masked_fill(shown, pad), epsilon=training.label_smoothing, pad=pad
        )
        parts = {"words": nll / tokens.clamp(min=1), "shown": shown.sum() / hidden.sum()}
        return Losses(loss, tokens, parts)


class BlockwiseScorer(NarScorer):
    """Serves a blockwise drafter."""

    model: Blockwise
    mask = MASK

    @torch.inference_mode()
    def fill(self, canvas: Tensor, lengths: Tensor, state: NarState) -> Tensor:
        """Logits [B,W,V] of a canvas [B,W] int64 of which lengths [B] places count."""
        return self.fill_inputs(self.model.place_words(canvas), lengths, state)
