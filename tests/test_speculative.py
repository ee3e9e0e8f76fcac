"""Speculative decoding: greedy search to the last bit, sampling's distribution by enumeration.

Each promise comes with a variant that is known to be wrong and must fail the same check.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import test_promises_algorithm as algorithm
import test_promises_exact as exactness
import torch
from realtable import EOS
from scripted import ScriptScorer, decode, differing, outputs_of, plain_greedy
from small_drafters import GARBAGE, Garbage, Near, drafting, shaken
from torch import Tensor
from transformers_small import random_config, random_model, random_requests, vocabulary

from nartk.decoders.loop import Draft, Fed, Judged, argmax_acceptance
from nartk.decoders.small_model import SmallModel, pick_best
from nartk.hypothesis import Request
from nartk.models.transformer_scorer import TransformerScorer

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
