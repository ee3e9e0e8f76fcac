"""Big little decoder, against the published algorithm in plain Python.

Each promise comes with a variant that is known to be wrong and must fail the same check.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import test_promises_exact as exactness
import tiny
import torch
from realtable import EOS, RealTable
from scripted import ScriptScorer, TableScorer, decode, outputs_of, plain_greedy
from small_drafters import GARBAGE, Garbage, Near, drafting, shaken
from torch import Tensor
from transformers_small import random_config, random_model, random_requests, vocabulary

from nartk.cli.decode import main
from nartk.decoders import bild as module
from nartk.decoders import tensor_loop as loop
from nartk.decoders.tensor_loop import Fed, Judged, log_probs
from nartk.errors import UsageError
from nartk.hypothesis import Request, Result
from nartk.models.transformer_scorer import TransformerScorer
from nartk.registry import make_strategy


def bild(drafter: Any, **options: Any) -> Any:
    return drafting("bild", drafter, **options)


# The published algorithm (Kim et al. 2023, algorithm 1), for one sentence and without a tensor.


def log_softmax(scores: Sequence[float]) -> list[float]:
    most = max(scores)
    total = most + math.log(sum(math.exp(score - most) for score in scores))
    return [score - total for score in scores]


def distance_by_hand(kind: str, word: int, p: Sequence[float], q: Sequence[float]) -> float:
    if kind == "cross-entropy":
        return -p[word]
    if kind == "margin":
        return max(p) - p[word]
    return sum(math.exp(b) * (b - a) for a, b in zip(p, q, strict=True))


@dataclasses.dataclass
class Told:
    """What comes out, and what it took."""

    tokens: list[int]
    scores: list[float]
    origins: list[str]
    passes: int = 0
    drafted: int = 0


def twin(model: Any, small: Any, request: Request, options: Any) -> Told:
    told = Told([], [], [])

    def append(word: int, p: list[float], origin: str) -> None:
        told.tokens.append(word)
        told.scores.append(p[word])
        told.origins.append(origin)

    def say(scorer: Any, words: Sequence[int]) -> list[float]:
        return log_softmax(scorer.scores_by_hand(request.source, [EOS, *words]))

    while len(told.tokens) < request.max_len and told.tokens[-1:] != [EOS]:
        draft: list[tuple[int, list[float]]] = []
        # The small model writes on; the last place of the output is the model's.
        while len(draft) < options.max_draft and len(told.tokens) + len(draft) < request.max_len - 1:
            q = say(small, [*told.tokens, *(word for word, _ in draft)])
            word = q.index(max(q))
            if math.exp(q[word]) < options.fallback:
                break
            draft.append((word, q))
            if word == EOS:
                break
        told.passes += 1
        told.drafted += len(draft)
        for word, q in draft:
            p = say(model, told.tokens)
            if distance_by_hand(options.distance, word, p, q) > options.rollback:
                append(p.index(max(p)), p, "rollback")
                break
            append(word, p, "draft")
            if word == EOS:
                break
        else:
            p = say(model, told.tokens)
            append(p.index(max(p)), p, "verifier")
    return told


def random_case(rng: random.Random, device: torch.device) -> tuple[TableScorer, Near, list[Request], Any]:
    words = rng.randint(6, 12)
    table = TableScorer(
        words,
        seed=rng.getrandbits(60),
        spread=rng.choice([3, 5, 8]),
        bonus=rng.choice([2, 4]),
        patience=4,
        device=device,
    )
    small = Near(table, seed=rng.getrandbits(60), noise=rng.choice([0.0, 0.3, 0.7]))
    options = {
        "fallback": rng.choice([0.0, 0.3, 0.6, 0.6, 0.9]),
        "rollback": rng.choice([0.1, 0.5, 1.0, 2.0, 5.0]),
        "max_draft": rng.choice([1, 2, 4, 10]),
        "distance": rng.choice(["cross-entropy", "kl", "margin"]),
    }
    requests = random_requests(rng, 6, words, longest=8, limits=[1, 2, 5, 14])
    return table, small, requests, bild(small, **options)


def judged_otherwise(cases: int, device: torch.device, accept: Any = None) -> tuple[int, int, int]:
    """How many of `cases` sentences come out otherwise than by hand; tokens drafted and accepted."""
    wrong = drafted = accepted = 0
    for seed in range(cases // 6):
        rng = random.Random(seed)
        table, small, requests, strategy = random_case(rng, device)
        wanted = [twin(table, small, request, strategy) for request in requests]
        if accept is not None:
            object.__setattr__(strategy, "acceptance", lambda s=strategy: accept(s))
        found = decode(strategy, table, requests, batch_size=rng.choice([1, 1, 4]))
        wrong += sum(not agrees(*pair) for pair in zip(found, wanted, strict=True))
        drafted += sum(result.drafted for result in found)
        accepted += sum(result.accepted for result in found)
    return wrong, drafted, accepted


def agrees(found: Result, told: Told) -> bool:
    hypothesis = found.hypotheses[0]
    return (
        list(hypothesis.tokens) == told.tokens
        and hypothesis.positional_scores == pytest.approx(told.scores, abs=1e-4)
        and (found.passes, found.drafted) == (told.passes, told.drafted)
    )


def test_it_is_the_published_algorithm(device: torch.device) -> None:
    wrong, drafted, accepted = judged_otherwise(300, device)
    assert wrong == 0
    assert 0.2 * drafted < accepted < 0.9 * drafted


@pytest.mark.slow
def test_it_is_the_published_algorithm_at_full_size(device: torch.device) -> None:
    assert judged_otherwise(30_000, device)[0] == 0


class _Wrong(module._Rollback):
    """Known to be wrong: a word stands if the one before it should."""

    def __call__(self, logits: Tensor, fed: Fed) -> Judged:
        judged = super().__call__(logits, fed)
        assert judged.stands is not None
        return dataclasses.replace(judged, stands=judged.stands.roll(1) & (fed.drafted >= 0))


class _Lenient(module._Rollback):
    """Known to be wrong: eos stands whatever the model says, as in the published code."""

    def __call__(self, logits: Tensor, fed: Fed) -> Judged:
        judged = super().__call__(logits, fed)
        assert judged.stands is not None
        return dataclasses.replace(judged, stands=judged.stands | (fed.drafted == EOS))


@pytest.mark.parametrize("rule", [_Wrong, _Lenient])
def test_a_wrong_rollback_shows(rule: Any, device: torch.device) -> None:
    def accept(strategy: Any) -> Any:
        return rule(module._DISTANCES[strategy.distance], strategy.rollback)

    assert judged_otherwise(120, device, accept)[0] > 0


def test_distances_by_hand(device: torch.device) -> None:
    p, q = [0.5, 0.25, 0.25, 0.0], [0.25, 0.5, 0.25, 0.0]
    nothing = torch.zeros(1, dtype=torch.int64, device=device)
    logits, lprobs = (torch.tensor([values], device=device).log() for values in (p, q))
    fed = Fed(nothing, nothing, nothing + 1, nothing, lprobs)
    wanted = {"cross-entropy": math.log(4), "margin": math.log(2), "kl": 0.25 * math.log(2)}
    assert module._DISTANCES.keys() == wanted.keys()
    for kind, value in wanted.items():
        found = module._DISTANCES[kind](logits, logits.log_softmax(-1), fed)
        assert found.tolist() == pytest.approx([value], abs=1e-6)
        assert distance_by_hand(kind, 1, logits[0].tolist()[:3], lprobs[0].tolist()[:3]) == pytest.approx(
            value
        )
    assert log_probs(logits, fed.drafted).tolist() == pytest.approx([-math.log(4)])


def traced_otherwise(cases: int, device: torch.device) -> tuple[int, Counter[str]]:
    """How many of `cases` traces say otherwise than by hand where tokens came from; what they say."""
    wrong, said = 0, Counter[str]()
    for seed in range(cases // 6):
        rng = random.Random(seed)
        table, small, requests, strategy = random_case(rng, device)
        found = decode(strategy, table, requests, batch_size=rng.choice([1, 4]), trace=True)
        for result, request in zip(found, requests, strict=True):
            trace = result.hypotheses[0].trace
            assert trace is not None
            origins = [each.origin for each in trace]
            wrong += origins != twin(table, small, request, strategy).origins
            said.update(origins)
    return wrong, said


def test_what_is_rolled_back_is_told(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, said = traced_otherwise(240, device)
    assert wrong == 0
    assert min(said[origin] for origin in ("draft", "verifier", "rollback")) > 10
    # Known bad: every token of the verifier's is told alike.
    monkeypatch.setattr(loop, "_ROLLBACK", loop._OWN)
    assert traced_otherwise(240, device)[0] > 0


# Edges of the options.

SAID = {(4, EOS): [5, 6, 7, 8, 9, 10, EOS]}


def scripted(said: Sequence[int], device: torch.device) -> ScriptScorer:
    """Of its 12 words the next has a probability of 0.2 and a cross-entropy of 1.6, the others of 2.6."""
    return ScriptScorer(12, {(4, EOS): said}, device=device)


@pytest.mark.parametrize(
    ("options", "passes", "drafted"),
    [
        ({"fallback": 0.0}, 1, 7),  # the whole output, eos too
        ({"fallback": 0.0, "max_draft": 3}, 2, 6),  # 5 6 7, 8 is the model's; 9 10 eos
        ({"fallback": 0.1, "max_draft": 1}, 4, 4),
        ({"fallback": 0.3}, 7, 0),  # never sure: a token a pass
        ({"fallback": 1.0}, 7, 0),
        ({}, 7, 0),
    ],
)
def test_fallback_by_hand(options: dict[str, Any], passes: int, drafted: int, device: torch.device) -> None:
    scorer, small = (scripted(SAID[(4, EOS)], device) for _ in range(2))
    (result,) = decode(bild(small, **options), scorer, [Request(0, (4, EOS), 20)])
    assert outputs_of([result]) == [*SAID.values()]
    assert (result.passes, result.drafted, result.accepted) == (passes, drafted, drafted)


def refusing_eos(strategy: Any, device: torch.device) -> Result:
    (result,) = decode(strategy, scripted(SAID[(4, EOS)], device), [Request(0, (4, EOS), 20)], trace=True)
    return result


def test_an_eos_that_the_model_refuses_ends_nothing(device: torch.device) -> None:
    small = scripted([5, 6, EOS], device)
    result = refusing_eos(bild(small, fallback=0.0, max_draft=5), device)
    assert list(result.hypotheses[0].tokens) == SAID[(4, EOS)]
    trace = result.hypotheses[0].trace
    assert trace is not None
    # 5 6 stand, 7 replaces eos. After that the small model says pad, which is refused as well.
    assert [each.origin for each in trace] == ["draft"] * 2 + ["rollback"] * 5
    assert [each.verifier_pass for each in trace] == [1, 1, 1, 2, 3, 4, 5]
    assert (result.drafted, result.accepted) == (3 + 5 + 5 + 5 + 5, 2)


def test_an_unverified_eos_shows(device: torch.device) -> None:
    strategy = bild(scripted([5, 6, EOS], device), fallback=0.0)
    rule = _Lenient(module._DISTANCES["cross-entropy"], 2.0)
    object.__setattr__(strategy, "acceptance", lambda: rule)
    assert list(refusing_eos(strategy, device).hypotheses[0].tokens) == [5, 6, EOS]


@pytest.mark.parametrize("distance", ["cross-entropy", "kl", "margin"])
def test_rollback_0_is_greedy_search(distance: str, device: torch.device) -> None:
    for seed in range(4):
        table = RealTable(9, seed=seed, device=device)  # without ties
        small = Near(table, seed=seed + 50, noise=0.3)
        requests = random_requests(random.Random(seed), 12, 9, limits=[3, 12])
        strategy = bild(small, rollback=0.0, fallback=0.0, distance=distance)
        assert outputs_of(decode(strategy, table, requests)) == plain_greedy(table.scores, requests)


def test_rollback_inf_is_the_small_models_but_for_every_last_word(device: torch.device) -> None:
    table, small = (RealTable(9, seed=seed, device=device) for seed in (1, 2))
    for request in random_requests(random.Random(0), 12, 9, limits=[3, 12]):
        strategy = bild(small, rollback=math.inf, fallback=0.0, max_draft=4)
        (result,) = decode(strategy, table, [dataclasses.replace(request, index=0)])
        told: list[int] = []
        while len(told) < request.max_len and told[-1:] != [EOS]:
            last = len(told) % 5 == 4 or len(told) + 1 == request.max_len
            scores = (table if last else small).scores_by_hand(request.source, [EOS, *told])
            told.append(scores.index(max(scores)))
        assert outputs_of([result]) == [told]


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_is_rolled_back_or_never_drafted(kind: str, device: torch.device) -> None:
    """Where no garbage word is likely to the model, the output is greedy search's."""
    for seed in range(2):
        table = TableScorer(12, seed=seed, spread=20, device=device)
        requests = random_requests(random.Random(seed), 8, 12, limits=[3, 12])
        strategy = bild(Garbage(table, kind), fallback=0.0, rollback=0.0, distance="margin")
        assert len(decode(strategy, table, requests)) == 8
        if kind != "the opposite":
            continue
        assert outputs_of(decode(strategy, table, requests)) == plain_greedy(table.scores, requests)


# A batch.


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_batch_says_bitwise_what_its_sentences_say_alone(dtype: str, device: torch.device) -> None:
    drafted = accepted = passes = tokens = 0
    for seed in range(3):
        rng = random.Random(seed)
        config = random_config(rng)
        model, words = random_model(config, seed), vocabulary(config.tgt_vocab)
        scorer, small = (
            TransformerScorer(each, words, dtype=exactness.DTYPES[dtype], device=device)
            for each in (model, shaken(model, seed, 0.2))
        )
        requests = random_requests(rng, 10, len(words), limits=[1, 2, 7, 16])
        strategy = bild(small, fallback=0.07, rollback=2.5, distance=rng.choice(["cross-entropy", "kl"]))
        alone = decode(strategy, scorer, requests, batch_size=1)
        for size in (2, 4, 8):
            found = decode(strategy, scorer, requests, batch_size=size)
            assert exactness.said(found) == exactness.said(alone)
            for name in ("passes", "drafted", "accepted"):
                assert [getattr(r, name) for r in found] == [getattr(r, name) for r in alone]
        drafted += sum(result.drafted for result in alone)
        accepted += sum(result.accepted for result in alone)
        passes += sum(result.passes for result in alone)
        tokens += sum(len(result.hypotheses[0].tokens) for result in alone)
    assert 0.2 * drafted < accepted < 0.95 * drafted
    assert passes < 0.95 * tokens


# The command.


def test_it_is_approximate_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = tiny.WORDS.split()
    model, small = (tiny.random_model(tmp_path / name, words=words, seed=s) for s, name in enumerate("ab"))
    (tmp_path / "in.txt").write_text("she sees the cat\nhe goes home !\n")
    command = [str(model), str(tmp_path / "in.txt"), "--strategy", "bild", "--drafter", str(small)]
    assert main([*command, "--assert-lossless"]) == 2
    assert "the promise of 'bild' is 'approximate: " in capsys.readouterr().err
    assert main([*command, "--fallback", "0", "--rollback", "inf"]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 2
    assert "|fallback:0.0|rollback:inf|max_draft:10|distance:cross-entropy|" in captured.err


@pytest.mark.parametrize(
    "options",
    [{"fallback": 1.5}, {"fallback": -0.1}, {"rollback": -1.0}, {"rollback": math.nan}, {"max_draft": 0}],
)
def test_options_out_of_bounds_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        make_strategy("bild", options)
