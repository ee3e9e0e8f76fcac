"""Pass scorers without a network: their scores are exact integers, so equality is equality.

A cell holds a token and its position, and every score is computed from the cells that a token sees. A loop
that keeps a rejected token, mixes up rows or miscounts positions gets other scores and so other outputs, or
fails at once.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nartk.protocols.contexts import Contexts, Handles, check_sources
from nartk.protocols.hypothesis import Request, Result
from nartk.protocols.passes import FloatArray, IntArray, Limits, Pass, Scores, Want
from nartk.protocols.reading import PassScores, check_want, read
from nartk.vocab import SPECIALS, Vocab

PAD, EOS = 1, 2
LIMITS = 512  # tokens of a source, positions of an output

_MASK = 2**64 - 1
_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of splitmix64

WordArray = npt.NDArray[np.uint64]


def mix_int(x: int) -> int:
    """splitmix64's finaliser: every bit of the result depends on every bit of x."""
    x = ((x ^ (x >> 30)) * _FIRST) & _MASK
    x = ((x ^ (x >> 27)) * _SECOND) & _MASK
    return x ^ (x >> 31)


def mix(x: WordArray) -> WordArray:
    """The same on an array."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_FIRST)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_SECOND)
    return x ^ (x >> np.uint64(31))


def marks(tokens: npt.ArrayLike, positions: npt.ArrayLike, salt: int) -> WordArray:
    """A number for each token at its position; a path's key is their sum."""
    token, position = (np.asarray(x, np.int64).astype(np.uint64) for x in (tokens, positions))
    one = np.uint64(1)
    return mix(np.uint64(salt) + (position + one) * np.uint64(_FIRST) + (token + one) * np.uint64(_SECOND))


@dataclasses.dataclass(frozen=True)
class Table:
    """A table from (source, prefix) to integer scores, too large to store: a hash gives its entries.

    Scores lie in 0 .. spread-1, so that ties are common; the source's word at the output's position, moved
    by up to one position to either side in each stretch of `stretch` tokens, gains `bonus`, so that drafts
    from the source are accepted now and then. Past the source's end eos gains it; before it, eos loses
    `patience`.
    """

    words: int
    seed: int = 0
    spread: int = 8
    bonus: int = 6
    stretch: int = 5
    patience: int = 4

    def source_key(self, source: Sequence[int]) -> int:
        return (self.seed + int(marks(source, range(len(source)), 1).sum())) & _MASK

    def scores(
        self,
        sources: Sequence[Sequence[int]],
        source_keys: Sequence[int],
        keys: WordArray,
        sizes: Sequence[int],
    ) -> npt.NDArray[np.int64]:
        """Scores [N,V] after prefixes with keys [N] and so many tokens [N], the start token among them."""
        of_source = np.array(source_keys, np.uint64)
        key = of_source + keys
        step = np.arange(self.words, dtype=np.uint64) * np.uint64(_GAMMA)
        drawn = (mix(key[:, None] + step) >> np.uint64(40)).astype(np.int64) & 0xFFFF
        scores = drawn % self.spread
        positions = np.array(sizes, np.int64) - 1
        moved = mix(of_source + (positions // self.stretch).astype(np.uint64)) >> np.uint64(40)
        at = positions + (moved.astype(np.int64) & 0xFFFF) % 3 - 1
        for i, (source, place) in enumerate(zip(sources, at.tolist(), strict=True)):
            favourite = source[place] if 0 <= place < len(source) else EOS
            scores[i, favourite % self.words] += self.bonus
            if positions[i] < len(source) - 1:
                scores[i, EOS] -= self.patience
        return scores

    def scores_by_hand(self, source: Sequence[int], prefix: Sequence[int]) -> list[int]:
        """The scores after `prefix` (start token first) in plain Python: the oracle of `scores`."""

        def key_of(tokens: Sequence[int], salt: int) -> int:
            total = 0
            for i, token in enumerate(tokens):
                total += mix_int((salt + (i + 1) * _FIRST + (token + 1) * _SECOND) & _MASK)
            return total

        source_key = self.seed + key_of(source, 1)
        key = source_key + key_of(prefix, 2)
        drawn = [((mix_int((key + v * _GAMMA) & _MASK) >> 40) & 0xFFFF) for v in range(self.words)]
        scores = [each % self.spread for each in drawn]
        position = len(prefix) - 1
        moved = mix_int((source_key + position // self.stretch) & _MASK)
        at = position + ((moved >> 40) & 0xFFFF) % 3 - 1
        favourite = source[at] if 0 <= at < len(source) else EOS
        scores[favourite % self.words] += self.bonus
        if position < len(source) - 1:
            scores[EOS] -= self.patience
        return scores


class ScriptedPasses(Contexts):
    """Implements nartk.protocols.passes.PassScorer and CopiesSource; subclasses give the scores.

    Attributes:
        passes: The passes that were run.
        encoded: How many sources each call of `encode` was given.
    """

    def __init__(self, words: int, *, start_token: int = EOS) -> None:
        super().__init__(Limits(source=LIMITS, target=LIMITS, words=words))
        self.vocab = Vocab((*SPECIALS, *(f"w{i}" for i in range(words - len(SPECIALS)))))
        self.source_vocab: Vocab | None = None  # that of outputs
        self.start_token = start_token
        self.source_to_target: IntArray = np.arange(words, dtype=np.int32)
        self.sources: Handles[tuple[int, ...]] = Handles("memory")
        self.passes: list[Pass] = []
        self.encoded: list[int] = []
        self._tokens = np.zeros(0, np.int64)  # of each cell
        self._positions = np.zeros(0, np.int64)

    def encode(self, sources: Sequence[Sequence[int]]) -> IntArray:
        check_sources(sources, longest=LIMITS, words=10**6)
        self.encoded.append(len(sources))
        return self.sources.add(tuple(source) for source in sources)

    def free(self, memory: Sequence[int] | IntArray) -> None:
        self.sources.remove(memory)

    def encodings(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        """Its words, each a vector of one feature."""
        return [np.array(self.sources[int(handle)], np.float32)[:, None] for handle in memory]

    def run(self, work: Pass, want: Want) -> PassScores:
        check_want(want, len(work.tokens), len(self.vocab))
        waiting = self.begin(work, self.sources)
        self.passes.append(work)
        grown = max(0, self.size - len(self._tokens))
        self._tokens = np.pad(self._tokens, (0, 2 * grown), constant_values=-1)
        self._positions = np.pad(self._positions, (0, 2 * grown), constant_values=-1)
        self._tokens[waiting.cells], self._positions[waiting.cells] = work.tokens, work.positions
        sizes = [len(seen) for seen in waiting.visible]
        seen = [cell for cells in waiting.visible for cell in cells]
        ramp = np.concatenate([np.arange(size) for size in sizes])
        assert (self._positions[seen] == ramp).all(), "a token whose position is not its place in its path"
        scored = range(len(sizes)) if want.only is None else want.only.tolist()
        paths = np.split(self._tokens[seen], np.cumsum(sizes)[:-1])
        memory = work.memory.tolist()
        logits = self.scores([self.sources[memory[i]] for i in scored], [paths[i] for i in scored])
        logits = logits.astype(np.float32)
        return PassScores(read(logits, want), self, waiting, lambda index: logits[list(index)], want.words)

    def words(self, features: FloatArray, want: Want) -> Scores:
        raise NotImplementedError("a table has no features")

    def scores(self, sources: Sequence[tuple[int, ...]], paths: Sequence[npt.NDArray[np.int64]]) -> Any:
        """Scores [N,V] after paths of tokens, the start token first."""
        raise NotImplementedError

    @property
    def in_use(self) -> tuple[int, int]:
        """Cells and encoded sources that were not given back."""
        return self.cells_in_use, len(self.sources)


class TablePasses(ScriptedPasses):
    """Scores by a table."""

    def __init__(self, table: Table) -> None:
        super().__init__(table.words)
        self.table = table
        self._keys: dict[tuple[int, ...], int] = {}

    def scores(self, sources: Sequence[tuple[int, ...]], paths: Sequence[npt.NDArray[np.int64]]) -> Any:
        for source in sources:
            if source not in self._keys:
                self._keys[source] = self.table.source_key(source)
        sizes = [len(path) for path in paths]
        ramp = np.concatenate([np.arange(size) for size in sizes])
        begins = np.cumsum([0, *sizes[:-1]])
        keys = np.add.reduceat(marks(np.concatenate(paths), ramp, 2), begins)
        return self.table.scores(sources, [self._keys[source] for source in sources], keys, sizes)


class ScriptPasses(ScriptedPasses):
    """Outputs what the script has for each source, which ends with eos; pad after any other prefix."""

    def __init__(self, words: int, script: Mapping[tuple[int, ...], Sequence[int]]) -> None:
        super().__init__(words)
        self.script = {source: tuple(output) for source, output in script.items()}

    def scores(self, sources: Sequence[tuple[int, ...]], paths: Sequence[npt.NDArray[np.int64]]) -> Any:
        logits = np.zeros((len(sources), len(self.vocab)))
        for row, source, path in zip(logits, sources, paths, strict=True):
            output, before = self.script[source], tuple(path[1:].tolist())
            follows = len(before) < len(output) and output[: len(before)] == before
            row[output[len(before)] if follows else PAD] = 1
        return logits


def decode(
    strategy: Any,
    scorer: Any,
    requests: Sequence[Request],
    *,
    batch_size: int = 8,
    max_tokens: int | None = None,
    trace: bool = False,
) -> list[Result]:
    """The results of requests numbered from 0, in their order, each exactly once; all is given back."""
    found = list(strategy.run(scorer, requests, batch_size=batch_size, max_tokens=max_tokens, trace=trace))
    assert sorted(result.index for result in found) == [request.index for request in requests]
    assert scorer.cells_in_use == 0, "cells that were not given back"
    assert getattr(scorer, "in_use", (0, 0)) == (0, 0), "sources that were not given back"
    return sorted(found, key=lambda result: result.index)


def outputs_of(results: Sequence[Result]) -> list[list[int]]:
    """The tokens of each result's best hypothesis."""
    return [list(result.hypotheses[0].tokens) for result in results]


def differing(found: Sequence[object], wanted: Sequence[object]) -> list[int]:
    """The indices in which two lists of equal length differ."""
    return [i for i, (a, b) in enumerate(zip(found, wanted, strict=True)) if a != b]


def plain_greedy(table: Table, requests: Sequence[Request]) -> list[list[int]]:
    """Greedy search as the textbook has it, without cells, drafts or batches that change: the reference.

    It shares no code with nartk. Of equal scores the first word wins.
    """
    outputs: list[list[int]] = [[] for _ in requests]
    source_keys = [table.source_key(request.source) for request in requests]
    live = list(range(len(requests)))
    for t in range(max((request.max_len for request in requests), default=0)):
        prefixes = np.array([[EOS, *outputs[i]] for i in live])
        keys = marks(prefixes, np.arange(t + 1), 2).sum(1, dtype=np.uint64)
        sources = [requests[i].source for i in live]
        scores = table.scores(sources, [source_keys[i] for i in live], keys, [t + 1] * len(live))
        best = scores.argmax(1).tolist()  # NumPy documents that the first of equals wins
        for i, word in zip(live, best, strict=True):
            forced = requests[i].prefix
            outputs[i].append(forced[t] if t < len(forced) else word)
        live = [i for i in live if outputs[i][-1] != EOS and t + 1 < requests[i].max_len]
        if not live:
            break
    return outputs


def random_table(rng: random.Random) -> TablePasses:
    """A scorer with a random table; in half of the cases some words of the source have no target word."""
    scorer = TablePasses(
        Table(
            4 + rng.randint(2, 50),
            seed=rng.getrandbits(60),
            spread=rng.choice([1, 2, 4, 8, 50]),
            bonus=rng.choice([0, 1, 2, 4, 8, 40]),
            stretch=rng.randint(1, 20),
            patience=rng.choice([0, 2, 8, 40]),
        )
    )
    if rng.random() < 0.5:
        unmapped = [rng.random() < 0.1 for _ in range(scorer.table.words)]
        scorer.source_to_target = np.where(unmapped, -1, scorer.source_to_target).astype(np.int32)
    return scorer


def random_request(rng: random.Random, index: int, words: int, longest: int = 64) -> Request:
    """A source of 0 to `longest` words, eos after them and perhaps among them, often with repeats."""
    size = rng.randint(0, longest)
    used = rng.sample(range(words), rng.randint(1, min(words, 12)))
    source = [rng.choice(used) for _ in range(size)]
    prefix = tuple(rng.randrange(3, words) for _ in range(rng.choice([0, 0, 0, 1, 5])))
    max_len = min(rng.randint(1, 64), rng.randint(1, 64))  # long ones cost time
    return Request(index, (*source, EOS), max_len, prefix[:max_len])


def edge_request(rng: random.Random, index: int, words: int) -> Request:
    """A source of 0, 1 or 2 words or with eos first, twice or inside, and a limit of a few tokens."""
    word = rng.randrange(4, words)
    anything = tuple(rng.randrange(words) for _ in range(40))
    source = rng.choice(
        [
            (),
            (word,),
            (EOS,),
            (PAD,),
            (EOS, word),
            (word, EOS, word, word),
            (EOS,) * 3,
            (word,) * 40,
            anything,
        ]
    )
    max_len = rng.choice([1, 1, 2, 3, 4, 64])
    prefix = rng.choice([(), (), (), (word,), (EOS,), (word, EOS), (word,) * 10])[:max_len]
    drafts = rng.choice([(), ((),), (source,), ((EOS,),), ((word, EOS, EOS), source)])
    return Request(index, (*source, EOS), max_len, prefix, drafts)
