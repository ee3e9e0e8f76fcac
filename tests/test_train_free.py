"""Token recycling: what it proposes, how many passes that takes, and that it changes no bit.

The oracles are a plain Python twin that keeps a dictionary, greedy search, and cases worked by hand. That the
output is greedy search's under exact scores is shown with all other strategies in test_draft_loop.py.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support import engine_models
from support.engine_models import TYPES, alone, bits_of, on_engine, random_network
from support.pass_strategies import paths_of, verified
from support.scripted_passes import (
    EOS,
    ScriptPasses,
    Table,
    TablePasses,
    decode,
    differing,
    outputs_of,
    plain_greedy,
    random_request,
    random_table,
)
from support.transformers_small import random_requests

from nartk.decoders.drafters.token_recycling import TokenRecycling
from nartk.decoders.loop.acceptance import Verdict, Verified
from nartk.decoders.loop.drafter import Draft
from nartk.decoders.loop.rows import Row
from nartk.errors import UsageError
from nartk.protocols.hypothesis import Request, Result
from nartk.registry import make_strategy


def scripted(strategy: Any, outputs: Sequence[Sequence[int]], *, batch_size: int = 1) -> list[Result]:
    """Decodes each output behind a source of other words, each a little shorter than the one before."""
    count = len(outputs)
    sources = [(*(20 + i for _ in range(count - i)), EOS) for i in range(count)]
    script = dict(zip(sources, ([*output, EOS] for output in outputs), strict=True))
    requests = [Request(i, source, 40) for i, source in enumerate(sources)]
    results = decode(strategy, ScriptPasses(20 + count, script), requests, batch_size=batch_size)
    assert outputs_of(results) == list(script.values())
    return results


def passes(strategy: Any, outputs: Sequence[Sequence[int]]) -> list[int]:
    return [result.passes for result in scripted(strategy, outputs)]


def test_a_run_forgets_the_one_before() -> None:
    strategy = make_strategy("recycling", {})
    first, second = (passes(strategy, [[4, 5, 6, 7], [4, 5, 6, 7]]) for _ in range(2))
    assert first == second
    assert first[1] < first[0]


def recycled(
    ranked: dict[int, list[int]], last: int, shape: Sequence[int], longest: int
) -> list[tuple[int, ...]]:
    """The twin: the paths, level by level, of which after the shape's end the first alone is followed."""
    found: list[tuple[int, ...]] = []
    level = [(last,)]
    for depth in range(longest):
        count = shape[depth] if depth < len(shape) else 1
        grown = []
        for path in level if depth < len(shape) else level[:1]:
            if EOS not in path[1:]:
                fresh = [word for word in ranked.get(path[-1], []) if word not in path]
                grown += [(*path, word) for word in fresh[:count]]
        level = grown
        found += [path[1:] for path in level]
    return found


def mismatches(make: type[TokenRecycling], seeds: int) -> int:
    """How often a drafter proposes otherwise than a dictionary of the last ranking after each word."""
    wrong = 0
    for seed in range(seeds):
        rng = random.Random(seed)
        words, k, longest = rng.randint(6, 14), rng.randint(1, 16), rng.randint(0, 5)
        shape = [] if seed % 3 == 0 else rng.choices([1, 2, 3], k=rng.randint(1, 4))
        drafter = make(words, eos=EOS, k=k, max_draft=longest, shape=shape)
        assert drafter.want.top == min(k, words)
        ranked: dict[int, list[int]] = {}
        rows = [
            Row(Request(i, (EOS,), 40), (EOS,), memory=i, context=i, started=0.0)
            for i in range(rng.randint(1, 4))
        ]
        for _ in range(6):
            budgets = [rng.choice([0, 1, 3, 40]) for _ in rows]
            for row, draft, budget in zip(rows, drafter.draft(rows, budgets), budgets, strict=True):
                last = row.tokens[-1] if row.tokens else EOS
                wrong += paths_of(draft) != recycled(ranked, last, shape, min(longest, budget))
            tokens: list[int] = []
            top: list[list[int]] = []
            for row in rows:
                row.draft = Draft(rng.choices(range(words), k=rng.randint(0, longest)))
                tokens += [row.tokens[-1] if row.tokens else EOS, *row.draft.tokens]
            for token in tokens:
                top.append(rng.sample(range(words), words))
                ranked[token] = top[-1][: min(k, words)]
            new = [rng.choices(range(words), k=rng.randint(1, 3)) for _ in rows]
            for row, output in zip(rows, new, strict=True):
                row.tokens += output
            verdicts = [Verdict((), output, [0.0] * len(output)) for output in new]
            drafter.observe(rows, verdicts, verified(tokens, top))
    return wrong


def test_recycling_proposes_as_its_twin() -> None:
    assert mismatches(TokenRecycling, 100) == 0


class OneTooFar(TokenRecycling):
    """Known to be wrong: takes the candidates for those after the next token."""

    def observe(self, rows: Sequence[Row], verdicts: Sequence[Verdict], verified: Verified) -> None:
        top = verified.scores.top
        assert top is not None
        self.matrix.record(np.roll(verified.tokens, -1), top[:, : self.want.top])


class FirstCounts(TokenRecycling):
    """Known to be wrong: of a word that was verified several times the first ranking counts."""

    def observe(self, rows: Sequence[Row], verdicts: Sequence[Verdict], verified: Verified) -> None:
        top = verified.scores.top
        assert top is not None
        self.matrix.record(verified.tokens[::-1], top[::-1, : self.want.top])


class Repeats(TokenRecycling):
    """Known to be wrong: drafts words again that are on the path."""

    def _fresh(self, path: Sequence[int]) -> list[int]:
        return [word for word in self.matrix.after(path[-1]) if word >= 0]


@pytest.mark.parametrize("make", [OneTooFar, FirstCounts, Repeats])
def test_the_recycling_comparison_fails(make: type[TokenRecycling]) -> None:
    assert mismatches(make, 20) > 0


def test_recycling_passes_by_hand() -> None:
    # 4, 5, 6 and 4 come from the verifier; then 5 6 are drafted, but not 4, with which the chain began.
    again = [4, 5, 6, 4, 5, 6, 4, 5, 6]
    assert passes(make_strategy("recycling", {"k": 1}), [again]) == [6]
    # The second sentence follows the first one's words: 4 to 8, then 9, then eos.
    output = [4, 5, 6, 7, 8, 9]
    assert passes(make_strategy("recycling", {"k": 1, "max_draft": 5}), [output, output]) == [7, 2]
    assert passes(make_strategy("recycling", {"max_draft": 0}), [output, output]) == [7, 7]


class SaysSecond(ScriptPasses):
    """Ranks a word second after each token, the same wherever the token is."""

    def scores(self, sources: Sequence[tuple[int, ...]], paths: Sequence[Any]) -> Any:
        logits = 3 * super().scores(sources, paths)
        for row, path in zip(logits, paths, strict=True):
            row[{EOS: 4, 4: 6}.get(int(path[-1]), 0)] += 2
        return logits


def test_a_tree_takes_the_second_candidates_by_hand() -> None:
    """After 4, 5 was best and 6 the second; the next output is 4 6 7 8.

    Its passes as a chain: 4 is drafted, 5 is rejected for 6; after 6, 7 is unknown; after 7, 8 is; then eos.
    As a tree of 2 at the second level, 4 6 are accepted at once.
    """
    first, second = (20, 20, EOS), (21, EOS)
    script = {first: [4, 5, EOS], second: [4, 6, 7, 8, EOS]}
    for tree, wanted in (("", 4), ("1x2", 3)):
        strategy = make_strategy("recycling", {"k": 2, "tree": tree})
        requests = [Request(0, first, 20), Request(1, second, 20)]
        results = decode(strategy, SaysSecond(22, script), requests, batch_size=1, trace=True)
        assert outputs_of(results) == list(script.values())
        assert results[1].passes == wanted


def test_no_shape_is_refused_before_the_run() -> None:
    with pytest.raises(UsageError, match="tree '4x' is no shape"):
        make_strategy("recycling", {"tree": "4x"})


def test_more_candidates_than_words() -> None:
    scorer = TablePasses(Table(8, seed=1))
    requests = [Request(i, (4, 5, EOS), 20) for i in range(3)]
    found = decode(make_strategy("recycling", {"k": 50}), scorer, requests)
    assert outputs_of(found) == plain_greedy(scorer.table, requests)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 8, 32])
def test_p1_trees_change_no_output(batch_size: int) -> None:
    accepted = rejected = branches = 0
    for seed in range(4):
        rng = random.Random(f"{batch_size} {seed}")
        scorer = random_table(rng)
        requests = [random_request(rng, i, scorer.table.words, 30) for i in range(40)]
        strategy = make_strategy("recycling", {"tree": rng.choice(["2", "4x3x2", "1x2x3"]), "max_draft": 5})
        found = decode(strategy, scorer, requests, batch_size=batch_size)
        assert not differing(outputs_of(found), plain_greedy(scorer.table, requests))
        accepted += sum(result.accepted for result in found)
        rejected += sum(result.drafted - result.accepted for result in found)
        branches += sum(result.branches for result in found)
    assert min(accepted, rejected, branches) > 0


@pytest.mark.parametrize("type", TYPES)
def test_p2_no_bit_changes_on_the_engine(type: str) -> None:
    accepted = rejected = 0
    for seed in range(4):
        rng = random.Random(seed)
        scorer = on_engine(random_network(rng), type=type)
        requests = random_requests(rng, 12, len(scorer.vocab), longest=12, limits=[2, 5, 20])
        wanted = alone(scorer, requests)
        for size in (1, 2, 8):
            strategy = make_strategy("recycling", {"tree": rng.choice(["", "3x2"])})
            found = engine_models.decode(strategy, scorer, requests, batch_size=size)
            assert bits_of(found) == wanted
            accepted += sum(result.accepted for result in found)
            rejected += sum(result.drafted - result.accepted for result in found)
    assert min(accepted, rejected) > 0
