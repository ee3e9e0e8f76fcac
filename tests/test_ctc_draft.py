"""A model's own CTC head drafts: what it promises, and that nothing is encoded twice.

Greedy search's tokens under a textbook loop: test_promises_drafters.py has this strategy too.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.joint import JointPasses, WithHead
from support.parallel_drafters import KnowingFrames, garbage, spoilt
from support.scripted_passes import (
    EOS,
    Table,
    TablePasses,
    decode,
    differing,
    outputs_of,
    plain_greedy,
    random_request,
    random_table,
)

from nartk.errors import StrategyMismatchError, UsageError
from nartk.protocols.guarantee import Guarantee
from nartk.protocols.hypothesis import Request
from nartk.registry import make_strategy, require_protocol


def drafting(**options: Any) -> Any:
    return make_strategy("ctc-draft", {"adaptive": False, **options})


@pytest.mark.parametrize("batch_size", [1, 2, 3, 8, 32])
def test_the_output_is_greedys(batch_size: int) -> None:
    """Of heads that half know it, with blanks and without, and of garbage; with any options."""
    accepted = drafted = 0
    for seed in range(60 // batch_size + 8):
        rng = random.Random(f"{batch_size} {seed}")
        scorer = random_table(rng)
        words = scorer.table.words
        requests = [random_request(rng, i, words) for i in range(2 * batch_size)]
        wanted = plain_greedy(scorer.table, requests)
        answers = {
            tuple(request.source): spoilt(rng, [*(word for word in output if word != EOS), EOS], words)
            for request, output in zip(requests, wanted, strict=True)
        }
        head = KnowingFrames(words, answers, blank=rng.choice([0, 0, None]))
        if seed % 5 == 0:
            head = garbage(head, rng.choice(["random", "eos", "blank", "ever the same"]))
        strategy = make_strategy(
            "ctc-draft",
            {
                "block_size": rng.choice([1, 3, 25]),
                "adaptive": rng.random() < 0.3,
            },
        )
        results = decode(strategy, WithHead(scorer, head), requests, batch_size=batch_size)
        assert differing(outputs_of(results), wanted) == []
        accepted += sum(each.accepted for each in results)
        drafted += sum(each.drafted for each in results)
        assert head.memories_in_use == 0
    assert drafted > accepted > 0


def knowing(batch: int) -> tuple[TablePasses, KnowingFrames, list[Request]]:
    """A head that knows all outputs, and sentences of about ten tokens."""
    scorer = TablePasses(Table(40, seed=5, bonus=40, patience=40, stretch=99))
    requests = [
        Request(i, (*(4 + (i * j) % 36 for j in range(1, 10 + i % 4)), EOS), 40) for i in range(batch)
    ]
    wanted = plain_greedy(scorer.table, requests)
    answers = {tuple(each.source): output for each, output in zip(requests, wanted, strict=True)}
    return scorer, KnowingFrames(40, answers), requests


def test_sources_are_encoded_once_and_all_new_rows_are_read_at_once() -> None:
    scorer, head, requests = knowing(8)
    results = decode(drafting(), WithHead(scorer, head), requests, batch_size=8)
    assert scorer.encoded == [8]
    assert head.calls == [8]
    assert [each.drafter_passes for each in results] == [1] * 8
    assert max(each.passes for each in results) <= 2  # what looks like silence to CTC, it cannot draft


def test_without_its_drafts_there_are_many_more_passes() -> None:
    scorer, head, requests = knowing(8)
    greedy = decode(make_strategy("greedy", {}), scorer, requests)
    results = decode(drafting(), WithHead(scorer, head), requests)
    assert outputs_of(results) == outputs_of(greedy)
    assert sum(each.passes for each in greedy) >= 9 * sum(each.passes for each in results)


@pytest.mark.adaptive
def test_drafts_that_do_not_pay_stop() -> None:
    """The length of drafts is chosen as in `gad`."""
    scorer, head, requests = knowing(30)
    adaptive = make_strategy("ctc-draft", {})
    assert adaptive.adaptive
    bad = garbage(head, "random")
    results = decode(adaptive, WithHead(scorer, bad), requests, batch_size=3)
    assert outputs_of(results) == outputs_of(decode(make_strategy("greedy", {}), scorer, requests))
    whole = decode(drafting(), WithHead(scorer, bad), requests, batch_size=3)
    assert sum(each.drafted for each in results) < sum(each.drafted for each in whole) / 2


def test_constraints_are_kept_to() -> None:
    scorer, head, requests = knowing(8)
    options = {"min_len": 6, "no_repeat_ngram": 2, "suppress_ids": "9 / 7 8"}
    wanted = decode(make_strategy("greedy", options), scorer, requests)
    found = decode(drafting(**options), WithHead(scorer, head), requests)
    assert [each.hypotheses[0].tokens for each in found] == [each.hypotheses[0].tokens for each in wanted]


def test_it_promises_greedys_output_of_models_with_both_heads() -> None:
    strategy = drafting()
    assert strategy.promised.guarantee is Guarantee.IDENTICAL
    joint, plain = JointPasses(9, seed=1), TablePasses(Table(9))
    assert require_protocol(strategy, plain, joint) is joint
    with pytest.raises(StrategyMismatchError, match="'ctc-draft' needs a PassScorer and FrameScorer"):
        require_protocol(strategy, plain)
    with pytest.raises(UsageError, match="no option drafter"):
        drafting(drafter="x")
