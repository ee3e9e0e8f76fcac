"""Speculative decoding: greedy search to the last bit, sampling's distribution by enumeration.

Each promise comes with a variant that is known to be wrong and must fail the same check.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import engine_models, tiny
from support.distributions import every_output, fit
from support.engine_models import TYPES, alone, bits_of, on_engine, random_network
from support.own_layers import LayersOfTable
from support.pass_strategies import OneTooMany, RunnerUp
from support.real_passes import RealPasses, engine_of
from support.realtable import random_transformer
from support.scripted_passes import (
    EOS,
    ScriptPasses,
    Table,
    TablePasses,
    decode,
    differing,
    edge_request,
    outputs_of,
    plain_greedy,
    random_request,
    random_table,
)
from support.small_drafters import shaken
from support.small_passes import GARBAGE, UNREADABLE, Garbage, Light, Near, drafting, random_small
from support.transformers_small import random_requests, vocabulary

from nartk.bench.runner import EngineRuns
from nartk.bench.specs import Spec
from nartk.cli.decode import main
from nartk.decoders import speculative as module
from nartk.decoders.drafters.small_model import PickBest, SmallModel, SmallModelRow
from nartk.decoders.loop.acceptance import DraftOutcome, StepwiseAcceptance, Verified
from nartk.decoders.loop.drafter import Draft
from nartk.decoders.loop.rows import Row
from nartk.decoders.speculative import RejectionSampling, Speculative
from nartk.errors import PassError, StrategyMismatchError, UsageError
from nartk.protocols.guarantee import Guarantee
from nartk.protocols.hypothesis import Request
from nartk.protocols.passes import Pass, PassScorer, Scores, Want
from nartk.registry import MOST_SAMPLES, make_strategy

CHANCE = 1e-5  # of a right sampler to fail one of these tests; seeds are fixed, so it fails always or never
BATCHES = (1, 2, 3, 8, 32)


def speculative(drafter: Any, **options: Any) -> Any:
    return drafting("speculative", drafter, **options)


# P1, P7 and P8: under a table of exact scores.


def table_mismatches(
    cases: int,
    *,
    request_of: Callable[[random.Random, int, int], Request] = random_request,
    garbage: str | None = None,
    accept: Any = None,
    size: int | None = None,
) -> tuple[int, Counter[str]]:
    """How many of `cases` sentences come out otherwise than by greedy search; what happened."""
    wrong, seen = 0, Counter[str]()
    for seed in range(-(-cases // 40)):
        rng = random.Random(f"{seed} {size}")
        scorer = random_table(rng)
        drafter = random_small(rng, scorer) if garbage is None else Garbage(scorer, garbage)
        requests = [request_of(rng, i, scorer.table.words) for i in range(40)]
        strategy = speculative(drafter, block_size=rng.choice([1, 2, 3, 5, 40]))
        if accept is not None:
            object.__setattr__(strategy, "acceptance", lambda: accept)
        batch_size = rng.choice(BATCHES) if size is None else size
        found = decode(strategy, scorer, requests, batch_size=batch_size, trace=seed % 2 == 0)
        assert drafter.in_use == (0, 0)
        wrong += len(differing(outputs_of(found), plain_greedy(scorer.table, requests)))
        for name in ("drafted", "accepted", "drafter_passes", "left_mid_batch"):
            seen[name] += sum(getattr(result, name) for result in found)
    return wrong, seen


@pytest.mark.parametrize("size", BATCHES)
def test_p1_equals_greedy(size: int) -> None:
    wrong, seen = table_mismatches(280, size=size)
    assert wrong == 0
    assert 0.1 * seen["drafted"] < seen["accepted"] < 0.8 * seen["drafted"]
    assert seen["drafter_passes"] == seen["drafted"]
    assert (seen["left_mid_batch"] > 0) == (size > 1)


@pytest.mark.slow
def test_p1_at_full_size() -> None:
    assert table_mismatches(200_000)[0] == 0


@pytest.mark.parametrize("rule", [OneTooMany(), RunnerUp()], ids=lambda rule: type(rule).__name__)
def test_p1_fails_with_a_wrong_acceptance(rule: Any) -> None:
    try:
        wrong, _ = table_mismatches(80, accept=rule)
    except (AssertionError, PassError):
        return  # a position that is none, or a token that was not output, is noticed
    assert wrong > 0


def test_p7_edges() -> None:
    assert table_mismatches(200, request_of=edge_request)[0] == 0


@pytest.mark.parametrize("kind", GARBAGE)
def test_p8_a_garbage_drafter_never_changes_the_output(kind: str) -> None:
    """2,000 sentences of all kinds together."""
    assert table_mismatches(400, garbage=kind)[0] == 0


class Believes(StepwiseAcceptance):
    """Known to be wrong: whatever is drafted is accepted."""

    def judge(self, row: Row, verified: Verified) -> Iterator[DraftOutcome]:
        yield from (DraftOutcome(True, token, 0.0) for token in row.draft.tokens)


@pytest.mark.parametrize("kind", ["pad", "eos", "the opposite"])
def test_p8_fails_when_garbage_is_believed(kind: str) -> None:
    assert table_mismatches(80, garbage=kind, accept=Believes())[0] > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_drafter_without_numbers_is_an_error_that_gives_all_back(kind: str, temperature: float) -> None:
    scorer = TablePasses(Table(12))
    drafter = Garbage(scorer, kind)
    requests = [random_request(random.Random(i), i, 12) for i in range(5)]
    with pytest.raises(PassError, match="hold NaN or infinity"):
        list(speculative(drafter, temperature=temperature).run(scorer, requests, batch_size=3))
    assert drafter.in_use == scorer.in_use == (0, 0)


# P2: Transformers on the engine, bit by bit.


def on_engine_with_small(rng: random.Random, type: str) -> tuple[PassScorer, PassScorer]:
    """A random model and a drafter: the same with other weights, more or less."""
    model = random_network(rng)
    small = shaken(model, rng.getrandbits(30), rng.choice([0.0, 0.01, 0.05, 0.2]))
    return on_engine(model, type=type), on_engine(small, type=type)


@pytest.mark.parametrize("type", TYPES)
def test_p2_drafts_and_batches_change_no_bit(type: str) -> None:
    drafted = accepted = 0
    for seed in range(5):
        rng = random.Random(seed)
        scorer, drafter = on_engine_with_small(rng, type)
        requests = random_requests(rng, 12, len(scorer.vocab), limits=[1, 2, 5, 9, 20])
        wanted = alone(scorer, requests)
        for size in (1, 2, 8):
            strategy = speculative(drafter, block_size=rng.choice([1, 3, 5]))
            found = engine_models.decode(strategy, scorer, requests, batch_size=size)
            assert bits_of(found) == wanted
            assert drafter.cells_in_use == 0
            drafted += sum(result.drafted for result in found)
            accepted += sum(result.accepted for result in found)
    assert 0.2 * drafted < accepted < 0.9 * drafted  # rows come forward by parts of any length


# What it takes.


@pytest.mark.parametrize("block_size", [1, 2, 3, 5, 20])
@pytest.mark.parametrize("batch_size", [1, 8])
def test_a_drafter_that_is_the_verifier_gains_a_block_and_a_token_a_pass(
    block_size: int, batch_size: int
) -> None:
    outputs = [[4 + (i + j) % 7 for j in range(i)] + [EOS] for i in range(13)]
    script = {(4 + i % 9, 4 + i // 9, EOS): output for i, output in enumerate(outputs)}
    scorer, drafter = (ScriptPasses(15, script) for _ in range(2))
    requests = [Request(i, source, 40) for i, source in enumerate(script)]
    found = decode(speculative(drafter, block_size=block_size), scorer, requests, batch_size=batch_size)
    assert outputs_of(found) == outputs
    for result, output in zip(found, outputs, strict=True):
        whole, rest = divmod(len(output), block_size + 1)
        assert result.passes == whole + (rest > 0)
        assert result.drafted == result.accepted == result.drafter_passes == whole * block_size + rest


def tokens_of(work: Pass) -> list[list[int]]:
    """The tokens of each context in a pass."""
    return [work.tokens[work.contexts == each].tolist() for each in dict.fromkeys(work.contexts.tolist())]


def test_steps_of_the_drafter_by_hand() -> None:
    outputs = {(4, EOS): [5, 6, 7, 8, EOS], (5, EOS): [6, EOS]}
    drafts = {(4, EOS): [5, 6, 9, 9, EOS], (5, EOS): [6, EOS]}  # wrong from the third word on, then only pad
    scorer, drafter = ScriptPasses(12, outputs), ScriptPasses(12, drafts)
    requests = [Request(0, (4, EOS), 5), Request(1, (5, EOS), 5)]
    found = decode(speculative(drafter, block_size=3), scorer, requests, batch_size=2)
    assert outputs_of(found) == [*outputs.values()]
    # 5 6 9 and 6 eos are drafted: 5 6 7 are accepted or output, 6 eos is accepted. With two tokens to come,
    # one is drafted after 7, which alone is read. The verifier has 8 instead; after it nothing is drafted.
    assert [tokens_of(work) for work in drafter.passes] == [[[EOS], [EOS]], [[5], [6]], [[6]], [[7]]]
    assert [(r.passes, r.drafted, r.accepted) for r in found] == [(3, 4, 2), (1, 2, 2)]


def test_the_last_of_a_draft_that_was_accepted_is_read_with_the_verifiers_token() -> None:
    script = {(4, EOS): [5, 6, 7, 8, 9, EOS]}
    scorer, drafter = (ScriptPasses(12, script) for _ in range(2))
    wants: list[Want] = []
    run = drafter.run

    def watched(work: Pass, want: Want) -> Any:
        wants.append(want)
        return run(work, want)

    drafter.run = watched  # type: ignore[method-assign]
    decode(speculative(drafter, block_size=2), scorer, [Request(0, (4, EOS), 9)])
    # 5 6, then 7 is the verifier's; 8 9, then eos is.
    assert [tokens_of(work) for work in drafter.passes] == [[[EOS]], [[5]], [[6, 7]], [[8]]]
    # Of 6 7 the last alone is scored.
    assert [None if want.only is None else want.only.tolist() for want in wants] == [None, None, [1], None]


def test_a_reader_keeps_what_is_output_whoever_drafted_it() -> None:
    """It has read the start token, 5 and the drafted 6 7 8."""

    def reads(output: Sequence[int]) -> tuple[list[int], int]:
        reader = SmallModelRow((EOS,), [6, 7, 8], memory=0, context=0, cells=5)
        reader.catch_up(output)
        return reader.unread, reader.cells

    assert reads([5, 9]) == ([9], 2)
    assert reads([5, 6, 9]) == ([9], 3)
    assert reads([5, 9, 7, 8]) == ([9, 7, 8], 2)  # of passes in which it did not draft
    assert reads([5, 6, 7, 8, 9]) == ([9], 5)
    assert reads([5, 6, 7]) == ([7], 3)  # its scores after 7 are asked for again
    new = SmallModelRow((EOS,), memory=0, context=0)
    new.catch_up([5, 6])
    assert new.unread == [EOS, 5, 6]


# The drafter's cells.


class Checking(SmallModel):
    """Compares what the small model picks at each step with what it picks in a new context."""

    def draft(self, rows: Sequence[Row], budgets: Sequence[int]) -> list[Draft]:
        drafts = super().draft(rows, budgets)
        for row, draft in zip(rows, drafts, strict=True):
            fresh = SmallModel(self.scorer, self.longest, self.pick)
            for i, token in enumerate(draft.tokens):
                (state,) = fresh.start([row.request], [0])
                output = [*row.tokens, *draft.tokens[:i]]
                other = Row(row.request, (EOS,), output, memory=0, context=0, started=0.0, state=state)
                (again,) = fresh.draft([other], [1])
                fresh.stop([state])
                assert draft.log_probs is not None
                same = (again.tokens, again.log_probs) == ([token], [draft.log_probs[i]])
                CHECKED["equal" if same else "unequal"] += 1
        return drafts


CHECKED: Counter[str] = Counter()


class Forgetful(SmallModel):
    """Known to be wrong: what was rejected is kept."""

    def _catch_up(self, turns: Any) -> None:
        truncate = self.scorer.truncate
        self.scorer.truncate = lambda contexts, lengths: None  # type: ignore[method-assign]
        super()._catch_up(turns)
        self.scorer.truncate = truncate  # type: ignore[method-assign]


class Hasty(SmallModel):
    """Known to be wrong: the first unread token is not read."""

    def _catch_up(self, turns: Any) -> None:
        super()._catch_up(turns)
        for turn in turns:
            if len(turn.reader.unread) > 1:
                turn.reader.unread = turn.reader.unread[1:]


def checked(kind: type[SmallModel]) -> Counter[str]:
    """How often the small model picks as in a new context, bit by bit, and how often it does not."""
    CHECKED.clear()
    make: Any = type("Checked", (Checking, kind), {})
    for seed in range(3):
        rng = random.Random(seed)
        model = random_network(rng)
        scorer, small = on_engine(model), on_engine(shaken(model, seed, 0.02))
        strategy = speculative(small)
        object.__setattr__(strategy, "make_drafter", lambda _, small=small: make(small, 4, PickBest()))
        requests = random_requests(rng, 9, len(scorer.vocab), limits=[2, 8, 20])
        engine_models.decode(strategy, scorer, requests, batch_size=3)
    return CHECKED


def test_the_drafters_cells_are_a_new_contexts() -> None:
    counts = checked(SmallModel)
    assert counts["equal"] > 100
    assert counts["unequal"] == 0


@pytest.mark.parametrize("kind", [Forgetful, Hasty])
def test_wrong_cells_of_the_drafter_show(kind: type) -> None:
    assert checked(kind)["unequal"] > 0


# P9: the distribution, by enumeration.


@dataclasses.dataclass(frozen=True)
class Toy:
    """A table of few words, a drafter, and how to draw."""

    table: RealPasses
    drafter: Any
    request: Request
    options: dict[str, Any]


DRAFTERS: dict[str, Callable[[random.Random, RealPasses], Any]] = {
    "a light one": lambda rng, table: random_small(rng, table, Light),
    "own layers": lambda rng, table: LayersOfTable(rng.getrandbits(60)),
}


def toy(seed: int, kind: str = "a small model") -> Toy:
    """Drafters are near the model or far from it; filters may leave them no word in common."""
    rng = random.Random(seed)
    words = rng.randint(5, 7)
    table = RealPasses(words, seed=rng.getrandbits(60))
    drafter: Any = RealPasses(words, seed=rng.getrandbits(60))
    if rng.random() < 0.5:
        drafter = Near(table, seed=rng.getrandbits(60), noise=rng.choice([0.0, 0.2, 0.5]))
    if kind in DRAFTERS:
        drafter = DRAFTERS[kind](rng, table)
    options: dict[str, Any] = {
        "temperature": rng.choice([0.7, 1.0, 1.0, 2.0]),
        "top_k": rng.choice([0, 0, 2, 4]),
        "top_p": rng.choice([1.0, 1.0, 0.8]),
        "block_size": rng.choice([1, 2, 3, 5]),
    }
    return Toy(table, drafter, Request(rng.randrange(100), (4, 4, EOS), rng.choice([2, 3, 4])), options)


def drawn(toy: Toy, count: int) -> list[tuple[int, ...]]:
    some = min(count, MOST_SAMPLES)
    outputs = []
    for part in range(count // some):
        options = toy.options | {"nbest": some, "seed": part}
        (result,) = speculative(toy.drafter, **options).run(toy.table, [toy.request], batch_size=2_000)
        outputs += [hypothesis.tokens for hypothesis in result.hypotheses]
    return outputs


def misfit(toy: Toy, count: int) -> tuple[float, float, float]:
    """The chance of a right sampler's draws to be so far from the distribution; their distance in total
    variation; and the distance that a right sampler has on average, at most."""
    wanted = every_output(toy.table.log_probs, toy.request, speculative(toy.drafter, **toy.options))
    outputs = drawn(toy, count)
    counts = Counter(outputs)
    variation = sum(abs(counts[output] / count - p) for output, p in wanted.items()) / 2
    # E|X/n - p| is at most sqrt(p (1 - p) / n).
    usual = sum(math.sqrt(p * (1 - p) / count) for p in wanted.values()) / 2
    return fit(outputs, wanted), variation, usual


@pytest.mark.parametrize("kind", ["a small model", *DRAFTERS])
@pytest.mark.parametrize("seed", range(20))
def test_p9_draws_have_the_models_distribution(seed: int, kind: str) -> None:
    chance, variation, usual = misfit(toy(seed, kind), 4_000)
    assert chance > CHANCE
    assert variation <= 2 * usual


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["a small model", *DRAFTERS])
@pytest.mark.parametrize("seed", range(20))
def test_p9_at_full_size(seed: int, kind: str) -> None:
    chance, variation, _ = misfit(toy(100 + seed, kind), 1_000_000)
    assert chance > 0.001 / 20
    assert variation < 0.01


def far(temperature: float = 3.0) -> Toy:
    """A table and another one that drafts, so that much is rejected."""
    table, drafter = (RealPasses(6, seed=seed) for seed in (7, 9))
    return Toy(table, drafter, Request(0, (4, 4, EOS), 3), {"temperature": temperature})


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_p9_holds_where_the_wrong_ways_show(temperature: float) -> None:
    assert misfit(far(temperature), 10_000)[0] > CHANCE


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_p9_holds_after_a_prefix(temperature: float) -> None:
    """Whose words some drafts have, so that the words behind it are drafted too."""
    made = far(temperature)
    request = Request(0, (4, 4, EOS), 4, prefix=(4,))
    assert misfit(dataclasses.replace(made, request=request), 10_000)[0] > CHANCE


class AcceptsAlways(RejectionSampling):
    """Known to be wrong."""

    def judge_all(self, rows: Sequence[Row], verified: Verified) -> Any:
        return ((DraftOutcome(True, token, 0.0) for token in row.draft.tokens) for row in rows)


class ReplacesFromP(RejectionSampling):
    """Known to be wrong: what is rejected is drawn again from the model's distribution."""

    @staticmethod
    def rest(p: Any, q: Any) -> Any:
        return p


class ReplacesFromQ(RejectionSampling):
    """Known to be wrong: p and q the other way round."""

    @staticmethod
    def rest(p: Any, q: Any) -> Any:
        return RejectionSampling.rest(q, p)


@pytest.mark.parametrize("rule", [AcceptsAlways, ReplacesFromP, ReplacesFromQ])
def test_p9_fails_with_a_wrong_acceptance(
    rule: type[RejectionSampling], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Speculative.acceptance

    def wrong(self: Speculative) -> RejectionSampling:
        accept: Any = right(self)
        return rule(accept.accepts, accept.replaces)

    monkeypatch.setattr(Speculative, "acceptance", wrong)
    chance, variation, usual = misfit(far(), 10_000)
    assert chance < CHANCE
    assert variation > 2 * usual


@pytest.mark.parametrize("shared", [(1, 1, 3), (1, 2, 1), (1, 2, 2)])
def test_p9_fails_where_decisions_share_their_random_numbers(
    shared: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, stream in zip(("_DRAFTS", "_ACCEPTS", "_REPLACES"), shared, strict=True):
        monkeypatch.setattr(module, name, stream)
    assert misfit(far(), 10_000)[0] < CHANCE


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("kind", GARBAGE)
def test_p9_holds_with_a_garbage_drafter(kind: str, temperature: float) -> None:
    made = toy(1)
    made = dataclasses.replace(made, drafter=Garbage(made.table, kind), options={"temperature": temperature})
    assert misfit(made, 4_000)[0] > CHANCE


def test_a_drafter_that_is_the_verifier_is_never_rejected() -> None:
    table = RealPasses(9, seed=3)
    requests = [Request(i, (4, 5, EOS), 12) for i in range(50)]
    twin = RealPasses(9, seed=3)
    for result in decode(speculative(twin, temperature=1.0, nbest=4), table, requests):
        assert result.accepted == result.drafted == result.drafter_passes > 0
        lengths = [len(hypothesis.tokens) for hypothesis in result.hypotheses]
        assert result.passes == sum(-(-length // 6) for length in lengths)
    assert twin.in_use == (0, 0)


@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, 0), (2.0, 3)])
def test_scores_are_the_models(temperature: float, top_k: int) -> None:
    table, drafter = (RealPasses(6, seed=seed) for seed in (1, 2))
    request = Request(0, (4, 5, EOS), 5)
    strategy = speculative(drafter, temperature=temperature, top_k=top_k, nbest=20)
    (result,) = decode(strategy, table, [request])
    for hypothesis in result.hypotheses:
        tokens = hypothesis.tokens
        wanted = [table.log_probs(request.source, tokens[:i])[word] for i, word in enumerate(tokens)]
        assert hypothesis.positional_scores == pytest.approx(wanted, abs=1e-5)


def test_where_nothing_is_filtered_logits_are_read_of_rejected_tokens_alone() -> None:
    table, drafter = (RealPasses(6, seed=seed) for seed in (1, 2))
    read: list[int] = []
    run = table.run

    def watched(work: Pass, want: Want) -> Scores:
        scores = run(work, want)
        fetch = scores.rows
        scores.rows = lambda index: read.append(len(index)) or fetch(index)  # type: ignore[method-assign,func-returns-value]
        return scores

    table.run = watched  # type: ignore[method-assign,assignment]
    requests = [Request(i, (4, 5, EOS), 12) for i in range(30)]
    found = decode(speculative(drafter, temperature=1.0), table, requests, trace=True)
    origins = [each.origin for result in found for each in result.hypotheses[0].trace or ()]
    assert sum(read) == origins.count("rollback") > 0


# What a draw depends on.


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0}, {"top_k": 20, "top_p": 0.9}], ids=str)
def test_draws_are_the_same_alone_and_in_any_batch(settings: dict[str, Any]) -> None:
    words = vocabulary(60)
    model = random_transformer(0, len(words))
    scorer, drafter = engine_of(model, words), engine_of(shaken(model, 1, 0.1), words)
    requests = random_requests(random.Random(0), 8, len(words), limits=[1, 2, 7, 20])
    strategy = speculative(drafter, **{"temperature": 0.8, "nbest": 3, **settings})
    singly = [next(iter(strategy.run(scorer, [request], batch_size=1))) for request in requests]
    drafted, accepted = (sum(getattr(result, name) for result in singly) for name in ("drafted", "accepted"))
    assert 0.1 * drafted < accepted < 0.9 * drafted
    for size in (2, 7, 24):
        together = engine_models.decode(strategy, scorer, requests, batch_size=size)
        assert [result.hypotheses for result in together] == [result.hypotheses for result in singly]
        assert [result.passes for result in together] == [result.passes for result in singly]
        assert drafter.cells_in_use == 0


def test_the_seed_decides_and_more_samples_keep_those_there_were() -> None:
    table, drafter = (RealPasses(9, seed=seed) for seed in (1, 2))
    requests = random_requests(random.Random(1), 12, 9)
    first, again, other = (
        outputs_of(decode(speculative(drafter, temperature=1.0, seed=seed), table, requests))
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    few, many = (
        decode(speculative(drafter, temperature=1.0, nbest=n), table, requests, batch_size=8) for n in (2, 5)
    )
    for two, five in zip(few, many, strict=True):
        outputs = [Counter(each.tokens for each in result.hypotheses) for result in (two, five)]
        assert outputs[0] <= outputs[1]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_prefix_is_kept(temperature: float) -> None:
    table, drafter = (RealPasses(9, seed=seed) for seed in (1, 2))
    request = Request(0, (4, 5, EOS), 6, prefix=(7, 7, 4))
    (result,) = decode(speculative(drafter, temperature=temperature, nbest=5), table, [request])
    assert {hypothesis.tokens[:3] for hypothesis in result.hypotheses} == {(7, 7, 4)}
    for hypothesis in result.hypotheses:
        tokens = hypothesis.tokens
        wanted = [table.log_probs(request.source, tokens[:i])[word] for i, word in enumerate(tokens)]
        assert hypothesis.positional_scores == pytest.approx(wanted, abs=1e-5)


# Options, helpers, and the command.


def test_what_is_promised_depends_on_the_temperature() -> None:
    greedy, drawing = (make_strategy("speculative", {"temperature": t}) for t in (0.0, 1.0))
    assert greedy.promised.guarantee is Guarantee.IDENTICAL
    assert drawing.promised.guarantee is Guarantee.SAME_DISTRIBUTION
    measured = [
        EngineRuns(Spec("", "speculative", options, "fp32")) for options in ({}, {"temperature": 1.0})
    ]
    assert [each.guarantee for each in measured] == [Guarantee.IDENTICAL, Guarantee.SAME_DISTRIBUTION]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 1e-4}, "temperature of 'speculative' is 0.0001"),
        ({"temperature": -1.0}, "temperature of 'speculative' is -1.0"),
        ({"top_k": 3}, "top_k is 3, but at temperature=0 nothing is drawn"),
        ({"top_p": 0.5}, "top_p is 0.5, but at temperature=0 nothing is drawn"),
        ({"nbest": 2}, "nbest is 2, but at temperature=0 nothing is drawn"),
        ({"block_size": 0}, "block_size of 'speculative' is 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_strategy("speculative", options)
    assert caught.value.message == message


@pytest.mark.parametrize("name", ["speculative", "bild"])
def test_no_drafter_and_one_that_outputs_all_at_once_are_refused(name: str) -> None:
    table, request = TablePasses(Table(9)), Request(0, (4, EOS), 5)
    with pytest.raises(UsageError, match=r"drafter names none\. Fix: name a small autoregressive model"):
        decode(make_strategy(name, {}), table, [request])
    with pytest.raises(StrategyMismatchError, match=r"needs a PassScorer.* strategy='gad'"):
        decode(drafting(name, object()), table, [request])


WORDS = tiny.WORDS.split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models `model` and `small`, and `other`, which has other words."""
    folder = tmp_path_factory.mktemp("speculative")
    tiny.random_model(folder / "model", words=WORDS, layers=2)
    tiny.random_model(folder / "small", words=WORDS, seed=2)
    tiny.random_model(folder / "other", words=[*WORDS[:5], "x", *WORDS[6:]])
    lines = [" ".join(random.Random(i).choices(WORDS, k=i % 9)) for i in range(12)]
    (folder / "in.txt").write_text("\n".join(lines) + "\n")
    return folder


def decoded(folder: Path, model: str, *flags: str) -> bytes:
    out = folder / "out.txt"
    assert main([str(folder / model), str(folder / "in.txt"), "--output", str(out), "--quiet", *flags]) == 0
    return out.read_bytes()


def test_the_command_says_what_greedy_search_says(folder: Path) -> None:
    flags = ["--assert-lossless", "--stats", str(folder / "stats.json")]
    wanted = decoded(folder, "model", "--strategy", "greedy")
    for drafter in ("small", "model"):
        named = ["--strategy", "speculative", "--drafter", str(folder / drafter)]
        assert decoded(folder, "model", *named, "--batch-size", "3", *flags) == wanted
        report = json.loads((folder / "stats.json").read_text())
        assert report["drafted"] > 0
        assert report["accepted"] == report["drafted"] or drafter == "small"
        assert "|temperature:0.0|" in report["signature"]
        assert str(folder) not in report["signature"]


@pytest.mark.parametrize("name", ["speculative", "bild"])
def test_drafters_that_do_not_fit_are_refused(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(model: str, drafter: str | None) -> tuple[int, str]:
        flags = [] if drafter is None else ["--drafter", str(folder / drafter)]
        command = [str(folder / model), str(folder / "in.txt"), "--strategy", name, "--quiet", *flags]
        code = main(command)
        captured = capsys.readouterr()
        assert captured.out == ""
        return code, captured.err

    code, message = refused("model", None)
    assert (code, f"strategy {name!r} drafts with a second model" in message) == (2, True)
    code, message = refused("model", "other")
    assert (code, "differ at id 9: 'went' and 'x'" in message) == (4, True)
    # A drafter that is larger is told of, and drafts.
    command = [str(folder / "small"), str(folder / "in.txt"), "--drafter", str(folder / "model")]
    assert main([*command, "--strategy", name]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("are the two swapped?") == 1
    if name == "speculative":
        assert main([*command[:2], "--strategy", "greedy", "--quiet"]) == 0
        assert capsys.readouterr().out == captured.out
