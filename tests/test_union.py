"""The union of drafters that need no training: greedy search's output, and the trees that it should propose.

That it equals greedy search under exact scores is shown with all other strategies in test_draft_loop.py; here
with other drafters and bounds.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from support import engine_models
from support.engine_models import TYPES, alone, bits_of, on_engine, random_network
from support.pass_strategies import Proposes, paths_of, verified
from support.scripted_passes import (
    EOS,
    ScriptPasses,
    decode,
    differing,
    edge_request,
    outputs_of,
    plain_greedy,
    random_request,
    random_table,
)
from support.transformers_small import random_requests

from nartk.decoders.drafters.union import Union
from nartk.decoders.loop.acceptance import Verdict, Verified
from nartk.decoders.loop.drafter import Draft
from nartk.decoders.loop.rows import Row
from nartk.errors import UsageError
from nartk.protocols.hypothesis import Request
from nartk.protocols.passes import Want
from nartk.registry import make_strategy

DRAFTERS = ("source", "ngram", "recycling")


def random_union(rng: random.Random) -> Any:
    names = rng.sample(DRAFTERS, rng.randint(1, 3))
    options = {"max_draft": rng.choice([0, 1, 3, 12]), "nodes": rng.choice([1, 6, 60])}
    return make_strategy("union", {"drafters": ",".join(names), **options})


@pytest.mark.parametrize("batch_size", [1, 2, 3, 8, 32])
def test_p1_and_p7_the_output_is_greedys(batch_size: int) -> None:
    seen = Counter[str]()
    for seed in range(14):
        rng = random.Random(f"union {seed} {batch_size}")
        scorer = random_table(rng)
        make = random_request if seed % 2 else edge_request
        requests = [make(rng, i, scorer.table.words) for i in range(40)]
        found = decode(random_union(rng), scorer, requests, batch_size=batch_size)
        assert not differing(outputs_of(found), plain_greedy(scorer.table, requests))
        for name in ("drafted", "accepted", "branches"):
            seen[name] += sum(getattr(result, name) for result in found)
    assert 0 < seen["branches"] < seen["accepted"] < seen["drafted"]


@pytest.mark.parametrize("type", TYPES)
def test_p2_no_bit_changes_on_the_engine(type: str) -> None:
    accepted = rejected = 0
    for seed in range(4):
        rng = random.Random(f"union {seed}")
        scorer = on_engine(random_network(rng), type=type)
        requests = random_requests(rng, 12, len(scorer.vocab), longest=12, limits=[2, 5, 20])
        wanted = alone(scorer, requests)
        for size in (1, 2, 8):
            strategy = make_strategy("union", {"nodes": rng.choice([5, 30, 96])})
            found = engine_models.decode(strategy, scorer, requests, batch_size=size)
            assert bits_of(found) == wanted
            accepted += sum(result.accepted for result in found)
            rejected += sum(result.drafted - result.accepted for result in found)
    assert min(accepted, rejected) > 0


# What is drafted.


class Proposing:
    """Proposes a draft of each request's own, and notes which states are there, and what it sees."""

    def __init__(self, drafts: dict[int, Draft], *, want: Want = Want(), fails: str = "") -> None:  # noqa: B008
        self.drafts, self.want, self.fails = drafts, want, fails
        self.open: Counter[Any] = Counter()
        self.seen: list[Any] = []

    def start(self, requests: Sequence[Request], memory: Sequence[int]) -> list[Any]:
        self._fail("start")
        states = [(self, request.index) for request in requests]
        self.open.update(states)
        return states

    def draft(self, rows: Sequence[Row], budgets: Sequence[int]) -> list[Draft]:
        self._fail("draft")
        assert [row.state for row in rows] == [(self, row.request.index) for row in rows]
        return [self.drafts[row.request.index] for row in rows]

    def observe(self, rows: Sequence[Row], verdicts: Sequence[Verdict], verified: Verified) -> None:
        self._fail("observe")
        self.seen += [row.state for row in rows]

    def stop(self, states: Sequence[Any]) -> None:
        self.open.subtract(states)

    def _fail(self, method: str) -> None:
        if method == self.fails:
            raise ArithmeticError(method)


def rows_of(*indices: int) -> list[Row]:
    return [Row(Request(i, (4, EOS), 9), (EOS,), memory=i, context=i, started=0.0) for i in indices]


def united(nodes: int, max_draft: int, order: Sequence[int] = (0, 1)) -> list[list[Any]]:
    """What two drafters propose together in two rows that came after one another, the later one first."""
    chain = Proposing({0: Draft([5, 6, 7]), 1: Draft([8, -1, 9])}, want=Want(top=3))
    parents = [-1, -1, 0, 2]
    tree = Proposing(
        {0: Draft([5, 8, 6, 9], parents), 1: Draft([8, 5, 6, 7], parents)}, want=Want(margin=True)
    )
    union = Union([(chain, tree)[i] for i in order], words=10, max_draft=max_draft, nodes=nodes)
    assert union.want == Want(top=3, margin=True)
    first, second = rows_of(0, 1)
    for row in (first, second):
        (row.state,) = union.start([row.request], [row.memory])
    drafts = union.draft([second, first], [9, 9])
    union.observe([second], [Verdict((), [4], [0.0])], verified())
    assert (chain.seen, tree.seen) == ([(chain, 1)], [(tree, 1)])
    union.stop([first.state, second.state])
    assert not any([*chain.open.values(), *tree.open.values()])
    return [paths_of(draft) for draft in drafts]


def test_a_chain_and_a_tree_are_united_by_hand() -> None:
    """8 and no word beside 8, 5, 8 6 and 8 6 7; and 5 6 7 beside 5, 8, 5 6 and 5 6 9."""
    assert united(9, 3) == [
        [(8,), (5,), (8, 6), (8, 6, 7)],
        [(5,), (5, 6), (5, 6, 7), (8,), (5, 6, 9)],
    ]
    assert united(4, 3)[1] == [(5,), (5, 6), (5, 6, 7), (8,)]
    assert united(9, 2)[1] == [(5,), (5, 6), (8,)]
    assert united(9, 3, (1, 0))[1] == [(5,), (8,), (5, 6), (5, 6, 9), (5, 6, 7)]


@pytest.mark.parametrize("fails", ["start", "draft", "observe"])
def test_all_drafters_are_stopped_whichever_fails(fails: str) -> None:
    drafts = {i: Draft([4]) for i in range(3)}
    first, second = Proposing(drafts), Proposing(drafts, fails=fails)
    strategy = Proposes(drafter=lambda scorer: Union([first, second], words=9, max_draft=3, nodes=9))
    scorer = ScriptPasses(9, {(4, EOS): [4, 5, 6, 7, EOS]})
    with pytest.raises(ArithmeticError, match=fails):
        list(strategy.run(scorer, [Request(i, (4, EOS), 9) for i in range(3)], batch_size=2))
    assert first.open
    assert not any([*first.open.values(), *second.open.values()])
    assert scorer.in_use == (0, 0)


def test_several_drafters_need_fewer_passes_by_hand() -> None:
    """The second output is its source, the third is the first: the source and the cache each draft one of
    them, together both.
    """
    first, second, third = (*[20] * 30, EOS), (*range(10, 20), EOS), (21, EOS)
    repeats = [4, 9, 5, 8, 6, 7, EOS]
    script = {first: repeats, second: second, third: repeats}
    requests = [Request(i, source, 40) for i, source in enumerate(script)]

    def passes(drafters: str) -> list[int]:
        results = decode(
            make_strategy("union", {"drafters": drafters}), ScriptPasses(22, script), requests, batch_size=1
        )
        assert outputs_of(results) == [list(output) for output in script.values()]
        return [result.passes for result in results]

    source, ngram, both = passes("source"), passes("ngram"), passes("source,ngram")
    assert source[1] == 1
    assert source[2] == 7
    assert ngram[2] == 2
    assert both[1:] == [1, 2]


class Deaf(Union):
    """Known to be wrong: its drafters do not see what the verifier outputs."""

    def observe(self, rows: Sequence[Row], verdicts: Sequence[Verdict], verified: Verified) -> None:
        pass


def test_drafters_that_see_nothing_are_noticed() -> None:
    """The second sentence follows the first one's words, if they were learnt."""
    script = {(20, 20, EOS): [4, 5, 6, 7, EOS], (21, EOS): [4, 5, 6, 7, EOS]}
    strategy = make_strategy("union", {"drafters": "recycling"})

    def deaf(scorer: Any) -> Deaf:
        right = strategy.make_drafter(scorer)
        return Deaf(right.drafters, words=right.words, max_draft=right.max_draft, nodes=right.nodes)

    found = []
    for made in (strategy, Proposes(drafter=deaf)):
        requests = [Request(i, source, 20) for i, source in enumerate(script)]
        results = decode(made, ScriptPasses(22, script), requests, batch_size=1)
        assert outputs_of(results) == list(script.values())
        found.append(results[1].passes)
    assert found == [1, 5]


@pytest.mark.parametrize("names", ["", "source,source", "source,", "iad", "source ,ngram"])
def test_drafters_that_are_none_are_refused(names: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_strategy("union", {"drafters": names})
    assert str(caught.value) == (
        f"error[E101 Usage] drafters is {names!r}. Fix: name some of ngram,recycling,source, each once."
    )
