"""The union of drafters that need no training: greedy search's output, and the trees that it should propose.

That it equals greedy search under exact scores and in exact mode is shown with all other strategies in
test_promises_algorithm.py and test_promises_exact.py; here with other drafters and bounds.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from scripted import ScriptScorer, decode, differing, outputs_of, plain_greedy
from test_promises_algorithm import edge_request, random_request, random_table
from test_promises_exact import DTYPES, TIES, alone, random_scorer, said, tied_scorer
from test_tree import plain, ways_of
from torch import Tensor
from transformers_small import random_requests

from nartk.decoders.tensor_loop import Draft, Drafter
from nartk.decoders.union import UnionDrafter
from nartk.errors import UsageError
from nartk.hypothesis import Request
from nartk.registry import make_strategy
from nartk.scorer import Seq2SeqScorer, Source

EOS = 2
DRAFTERS = ("source", "ngram", "recycling")


def random_union(rng: random.Random) -> Any:
    names = rng.sample(DRAFTERS, rng.randint(1, 3))
    options = {"max_draft": rng.choice([0, 1, 3, 12]), "nodes": rng.choice([1, 6, 60])}
    return make_strategy("union", {"drafters": ",".join(names), **options})


@pytest.mark.parametrize("capable", [True, False])
def test_p1_and_p7_the_output_is_greedys(capable: bool, device: torch.device) -> None:
    for seed in range(8):
        rng = random.Random(f"union {seed}")
        scorer = random_table(rng, device)
        if not capable:
            plain(scorer)
        make = random_request if seed % 2 else edge_request
        requests = [make(rng, i, len(scorer.vocab)) for i in range(12)]
        requests = [dataclasses.replace(request, max_len=min(request.max_len, 24)) for request in requests]
        requests = [dataclasses.replace(r, prefix=r.prefix[: r.max_len]) for r in requests]
        found = decode(random_union(rng), scorer, requests, batch_size=rng.choice([1, 5, 12]))
        assert not differing(outputs_of(found), plain_greedy(scorer.scores, requests))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_p2_and_p3_no_bit_changes(dtype: str, device: torch.device) -> None:
    for seed, ties in enumerate([None, *TIES]):
        rng = random.Random(f"union {ties}")
        if ties is None:
            scorer = random_scorer(rng, DTYPES[dtype], device)
        else:
            scorer = tied_scorer(ties, seed, DTYPES[dtype], device)
        requests = random_requests(rng, 6, len(scorer.vocab), longest=12, limits=[2, 5, 8])
        wanted = alone(scorer, requests)
        strategy = make_strategy("union", {"nodes": 30})
        for size in (1, 4):
            assert said(decode(strategy, scorer, requests, batch_size=size)) == wanted


# What is drafted.


@dataclasses.dataclass(frozen=True)
class Seen:
    """What a drafter of these tests is told, row by row."""

    indices: Tensor


class Says(Drafter):
    """Proposes a draft of each request's own, and notes what it is told."""

    def __init__(self, drafts: dict[int, Sequence[int]], parents: Sequence[int] | None = None) -> None:
        self.drafts, self.parents = drafts, parents
        self.paused: list[int] = []

    def start(self, source: Source, requests: Sequence[Request]) -> Seen:
        return Seen(torch.tensor([request.index for request in requests], device=source.lengths.device))

    def draft(self, state: Seen, outputs: Tensor, lengths: Tensor, budget: Tensor) -> tuple[Draft, Seen]:
        rows = [self.drafts[index] for index in state.indices.tolist()]
        tokens = torch.tensor([list(row) for row in rows], device=lengths.device)
        parents = None
        if self.parents is not None:
            parents = torch.tensor([list(self.parents)] * len(rows), device=lengths.device)
        return Draft(tokens, torch.full_like(lengths, tokens.shape[1]), parents=parents), state

    def pause(self, state: Seen, lengths: Tensor) -> Seen:
        self.paused += lengths.tolist()
        return state


def united(nodes: int, longest: int, device: torch.device, order: Sequence[int] = (0, 1)) -> list[list[Any]]:
    """What two drafters propose together in two rows that came and changed places."""
    chain = Says({0: [5, 6, 7], 1: [8, -1, 9], 2: [4, 4, 4]})
    tree = Says({0: [5, 8, 6, 9], 1: [8, 5, 6, 7], 2: [4, 4, 4, 4]}, parents=[-1, -1, 0, 2])
    union = UnionDrafter([(chain, tree)[i] for i in order], 10, longest, nodes)
    requests = [Request(i, (4, EOS), 9) for i in range(3)]
    sizes = torch.tensor([2, 2], device=device)
    source = Source(torch.tensor([[4, EOS]] * 2, device=device), sizes)
    state = union.join(union.start(source, requests[:2]), union.start(source, requests[2:]))
    state = union.select(state, torch.tensor([1, 0], device=device))
    zeros = torch.zeros(2, dtype=torch.int64, device=device)
    draft, state = union.draft(state, torch.zeros(2, 9, dtype=torch.int64, device=device), zeros, zeros + 9)
    union.pause(state, zeros + 3)
    assert chain.paused == tree.paused == [3, 3]
    return [ways_of(draft, row) for row in range(2)]


def test_a_chain_and_a_tree_are_united_by_hand(device: torch.device) -> None:
    """8 and no word beside 8, 5, 8 6 and 8 6 7; and 5 6 7 beside 5, 8, 5 6 and 5 6 9."""
    assert united(9, 3, device) == [
        [(8,), (5,), (8, 6), (8, 6, 7)],
        [(5,), (5, 6), (5, 6, 7), (8,), (5, 6, 9)],
    ]
    assert united(4, 3, device)[1] == [(5,), (5, 6), (5, 6, 7), (8,)]
    assert united(9, 2, device)[1] == [(5,), (5, 6), (8,)]
    assert united(9, 3, device, (1, 0))[1] == [(5,), (8,), (5, 6), (5, 6, 9), (5, 6, 7)]


def test_several_drafters_need_fewer_passes_by_hand(device: torch.device) -> None:
    """The second output is its source, the third is the first: the source and the cache each draft one of
    them, together both.
    """
    first, second, third = (*[20] * 30, EOS), (*range(10, 20), EOS), (21, EOS)
    repeats = [4, 9, 5, 8, 6, 7, EOS]
    script = {first: repeats, second: second, third: repeats}
    requests = [Request(i, source, 40) for i, source in enumerate(script)]

    def passes(drafters: str) -> list[int]:
        scorer = ScriptScorer(22, script, width=1, device=device)
        results = decode(make_strategy("union", {"drafters": drafters}), scorer, requests, batch_size=1)
        assert outputs_of(results) == [list(output) for output in script.values()]
        return [result.passes for result in results]

    source, ngram, both = passes("source"), passes("ngram"), passes("source,ngram")
    assert source[1] == 1
    assert source[2] == 7
    assert ngram[2] == 2
    assert both[1:] == [1, 2]


class Deaf(UnionDrafter):
    """Known to be wrong: its drafters do not see what the verifier says."""

    def observe(self, state: Any, logits: Tensor, fed: Any) -> Any:
        return state


def test_drafters_that_see_nothing_are_noticed(device: torch.device) -> None:
    """The second sentence follows the first one's words, if they were learnt."""
    script = {(20, 20, EOS): [4, 5, 6, 7, EOS], (21, EOS): [4, 5, 6, 7, EOS]}
    cls = type(make_strategy("union", {}))

    def new_drafter(strategy: Any, scorer: Seq2SeqScorer) -> Drafter:
        right = cls.new_drafter(strategy, scorer)
        return Deaf(right.drafters, right.words, right.longest, right.nodes)

    deaf = type("DeafUnion", (cls,), {"new_drafter": new_drafter})
    found = []
    for make in (cls, deaf):
        scorer = ScriptScorer(22, script, width=1, device=device)
        requests = [Request(i, source, 20) for i, source in enumerate(script)]
        results = decode(make(drafters="recycling"), scorer, requests, batch_size=1)
        assert outputs_of(results) == list(script.values())
        found.append(results[1].passes)
    assert found == [1, 5]


@pytest.mark.parametrize("names", ["", "source,source", "source,", "iad", "source ,ngram"])
def test_drafters_that_are_none_are_refused(names: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_strategy("union", {"drafters": names})
    assert str(caught.value) == (
        f"error[E101 Usage] --drafters is {names!r}. Fix: name some of source,ngram,recycling, each once."
    )
