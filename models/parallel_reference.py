"""Mixins of the reference scorers for `nartk.protocols.parallel`, in eager torch, on any device.

What is wanted of a pass comes to the host once.

Symbols: B sources, S positions of the encoder, R rows, T positions of a row, N positions of all rows, n of
them scored, L vertices of a graph, V words, D features of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nartk.models.dag_paths import find_paths
from nartk.models.lengths import pool
from nartk.models.reference import Held, OnTorch, check_logits, padded, read_head, results_of
from nartk.models.transformer import Encoded
from nartk.protocols.parallel import Canvas, GraphPath, Graphs, PathSearch, spread_lengths
from nartk.protocols.passes import FloatArray, IntArray, Scores, Want
from nartk.protocols.reading import NothingRead
from nartk.protocols.timestamps import fire_spans, frame_spans
from nartk.vocab import MASK


class HeadFramesOnTorch(OnTorch):
    """Implements `FrameScorer` by the CTC head of an encoder."""

    blank: int | None = MASK

    def frames(self, memory: Sequence[int] | IntArray) -> IntArray:
        return self._counts(memory)

    @torch.inference_mode()
    def read_frames(self, memory: Sequence[int] | IntArray, want: Want) -> Scores:
        rows = [each.memory for each in self._rows(memory)]
        return read_head(self.model.encoder.ctc, torch.cat(rows), want)

    def spans(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        return frame_spans(self.frames(memory), [each.front for each in self._rows(memory)])


class FillsOnTorch(OnTorch):
    """Runs a decoder that sees all its positions at once."""

    def _filled(self, x: Tensor, kept: Tensor, sources: Encoded) -> Tensor:
        """The decoder over inputs x [R,T,D], of which `kept` [R,T] counts -> [N,D]."""
        filled: Tensor = self.model.fill(x, kept, sources.memory, sources.kept[:, None, None])
        return filled[kept]

    def _read(self, x: Tensor, kept: Tensor, sources: Encoded, want: Want) -> Scores:
        return read_head(self.model.output, self._filled(x, kept, sources), want)


class DecoderFramesOnTorch(FillsOnTorch):
    """Implements `FrameScorer` by a decoder that gives each position of the encoder several frames."""

    blank: int | None = MASK

    def frames(self, memory: Sequence[int] | IntArray) -> IntArray:
        return self._counts(memory) * np.int32(self.model.config.upsample)

    @torch.inference_mode()
    def read_frames(self, memory: Sequence[int] | IntArray, want: Want) -> Scores:
        sources = self._sources(memory)
        x = self.model.embed_vectors(self.model.frames(sources))
        return self._read(x, sources.kept.repeat_interleave(self.model.config.upsample, 1), sources, want)


class _Canvases(FillsOnTorch):
    mask = MASK

    def _inputs(self, canvas: Tensor, kept: Tensor, sources: Encoded) -> Tensor:
        """The decoder's inputs [R,T,D] of a canvas [R,T] of which `kept` [R,T] counts."""
        raise NotImplementedError

    @torch.inference_mode()
    def fill(self, canvas: Canvas, want: Want) -> Scores:
        sources = self._sources(canvas.memory)
        words = torch.tensor(canvas.words, dtype=torch.int64, device=self.device)
        rows = pad_sequence(
            list(words.split(canvas.lengths.tolist())), batch_first=True, padding_value=self.vocab.pad
        )
        lengths = torch.tensor(canvas.lengths, device=self.device)
        kept = torch.arange(rows.shape[1], device=self.device) < lengths[:, None]
        return self._read(self._inputs(rows, kept, sources), kept, sources, want)


class BlocksOnTorch(_Canvases):
    """Implements `BlockScorer`."""

    @property
    def block(self) -> int:
        found: int = self.model.config.block
        return found

    def _inputs(self, canvas: Tensor, kept: Tensor, sources: Encoded) -> Tensor:
        found: Tensor = self.model.embed_words(canvas)
        return found


class CanvasesOnTorch(_Canvases):
    """Implements `CanvasScorer`."""

    @torch.inference_mode()
    def predict_lengths(self, memory: Sequence[int] | IntArray) -> FloatArray:
        logits = self.model.length_logits(self._sources(memory)).float().cpu().numpy()
        return spread_lengths(logits, self._counts(memory), self.limits.target)

    def _inputs(self, canvas: Tensor, kept: Tensor, sources: Encoded) -> Tensor:
        found: Tensor = self.model.inputs(canvas, kept.sum(1), sources)
        return found


class GraphsOnTorch(Graphs):
    """Graphs that stay on a device.

    Attributes:
        hidden: Features [N,D], in the model's type.
        edges: Links [B,L,L] of all, L the vertices of the largest; minus infinity behind a graph's.
    """

    def __init__(self, sizes: IntArray, hidden: Tensor, edges: Tensor) -> None:
        self.sizes, self.hidden, self.edges = sizes, hidden, edges

    @cached_property
    def features(self) -> FloatArray:
        return self.hidden.float().cpu().numpy()

    @cached_property
    def links(self) -> tuple[FloatArray, ...]:
        every = zip(self.edges.cpu().numpy(), self.sizes.tolist(), strict=True)
        return tuple(own[:size, :size] for own, size in every)

    def features_of(self, vertices: IntArray) -> FloatArray:
        return self.at(vertices).float().cpu().numpy()

    def at(self, vertices: IntArray) -> Tensor:
        """Features [n,D] of vertices."""
        return self.hidden[torch.tensor(vertices, dtype=torch.int64, device=self.hidden.device)]


class GraphOnTorch(FillsOnTorch):
    """Implements `PathScorer`.

    A graph has `upsample_scale` (of a range, the larger) times as many vertices as its source has positions,
    or as its output is predicted to have; never more than the model has positions, `max_target_len`.
    """

    @torch.inference_mode()
    def graphs(self, memory: Sequence[int] | IntArray) -> GraphsOnTorch:
        model, sources = self.model, self._sources(memory)
        lengths = sources.lengths
        if model.config.upsampling == "predict":
            lengths = model.length_of(model.lengths(pool(sources.memory, sources.kept)), lengths)
        sizes = model.sizes(lengths, model.config.scales[1])
        canvas = model.canvas(sizes)
        kept = torch.arange(canvas.shape[1], device=self.device) < sizes[:, None]
        hidden = model.fill(model.inputs(canvas, sources), kept, sources.memory, sources.kept[:, None, None])
        return GraphsOnTorch(sizes.int().cpu().numpy(), hidden[kept], model.links(hidden, sizes))

    @torch.inference_mode()
    def words_at(self, graphs: GraphsOnTorch, vertices: IntArray, want: Want) -> Scores:
        return read_head(self.model.output, graphs.at(vertices), want)

    @torch.inference_mode()
    def best_paths(self, graphs: GraphsOnTorch, search: PathSearch) -> list[GraphPath]:
        edges, begins, ends = graphs.edges, self._tensor(graphs.begins), self._tensor(graphs.ends)
        words: list[Tensor] = []  # and their log-probabilities, at all N vertices
        if search.weight:
            last = torch.isin(torch.arange(len(graphs.hidden), device=self.device), ends)
            words = self._likeliest(graphs.hidden, last)
            kept = torch.arange(edges.shape[1], device=self.device) <= (ends - begins)[:, None]
            own = torch.zeros(kept.shape, device=self.device)
            own[kept] = search.weight * words[1]
            edges = edges + own[:, None]
        paths = find_paths(edges, (graphs.sizes - 1).tolist(), search)
        before, after = paths[:, :-1], paths[:, 1:]
        rows = torch.arange(len(paths), device=self.device)[:, None]
        visited = begins[:, None] + after
        links = graphs.edges[rows, before, after].float()
        vertices, *read = _fetched([after, links, *(each[visited] for each in words)])

        counts = (vertices == graphs.sizes[:, None] - 1).argmax(1) + 1
        taken = np.arange(vertices.shape[1]) < counts[:, None]
        read = [each[taken] for each in read]
        if not words:  # are asked for on the paths alone
            at = visited[torch.from_numpy(taken).to(self.device)]
            read += _fetched(self._likeliest(graphs.hidden[at], torch.isin(at, ends)))
        lprobs, *emitted = (np.split(each, counts.cumsum()[:-1]) for each in read)
        each = zip(vertices.tolist(), counts.tolist(), strict=True)
        return [*map(GraphPath, ([0, *row[:count]] for row, count in each), *emitted, lprobs)]

    def _likeliest(self, features: Tensor, last: Tensor) -> list[Tensor]:
        """The likeliest words of n vertices, which is eos of last ones, and their log-probabilities.

        Raises:
            PassError: A vertex has wrong logits.
        """
        vocab, logits = self.vocab, self.model.output(features).float()
        check_logits(logits)
        silent = torch.zeros(logits.shape[1], dtype=torch.bool, device=self.device)
        silent[[vocab.bos, vocab.pad, vocab.eos]] = True
        given = torch.full_like(last, vocab.eos, dtype=torch.int64)
        found = results_of(logits, silent.expand_as(logits), given=given)
        words = torch.where(last, vocab.eos, found["best"])
        return [words, torch.where(last, found["given_log_probs"], found["log_probs"])]


def _fetched(tensors: Sequence[Tensor]) -> list[npt.NDArray[Any]]:
    """Tensors of one shape on the host, int32 and fp32, in one transfer."""
    block = torch.stack([x.view(torch.int32) if x.is_floating_point() else x.int() for x in tensors])
    return [
        row.view(np.float32) if x.is_floating_point() else row
        for row, x in zip(block.cpu().numpy(), tensors, strict=True)
    ]


class SpeechOnTorch(OnTorch):
    """Implements `MelScorer` for a network with an adaptor and an acoustic part."""

    @torch.inference_mode()
    def spectrograms(self, features: Sequence[FloatArray]) -> list[FloatArray]:
        if not features:
            return []
        x, kept = padded([self._floats(each) for each in features])
        mels = self.model.acoustic.mel(self.model.adaptor(x), kept)
        return [each.float().cpu().numpy() for each in mels]

    def _floats(self, values: FloatArray) -> Tensor:
        return torch.tensor(values, dtype=self.dtype, device=self.device)


class EncodedOnTorch(OnTorch):
    """Implements `EncodedScorer`."""

    def encoded(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        return [each.memory.float().cpu().numpy() for each in self._rows(memory)]


class FiresOnTorch(EncodedOnTorch, FillsOnTorch):
    """Implements `FireScorer`: its frames are the predictor's fires, which each emit a word."""

    blank: int | None = None

    @property
    def tail(self) -> float:
        found: float = self.model.config.tail_threshold
        return found

    def _remember(self, encoded: Encoded, held: Sequence[Held]) -> None:
        super()._remember(encoded, held)
        embeddings, counts, alpha = self.model.fires(encoded.memory, encoded.kept)
        for i, (each, count) in enumerate(zip(held, counts.tolist(), strict=True)):
            each.beside |= {"alpha": alpha[i, : len(each.memory)], "fires": embeddings[i, :count]}

    def _fires(self, memory: Sequence[int] | IntArray) -> list[Tensor]:
        return [each.beside["fires"] for each in self._rows(memory)]

    def frames(self, memory: Sequence[int] | IntArray) -> IntArray:
        return torch.tensor([len(each) for each in self._fires(memory)], dtype=torch.int32).numpy()

    @torch.inference_mode()
    def read_frames(self, memory: Sequence[int] | IntArray, want: Want) -> Scores:
        fires = self._fires(memory)
        fired = [handle for handle, own in zip(memory, fires, strict=True) if len(own)]
        if not fired:
            return NothingRead(self.limits.words, want)
        return self._read_embeddings([own for own in fires if len(own)], fired, want)

    @torch.inference_mode()
    def read_fires(self, memory: Sequence[int] | IntArray, fires: Sequence[FloatArray], want: Want) -> Scores:
        own = self._fires(memory)
        given = [
            torch.from_numpy(each).to(like.device, like.dtype) for each, like in zip(fires, own, strict=True)
        ]
        return self._read_embeddings(given, memory, want)

    def _read_embeddings(
        self, embeddings: list[Tensor], memory: Sequence[int] | IntArray, want: Want
    ) -> Scores:
        x, kept = padded(embeddings)
        return self._read(self.model.embed_vectors(x), kept, self._sources(memory), want)

    def weights(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        """The weights [S] fp32 of each source's positions: see `nartk.protocols.timestamps.cif_times`."""
        return [each.beside["alpha"].float().cpu().numpy() for each in self._rows(memory)]

    def spans(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        return fire_spans(self.weights(memory), self.frames(memory))
