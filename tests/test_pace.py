"""Drafting as far as it pays: the choice of lengths, the account that bounds what tries lose, and outputs.

Time is a number that scripted models and drafters add to, by a cost table of their own: what a run takes is
compared with what greedy search takes by the same table.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support.scripted import ScriptScorer, TableScorer, decode, outputs_of, over_tensors, plain_greedy
from support.transformers_small import random_config, random_model, random_requests, vocabulary
from torch import Tensor

from nartk.decoders import pace as pace_module
from nartk.decoders.pace import DEEPEST, Costs, Curve, Outlook, Pace, Row, Standing, best_plan
from nartk.decoders.paced import Adaptive
from nartk.decoders.tensor_loop import Draft, Drafter
from nartk.decoders.tensor_ngram import NgramCache
from nartk.hypothesis import Request, Result
from nartk.models.transformer_scorer import TransformerScorer
from nartk.scorer import Source

EOS = 2
Cost = Callable[[int, int], float]


class Now:
    """The clock: what has been added to it."""

    def __init__(self) -> None:
        self.time = 0.0

    def tick(self) -> float:
        return self.time

    def seconds(self, first: float, second: float) -> float:
        return second - first


class Ticking(Now):
    """A clock that takes time itself, so that all that looks at it does, with nothing drafted as well."""

    def __init__(self, each: float) -> None:
        super().__init__()
        self.each = each

    def tick(self) -> float:
        self.time += self.each
        return self.time


class Dear(ScriptScorer):
    """Says the script, and takes the time that a table says: by rows and tokens fed."""

    def __init__(self, words: int, script: Any, cost: Cost, **options: Any) -> None:
        super().__init__(words, script, **options)
        self.cost, self.now = cost, Now()
        self.fed: list[tuple[int, int]] = []

    def verify(self, tokens: Tensor, state: Any, counts: Sequence[int] | None = None) -> Any:
        assert counts is not None
        live = sum(count > 0 for count in counts)
        self.fed.append((live, sum(counts)))
        self.now.time += self.cost(live, sum(counts))
        return super().verify(tokens, state, counts)


@dataclass(frozen=True)
class Place:
    """Which request each row [B] is."""

    index: Tensor


class Guess(Drafter):
    """Knows the outputs [R,T], and says something else where right [R,T] is False.

    Args:
        each: Seconds that a drafted token takes, for all rows together.
        reading: Seconds that a source takes.
    """

    def __init__(self, outputs: Tensor, right: Tensor, now: Now, *, each: float, reading: float) -> None:
        self.outputs, self.right, self.now = outputs, right, now
        self.each, self.reading = each, reading
        self.asked: list[list[int]] = []

    def start(self, source: Source, requests: Sequence[Request]) -> Place:
        self.now.time += self.reading * len(requests)
        return Place(torch.tensor([request.index for request in requests], device=source.tokens.device))

    def draft(self, state: Any, outputs: Tensor, lengths: Tensor, budget: Tensor) -> tuple[Draft, Any]:
        most = min(int(budget.max()), self.outputs.shape[1])
        self.asked.append(budget.tolist())
        self.now.time += self.each * most
        columns = (lengths[:, None] + torch.arange(most, device=lengths.device)).clamp(
            max=self.outputs.shape[1] - 1
        )
        said = self.outputs[state.index[:, None], columns]
        right = self.right[state.index[:, None], columns]
        return Draft(torch.where(right, said, 3), budget.clamp(max=most)), state


@dataclass(frozen=True, kw_only=True)
class Guessing(Adaptive):
    """A strategy with a drafter and a pace that the test gives."""

    guess: Any = None
    pace: Any = None

    def make_drafter(self, scorer: Any) -> Drafter:
        return self.guess

    def make_pace(self, scorer: Any) -> Pace | None:
        return self.pace


def flat(rows: int, tokens: int) -> float:
    """A pass takes as long whatever is fed: a large GPU."""
    return 1.0


def steep(rows: int, tokens: int) -> float:
    """Half of a single row's pass is work that every token takes: a small CPU."""
    return 0.5 + 0.5 * tokens


def stairs(rows: int, tokens: int) -> float:
    """Tokens come in groups of 16."""
    return 1.0 + 0.4 * ((tokens - 1) // 16)


@dataclass
class Case:
    """Sentences, and how well each token of them is guessed."""

    requests: list[Request]
    outputs: list[list[int]]
    right: Callable[[int, int], bool]

    def decode(
        self,
        cost: Cost,
        device: torch.device,
        *,
        batch_size: int = 1,
        each: float = 0.0,
        reading: float = 0.0,
        pace: bool = True,
        make: type[Pace] = Pace,
        going: Pace | None = None,
    ) -> tuple[Dear, Guess, list[Result]]:
        """Decodes; the scorer tells the time.

        Args:
            going: A pace to go on with, and its clock.
        """
        script = dict(zip((r.source for r in self.requests), self.outputs, strict=True))
        scorer = Dear(50 + len(self.requests), script, cost, device=device)
        if going is not None:
            assert isinstance(going.clock, Now)
            scorer.now = going.clock
        width = max(map(len, self.outputs))
        said = [[*output, *[EOS] * (width - len(output))] for output in self.outputs]
        right = [[self.right(i, t) for t in range(width)] for i in range(len(said))]
        guess = Guess(
            torch.tensor(said, device=device),
            torch.tensor(right, device=device),
            scorer.now,
            each=each,
            reading=reading,
        )
        strategy = Guessing(guess=guess, pace=going or (make(scorer.now) if pace else None))
        results = decode(strategy, scorer, self.requests, batch_size=batch_size)
        assert outputs_of(results) == self.outputs
        return scorer, guess, results

    def greedy(self, cost: Cost, device: torch.device, *, batch_size: int = 1) -> float:
        """What greedy search takes."""
        script = dict(zip((r.source for r in self.requests), self.outputs, strict=True))
        scorer = Dear(50 + len(self.requests), script, cost, device=device)
        found = decode(over_tensors("greedy", {}), scorer, self.requests, batch_size=batch_size)
        assert outputs_of(found) == self.outputs
        return scorer.now.time


def case(count: int, right: Callable[[int, int], bool], *, longest: int = 30, seed: int = 0) -> Case:
    rng = random.Random(seed)
    requests, outputs = [], []
    for i in range(count):
        size = rng.randint(longest // 2, longest)
        requests.append(Request(i, (50 + i, *rng.choices(range(4, 50), k=size - 1), EOS), 2 * longest))
        outputs.append([*rng.choices(range(4, 50), k=size), EOS])
    return Case(requests, outputs, right)


def never(i: int, t: int) -> bool:
    return False


def always(i: int, t: int) -> bool:
    return True


# What a run takes

ONCE = 8.0  # seconds that the first source and the first tries may take, with every cost below


class Unbounded(Pace):
    """Known to be wrong: keeps no account."""

    def passed(self, *arguments: Any) -> None:
        super().passed(*arguments)
        if self.credit is not None:
            self.credit = 1e9


class Hopeful(pace_module.Standing):
    """Believes that all drafts stand, whatever it sees: an estimate that misleads the choice."""

    def rates(self) -> tuple[float, list[float], list[float]]:
        return 0.9, [0.9] * DEEPEST, [1.0] * DEEPEST


class Misled(Pace):
    def __init__(self, clock: Any) -> None:
        super().__init__(clock)
        self.standing = Hopeful()


class MisledUnbounded(Misled, Unbounded):
    pass


GARBAGE = [
    (flat, 1, 0.1, 0.5),
    (steep, 1, 0.0, 0.0),
    (stairs, 4, 0.3, 1.0),
    (steep, 8, 0.1, 0.0),
]


@pytest.mark.parametrize(("cost", "batch_size", "each", "reading"), GARBAGE)
@pytest.mark.parametrize("make", [Pace, Misled])
def test_garbage_costs_no_more_than_a_twentieth(
    make: type[Pace], cost: Cost, batch_size: int, each: float, reading: float, device: torch.device
) -> None:
    garbage = case(12 * batch_size, never)
    spent = garbage.greedy(cost, device, batch_size=batch_size)
    options = {"batch_size": batch_size, "each": each, "reading": reading}
    scorer, guess, _ = garbage.decode(cost, device, make=make, **options)
    assert scorer.now.time <= 1.05 * spent + ONCE
    assert guess.asked  # it was tried


@pytest.mark.parametrize(("cost", "batch_size", "each", "reading"), GARBAGE[:3])
def test_without_the_account_the_bound_fails(
    cost: Cost, batch_size: int, each: float, reading: float, device: torch.device
) -> None:
    garbage = case(12 * batch_size, never)
    spent = garbage.greedy(cost, device, batch_size=batch_size)
    options = {"batch_size": batch_size, "each": each, "reading": reading}
    scorer, _, _ = garbage.decode(cost, device, make=MisledUnbounded, **options)
    assert scorer.now.time > 1.05 * spent + ONCE


@pytest.mark.parametrize("batch_size", [1, 4])
def test_long_runs_stay_within_a_twentieth_alone(batch_size: int, device: torch.device) -> None:
    """Without any allowance for what is paid once."""
    garbage = case(40 * batch_size, never)
    spent = garbage.greedy(stairs, device, batch_size=batch_size)
    scorer, _, _ = garbage.decode(stairs, device, batch_size=batch_size, each=0.2, reading=0.2)
    assert scorer.now.time <= 1.05 * spent


class Uncharged(Pace):
    """Known to be wrong: pays for what passes lose, and not for what is done beside them."""

    def spent(self, first: Any, second: Any, *, in_pass: bool) -> None:
        pass


class MisledUncharged(Misled, Uncharged):
    pass


class Restless(Pace):
    """Known to be wrong: looks at every pass, though nothing pays."""

    def rest(self, known: int, live: int) -> int:
        return 0


LOSING = [(flat, 1, 1.0, 3.0), (steep, 1, 0.0, 0.1), (stairs, 4, 1.5, 2.0)]


def lost(
    make: type[Pace], cost: Cost, batch_size: int, each: float, reading: float, device: torch.device
) -> tuple[float, Pace]:
    """What 200 sentences a row take, of greedy search's time, once a first few have been decoded."""
    pace = make(Ticking(0.02))  # so that a pass that is looked at takes at least a twelfth longer
    options: Any = {"batch_size": batch_size, "each": each, "reading": reading, "going": pace}
    case(10 * batch_size, never, longest=12).decode(cost, device, **options)
    before = pace.clock.tick()
    garbage = case(200 * batch_size, never, longest=12, seed=1)
    garbage.decode(cost, device, **options)
    return (pace.clock.tick() - before) / garbage.greedy(cost, device, batch_size=batch_size), pace


@pytest.mark.parametrize("losing", LOSING)
@pytest.mark.parametrize("make", [Pace, Misled])
def test_all_that_is_done_for_nothing_is_a_twentieth_at_most(
    make: type[Pace], losing: Any, device: torch.device
) -> None:
    share, pace = lost(make, *losing, device)
    assert 1 < share <= 1.05
    assert len(pace._warm) == 2  # both a source was read and something drafted


@pytest.mark.parametrize(("make", "losing"), [(Restless, LOSING[1]), (MisledUncharged, LOSING[0])])
def test_what_is_not_charged_is_lost(make: type[Pace], losing: Any, device: torch.device) -> None:
    share, _ = lost(make, *losing, device)
    assert share > 1.05


class Steady(Pace):
    """Known to be wrong: rests as long after each try as after the first."""

    def rested(self, passes: int, first: Any, second: Any) -> None:
        super().rested(passes, first, second)
        self._rest = 8


def test_rests_become_longer_while_nothing_pays(device: torch.device) -> None:
    found = []
    for make in (Pace, Steady):
        rests: list[int] = []

        class Noted(make):  # type: ignore[misc, valid-type]
            def rest(self, known: int, live: int) -> int:
                begun = not self._left
                passes = super().rest(known, live)
                if passes and begun:
                    rests.append(passes)  # noqa: B023
                return passes

        case(80, never).decode(stairs, device, each=0.1, reading=0.1, make=Noted)
        found.append(rests)
    assert found[0][:4] == [32, 64, 128, 256]
    assert set(found[0][4:]) == {256}
    assert found[1][-1] < 64


def test_while_it_rests_nothing_is_asked_of_pace_or_drafter(device: torch.device) -> None:
    """Of 200 passes that greedy search goes on alone, over many sentences."""
    garbage = case(12, never, longest=12)

    class Away(Pace):
        def __getattribute__(self, name: str) -> Any:
            if name in ("admit", "budgets", "passed", "spent", "started", "drafted", "is_quiet"):
                raise AssertionError(name)
            return super().__getattribute__(name)

    pace = Away(Ticking(0.0))
    pace._left = 200
    scorer, guess, _ = garbage.decode(flat, device, batch_size=3, going=pace)
    assert guess.asked == []
    assert pace._left == 200 - len(scorer.fed)


def test_perfect_drafts_become_as_long_as_they_may(device: torch.device) -> None:
    perfect = case(12, always)
    scorer, guess, results = perfect.decode(flat, device)
    assert max(map(max, guess.asked)) > max(map(len, perfect.outputs))
    assert [result.passes for result in results[-6:]] == [1] * 6 or scorer.now.time < 40
    assert scorer.now.time < 0.2 * perfect.greedy(flat, device)


def test_a_better_drafter_midway_is_found_and_a_worse_one_is_left(device: torch.device) -> None:
    """60 sentences of up to 30 tokens, in the order of their lengths; the drafter changes at the 30th."""
    order = sorted(range(60), key=lambda i: (-len(case(60, never).requests[i].source), i))
    late = set(order[30:])
    for good in (True, False):
        changing = case(60, lambda i, t, good=good: (i in late) == good)
        _, _, results = changing.decode(stairs, device, each=0.05)
        early_passes = sum(results[i].passes for i in order[:30])
        late_drafted = [results[i].drafted for i in order[30:]]
        late_passes = sum(results[i].passes for i in order[30:])
        late_tokens = sum(len(changing.outputs[i]) for i in order[30:])
        if good:
            assert early_passes > 500  # hardly drafted
            assert late_passes < 0.6 * late_tokens
        else:
            assert early_passes < 200
            assert sum(late_drafted[-10:]) < 0.2 * late_tokens


def test_rows_of_different_acceptance_draft_differently(device: torch.device) -> None:
    """Two rows at once, of long outputs: one guessed well, the other never."""
    mixed = case(2, lambda i, t: i == 0, longest=200)
    _, guess, results = mixed.decode(lambda rows, tokens: 1 + 0.1 * tokens, device, batch_size=2)
    both = [asked for asked in guess.asked if len(asked) == 2 and min(asked) < 1 << 20]
    assert both
    assert any(abs(a - b) > 2 for a, b in both)
    assert results[0].passes < 0.7 * results[1].passes


# The choice by plain Python


def test_a_single_rows_length_is_the_best_of_all_lengths() -> None:
    rng = random.Random(0)
    for _ in range(60):
        stands = [rng.uniform(0.3, 0.98)] * DEEPEST
        goes_on = [rng.choice([1.0, 0.9])] * DEEPEST
        start, each, drafting = 1.0, rng.uniform(0, 0.3), rng.uniform(0, 0.2)
        costs = Costs()
        for _ in range(3):
            costs.add_greedy(1, start)
        for tokens in range(2, DEEPEST + 2):
            costs.add_pass(1, tokens, start + each * (tokens - 1))
            costs.add_draft(1, tokens - 1, drafting * (tokens - 1))
        found = best_plan(costs, 1, {0: Outlook.of(stands, goes_on)}, {0: 1}, 1.0, 1e9)

        def speed(depth: int) -> float:
            gained = sum((stands[0] * goes_on[0]) ** j for j in range(1, depth + 1))  # noqa: B023
            fed = sum(goes_on[0] ** j for j in range(1, depth + 1))  # noqa: B023
            return (1 + gained) / (costs.verify(1, 1 + fed) + costs.draft(1, depth) * (depth > 0))  # noqa: B023

        best = max(range(DEEPEST + 1), key=speed)
        assert speed(found.depths.get(0, 0)) >= 0.97 * speed(best)


def test_two_rows_lengths_are_nearly_the_best_of_all_pairs() -> None:
    rng = random.Random(1)
    for _ in range(20):
        outlooks = {key: Outlook.of([rng.uniform(0.2, 0.95)] * DEEPEST, [1.0] * DEEPEST) for key in (0, 1)}
        each = rng.uniform(0, 0.3)
        costs = Costs()
        for _ in range(3):
            costs.add_greedy(2, 1.0)
        for tokens in range(3, 2 * DEEPEST + 2):
            costs.add_pass(2, tokens, 1 + each * (tokens - 2))
        found = best_plan(costs, 2, outlooks, {0: 1, 1: 1}, 1.0, 1e9)

        def speed(*depths: int) -> float:
            gained = sum(outlooks[key].gained[depth] for key, depth in enumerate(depths))  # noqa: B023
            return (2 + gained) / costs.verify(2, 2 + sum(depths))  # noqa: B023

        best = max(speed(*pair) for pair in itertools.product(range(25), repeat=2))
        assert speed(found.depths.get(0, 0), found.depths.get(1, 0)) >= 0.95 * best


def test_nothing_is_planned_that_the_account_does_not_cover() -> None:
    costs = Costs()
    for _ in range(3):
        costs.add_greedy(1, 1.0)
    outlook = {0: Outlook.of([0.99] * DEEPEST, [1.0] * DEEPEST)}
    # At worst, a token more costs as much as a pass.
    assert best_plan(costs, 1, outlook, {0: 1}, 1.0, 0.9).depths == {}
    assert best_plan(costs, 1, outlook, {0: 1}, 1.0, 1.0).depths == {0: 1}
    assert best_plan(costs, 1, outlook, {0: 1}, 1.0, 3.5).depths == {0: 3}


def test_rates_by_hand() -> None:
    """Drafts of 3 tokens of 4 asked for; 2 stood, then 0, then all 3."""
    standing = Standing()
    for stood in (2, 0, 3):
        standing.add(4, 3, stood)
        standing.fade(-1 / (pace_module._WINDOW - 1))  # undoes what an observation forgets
    held, prior = pace_module._HELD, pace_module._RATE
    rate, stands, goes_on = standing.rates()
    assert rate == pytest.approx((5 + held * prior) / (7 + held))
    wanted = [(2, 3), (2, 2), (1, 2), (0, 0)]
    assert stands[:4] == pytest.approx([(s + held * rate) / (t + held) for s, t in wanted])
    length = (9 + held) / (12 + held)
    wanted = [(3, 3), (3, 3), (3, 3), (0, 3)]
    assert goes_on[:4] == pytest.approx([(s + held * length) / (t + held) for s, t in wanted])


def test_a_curve_by_hand() -> None:
    curve = Curve((1.0, 1.0))
    assert (curve.at(1), curve.at(3), curve.at(3, worst=True)) == (1.0, 2.0, 3.0)
    curve.add(5, 2.0)
    assert (curve.at(3), curve.at(5), curve.at(9), curve.at(10, worst=True)) == (1.5, 2.0, 3.0, 4.0)
    for _ in range(3):
        curve.add(9, 1.5)  # then 5 has been held up: no size costs more than a larger one
    assert curve.at(5) == 1.5


# The output


class Wild:
    """A clock that says anything."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def tick(self) -> float:
        return 0.0

    def seconds(self, first: float, second: float) -> float:
        return self.rng.choice([0.0, 1e-9, 1e-4, 1e-3, 1.0, 100.0])


class Dice(Pace):
    """Drafts any number of tokens for some rows, whatever they cost; reads some sources, at any time.

    Args:
        rests: How long it may rest, passes.
    """

    def __init__(self, seed: int, *, rests: Sequence[int] = (0, 0, 0, 1, 2, 7)) -> None:
        super().__init__(Wild(seed))
        self.rng, self.rests = random.Random(seed), rests

    def admit(self, lengths: Sequence[int], live: int) -> int:
        return self.rng.randint(0, len(lengths))

    def is_quiet(self, known: int, live: int) -> bool:
        return False

    def rest(self, known: int, live: int) -> int:
        return self._left or self.rng.choice(self.rests)

    def rested(self, passes: int, first: Any, second: Any) -> None:
        self._left = 0

    def budgets(self, rows: Sequence[Row], live: int) -> list[int]:
        on = self.rng.random() < 0.7
        return [on * self.rng.choice([0, 0, 1, 2, 5, DEEPEST]) for _ in rows]


def paced(strategy: Any, pace: Pace) -> Any:
    """The strategy with another pace."""
    made = type("Diced", (type(strategy),), {"make_pace": lambda self, scorer: pace})
    return made(**{item.name: getattr(strategy, item.name) for item in dataclasses.fields(strategy)})


def strategies_of() -> list[Any]:
    return [over_tensors(name, {}) for name in ("iad", "ngram")]


@pytest.mark.parametrize("seed", range(4))
def test_the_output_is_greedy_searchs_whatever_is_drafted_when(seed: int, device: torch.device) -> None:
    rng = random.Random(seed)
    scorer = TableScorer(15, seed=seed, device=device)
    requests = [
        Request(
            i,
            (*rng.choices(range(4, 15), k=rng.randint(0, 15)), EOS),
            rng.randint(1, 25),
            drafts=((*rng.choices(range(4, 15), k=9),), (5, 6)),
        )
        for i in range(25)
    ]
    wanted = plain_greedy(scorer.scores, requests)
    for strategy in strategies_of():
        accepted = 0
        for batch_size in (1, 3, 25):
            dice = Dice(seed + batch_size), Dice(seed + batch_size, rests=[0])
            for pace in (*dice, Pace(Wild(seed + batch_size))):
                results = decode(paced(strategy, pace), scorer, requests, batch_size=batch_size)
                assert outputs_of(results) == wanted, strategy.name
                accepted += sum(result.accepted for result in results)
        assert accepted > 0, strategy.name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_bit_depends_on_what_is_drafted_when(dtype: torch.dtype, device: torch.device) -> None:
    def said(results: Sequence[Result]) -> list[Any]:
        return [(r.hypotheses[0].tokens, r.hypotheses[0].positional_scores) for r in results]

    for seed in range(3):
        rng = random.Random(seed)
        config = random_config(rng)
        model = random_model(config, seed)
        words = vocabulary(config.tgt_vocab)
        scorer = TransformerScorer(model, words, dtype=dtype, device=device)
        requests = random_requests(rng, 12, len(words), limits=[1, 2, 5, 9, 20])
        wanted = said(decode(over_tensors("greedy", {}), scorer, requests, batch_size=1))
        for strategy in strategies_of():
            for batch_size in (1, 3, 12):
                results = decode(paced(strategy, Dice(seed)), scorer, requests, batch_size=batch_size)
                assert said(results) == wanted


def test_an_ngram_cache_finds_what_was_put_out_while_it_paused(device: torch.device) -> None:
    words = torch.arange(20, device=device)
    cache = NgramCache(words, 20, 3, 4)
    request = Request(0, (4, 5, 6, 7, 8, 9, EOS), 30)
    source = Source(torch.tensor([request.source], device=device), torch.tensor([7], device=device))
    state = cache.start(source, [request])
    outputs = torch.tensor([[*range(10, 19), 4, 5, 6, *[1] * 18]], device=device)
    at = torch.tensor([12], device=device)
    draft, state = cache.draft(state, outputs, at, at)
    assert draft.tokens[0, :3].tolist() == [7, 8, 9]


def test_a_scorers_modes_share_what_was_measured(device: torch.device) -> None:
    scorer, other = TableScorer(15, device=device), TableScorer(15, device=device)
    strategy = over_tensors("ngram", {"adaptive": True})
    pace = strategy.make_pace(scorer)
    assert strategy.make_pace(scorer.mode(exact=True)) is pace
    assert strategy.make_pace(other) is not pace
    assert over_tensors("iad", {"adaptive": True}).make_pace(scorer) is not pace
