"""The reference scorers of speech: `protocols.passes` and `protocols.parallel` in eager torch, on any device.

The engine is tested against them, and they serve a GPU. Symbols: B sources, S positions of the encoder, D
features of the model.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nartk.models.conformer import Conformer
from nartk.models.parallel_reference import read_head
from nartk.models.reference import ReferencePasses
from nartk.protocols.contexts import Handles
from nartk.protocols.passes import FloatArray, IntArray, Limits, Scores, Source, Want
from nartk.protocols.timestamps import frame_spans
from nartk.vocab import MASK, Vocab


class ConformerReference(ReferencePasses):
    """Implements `PassScorer` and `FrameScorer`, over one encoded source.

    Args:
        model, vocab, start_token, dtype, device: As `ReferencePasses` has them.
    """

    blank: int | None = MASK
    _model: Conformer

    def __init__(self, model: Conformer, vocab: Vocab, **settings: Any) -> None:
        super().__init__(model, vocab, **settings)
        self._encoded: dict[int, Tensor] = {}  # by handle, [S,D]

    def _remember(self, memory: Tensor, kept: Tensor) -> IntArray:
        handles = super()._remember(memory, kept)
        rows = (row[own] for row, own in zip(memory, kept, strict=True))
        self._encoded.update(zip(handles.tolist(), rows, strict=True))
        return handles

    def free(self, memory: Sequence[int] | IntArray) -> None:
        super().free(memory)
        for handle in memory:
            del self._encoded[int(handle)]

    def frames(self, memory: Sequence[int] | IntArray) -> IntArray:
        return _counts(self._rows(memory))

    @torch.inference_mode()
    def read_frames(self, memory: Sequence[int] | IntArray, want: Want) -> Scores:
        return read_head(self._model.encoder.ctc, torch.cat(self._rows(memory)), want)

    def spans(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        return frame_spans(self.frames(memory), [0] * len(memory))

    def _rows(self, memory: Sequence[int] | IntArray) -> list[Tensor]:
        for handle in memory:
            self._memories[int(handle)]  # a PassError if it is not open
        return [self._encoded[int(handle)] for handle in memory]


class FrameReference:
    """Implements `nartk.protocols.parallel.FrameScorer` for a network that is an encoder with a CTC head.

    Args:
        model: Left as it is; a copy is served.
        dtype: Of weights and activations: float32, bfloat16 or float16.
    """

    blank: int | None = MASK

    def __init__(
        self,
        model: Any,
        vocab: Vocab,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        config = model.config
        self.vocab, self.device = vocab, torch.device(device)
        self.limits = Limits(config.max_source_len, config.target_positions, len(vocab))
        self.numerics = f"reference|torch:{torch.__version__}"  # what a signature says of how it computes
        self.model: Any = copy.deepcopy(model).eval().requires_grad_(False).to(self.device, dtype)
        # Of each source what is encoded, [S,D], and how many words are in front of its frames.
        self._memories: Handles[tuple[Tensor, int]] = Handles("memory")

    @torch.inference_mode()
    def encode(self, sources: Sequence[Source]) -> IntArray:
        if len(sources) == 0:
            return self._memories.add([])
        memory, kept = self.model.encoder.read(sources)
        rows: Any = zip(memory, kept, sources, strict=True)
        return self._memories.add((row[own], len(source.words)) for row, own, source in rows)

    def free(self, memory: Sequence[int] | IntArray) -> None:
        self._memories.remove(memory)

    def spans(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        words = [self._memories[int(handle)][1] for handle in memory]
        return frame_spans(self.frames(memory), words)

    def frames(self, memory: Sequence[int] | IntArray) -> IntArray:
        return _counts([self._memories[int(handle)][0] for handle in memory])

    @torch.inference_mode()
    def read_frames(self, memory: Sequence[int] | IntArray, want: Want) -> Scores:
        rows = [self._memories[int(handle)][0] for handle in memory]
        return read_head(self.model.encoder.ctc, torch.cat(rows), want)


def _counts(rows: Sequence[Tensor]) -> IntArray:
    return torch.tensor([len(row) for row in rows], dtype=torch.int32).numpy()
