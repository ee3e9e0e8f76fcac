"""The reference scorers of non-autoregressive models: `protocols.parallel` in eager torch, on any device.

The engine is tested against them, and they serve a GPU. What is wanted of a pass comes to the host once.

Symbols: B sources, S source positions, R rows, T positions of a row, N positions of all rows, n of them
scored, L vertices of a graph, V words, D features of the model.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from nartk.models.blockwise import Blockwise
from nartk.models.ctc import CtcNat
from nartk.models.da_transformer import DaTransformer
from nartk.models.lengths import pool
from nartk.models.nar import NonAutoregressive
from nartk.models.nat import Nat
from nartk.models.reference import read_tensors
from nartk.protocols.contexts import Handles
from nartk.protocols.parallel import Canvas, Graphs, spread_lengths
from nartk.protocols.passes import FloatArray, IntArray, Limits, Scores, Source, Want, texts_of
from nartk.protocols.reading import Reading, check_want
from nartk.vocab import MASK, Vocab


@dataclass(frozen=True)
class _Sources:
    """The encoded sources of R rows: tokens [R,S], memory [R,S,D], and which positions count, [R,S]."""

    tokens: Tensor
    memory: Tensor
    kept: Tensor

    @property
    def lengths(self) -> Tensor:
        """[R], eos included."""
        return self.kept.sum(1)


class _Read(Reading):
    """Implements `Scores`; logits [n,V] stay on the device until they are asked for."""

    def __init__(self, reading: Reading, logits: Tensor) -> None:
        super().__init__(**vars(reading))
        self._logits = logits

    def rows(self, index: Sequence[int] | IntArray) -> FloatArray:
        return self._logits[torch.tensor(index, dtype=torch.int64, device=self._logits.device)].cpu().numpy()


def read_head(head: nn.Linear, features: Tensor, want: Want) -> Scores:
    """What is wanted of the words that a head predicts of features [N,D]."""
    check_want(want, len(features), head.out_features)
    if want.only is not None:
        features = features[torch.tensor(want.only, dtype=torch.int64, device=features.device)]
    logits = head(features).float()
    return _Read(read_tensors(logits, want, features), logits)


class _Reference:
    """Base of the scorers: a network on a device, and its encoded sources.

    Args:
        model: Left as it is; a copy is served.
        source_vocab: Where it differs from the target's `vocab`.
        dtype: Of weights and activations: float32, bfloat16 or float16.
    """

    def __init__(
        self,
        model: NonAutoregressive,
        vocab: Vocab,
        *,
        source_vocab: Vocab | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        config = model.config
        self.vocab, self.device, self.dtype = vocab, torch.device(device), dtype
        self.limits = Limits(config.max_source_len, config.target_positions, len(vocab))
        self.numerics = f"reference|torch:{torch.__version__}"  # what a signature says of how it computes
        self.model: Any = copy.deepcopy(model).eval().requires_grad_(False).to(self.device, dtype)
        self._memories: Handles[tuple[Tensor, Tensor]] = Handles("memory")  # tokens [S] and memory [S,D]

    @torch.inference_mode()
    def encode(self, sources: Sequence[Source]) -> IntArray:
        texts = texts_of(sources)
        memory, kept = self.model.encoder.read(sources)
        each = (torch.tensor(text, device=self.device) for text in texts)
        rows = (row[own] for row, own in zip(memory, kept, strict=True))
        return self._memories.add(zip(each, rows, strict=True))

    def free(self, memory: Sequence[int] | IntArray) -> None:
        self._memories.remove(memory)

    def _padded(self, rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Rows as one tensor, padded on the right, and which positions of it count."""
        counts = torch.tensor([len(row) for row in rows], device=self.device)
        padded = pad_sequence(list(rows), batch_first=True, padding_value=self.vocab.pad)
        return padded, torch.arange(padded.shape[1], device=self.device) < counts[:, None]

    def _sources(self, memory: Sequence[int] | IntArray) -> _Sources:
        held = [self._memories[int(handle)] for handle in memory]
        tokens, kept = self._padded([tokens for tokens, _ in held])
        return _Sources(tokens, pad_sequence([each for _, each in held], batch_first=True), kept)

    def _counts(self, memory: Sequence[int] | IntArray) -> IntArray:
        """Tokens [R] of sources."""
        return np.array([len(self._memories[int(handle)][0]) for handle in memory], np.int32)

    def _fill(self, x: Tensor, kept: Tensor, sources: _Sources) -> Tensor:
        """The decoder over inputs x [R,T,D], of which `kept` [R,T] counts -> [R,T,D]."""
        return self.model.fill(x, kept, sources.memory, sources.kept[:, None, None])

    def _read(self, features: Tensor, want: Want) -> Scores:
        """What is wanted of features [N,D]."""
        return read_head(self.model.output, features, want)


class CtcReference(_Reference):
    """Implements `nartk.protocols.parallel.FrameScorer` for a `CtcNat`."""

    model: CtcNat
    blank: int | None = MASK

    def frames(self, memory: Sequence[int] | IntArray) -> IntArray:
        return self._counts(memory) * np.int32(self.model.config.upsample)

    @torch.inference_mode()
    def read_frames(self, memory: Sequence[int] | IntArray, want: Want) -> Scores:
        sources = self._sources(memory)
        x = self.model.embed_vectors(self.model.frames(sources.tokens, sources.memory))
        kept = sources.kept.repeat_interleave(self.model.config.upsample, 1)
        return self._read(self._fill(x, kept, sources)[kept], want)


class _Filling(_Reference):
    mask = MASK

    def _inputs(self, canvas: Tensor, kept: Tensor, sources: _Sources) -> Tensor:
        """The decoder's inputs [R,T,D] of a canvas [R,T] of which `kept` [R,T] counts."""
        raise NotImplementedError

    @torch.inference_mode()
    def fill(self, canvas: Canvas, want: Want) -> Scores:
        sources = self._sources(canvas.memory)
        words = torch.tensor(canvas.words, dtype=torch.int64, device=self.device)
        padded, kept = self._padded(words.split(canvas.lengths.tolist()))
        return self._read(self._fill(self._inputs(padded, kept, sources), kept, sources)[kept], want)


class BlockwiseReference(_Filling):
    """Implements `nartk.protocols.parallel.BlockScorer` for a `Blockwise`."""

    model: Blockwise

    @property
    def block(self) -> int:
        return self.model.config.block

    def _inputs(self, canvas: Tensor, kept: Tensor, sources: _Sources) -> Tensor:
        return self.model.embed_words(canvas)


class NatReference(_Filling):
    """Implements `nartk.protocols.parallel.CanvasScorer` for a `Nat`."""

    model: Nat

    @torch.inference_mode()
    def predict_lengths(self, memory: Sequence[int] | IntArray) -> FloatArray:
        sources = self._sources(memory)
        logits = self.model.length_logits(sources.memory, sources.lengths).float().cpu().numpy()
        return spread_lengths(logits, self._counts(memory), self.limits.target)

    def _inputs(self, canvas: Tensor, kept: Tensor, sources: _Sources) -> Tensor:
        return self.model.inputs(canvas, kept.sum(1), sources.tokens, sources.lengths)


class DagReference(_Reference):
    """Implements `nartk.protocols.parallel.GraphScorer` for a `DaTransformer`.

    A graph has `upsample_scale` (of a range, the larger) times as many vertices as its source has tokens, or
    as its output is predicted to have; never more than the model has positions, `max_target_len`.
    """

    model: DaTransformer

    @torch.inference_mode()
    def graphs(self, memory: Sequence[int] | IntArray) -> Graphs:
        model, sources = self.model, self._sources(memory)
        lengths = sources.lengths
        if model.config.upsampling == "predict":
            lengths = model.length_of(model.lengths(pool(sources.memory, sources.kept)), lengths)
        sizes = model.sizes(lengths, model.config.scales[1])
        canvas = model.canvas(sizes)
        kept = torch.arange(canvas.shape[1], device=self.device) < sizes[:, None]
        hidden = self._fill(model.inputs(canvas, sources.tokens), kept, sources)
        links = model.links(hidden, sizes).cpu().numpy()
        vertices = sizes.int().cpu().numpy()
        each = (own[:size, :size] for own, size in zip(links, vertices.tolist(), strict=True))
        return Graphs(vertices, hidden[kept].float().cpu().numpy(), tuple(each))

    @torch.inference_mode()
    def words(self, features: FloatArray, want: Want) -> Scores:
        return self._read(torch.tensor(features, device=self.device, dtype=self.dtype), want)
