"""Random graphs of a parallel model, without a network."""

from __future__ import annotations

import copy
import itertools
import math
import random
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from nartk.hypothesis import Request
from nartk.scorer import Graph, Source
from nartk.vocab import Vocab

EOS = 2


class ScriptedGraphs:
    """Implements GraphScorer: random graphs, the i-th for sources that begin with word i.

    Features are the numbers of graph and vertex, from which `words` looks logits up and counts how often.
    """

    def __init__(
        self, seed: int, *, graphs: int, largest: int, words: int, spread: float = 2.0, device: Any = "cpu"
    ) -> None:
        rng = random.Random(seed)
        self.vocab = Vocab.from_words([f"w{i}" for i in range(words - 4)])
        self.device = torch.device(device)
        self.sizes = [rng.randint(2, largest) for _ in range(graphs)]
        self.links = [
            [log_softmax([rng.gauss(0, spread) if j > i else -math.inf for j in range(size)])
             for i in range(size)]
            for size in self.sizes
        ]  # fmt: skip
        self.logits = [
            [[rng.gauss(0, spread) for _ in range(words)] for _ in range(size)] for size in self.sizes
        ]
        self.asked: list[tuple[int, int]] = []

    def mode(self, *, exact: bool) -> ScriptedGraphs:
        return copy.copy(self)

    def bucket(self, source_len: int, max_len: int) -> Hashable:
        return None

    def emit(self, source: Source) -> Graph:
        numbers = source.tokens[:, 0].tolist()
        width = max(self.sizes[i] for i in numbers)
        links = torch.full((len(numbers), width, width), -math.inf)
        hidden = torch.full((len(numbers), width, 2), -1)
        for row, i in enumerate(numbers):
            size = self.sizes[i]
            links[row, :size, :size] = torch.tensor(self.links[i])
            hidden[row, :size] = torch.tensor([[i, vertex] for vertex in range(size)])
        lengths = torch.tensor([self.sizes[i] for i in numbers])
        return Graph(hidden.to(self.device), links.to(self.device), lengths.to(self.device))

    def words(self, hidden: Tensor) -> Tensor:
        found = [(i, vertex) for i, vertex in hidden.tolist()]
        self.asked += found
        logits = torch.tensor([self.logits[i][vertex] for i, vertex in found], device=self.device)
        return logits.view(-1, len(self.vocab))

    def requests(self) -> list[Request]:
        return [Request(i, (i, EOS), 100) for i in range(len(self.sizes))]

    def lprobs(self, i: int, vertex: int) -> list[float]:
        return log_softmax(self.logits[i][vertex])

    def paths(self, i: int) -> list[tuple[int, ...]]:
        last = self.sizes[i] - 1
        inner = (p for n in range(last) for p in itertools.combinations(range(1, last), n))
        return [(0, *path, last) for path in inner]


def log_softmax(scores: Sequence[float]) -> list[float]:
    mass = sum(map(math.exp, scores))
    return [score - math.log(mass) if mass else -math.inf for score in scores]
