"""Protocols of non-autoregressive models: one call for all positions of any rows.

Sources are encoded once, as in `protocols.passes`, and named by handles. What is asked of a row and what is
known of it lie row after row, without padding; a row's results depend on itself alone.

Symbols: B sources, R rows (some of each source), N positions or frames of all rows, n of them scored, L
vertices of a graph, V words, D features of the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from nartk.protocols.passes import CopiesSource, FloatArray, IntArray, Limits, Ragged, Scores, Source, Want
from nartk.vocab import Vocab

T = TypeVar("T", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Canvas:
    """R canvases that a model fills in one pass, the positions of each before those of the next.

    Attributes:
        memory: [R] int32, handle of the encoded source of each; several may have one.
        lengths: [R] int32, positions of each, at least 1.
        words: [N] int32, the model's `mask` where nothing is filled in.
    """

    memory: IntArray
    lengths: IntArray
    words: IntArray


class Graphs:
    """The graphs of B sources. Edges go from low to high vertices only.

    A scorer on a device gives graphs that stay there: their features and links are copied once asked for.

    Args:
        sizes: [B] int32, vertices L of each; a path goes from vertex 0 to the last.
        features: [N,D] fp32, of the vertices of all graphs.
        links: Log-probabilities [L,L] fp32 of the next vertex, of each graph; minus infinity where there is
            no edge.
    """

    def __init__(self, sizes: IntArray, features: FloatArray, links: tuple[FloatArray, ...]) -> None:
        self.sizes, self._features, self._links = sizes, features, links

    @property
    def features(self) -> FloatArray:
        """[N,D]."""
        return self._features

    @property
    def links(self) -> tuple[FloatArray, ...]:
        """[L,L] of each graph."""
        return self._links

    @property
    def begins(self) -> IntArray:
        """[B], the first of the N vertices of each graph."""
        return (np.cumsum(self.sizes) - self.sizes).astype(np.int32)

    @property
    def vertices(self) -> IntArray:
        """[N], the number of each."""
        return np.arange(self.sizes.sum(), dtype=np.int32)

    @property
    def ends(self) -> IntArray:
        """[B], the last of the N vertices of each graph."""
        return self.begins + self.sizes - 1

    def split(self, values: npt.NDArray[T]) -> list[npt.NDArray[T]]:
        """Values [N,...] of all vertices as those of each graph, [L,...]."""
        return np.split(values, self.begins[1:])

    def features_of(self, vertices: IntArray) -> FloatArray:
        """Features [n,D] of n of the N vertices."""
        return self.features[vertices]

    def __iter__(self) -> Iterator[Graph]:
        return (Graph(self, i) for i in range(len(self.sizes)))


@dataclass(frozen=True, slots=True)
class Graph:
    """One of several graphs."""

    graphs: Graphs
    index: int

    def __len__(self) -> int:
        """L."""
        return int(self.graphs.sizes[self.index])

    @property
    def links(self) -> FloatArray:
        """[L,L], as in `Graphs`."""
        return self.graphs.links[self.index]

    def among(self, vertices: Sequence[int]) -> IntArray:
        """Numbers [n] among the N vertices of n of these L."""
        found: IntArray = self.graphs.begins[self.index] + np.asarray(vertices, np.int32)
        return found

    def features_of(self, vertices: Sequence[int]) -> FloatArray:
        """Features [n,D] of vertices."""
        return self.graphs.features_of(self.among(vertices))


@dataclass(frozen=True, slots=True)
class PathSearch:
    """Description of the path that is wanted through each of B graphs.

    Attributes:
        limits: [B], the most edges of each where `beta` is given.
        beta: The path whose sum of edges, divided by their number ** beta, is the largest (see
            `nartk.decoders.graphs.paths.best_path`); None: the best edge from each vertex (see `walk`).
        weight: To an edge is added the log-probability of its vertex's likeliest word, times this; 0: words
            do not count, and are read on the paths alone.
    """

    limits: Sequence[int]
    beta: float | None = None
    weight: float = 0.0


class GraphPath(NamedTuple):
    """A path through a graph, from vertex 0 to the last.

    Attributes:
        vertices: [P].
        words, log_probs: [P-1], of the vertices behind the first, eos the last.
        edges: [P-1], log-probabilities of the edges.
    """

    vertices: list[int]
    words: IntArray
    log_probs: FloatArray
    edges: FloatArray


class ParallelScorer(Protocol):
    """Protocol that all non-autoregressive models share.

    Attributes:
        vocab: Vocabulary of the target.
        limits: `Limits.target` is the most positions of a row.
    """

    vocab: Vocab
    limits: Limits

    def encode(self, sources: Sequence[Source]) -> IntArray:
        """Encodes sources: a handle for each, [B] int32; raises as `PassScorer.encode` does."""

    def free(self, memory: Sequence[int] | IntArray) -> None:
        """Frees encoded sources; their handles are not to be used again."""


@runtime_checkable
class FrameScorer(ParallelScorer, Protocol):
    """Frames that each say a word or nothing: CTC.

    Attributes:
        blank: Id of the word that stands for nothing; None: every frame says a word.
    """

    blank: int | None

    def frames(self, memory: Sequence[int] | IntArray) -> IntArray:
        """Number of frames of each source, [B] int32: known before they are read."""

    def read_frames(self, memory: Sequence[int] | IntArray, want: Want) -> Scores:
        """Reads what is wanted of all N frames of the sources, in one pass."""


class EncodedScorer(ParallelScorer, Protocol):
    """Gives what the encoder makes of a source."""

    def encoded(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        """The encoder's output [S,D] fp32 of each source."""


@runtime_checkable
class FireScorer(FrameScorer, EncodedScorer, Protocol):
    """Frames that are fires of a predictor and each say a word, `blank` None: Paraformer.

    A fire is a weighted sum of the encoder's output.

    Attributes:
        tail: Weight that is added behind a source, so that what is left of it may fire.
    """

    tail: float

    def weights(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        """The weights [S] fp32 of each source's positions; whenever their sum grows by 1, a frame fires."""

    def read_fires(self, memory: Sequence[int] | IntArray, fires: Sequence[FloatArray], want: Want) -> Scores:
        """Reads what is wanted of other fires [N,D] of each source than its own, as `read_frames` does."""


@runtime_checkable
class TimedFrames(FrameScorer, Protocol):
    """Frames of which is known when in the source they are."""

    def spans(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        """Begin and end of each frame of each source, [N,2], in positions of the encoder."""


class Filler(ParallelScorer, Protocol):
    """Fills positions of canvases at once.

    Attributes:
        mask: Id of an unfilled position.
    """

    mask: int

    def fill(self, canvas: Canvas, want: Want) -> Scores:
        """Reads what is wanted of the N positions of canvases, in one pass.

        Raises:
            PassError: A length, a word or a handle is out of bounds.
        """


@runtime_checkable
class CanvasScorer(Filler, Protocol):
    """Predicts how long an output is, and fills its canvas: glancing models, mask-predict."""

    def predict_lengths(self, memory: Sequence[int] | IntArray) -> FloatArray:
        """[B,limits.target+1] fp32: log-probability that the output has so many tokens, eos included.

        Minus infinity at 0. What the predictor gives to lengths out of bounds goes to the nearest of them.
        """


@runtime_checkable
class BlockScorer(Filler, Protocol):
    """Fills the positions behind a prefix, and knows nothing of lengths: the blockwise drafter."""

    @property
    def block(self) -> int:
        """Positions that it has learnt to fill at once."""


@runtime_checkable
class GraphScorer(ParallelScorer, Protocol):
    """A graph of vertices with a word each, whose paths are the outputs: DA-Transformer.

    Every output begins with bos, at vertex 0, and ends with eos, at the last vertex.
    """

    def graphs(self, memory: Sequence[int] | IntArray) -> Graphs:
        """All vertices and edges of the graphs of sources, in one pass."""

    def words_at(self, graphs: Graphs, vertices: IntArray, want: Want) -> Scores:
        """Reads what is wanted of the words at n of the N vertices: asked for only where they are needed."""


@runtime_checkable
class PathScorer(GraphScorer, Protocol):
    """Finds paths through graphs where these lie, so that no graph is copied."""

    def best_paths(self, graphs: Graphs, search: PathSearch) -> list[GraphPath]:
        """The wanted path through each of B graphs, as `nartk.decoders.graphs.paths.best_paths` finds it."""


@runtime_checkable
class MelScorer(Protocol):
    """A model that speaks: its acoustic part maps the features of an output's tokens to a mel spectrogram."""

    def spectrograms(self, features: Sequence[FloatArray]) -> list[FloatArray]:
        """Log-mel frames [T,F] of outputs, each of the features [N,D] of its tokens' vertices, eos the last.

        An output is cut where the model's longest ends. FastSpeech 2 gives a token at least one frame,
        and eos none.
        """


@runtime_checkable
class PhonemeScorer(EncodedScorer, CopiesSource, MelScorer, Protocol):
    """A model that speaks its sources: the acoustic part reads them as they are encoded."""


def always_banned(words: Sequence[int], count: int) -> Ragged:
    """Forbids the same words at each of `count` positions."""
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(words))
    return Ragged(offsets, np.tile(np.array(words, np.int32), count))


def silent_words(vocab: Vocab, blank: int | None) -> list[int]:
    """The words that no frame emits: bos, pad and eos, but for the blank, or eos where no frame is blank."""
    emitted = vocab.eos if blank is None else blank
    return [word for word in (vocab.bos, vocab.pad, vocab.eos) if word != emitted]


def spread_lengths(logits: FloatArray, source_lengths: Sequence[int] | IntArray, longest: int) -> FloatArray:
    """Log-probabilities [B,longest+1] fp32 of lengths, by logits [B,C] of their difference from the source's.

    The classes are the differences from -(C-1)/2 on. Lengths below 1 count as 1, those above `longest` as
    `longest`. A row is computed by itself, in fp64.
    """
    most = logits.shape[1] // 2
    found = np.zeros((len(logits), longest + 1), np.float64)
    for row, own, source in zip(found, logits.astype(np.float64), source_lengths, strict=True):
        probs = np.exp(own - own.max())
        lengths = np.arange(source - most, source + most + 1).clip(1, longest)
        np.add.at(row, lengths, probs / probs.sum())
    with np.errstate(divide="ignore"):  # lengths that are not reached
        return np.log(found).astype(np.float32)
