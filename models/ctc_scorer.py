"""Serves the CTC Transformer to decoders that read frames.

Symbols: B rows, T frames, V words.
"""

from __future__ import annotations

import torch

from nartk.models.ctc import BLANK, CtcNat
from nartk.models.nar_scorer import NarScorer
from nartk.scorer import Frames, Source


class CtcScorer(NarScorer):
    """Implements nartk.scorer.FrameScorer for a `CtcNat`."""

    model: CtcNat
    blank: int | None = BLANK

    @torch.inference_mode()
    def emit(self, source: Source) -> Frames:
        """Reads the source and says all frames at once; log-probabilities past the lengths are 0."""
        state = self.read(source)
        lengths = self.model.config.upsample * state.lengths
        width = int(lengths.max())
        x = self.model.frames(state.tokens, state.memory)[:, :width]
        hidden = self.decode(self.model.embed_vectors(x), lengths, state)
        kept = self.columns(width) < lengths[:, None]
        every = len(kept) == 1 or bool(kept.all())  # one row is as long as the longest
        said = self.logits(hidden.flatten(0, 1) if every else hidden[kept]).float().log_softmax(-1)  # [n,V]
        if every:
            return Frames(said.view(*kept.shape, -1), lengths)
        log_probs = said.new_zeros(*kept.shape, said.shape[1])
        log_probs[kept] = said
        return Frames(log_probs, lengths)
