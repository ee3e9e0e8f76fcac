"""BiLD: the published algorithm by hand, its edges, and batches that change no bit."""

from __future__ import annotations

import dataclasses
import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import engine_models, tiny
from support.engine_models import TYPES, bits_of, on_engine, random_network
from support.real_passes import RealPasses
from support.scripted_passes import (
    EOS,
    ScriptPasses,
    Table,
    TablePasses,
    decode,
    outputs_of,
    plain_greedy,
)
from support.small_drafters import shaken
from support.small_passes import GARBAGE, UNREADABLE, Garbage, Near, drafting
from support.transformers_small import random_requests

from nartk.cli.decode import main
from nartk.decoders.bild import Rollback
from nartk.decoders.loop import loop
from nartk.decoders.loop.acceptance import DraftOutcome, Verified
from nartk.decoders.loop.rows import Row
from nartk.errors import PassError, UsageError
from nartk.protocols.hypothesis import Request, Result, TokenTrace
from nartk.registry import make_strategy


def bild(drafter: Any, **options: Any) -> Any:
    return drafting("bild", drafter, **options)


# The published algorithm (Kim et al. 2023, algorithm 1), for one sentence, in plain Python.


def log_softmax(scores: Sequence[float]) -> list[float]:
    most = max(scores)
    total = most + math.log(sum(math.exp(score - most) for score in scores))
    return [score - total for score in scores]


@dataclasses.dataclass
class Expected:
    """What is output, and what it takes."""

    tokens: list[int]
    scores: list[float]
    origins: list[str]
    passes: int = 0
    drafted: int = 0
    drafter_passes: int = 0


def twin(model: TablePasses, small: Near, request: Request, options: Any) -> Expected:
    expected = Expected([], [], [])

    def append(word: int, p: list[float], origin: str) -> None:
        expected.tokens.append(word)
        expected.scores.append(p[word])
        expected.origins.append(origin)

    def of_model() -> list[float]:
        scores = model.table.scores_by_hand(request.source, [EOS, *expected.tokens])
        return log_softmax([float(each) for each in scores])

    while len(expected.tokens) < request.max_len and expected.tokens[-1:] != [EOS]:
        draft: list[tuple[int, list[float]]] = []
        # The small model writes on; the last token of the output is the model's.
        while len(draft) < options.max_draft and len(expected.tokens) + len(draft) < request.max_len - 1:
            words = [*expected.tokens, *(word for word, _ in draft)]
            q = log_softmax(small.logits(request.source, words))
            word = q.index(max(q))
            expected.drafter_passes += 1
            if math.exp(q[word]) < options.fallback:
                break
            draft.append((word, q))
            if word == EOS:
                break
        expected.passes += 1
        expected.drafted += len(draft)
        for word, _ in draft:
            p = of_model()
            kept = options.keep_best and word == p.index(max(p))
            if not kept and -p[word] > options.rollback:
                append(p.index(max(p)), p, "rollback")
                break
            append(word, p, "draft")
            if word == EOS:
                break
        else:
            p = of_model()
            append(p.index(max(p)), p, "verifier")
    return expected


def random_case(rng: random.Random) -> tuple[TablePasses, Near, list[Request], Any]:
    words = rng.randint(6, 12)
    table = TablePasses(
        Table(
            words,
            seed=rng.getrandbits(60),
            spread=rng.choice([3, 5, 8]),
            bonus=rng.choice([2, 4]),
            patience=4,
        )
    )
    small = Near(table, seed=rng.getrandbits(60), noise=rng.choice([0.0, 0.3, 0.7]))
    options = {
        "fallback": rng.choice([0.0, 0.3, 0.6, 0.6, 0.9]),
        "rollback": rng.choice([0.1, 0.53, 1.03, 2.03, 5.03]),
        "max_draft": rng.choice([1, 2, 4, 10]),
    }
    requests = random_requests(rng, 6, words, longest=8, limits=[1, 2, 5, 14])
    return table, small, requests, bild(small, keep_best=rng.random() < 0.5, **options)


def judged_otherwise(cases: int, accept: Any = None) -> tuple[int, int, int]:
    """How many of `cases` sentences come out otherwise than by hand; tokens drafted and accepted."""
    wrong = drafted = accepted = 0
    for seed in range(cases // 6):
        rng = random.Random(seed)
        table, small, requests, strategy = random_case(rng)
        wanted = [twin(table, small, request, strategy) for request in requests]
        if accept is not None:
            object.__setattr__(strategy, "acceptance", lambda s=strategy: accept(s))
        found = decode(strategy, table, requests, batch_size=rng.choice([1, 1, 4]))
        assert small.in_use == (0, 0)
        wrong += sum(not agrees(*pair) for pair in zip(found, wanted, strict=True))
        drafted += sum(result.drafted for result in found)
        accepted += sum(result.accepted for result in found)
    return wrong, drafted, accepted


def agrees(found: Result, expected: Expected) -> bool:
    hypothesis = found.hypotheses[0]
    counts = (found.passes, found.drafted, found.drafter_passes)
    return (
        list(hypothesis.tokens) == expected.tokens
        and hypothesis.positional_scores == pytest.approx(expected.scores, abs=1e-4)
        and counts == (expected.passes, expected.drafted, expected.drafter_passes)
    )


def test_it_is_the_published_algorithm() -> None:
    wrong, drafted, accepted = judged_otherwise(300)
    assert wrong == 0
    assert 0.2 * drafted < accepted < 0.9 * drafted


@pytest.mark.slow
def test_it_is_the_published_algorithm_at_full_size() -> None:
    assert judged_otherwise(30_000)[0] == 0


class Late(Rollback):
    """Known to be wrong: a word is accepted if the one before it should be."""

    def judge(self, row: Row, verified: Verified) -> Iterator[DraftOutcome]:
        before = True
        for outcome in super().judge(row, verified):
            yield outcome._replace(is_accepted=before)
            before = outcome.is_accepted


class Lenient(Rollback):
    """Known to be wrong: eos is accepted whatever the model says, as in the published code."""

    def judge(self, row: Row, verified: Verified) -> Iterator[DraftOutcome]:
        outcomes = super().judge(row, verified)
        for token, outcome in zip(row.draft.tokens, outcomes, strict=True):
            yield DraftOutcome(True, EOS, outcome.log_prob) if token == EOS else outcome


@pytest.mark.parametrize("rule", [Late, Lenient])
def test_a_wrong_rollback_shows(rule: Any) -> None:
    def accept(strategy: Any) -> Any:
        return rule(strategy.rollback, strategy.keep_best)

    try:
        wrong, _, _ = judged_otherwise(120, accept)
    except AssertionError:
        return  # the scorer noticed
    assert wrong > 0


def traced_otherwise(cases: int) -> tuple[int, Counter[str]]:
    """How many of `cases` traces say otherwise than by hand where tokens came from; what they say."""
    wrong, seen = 0, Counter[str]()
    for seed in range(cases // 6):
        rng = random.Random(seed)
        table, small, requests, strategy = random_case(rng)
        found = decode(strategy, table, requests, batch_size=rng.choice([1, 4]), trace=True)
        for result, request in zip(found, requests, strict=True):
            trace = result.hypotheses[0].trace
            assert trace is not None
            origins = [each.origin for each in trace]
            wrong += origins != twin(table, small, request, strategy).origins
            seen.update(origins)
    return wrong, seen


def test_what_is_rolled_back_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, seen = traced_otherwise(240)
    assert wrong == 0
    assert min(seen[origin] for origin in ("draft", "verifier", "rollback")) > 10
    traced = loop.traced

    def alike(*arguments: Any) -> Iterator[TokenTrace]:
        """Known to be wrong: every token of the verifier's is traced alike."""
        for each in traced(*arguments):
            yield dataclasses.replace(each, origin=each.origin.replace("rollback", "verifier"))

    monkeypatch.setattr(loop, "traced", alike)
    assert traced_otherwise(240)[0] > 0


# Edges of the options.

OUTPUT = {(4, EOS): [5, 6, 7, 8, 9, 10, EOS]}


def scripted(output: Sequence[int]) -> ScriptPasses:
    """Of its 12 words the next has a probability of 0.2 and a cross-entropy of 1.6, the others of 2.6."""
    return ScriptPasses(12, {(4, EOS): output})


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
def test_fallback_by_hand(options: dict[str, Any], passes: int, drafted: int) -> None:
    scorer, small = (scripted(OUTPUT[(4, EOS)]) for _ in range(2))
    (result,) = decode(bild(small, **options), scorer, [Request(0, (4, EOS), 20)])
    assert outputs_of([result]) == [*OUTPUT.values()]
    assert (result.passes, result.drafted, result.accepted) == (passes, drafted, drafted)


def refusing_eos(strategy: Any) -> Result:
    (result,) = decode(strategy, scripted(OUTPUT[(4, EOS)]), [Request(0, (4, EOS), 20)], trace=True)
    return result


def test_an_eos_that_the_model_refuses_ends_nothing() -> None:
    result = refusing_eos(bild(scripted([5, 6, EOS]), fallback=0.0, max_draft=5))
    assert list(result.hypotheses[0].tokens) == OUTPUT[(4, EOS)]
    trace = result.hypotheses[0].trace
    assert trace is not None
    # 5 6 are accepted, 7 replaces eos. After that the small model has pad, which is rejected as well.
    assert [each.origin for each in trace] == ["draft"] * 2 + ["rollback"] * 5
    assert [each.verifier_pass for each in trace] == [1, 1, 1, 2, 3, 4, 5]
    assert (result.drafted, result.accepted) == (3 + 5 + 5 + 5 + 5, 2)


def test_an_unverified_eos_shows() -> None:
    strategy = bild(scripted([5, 6, EOS]), fallback=0.0)
    rule = Lenient(2.0, True)
    object.__setattr__(strategy, "acceptance", lambda: rule)
    assert list(refusing_eos(strategy).hypotheses[0].tokens) == [5, 6, EOS]


@pytest.mark.parametrize(("keep_best", "passes", "accepted"), [(True, 1, 7), (False, 7, 0)])
def test_the_models_best_word_is_kept_however_unlikely(keep_best: bool, passes: int, accepted: int) -> None:
    """As in the authors' program; its negative log-probability here is 1.6."""
    scorer, small = (scripted(OUTPUT[(4, EOS)]) for _ in range(2))
    strategy = bild(small, fallback=0.0, rollback=1.0, keep_best=keep_best)
    (result,) = decode(strategy, scorer, [Request(0, (4, EOS), 20)])
    assert outputs_of([result]) == [*OUTPUT.values()]
    assert (result.passes, result.accepted) == (passes, accepted)


@pytest.mark.parametrize("keep_best", [False, True])
def test_rollback_0_is_greedy_search(keep_best: bool) -> None:
    for seed in range(4):
        table = RealPasses(9, seed=seed)  # without ties
        small = Near(table, seed=seed + 50, noise=0.3)
        requests = random_requests(random.Random(seed), 12, 9, limits=[3, 12])
        strategy = bild(small, rollback=0.0, fallback=0.0, keep_best=keep_best)
        assert outputs_of(decode(strategy, table, requests)) == plain_greedy(table.table, requests)


def test_rollback_inf_is_the_small_models_but_for_every_last_word() -> None:
    table, small = (RealPasses(9, seed=seed) for seed in (1, 2))
    for request in random_requests(random.Random(0), 12, 9, limits=[3, 12]):
        strategy = bild(small, rollback=math.inf, fallback=0.0, max_draft=4)
        (result,) = decode(strategy, table, [dataclasses.replace(request, index=0)])
        wanted: list[int] = []
        while len(wanted) < request.max_len and wanted[-1:] != [EOS]:
            last = len(wanted) % 5 == 4 or len(wanted) + 1 == request.max_len
            scores = (table if last else small).table.scores_by_hand(request.source, [EOS, *wanted])
            wanted.append(scores.index(max(scores)))
        assert outputs_of([result]) == [wanted]


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_is_rolled_back(kind: str) -> None:
    """Where no drafted word may score below the best, the output is greedy search's."""
    for seed in range(2):
        table = RealPasses(12, seed=seed)
        requests = random_requests(random.Random(seed), 8, 12, limits=[3, 12])
        garbage = Garbage(table, kind)
        strategy = bild(garbage, fallback=0.0, rollback=0.0)
        assert outputs_of(decode(strategy, table, requests)) == plain_greedy(table.table, requests)
        assert garbage.in_use == (0, 0)


@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_drafter_without_numbers_is_an_error_that_gives_all_back(kind: str) -> None:
    table = RealPasses(12, seed=1)
    garbage = Garbage(table, kind)
    requests = random_requests(random.Random(1), 8, 12, limits=[3, 12])
    with pytest.raises(PassError, match="hold NaN or infinity"):
        list(bild(garbage).run(table, requests, batch_size=3))
    assert garbage.in_use == table.in_use == (0, 0)


def test_a_prefix_is_kept() -> None:
    table, small = (RealPasses(9, seed=seed) for seed in (1, 2))
    for prefix in ((7, 7, 4), (7,), (4, 5, 6, 7, 8, 4)):
        strategy = bild(small, fallback=0.0)
        (result,) = decode(strategy, table, [Request(0, (4, 5, EOS), 6, prefix=prefix)])
        tokens = result.hypotheses[0].tokens
        assert tokens[: len(prefix)] == prefix
        wanted = [table.log_probs((4, 5, EOS), tokens[:i])[word] for i, word in enumerate(tokens)]
        assert result.hypotheses[0].positional_scores == pytest.approx(wanted, abs=1e-5)


# A batch.


@pytest.mark.parametrize("type", TYPES)
def test_a_batch_outputs_bitwise_what_its_sentences_do_alone(type: str) -> None:
    drafted = accepted = passes = tokens = 0
    for seed in range(3):
        rng = random.Random(seed)
        model = random_network(rng)
        scorer, small = on_engine(model, type=type), on_engine(shaken(model, seed, 0.1), type=type)
        requests = random_requests(rng, 10, len(scorer.vocab), limits=[1, 2, 7, 16])
        strategy = bild(small, fallback=0.07, rollback=2.5)
        alone = engine_models.decode(strategy, scorer, requests, batch_size=1)
        for size in (2, 4, 8):
            found = engine_models.decode(strategy, scorer, requests, batch_size=size)
            assert small.cells_in_use == 0
            assert bits_of(found) == bits_of(alone)
            for name in ("passes", "drafted", "accepted", "drafter_passes"):
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
    assert main([*command, "--fallback", "0", "--rollback", "inf", "--verbose"]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 2
    assert "|fallback:0.0|rollback:inf|max_draft:10|keep_best:1|" in captured.err


@pytest.mark.parametrize(
    "options",
    [{"fallback": 1.5}, {"fallback": -0.1}, {"rollback": -1.0}, {"rollback": math.nan}, {"max_draft": 0}],
)
def test_options_out_of_bounds_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        make_strategy("bild", options)
