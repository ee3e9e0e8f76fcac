"""A graph scorer without a network: the source (g, eos) has graph g."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from nartk.protocols.hypothesis import Request
from nartk.protocols.parallel import Graphs
from nartk.protocols.passes import FloatArray, IntArray, Limits, Scores, Source, Want, texts_of
from nartk.protocols.reading import Reading, read
from nartk.vocab import SPECIALS, Vocab

EOS = 2


@dataclass(frozen=True, eq=False)
class Lattice:
    """One graph: logits of words [L,V] and log-probabilities of links [L,L], in fp64."""

    words: npt.NDArray[np.float64]
    links: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.links)


class _Read(Reading):
    def __init__(self, reading: Reading, logits: FloatArray) -> None:
        super().__init__(**vars(reading))
        self._logits = logits

    def rows(self, index: Sequence[int] | IntArray) -> FloatArray:
        return self._logits[np.asarray(index)]


class Lattices:
    """Implements `GraphScorer`. A vertex's features are the numbers of its graph and itself.

    Attributes:
        asked: Graph and vertex of all words that were read.
    """

    def __init__(self, graphs: Sequence[Lattice]) -> None:
        self.graphs_of = list(graphs)
        size = max((graph.words.shape[1] for graph in graphs), default=len(SPECIALS))
        self.vocab = Vocab((*SPECIALS, *(f"w{i}" for i in range(size - len(SPECIALS)))))
        self.limits = Limits(2, 1000, size)
        self.asked: list[tuple[int, int]] = []
        self.open: list[int] = []

    def encode(self, sources: Sequence[Source]) -> IntArray:
        handles = [text[0] for text in texts_of(sources)]
        self.open += handles
        return np.array(handles, np.int32)

    def free(self, memory: Sequence[int] | IntArray) -> None:
        for handle in memory:
            self.open.remove(int(handle))

    def graphs(self, memory: Sequence[int] | IntArray) -> Graphs:
        sizes = [len(self.graphs_of[i]) for i in memory]
        vertices = [(i, vertex) for i, size in zip(memory, sizes, strict=True) for vertex in range(size)]
        links = tuple(self.graphs_of[i].links.astype(np.float32) for i in memory)
        return Graphs(np.array(sizes, np.int32), np.array(vertices, np.float32), links)

    def words_at(self, graphs: Graphs, vertices: IntArray, want: Want) -> Scores:
        asked = [(int(i), int(vertex)) for i, vertex in graphs.features_of(vertices)]
        self.asked += asked
        logits = np.array([self.graphs_of[i].words[vertex] for i, vertex in asked], np.float32)
        return _Read(read(logits, want), logits)

    def requests(self, limit: int = 100) -> list[Request]:
        return [Request(i, (i, EOS), limit) for i in range(len(self.graphs_of))]


class ScriptedGraphs(Lattices):
    """Random graphs of 2 vertices or more, of words beside the specials too."""

    def __init__(self, seed: int, *, graphs: int, largest: int, words: int, spread: float = 2.0) -> None:
        rng = random.Random(seed)
        self.sizes = [rng.randint(2, largest) for _ in range(graphs)]
        self.links = [
            [log_softmax([rng.gauss(0, spread) if j > i else -math.inf for j in range(size)])
             for i in range(size)]
            for size in self.sizes
        ]  # fmt: skip
        self.logits = [
            [[rng.gauss(0, spread) for _ in range(words)] for _ in range(size)] for size in self.sizes
        ]
        pairs = zip(self.logits, self.links, strict=True)
        super().__init__([Lattice(np.array(logits), np.array(links)) for logits, links in pairs])

    def lprobs(self, i: int, vertex: int) -> list[float]:
        return log_softmax(self.logits[i][vertex])

    def paths(self, i: int) -> list[tuple[int, ...]]:
        last = self.sizes[i] - 1
        inner = (p for n in range(last) for p in itertools.combinations(range(1, last), n))
        return [(0, *path, last) for path in inner]


def log_softmax(scores: Sequence[float]) -> list[float]:
    mass = sum(map(math.exp, scores))
    return [score - math.log(mass) if mass else -math.inf for score in scores]


class ScriptedFrames:
    """Implements `FrameScorer`: the source (g, eos) has frames g, logits [T,V] each."""

    def __init__(self, frames: Sequence[npt.NDArray[np.float64]], vocab: Vocab, blank: int | None) -> None:
        self.frames_of, self.vocab, self.blank = [each.astype(np.float32) for each in frames], vocab, blank
        self.limits = Limits(2, 1000, len(vocab))

    def encode(self, sources: Sequence[Source]) -> IntArray:
        return np.array([text[0] for text in texts_of(sources)], np.int32)

    def free(self, memory: Sequence[int] | IntArray) -> None:
        pass

    def frames(self, memory: Sequence[int] | IntArray) -> IntArray:
        return np.array([len(self.frames_of[i]) for i in memory], np.int32)

    def read_frames(self, memory: Sequence[int] | IntArray, want: Want) -> Scores:
        logits = np.array(list(chain.from_iterable(self.frames_of[i] for i in memory)))
        return _Read(read(logits, want), logits)
