"""Speculative decoding: greedy search to the last bit, sampling's distribution by enumeration.

Each promise comes with a variant that is known to be wrong and must fail the same check.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import test_promises_algorithm as algorithm
import test_promises_exact as exactness
import tiny
import torch
from realtable import EOS, RealTable, log_probs, random_transformer
from scripted import ScriptScorer, TableScorer, decode, differing, outputs_of, plain_greedy
from small_drafters import GARBAGE, Garbage, Near, drafting, shaken
from support.distributions import every_output, fit
from torch import Tensor
from transformers_small import random_config, random_model, random_requests, vocabulary

from nartk.bench.report import lossless as is_lossless
from nartk.cli.decode import main
from nartk.decoders import speculative as module
from nartk.decoders.small_model import SmallModel, pick_best
from nartk.decoders.speculative import Speculative
from nartk.decoders.tensor_loop import Draft, Fed, Judged, argmax_acceptance
from nartk.errors import StrategyMismatchError, UsageError
from nartk.hypothesis import Request
from nartk.models.transformer_scorer import TransformerScorer
from nartk.registry import make_strategy

CHANCE = 1e-5  # of a right sampler to fail one of these tests; seeds are fixed, so it fails always or never


def speculative(drafter: Any, **options: Any) -> Any:
    return drafting("speculative", drafter, **options)


# P1, P7 and P8: under a table of exact scores.


def table_mismatches(
    cases: int,
    device: torch.device,
    *,
    request_of: Callable[[random.Random, int, int], Request] = algorithm.random_request,
    garbage: str | None = None,
    accept: Any = None,
) -> tuple[int, int, int]:
    """How many of `cases` sentences come out otherwise than by greedy search; tokens drafted and accepted."""
    wrong = drafted = accepted = 0
    for seed in range(cases // 20):
        rng = random.Random(seed)
        scorer = algorithm.random_table(rng, device)
        drafter: Any = Near(scorer, seed=rng.getrandbits(60), noise=rng.choice([0.0, 0.3, 0.7, 1.5]))
        if garbage is not None:
            drafter = Garbage(scorer, garbage)
        requests = [request_of(rng, i, len(scorer.vocab)) for i in range(20)]
        strategy = speculative(drafter, block_size=rng.choice([1, 2, 3, 5, 40]))
        if accept is not None:
            object.__setattr__(strategy, "acceptance", lambda: accept)
        found = decode(strategy, scorer, requests, batch_size=rng.choice([1, 2, 3, 8, 20]))
        wrong += len(differing(outputs_of(found), plain_greedy(scorer.scores, requests)))
        drafted += sum(result.drafted for result in found)
        accepted += sum(result.accepted for result in found)
    return wrong, drafted, accepted


def test_p1_equals_greedy(device: torch.device) -> None:
    wrong, drafted, accepted = table_mismatches(300, device)
    assert wrong == 0
    assert 0.2 * drafted < accepted < 0.8 * drafted


@pytest.mark.slow
def test_p1_at_full_size(device: torch.device) -> None:
    assert table_mismatches(200_000, device)[0] == 0


@pytest.mark.parametrize("rule", [algorithm.accept_one_too_many, algorithm.accept_runner_up])
def test_p1_fails_with_a_wrong_acceptance(rule: Any, device: torch.device) -> None:
    assert table_mismatches(60, device, accept=rule)[0] > 0


def test_p7_edges(device: torch.device) -> None:
    assert table_mismatches(200, device, request_of=algorithm.edge_request)[0] == 0


@pytest.mark.parametrize("kind", GARBAGE)
def test_p8_a_garbage_drafter_never_changes_the_output(kind: str, device: torch.device) -> None:
    assert table_mismatches(40, device, garbage=kind)[0] == 0


@pytest.mark.parametrize("kind", ["pad", "eos", "the opposite"])
def test_p8_fails_when_garbage_is_believed(kind: str, device: torch.device) -> None:
    def believe(logits: Tensor, fed: Fed) -> Judged:
        return dataclasses.replace(argmax_acceptance(logits, fed), stands=fed.drafted >= 0)

    assert table_mismatches(60, device, garbage=kind, accept=believe)[0] > 0


# P2 and P4: Transformers, bit by bit.


def scorers(
    rng: random.Random, dtype: torch.dtype, device: torch.device
) -> tuple[TransformerScorer, TransformerScorer]:
    """A random model and a drafter: the same with other weights, more or less, or a smaller one."""
    config = random_config(rng)
    model = random_model(config, rng.getrandbits(30))
    small: Any = shaken(model, rng.getrandbits(30), rng.choice([0.0, 0.01, 0.05, 0.2]))
    if rng.random() < 0.2:
        small = random_model(dataclasses.replace(config, decoder_layers=1, encoder_layers=1), 1)
    words = vocabulary(config.tgt_vocab)
    return tuple(TransformerScorer(each, words, dtype=dtype, device=device) for each in (model, small))  # type: ignore[return-value]


def bit_differences(cases: int, dtype: str, device: torch.device) -> tuple[int, int, int]:
    """How many sentences get other tokens or bits than by greedy search alone; tokens drafted, accepted."""
    wrong = drafted = accepted = 0
    for seed in range(cases // 12):
        rng = random.Random(seed)
        scorer, drafter = scorers(rng, exactness.DTYPES[dtype], device)
        requests = random_requests(rng, 12, len(scorer.vocab), limits=[1, 2, 5, 9, 20])
        wanted = exactness.alone(scorer, requests)
        for size in (1, 2, 8):
            strategy = speculative(drafter, block_size=rng.choice([1, 3, 5]))
            found = decode(strategy, scorer, requests, batch_size=size)
            wrong += len(differing(exactness.said(found), wanted))
            drafted += sum(result.drafted for result in found)
            accepted += sum(result.accepted for result in found)
    return wrong, drafted, accepted


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_p2_drafts_and_batches_change_no_bit(dtype: str, device: torch.device) -> None:
    wrong, drafted, accepted = bit_differences(48, dtype, device)
    assert wrong == 0
    assert 0.2 * drafted < accepted < 0.8 * drafted  # rows come forward by parts of any length


@pytest.mark.slow
@pytest.mark.parametrize("dtype", exactness.DTYPES)
def test_p2_at_full_size(dtype: str, device: torch.device) -> None:
    assert bit_differences(3_000, dtype, device)[0] == 0


def test_p2_fails_the_naive_way(device: torch.device) -> None:
    """Known to be wrong: linear layers computed at whatever shape comes."""
    wrong = 0
    for seed in range(3):
        rng = random.Random(seed)
        scorer, drafter = scorers(rng, torch.float32, device)
        exactness.make_naive(scorer)
        requests = random_requests(rng, 12, len(scorer.vocab), limits=[5, 9, 20])
        found = decode(speculative(drafter, exact=False), scorer, requests, batch_size=8)
        wrong += len(differing(exactness.said(found), exactness.alone(scorer, requests, exact=False)))
    assert wrong > 0


# What it takes.


@pytest.mark.parametrize("block_size", [1, 2, 3, 5, 20])
@pytest.mark.parametrize("batch_size", [1, 8])
def test_a_drafter_that_is_the_verifier_gains_a_block_and_a_token_a_pass(
    block_size: int, batch_size: int, device: torch.device
) -> None:
    outputs = [[4 + (i + j) % 7 for j in range(i)] + [EOS] for i in range(13)]
    script = {(4 + i % 9, 4 + i // 9, EOS): output for i, output in enumerate(outputs)}
    scorer, drafter = (ScriptScorer(15, script, device=device) for _ in range(2))
    requests = [Request(i, source, 40) for i, source in enumerate(script)]
    found = decode(speculative(drafter, block_size=block_size), scorer, requests, batch_size=batch_size)
    assert outputs_of(found) == outputs
    for result, output in zip(found, outputs, strict=True):
        whole, rest = divmod(len(output), block_size + 1)
        assert result.passes == whole + (rest > 0)
        assert result.drafted == result.accepted == whole * block_size + rest


def test_steps_of_the_drafter_by_hand(device: torch.device) -> None:
    outputs = {(4, EOS): [5, 6, 7, 8, EOS], (5, EOS): [6, EOS]}
    told = {(4, EOS): [5, 6, 9, 9, EOS], (5, EOS): [6, EOS]}  # wrong from the third word on, then only pad
    scorer, drafter = ScriptScorer(12, outputs, device=device), ScriptScorer(12, told, device=device)
    fed: list[list[int] | None] = []

    def verify(tokens: Tensor, state: Any, counts: Any = None) -> Any:
        fed.append(counts)
        return ScriptScorer.verify(drafter, tokens, state, counts)

    drafter.mode = lambda *, exact: drafter  # type: ignore[method-assign]
    drafter.verify = verify  # type: ignore[method-assign]
    requests = [Request(0, (4, EOS), 5), Request(1, (5, EOS), 5)]
    found = decode(speculative(drafter, block_size=3), scorer, requests, batch_size=2)
    assert outputs_of(found) == [*outputs.values()]
    # 5 6 9 and 6 eos are drafted: 5 6 7 stand or come, 6 eos stand. With two tokens to come, one is drafted
    # after 7, which alone is fed. The verifier says 8 instead; for the last token nothing is drafted.
    assert fed == [[1, 1], [1, 1], [1, 0], [1, 0]]
    assert [(r.passes, r.drafted, r.accepted) for r in found] == [(3, 4, 2), (1, 2, 2)]


def test_the_last_of_a_draft_that_stood_is_fed_with_the_verifiers_token(device: torch.device) -> None:
    script = {(4, EOS): [5, 6, 7, 8, 9, EOS]}
    scorer, drafter = (ScriptScorer(12, script, device=device) for _ in range(2))
    fed: list[list[int]] = []

    def verify(tokens: Tensor, state: Any, counts: Any = None) -> Any:
        fed.extend(tokens[i, :count].tolist() for i, count in enumerate(counts))
        return ScriptScorer.verify(drafter, tokens, state, counts)

    drafter.mode = lambda *, exact: drafter  # type: ignore[method-assign]
    drafter.verify = verify  # type: ignore[method-assign]
    decode(speculative(drafter, block_size=2), scorer, [Request(0, (4, EOS), 9)])
    assert fed == [[EOS], [5], [6, 7], [8]]  # 5 6, then 7 is the verifier's; 8 9, then eos is


# The drafter's cache.


class Checking(SmallModel):
    """Compares what the small model says at each step with what it says of the same tokens in a new state."""

    def draft(self, state: Any, outputs: Tensor, lengths: Tensor, budget: Tensor) -> tuple[Draft, Any]:
        seen: list[tuple[Tensor, Tensor, Tensor]] = []

        def pick(logits: Tensor, requests: Tensor, positions: Tensor) -> Any:
            seen.append((logits, requests, positions))
            return pick_best(logits, requests, positions)

        draft, state = SmallModel(self.scorer, self.longest, pick).draft(state, outputs, lengths, budget)
        for logits, requests, positions in seen:
            for row, index, size in zip(logits, requests.tolist(), positions.tolist(), strict=True):
                (place,) = (state.requests == index).nonzero().flatten().tolist()
                told = torch.cat([outputs[place, : lengths[place]], draft.tokens[place]])[:size]
                fresh = self.scorer.truncate(state.inner, torch.zeros_like(state.fed))
                fresh = self.scorer.select(fresh, torch.tensor([place], device=row.device))
                bos = torch.full_like(told[:1], EOS) if size else torch.tensor([EOS], device=row.device)
                again, _ = self.scorer.verify(torch.cat([bos, told])[None], fresh)
                CHECKED["equal" if torch.equal(again[0, -1], row) else "unequal"] += 1
        return draft, state


CHECKED: Counter[str] = Counter()


class Forgetful(TransformerScorer):
    """Known to be wrong: what was rejected stays."""

    def truncate(self, state: Any, lengths: Tensor) -> Any:
        return state if bool(lengths.any()) else super().truncate(state, lengths)


class Hasty(TransformerScorer):
    """Known to be wrong: the last accepted token is forgotten."""

    def truncate(self, state: Any, lengths: Tensor) -> Any:
        return super().truncate(state, (lengths - 1).clamp(min=0))


def checked(kind: type[TransformerScorer], device: torch.device) -> Counter[str]:
    """How often the small model's logits are a new state's, bit by bit, and how often they are not."""
    CHECKED.clear()
    for seed in range(2):
        rng = random.Random(seed)
        config = random_config(rng)
        model = random_model(config, seed)
        words = vocabulary(config.tgt_vocab)
        scorer = TransformerScorer(model, words, device=device)
        small = kind(shaken(model, seed, 0.02), words, device=device)
        strategy = speculative(small)
        object.__setattr__(strategy, "make_drafter", lambda _, small=small: Checking(small, 4, pick_best))
        requests = random_requests(rng, 9, len(words), limits=[2, 8, 20])
        decode(strategy, scorer, requests, batch_size=3)
    return CHECKED


def test_the_drafters_cache_is_a_new_states(device: torch.device) -> None:
    counts = checked(TransformerScorer, device)
    assert counts["equal"] > 100
    assert counts["unequal"] == 0


@pytest.mark.parametrize("kind", [Forgetful, Hasty])
def test_a_wrong_cache_of_the_drafter_shows(kind: type, device: torch.device) -> None:
    assert checked(kind, device)["unequal"] > 0


# P9: the distribution, by enumeration.


@dataclasses.dataclass(frozen=True)
class Toy:
    """A table of few words, a drafter, and how to draw."""

    table: RealTable
    drafter: Any
    request: Request
    options: dict[str, Any]


def toy(seed: int, device: torch.device) -> Toy:
    """Drafters are near the model or far from it; filters may leave them no word in common."""
    rng = random.Random(seed)
    words = rng.randint(5, 7)
    table = RealTable(words, seed=rng.getrandbits(60), device=device)
    drafter = RealTable(words, seed=rng.getrandbits(60), device=device)
    if rng.random() < 0.5:
        drafter = Near(table, seed=rng.getrandbits(60), noise=rng.choice([0.0, 0.2, 0.5]))
    options: dict[str, Any] = {
        "temperature": rng.choice([0.7, 1.0, 1.0, 2.0]),
        "top_k": rng.choice([0, 0, 2, 4]),
        "top_p": rng.choice([1.0, 1.0, 0.8]),
        "block_size": rng.choice([1, 2, 3, 5]),
    }
    return Toy(table, drafter, Request(rng.randrange(100), (4, 4, EOS), rng.choice([2, 3, 4])), options)


def drawn(toy: Toy, count: int) -> list[tuple[int, ...]]:
    some = min(count, 50_000)
    outputs = []
    for part in range(count // some):
        options = toy.options | {"nbest": some, "seed": part}
        (result,) = speculative(toy.drafter, **options).run(toy.table, [toy.request], batch_size=10_000)
        outputs += [hypothesis.tokens for hypothesis in result.hypotheses]
    return outputs


def misfit(toy: Toy, count: int) -> tuple[float, float, float]:
    """The chance of a right sampler's draws to be so far from the distribution; their distance in total
    variation; and the distance that a right sampler has on average, at most."""
    wanted = every_output(partial(log_probs, toy.table), toy.request, speculative(toy.drafter, **toy.options))
    outputs = drawn(toy, count)
    counts = Counter(outputs)
    variation = sum(abs(counts[output] / count - p) for output, p in wanted.items()) / 2
    # E|X/n - p| is at most sqrt(p (1 - p) / n).
    usual = sum(math.sqrt(p * (1 - p) / count) for p in wanted.values()) / 2
    return fit(outputs, wanted), variation, usual


@pytest.mark.parametrize("seed", range(20))
def test_p9_draws_have_the_models_distribution(seed: int, device: torch.device) -> None:
    chance, variation, usual = misfit(toy(seed, device), 4_000)
    assert chance > CHANCE
    assert variation <= 2 * usual


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_p9_at_full_size(seed: int, device: torch.device) -> None:
    chance, variation, _ = misfit(toy(100 + seed, device), 1_000_000)
    assert chance > 0.001 / 20
    assert variation < 0.01


def far(device: torch.device) -> Toy:
    """A table and another one that drafts, so that much is refused."""
    table, drafter = (RealTable(6, seed=seed, device=device) for seed in (7, 9))
    return Toy(table, drafter, Request(0, (4, 4, EOS), 3), {"temperature": 3.0})


def test_p9_holds_where_the_wrong_ways_show(device: torch.device) -> None:
    assert misfit(far(device), 10_000)[0] > CHANCE


class _Wrong(module._Reject):
    """Known to be wrong in one way."""

    def __init__(self, options: Speculative, way: str) -> None:
        object.__setattr__(self, "options", options)
        object.__setattr__(self, "way", way)

    def __call__(self, logits: Tensor, fed: Fed) -> Judged:
        judged, way = super().__call__(logits, fed), self.way  # type: ignore[attr-defined]
        assert fed.lprobs is not None
        if way == "accepts always":
            return dataclasses.replace(judged, stands=fed.drafted >= 0)
        at = self.options.numbers(fed.requests, fed.positions, 3)
        if way == "replaces from p":
            return dataclasses.replace(judged, tokens=module.draw(self.options.chances(logits), at))
        p, q = self.options.chances(logits), fed.lprobs.exp()
        rest = torch.where(fed.drafted[:, None] >= 0, (q - p).clamp(min=0), p)
        return dataclasses.replace(judged, tokens=module.draw(rest, at))


@pytest.mark.parametrize("way", ["accepts always", "replaces from p", "replaces from q - p"])
def test_p9_fails_with_a_wrong_acceptance(
    way: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Speculative, "acceptance", lambda self: _Wrong(self, way))
    chance, variation, usual = misfit(far(device), 10_000)
    assert chance < CHANCE
    assert variation > 2 * usual


@pytest.mark.parametrize("shared", [(1, 1, 3), (1, 2, 1), (1, 2, 2)])
def test_p9_fails_where_decisions_share_their_random_numbers(
    shared: tuple[int, int, int], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, stream in zip(("_DRAFTS", "_ACCEPTS", "_REPLACES"), shared, strict=True):
        monkeypatch.setattr(module, name, stream)
    assert misfit(far(device), 10_000)[0] < CHANCE


@pytest.mark.parametrize("kind", GARBAGE)
def test_p9_holds_with_a_garbage_drafter(kind: str, device: torch.device) -> None:
    made = toy(1, device)
    made = dataclasses.replace(made, drafter=Garbage(made.table, kind), options={"temperature": 1.0})
    assert misfit(made, 4_000)[0] > CHANCE


def test_a_drafter_that_is_the_verifier_is_never_refused(device: torch.device) -> None:
    table = RealTable(9, seed=3, device=device)
    requests = [Request(i, (4, 5, EOS), 12) for i in range(50)]
    twin = RealTable(9, seed=3, device=device)
    for result in decode(speculative(twin, temperature=1.0, nbest=4), table, requests):
        assert result.accepted == result.drafted > 0
        lengths = [len(hypothesis.tokens) for hypothesis in result.hypotheses]
        assert result.passes == sum(-(-length // 6) for length in lengths)


def test_scores_are_the_models(device: torch.device) -> None:
    table, drafter = (RealTable(6, seed=seed, device=device) for seed in (1, 2))
    request = Request(0, (4, 5, EOS), 5)
    (result,) = decode(speculative(drafter, temperature=2.0, top_k=3, nbest=20), table, [request])
    for hypothesis in result.hypotheses:
        told = hypothesis.tokens
        wanted = [log_probs(table, request.source, told[:i])[word] for i, word in enumerate(told)]
        assert hypothesis.positional_scores == pytest.approx(wanted, abs=1e-5)


# What a draw depends on.


@pytest.mark.parametrize("settings", [{}, {"top_k": 20, "top_p": 0.9}], ids=str)
def test_draws_are_the_same_alone_and_in_any_batch(settings: dict[str, Any], device: torch.device) -> None:
    words = vocabulary(60)
    model = random_transformer(0, len(words))
    scorer = TransformerScorer(model, words, device=device)
    drafter = TransformerScorer(shaken(model, 1, 0.1), words, device=device)
    requests = random_requests(random.Random(0), 8, len(words), limits=[1, 2, 7, 20])
    strategy = speculative(drafter, temperature=0.8, nbest=3, **settings)
    alone = [next(iter(strategy.run(scorer, [request], batch_size=1))) for request in requests]
    drafted, accepted = (sum(getattr(result, name) for result in alone) for name in ("drafted", "accepted"))
    assert 0.2 * drafted < accepted < 0.9 * drafted
    for size in (2, 7, 24):
        together = decode(strategy, scorer, requests, batch_size=size)
        assert [result.hypotheses for result in together] == [result.hypotheses for result in alone]
        assert [result.passes for result in together] == [result.passes for result in alone]


def test_the_seed_decides_and_more_samples_keep_those_there_were(device: torch.device) -> None:
    table, drafter = (RealTable(9, seed=seed, device=device) for seed in (1, 2))
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
        told = [Counter(each.tokens for each in result.hypotheses) for result in (two, five)]
        assert told[0] <= told[1]


def test_a_prefix_is_kept(device: torch.device) -> None:
    table, drafter = (RealTable(9, seed=seed, device=device) for seed in (1, 2))
    request = Request(0, (4, 5, EOS), 6, prefix=(7, 7, 4))
    (result,) = decode(speculative(drafter, temperature=1.0, nbest=5), table, [request])
    assert {hypothesis.tokens[:3] for hypothesis in result.hypotheses} == {(7, 7, 4)}


# Options, helpers, and the command.


def test_what_is_promised_depends_on_the_temperature() -> None:
    greedy, drawing = (make_strategy("speculative", {"temperature": t}) for t in (0.0, 1.0))
    assert greedy.promised == "identical to greedy"
    assert drawing.promised == "drawn from the model's distribution; the same in any batch"
    assert is_lossless(_series({}))
    assert not is_lossless(_series({"temperature": 1.0}))
    assert not is_lossless(_series({"exact": False}))


def _series(options: dict[str, Any]) -> Any:
    return SimpleNamespace(spec=SimpleNamespace(name="speculative", options=options, model=""))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 1e-4}, "--temperature of 'speculative' is 0.0001"),
        ({"temperature": -1.0}, "--temperature of 'speculative' is -1.0"),
        ({"top_k": 3}, "--top-k is 3, but at --temperature 0 nothing is drawn"),
        ({"top_p": 0.5}, "--top-p is 0.5, but at --temperature 0 nothing is drawn"),
        ({"nbest": 2}, "--nbest is 2, but at --temperature 0 nothing is drawn"),
        ({"block_size": 0}, "--block-size of 'speculative' is 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_strategy("speculative", options)
    assert caught.value.message == message


@pytest.mark.parametrize("name", ["speculative", "bild"])
def test_no_drafter_and_one_that_says_all_at_once_are_refused(name: str, device: torch.device) -> None:
    table, request = TableScorer(9, device=device), Request(0, (4, EOS), 5)
    with pytest.raises(UsageError, match=r"--drafter names none\. Fix: name a small autoregressive model"):
        decode(make_strategy(name, {}), table, [request])
    with pytest.raises(StrategyMismatchError, match=r"needs a Seq2SeqScorer.* --strategy gad"):
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
    code, message = refused("small", "model")
    assert (code, message.startswith("nartk: error[E304 SwappedModels] drafter")) == (4, True)
    assert "Fix: swap them" in message
