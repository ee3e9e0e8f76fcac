"""The Paraformer's reference scorer: `nartk.protocols.parallel.FrameScorer` in eager torch, on any device.

Symbols: B sources, S positions of the encoder, N fires, D features of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nartk.models.parallel_reference import read_head
from nartk.models.speech_reference import FrameReference
from nartk.protocols.contexts import Handles
from nartk.protocols.passes import FloatArray, IntArray, Scores, Source, Want
from nartk.protocols.timestamps import fire_spans


@dataclass(frozen=True)
class _Fired:
    """An encoded source: its memory [S,D], its weights [S], and the embeddings [N,D] of its fires."""

    memory: Tensor
    alpha: Tensor
    embeddings: Tensor


class ParaformerReference(FrameReference):
    """Its frames are the predictor's fires, which each emit a word; eos ends an output."""

    blank = None
    _memories: Any

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._memories = Handles[_Fired]("memory")
        self.tail: float = self.model.config.tail_threshold

    @torch.inference_mode()
    def encode(self, sources: Sequence[Source]) -> IntArray:
        if len(sources) == 0:
            return self._memories.add([])
        memory, kept = self.model.encoder.read(sources)
        embeddings, counts, alpha = self.model.fires(memory, kept)
        return self._memories.add(
            _Fired(memory[i, :size], alpha[i, :size], embeddings[i, :count])
            for i, (size, count) in enumerate(zip(kept.sum(1).tolist(), counts.tolist(), strict=True))
        )

    def frames(self, memory: Sequence[int] | IntArray) -> IntArray:
        return torch.tensor([len(each.embeddings) for each in self._fired(memory)], dtype=torch.int32).numpy()

    @torch.inference_mode()
    def read_frames(self, memory: Sequence[int] | IntArray, want: Want) -> Scores:
        return self._read([each.embeddings for each in self._fired(memory)], memory, want)

    @torch.inference_mode()
    def read_fires(self, memory: Sequence[int] | IntArray, fires: Sequence[FloatArray], want: Want) -> Scores:
        own = [each.embeddings for each in self._fired(memory)]
        given = [
            torch.from_numpy(each).to(like.device, like.dtype) for each, like in zip(fires, own, strict=True)
        ]
        return self._read(given, memory, want)

    def _read(self, embeddings: list[Tensor], memory: Sequence[int] | IntArray, want: Want) -> Scores:
        fired = self._fired(memory)
        x, kept = _padded(embeddings)
        source, counted = _padded([each.memory for each in fired])
        hidden = self.model.fill(self.model.embed_vectors(x), kept, source, counted[:, None, None])
        return read_head(self.model.output, hidden[kept], want)

    def weights(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        """The weights [S] fp32 of each source's positions: see `nartk.protocols.timestamps.cif_times`."""
        return [each.alpha.float().cpu().numpy() for each in self._fired(memory)]

    def spans(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        return fire_spans(self.weights(memory), self.frames(memory))

    def encoded(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        return [each.memory.float().cpu().numpy() for each in self._fired(memory)]

    def _fired(self, memory: Sequence[int] | IntArray) -> list[_Fired]:
        return [self._memories[int(handle)] for handle in memory]


def _padded(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Rows [n,D] as one tensor, padded on the right, and which of it counts."""
    lengths = torch.tensor([len(row) for row in rows], device=rows[0].device)
    padded = pad_sequence(list(rows), batch_first=True)
    return padded, torch.arange(padded.shape[1], device=padded.device) < lengths[:, None]
