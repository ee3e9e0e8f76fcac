"""Drafts from an n-gram cache: what it proposes, and how many passes that takes.

The oracles are a plain Python twin, which searches all texts, and cases worked by hand.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.pass_strategies import Proposes, ngram_cache, verified
from support.scripted_passes import (
    EOS,
    ScriptPasses,
    decode,
    differing,
    outputs_of,
    plain_greedy,
    random_table,
)

from nartk.decoders.drafters.ngram_cache import CachedSentence, NgramCache, Occurrence
from nartk.decoders.loop.acceptance import Verdict
from nartk.decoders.loop.rows import Row
from nartk.protocols.hypothesis import Request
from nartk.registry import make_strategy


class Twin:
    """All texts in the order of their sentences, each with the position before its first word."""

    def __init__(self, max_ngram: int, max_draft: int) -> None:
        self.max_ngram, self.max_draft = max_ngram, max_draft
        self.texts: list[tuple[int, list[int]]] = []
        self.outputs: dict[int, list[int]] = {}

    def begin(self, owner: int, source: Sequence[int]) -> None:
        self.outputs[owner] = [-2]
        self.texts += [(owner, [-2, *source]), (owner, self.outputs[owner])]

    def propose(self, owner: int) -> list[int]:
        output = self.outputs[owner]
        for n in range(min(self.max_ngram, len(output)), 0, -1):
            for own in (True, False):
                for of, text in reversed(self.texts):
                    if own and of != owner:
                        continue
                    for i in reversed(range(len(text) - n)):
                        if text[i : i + n] == output[-n:] and text[i + n] >= 0:
                            found = [*text[i + n : i + n + self.max_draft], -1]
                            return found[: found.index(-1)]
        return []


def grow(cache: NgramCache, row: Row, tokens: Sequence[int]) -> None:
    row.tokens += tokens
    cache.observe([row], [Verdict((), [*tokens], [0.0] * len(tokens))], verified())


def mismatches(make: type[NgramCache], seeds: int) -> int:
    """How often a cache proposes otherwise than the twin, for rows that come, grow and go."""
    wrong = 0
    for seed in range(seeds):
        rng = random.Random(seed)
        words, size = rng.choice([7, 9, 14]), (rng.randint(1, 5), rng.choice([1, 3, 6]))
        targets = np.arange(words, dtype=np.int32)
        targets[-1] = -1
        cache, twin = make(targets, max_ngram=size[0], max_draft=size[1]), Twin(*size)
        rows: list[Row] = []
        for step in range(14):
            if step % 3 == 0:
                sources = [
                    rng.choices(range(4, words), k=rng.randint(0, 9)) for _ in range(rng.randint(1, 3))
                ]
                new = [Request(step * 10 + i, (*source, EOS), 40) for i, source in enumerate(sources)]
                for request, state, source in zip(
                    new, cache.start(new, [0] * len(new)), sources, strict=True
                ):
                    rows.append(Row(request, (EOS,), memory=0, context=0, started=0.0, state=state))
                    twin.begin(request.index, [-1 if word == words - 1 else word for word in source])
            elif len(rows) > 4:
                rows.pop(rng.randrange(len(rows)))
            for row in rows if step % 3 else ():
                # As much as a draft and the verifier's token, some of it as the twin proposes.
                owner = row.request.index
                grown = twin.propose(owner)[: rng.randint(0, size[1])] if row.tokens else []
                grown += rng.choices(range(4, words), k=rng.randint(0 if grown else 1, size[1] + 1))
                twin.outputs[owner] += grown
                grow(cache, row, grown)
            found = [draft.tokens for draft in cache.draft(rows, [40] * len(rows))]
            wrong += len(differing(found, [twin.propose(row.request.index) for row in rows]))
    return wrong


def test_the_cache_proposes_as_its_twin() -> None:
    assert mismatches(NgramCache, 60) == 0


class OthersFirst(NgramCache):
    """Known to be wrong: a text of any sentence counts as much as the row's own."""

    def _record(self, texts: CachedSentence, rank: int, text: list[int], position: int) -> None:
        super()._record(texts, rank, text, position)
        texts.occurrences.clear()


class OldestFirst(NgramCache):
    """Known to be wrong: what was found first stays."""

    def _record(self, texts: CachedSentence, rank: int, text: list[int], position: int) -> None:
        before: list[dict[Any, Occurrence]] = [dict(texts.occurrences), dict(self.young)]
        super()._record(texts, rank, text, position)
        texts.occurrences.update(before[0])
        self.young.update(before[1])


@pytest.mark.parametrize("make", [OthersFirst, OldestFirst])
def test_the_comparison_fails_with_another_order(make: type[NgramCache]) -> None:
    assert mismatches(make, 10) > 0


def passes(strategy: Any, outputs: Sequence[Sequence[int]]) -> list[int]:
    """Passes of each output behind a source of other words, each a little shorter than the one before."""
    count = len(outputs)
    sources = [(*(20 + i for _ in range(count - i)), EOS) for i in range(count)]
    script = dict(zip(sources, ([*output, EOS] for output in outputs), strict=True))
    requests = [Request(i, source, 40) for i, source in enumerate(sources)]
    results = decode(strategy, ScriptPasses(20 + count, script), requests, batch_size=1)
    assert outputs_of(results) == list(script.values())
    return [result.passes for result in results]


class Forgets(NgramCache):
    """Known to be wrong: begins anew with each sentence."""

    def start(self, requests: Sequence[Request], memory: Sequence[int]) -> list[CachedSentence]:
        self.young, self.old = {}, {}
        return super().start(requests, memory)


def test_passes_by_hand() -> None:
    # 4, 5, 6 and 4 come from the verifier; after 4, 5 6 4 stood before, then comes 5; after 5, 6 4 5.
    again = [4, 5, 6, 4, 5, 6, 4, 5, 6]
    assert passes(make_strategy("ngram", {"adaptive": False}), [again]) == [6]
    # With one token a draft: 4, 5, 6, 4, [5] 6, [4] 5, [6] eos.
    assert passes(make_strategy("ngram", {"adaptive": False, "max_draft": 1}), [again]) == [7]
    # The second sentence begins with its source, which is wrong, and goes on with what the first one has.
    output = [4, 5, 6, 7, 8, 9]
    assert passes(make_strategy("ngram", {"adaptive": False}), [output, output]) == [7, 2]
    assert passes(make_strategy("ngram", {"adaptive": False, "max_draft": 0}), [output, output]) == [7, 7]
    forgetting = Proposes(drafter=lambda scorer: Forgets(scorer.source_to_target, max_ngram=4, max_draft=10))
    assert passes(forgetting, [output, output]) == [7, 7]


def test_it_copies_the_source() -> None:
    source = (*range(4, 14), EOS)
    (result,) = decode(
        make_strategy("ngram", {"adaptive": False}),
        ScriptPasses(20, {source: source}),
        [Request(0, source, 40)],
    )
    assert (result.passes, result.drafted, result.accepted) == (1, 10, 10)


def test_it_finds_what_was_output_while_it_paused() -> None:
    request = Request(0, (4, 5, 6, 7, 8, 9, EOS), 30)
    cache = NgramCache(np.arange(20, dtype=np.int32), max_ngram=3, max_draft=4)
    (state,) = cache.start([request], [0])
    row = Row(request, (EOS,), memory=0, context=0, started=0.0, state=state)
    row.tokens += [*range(10, 19), 4, 5, 6]  # which it did not observe
    (draft,) = cache.draft([row], [18])
    assert draft.tokens == [7, 8, 9]


def test_a_run_forgets_the_one_before() -> None:
    strategy = make_strategy("ngram", {"adaptive": False})
    first, second = (passes(strategy, [[4, 5, 6, 7], [4, 5, 6, 7]]) for _ in range(2))
    assert first == second
    assert first[1] < first[0]


def test_memory_is_bounded_and_the_output_stays() -> None:
    made: list[NgramCache] = []

    def small(scorer: Any) -> NgramCache:
        made.append(ngram_cache(grams=64)(scorer))  # type: ignore[arg-type]
        return made[-1]

    rng = random.Random(0)
    for _ in range(6):
        scorer = random_table(rng)
        words = scorer.table.words
        requests = [
            Request(i, (*rng.choices(range(4, words), k=rng.randint(0, 50)), EOS), rng.choice([5, 60]))
            for i in range(40)
        ]
        found = decode(Proposes(drafter=small), scorer, requests, batch_size=rng.choice([1, 2, 8]))
        assert outputs_of(found) == plain_greedy(scorer.table, requests)
        assert sum(result.accepted for result in found) > 0
    assert all(len(cache.young) + len(cache.old) <= 64 + 4 for cache in made)
