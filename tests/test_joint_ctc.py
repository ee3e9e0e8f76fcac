"""Joint CTC/attention search against enumeration of all outputs and of all labellings of the frames."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.joint import BLANK, LM, JointPasses
from support.labellings import all_outputs
from support.scripted_passes import EOS, PAD, decode

from nartk.decoders.graphs.ctc_prefix_scores import IMPOSSIBLE, PrefixScores
from nartk.decoders.graphs.ngram_lm import read_arpa
from nartk.errors import StrategyMismatchError, UsageError
from nartk.protocols.hypothesis import Request
from nartk.registry import make_strategy

INF = math.inf
SILENT = (PAD, EOS)  # beside the blank
ORACLE = Path(__file__).parent / "oracles" / "joint_ctc.json"


def joint(**options: Any) -> Any:
    return make_strategy("joint-ctc", options)


def random_frames(rng: np.random.Generator, length: int, words: int) -> np.ndarray:
    logits = rng.normal(scale=2, size=(length, words))
    return (logits - np.log(np.exp(logits).sum(1, keepdims=True))).astype(np.float32)


def log_sum(values: Sequence[float]) -> float:
    return float(np.logaddexp.reduce([*values, -INF]))


def prefix_total(outputs: dict[tuple[int, ...], float], prefix: tuple[int, ...]) -> float:
    """All outputs that begin so, by enumeration; behind the words, frames may say anything."""
    return log_sum([score for output, score in outputs.items() if output[: len(prefix)] == prefix])


# CTC's scores of prefixes.


def prefix_mismatch(length: int, words: int, seed: int) -> float:
    """How far scores lie from enumeration, at most, over all prefixes of up to one word too many."""
    log_probs = random_frames(np.random.default_rng(seed), length, words)
    outputs = all_outputs(log_probs.astype(np.float64), BLANK, ())
    scores = PrefixScores(log_probs, BLANK, EOS, [PAD])
    every = np.arange(words)
    worst = 0.0
    level = {(): scores.empty()}
    for _ in range(length + 1):
        following = {}
        for prefix, state in level.items():
            added = scores.scores(state, every[None])[0]
            for word in every.tolist():
                found = float(state.totals[0] + added[word])
                if word == EOS:
                    wanted = outputs.get(prefix, -INF)
                elif word in (BLANK, PAD):
                    wanted = -INF
                else:
                    wanted = prefix_total(outputs, (*prefix, word))
                if wanted == -INF:
                    worst = max(worst, abs(found - IMPOSSIBLE) / -IMPOSSIBLE)
                else:
                    worst = max(worst, abs(found - wanted))
                if word not in (BLANK, *SILENT):
                    following[(*prefix, word)] = scores.grown(state, [0], [word])
        for prefix, state in following.items():
            wanted = prefix_total(outputs, prefix)
            worst = max(worst, 0.0 if wanted == -INF else abs(float(state.totals[0]) - wanted))
        level = following
    return worst


@pytest.mark.parametrize(("length", "words"), [(0, 5), (1, 5), (2, 6), (4, 6), (5, 5)])
def test_prefixes_score_as_all_their_labellings_do(length: int, words: int) -> None:
    assert max(prefix_mismatch(length, words, seed) for seed in range(5)) < 1e-5


def test_without_a_blank_between_equal_words_prefixes_score_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = PrefixScores.grown

    def wrong(self: PrefixScores, prefixes: Any, index: Any, words: Any) -> Any:
        return right(self, type(prefixes)(prefixes.last - 99, *_rest(prefixes)), index, words)

    monkeypatch.setattr(PrefixScores, "grown", wrong)
    assert max(prefix_mismatch(4, 6, seed) for seed in range(3)) > 0.01


def _rest(prefixes: Any) -> tuple[Any, ...]:
    return prefixes.word, prefixes.blank, prefixes.totals


def recursion(log_probs: np.ndarray, prefix: Sequence[int]) -> tuple[float, float]:
    """ESPnet's algorithm with loops over frames, fp64: all outputs that begin so, and the output itself."""
    count = len(log_probs)
    word, blank = np.full(count, -INF), np.cumsum(log_probs[:, BLANK])
    total = 0.0
    last = -1
    for i, label in enumerate(prefix):
        either = np.logaddexp(word, blank)
        entering = blank if label == last else either
        new_word, new_blank = np.full(count, -INF), np.full(count, -INF)
        if i == 0:
            new_word[0] = log_probs[0, label]
        total = new_word[0]
        for t in range(1, count):
            new_word[t] = np.logaddexp(new_word[t - 1], entering[t - 1]) + log_probs[t, label]
            new_blank[t] = np.logaddexp(new_word[t - 1], new_blank[t - 1]) + log_probs[t, BLANK]
            total = np.logaddexp(total, entering[t - 1] + log_probs[t, label])
        word, blank, last = new_word, new_blank, label
    return float(total), float(np.logaddexp(word[-1], blank[-1]))


def test_long_recordings_lose_no_digits() -> None:
    """Of 1500 frames, sharp ones too, whose labels' log-probabilities sum up to -1e6."""
    for seed, scale in enumerate((1.0, 30.0)):
        rng = np.random.default_rng(seed)
        logits = rng.normal(scale=scale, size=(1500, 9))
        logits[:, BLANK] += 2 * scale
        log_probs = (logits - np.logaddexp.reduce(logits, 1)[:, None]).astype(np.float32)
        prefix = rng.integers(4, 6, size=8).tolist()
        scores = PrefixScores(log_probs, BLANK, EOS, [PAD])
        state = scores.empty()
        for i, word in enumerate(prefix):
            state = scores.grown(state, [0], [word])
            total, whole = recursion(log_probs.astype(np.float64), prefix[: i + 1])
            assert float(state.totals[0]) == pytest.approx(total, abs=1e-6)
            end = state.totals[0] + scores.scores(state, np.array([[EOS]]))[0, 0]
            assert float(end) == pytest.approx(whole, abs=1e-6)


# The search.


def requests_of(rng: random.Random, count: int, words: int, most: int = 6, longest: int = 5) -> list[Request]:
    return [
        Request(
            i,
            (*(rng.randrange(4, words) for _ in range(rng.randint(1, most - 1))), EOS),
            rng.randint(1, longest),
        )
        for i in range(count)
    ]


def every_output(
    scorer: JointPasses,
    request: Request,
    weight: float,
    penalty: float,
    lm: Any = None,
    bonus: float = 0.0,
) -> list[tuple[float, tuple[int, ...]]]:
    """All outputs that CTC can give with their scores, best first."""
    logits = scorer.frame_logits(request.source).astype(np.float64)
    log_probs = logits - np.logaddexp.reduce(logits, 1)[:, None]
    outputs = all_outputs(log_probs, BLANK, ())
    found = []

    def grow(prefix: tuple[int, ...], total: float) -> None:
        is_whole = prefix[-1:] == (EOS,)
        if is_whole or len(prefix) == request.max_len:
            words = prefix[:-1] if is_whole else prefix
            ctc = outputs.get(words, -INF) if is_whole else prefix_total(outputs, words)
            if ctc > -INF and not {*words} & {BLANK, *SILENT}:
                language = sum(0.4 * lm.score([0, *prefix[:i]], w) for i, w in enumerate(prefix)) if lm else 0
                score = (1 - weight) * total + weight * ctc + language + bonus * len(prefix)
                found.append((score / len(prefix) ** penalty, prefix))
            return
        for word, log_prob in enumerate(scorer.log_probs(request.source, prefix)):
            grow((*prefix, word), total + log_prob)

    grow((), 0.0)
    return sorted(found, reverse=True)


@pytest.mark.parametrize("weight", [0.3, 0.7, 1.0])
@pytest.mark.parametrize("penalty", [0.0, 1.3])
def test_a_full_beam_finds_every_output_in_order(weight: float, penalty: float) -> None:
    for seed in range(4):
        scorer = JointPasses(6, seed=seed)
        (request,) = requests_of(random.Random(seed), 1, 6, longest=3)
        wanted = every_output(scorer, request, weight, penalty)
        strategy = joint(
            beam_size=400,
            nbest=len(wanted),
            ctc_weight=weight,
            length_penalty=penalty,
            candidates=6,
        )
        (found,) = decode(strategy, scorer, [request])
        assert [each.tokens for each in found.hypotheses] == [output for _, output in wanted]
        scores = [each.score for each in found.hypotheses]
        assert scores == pytest.approx([score for score, _ in wanted], abs=1e-4)
        for each in found.hypotheses:
            parts = each.positional_scores
            assert each.score == pytest.approx(sum(parts) / len(parts) ** penalty, abs=1e-6)


def test_a_language_model_adds_its_share(tmp_path: Path) -> None:
    path = tmp_path / "lm.arpa"
    path.write_text(LM, encoding="utf-8")
    changed = 0
    for seed in range(6):
        scorer = JointPasses(7, seed=seed)
        (request,) = requests_of(random.Random(seed), 1, 7, longest=3)
        lm = read_arpa(path, scorer.vocab)
        wanted = every_output(scorer, request, 0.5, 0.0, lm)
        options = {"beam_size": 400, "nbest": 9, "ctc_weight": 0.5, "candidates": 7}
        (found,) = decode(joint(lm=str(path), lm_weight=0.4, **options), scorer, [request])
        best = found.hypotheses[: len(wanted)]
        assert [each.tokens for each in best] == [output for _, output in wanted[:9]]
        scores = [each.score for each in best]
        assert scores == pytest.approx([score for score, _ in wanted[:9]], abs=1e-4)
        (without,) = decode(joint(**options), scorer, [request])
        changed += without.hypotheses[0].tokens != found.hypotheses[0].tokens
    assert changed


def test_it_finds_what_espnets_search_does(tmp_path: Path) -> None:
    """With pre-beam, bonus and language model; tests/oracles/espnet_joint.py wrote ESPnet's lists.

    As there, eos is not chosen before the greatest length.
    """
    path, length = tmp_path / "lm.arpa", 6
    path.write_text(LM, encoding="utf-8")
    cut = 0
    for case in json.loads(ORACLE.read_text(encoding="utf-8")):
        scorer = JointPasses(20, seed=case["seed"], frames=lambda size: 3 * size)
        request = Request(0, tuple(case["source"]), length)
        options = {"beam_size": 4, "nbest": 4, "min_len": length, **case["options"]}
        if "lm_weight" in options:
            options["lm"] = str(path)
        (found,) = decode(joint(**options), scorer, [request])
        assert [list(each.tokens) for each in found.hypotheses] == [each["tokens"] for each in case["nbest"]]
        scores = [each["score"] for each in case["nbest"]]
        assert [each.score for each in found.hypotheses] == pytest.approx(scores, abs=1e-4)
        (wide,) = decode(joint(**{**options, "pre_beam_ratio": 0.0, "candidates": 20}), scorer, [request])
        cut += wide.hypotheses != found.hypotheses
    assert cut > 5  # that the pre-beam leaves words out


@pytest.mark.parametrize("bonus", [-1.0, 0.4, 2.0])
def test_each_word_has_its_bonus(bonus: float) -> None:
    """Also of searches that end early: what goes on may gain the bonus of all words that are allowed."""
    for seed in range(8):
        scorer = JointPasses(6, seed=seed)
        (request,) = requests_of(random.Random(seed), 1, 6, longest=4)
        for penalty in (0.0, 1.0):
            wanted = every_output(scorer, request, 0.3, penalty, bonus=bonus)
            options = {"beam_size": 400, "candidates": 6, "length_penalty": penalty, "word_bonus": bonus}
            for nbest in (1, len(wanted)) if penalty == 0 or bonus > 0 else (len(wanted),):
                (found,) = decode(joint(nbest=nbest, **options), scorer, [request])
                assert [each.tokens for each in found.hypotheses] == [words for _, words in wanted[:nbest]]
                scores = [score for score, _ in wanted[:nbest]]
                assert [each.score for each in found.hypotheses] == pytest.approx(scores, abs=1e-4)


def test_with_weight_1_it_is_ctcs_prefix_search() -> None:
    """The decoder's scores weigh nothing. Outputs are shorter than they may be, since frames are few."""
    for seed in range(8):
        scorer = JointPasses(6, seed=seed)
        requests = [replace(each, max_len=9) for each in requests_of(random.Random(seed), 4, 6)]
        found = decode(joint(beam_size=500, nbest=5, ctc_weight=1.0), scorer, requests)
        exact = decode(make_strategy("ctc-beam", {"beam_size": 500, "nbest": 500}), scorer, requests)
        for mine, theirs in zip(found, exact, strict=True):
            wanted = theirs.hypotheses[:5]
            got = mine.hypotheses[: len(wanted)]
            assert [each.tokens for each in got] == [each.tokens for each in wanted]
            scores = [each.score for each in wanted]
            assert [each.score for each in got] == pytest.approx(scores, abs=1e-4)


def test_with_weight_0_it_is_beam_search() -> None:
    for seed in range(10):
        rng = random.Random(seed)
        scorer = JointPasses(12, seed=seed)
        requests = requests_of(rng, 10, 12, longest=10)
        k, penalty = rng.randint(2, 6), rng.choice([0.0, 1.0])
        options = {
            "beam_size": k,
            "nbest": k,
            "length_penalty": penalty,
            "no_repeat_ngram": rng.choice([0, 2]),
        }
        found = decode(joint(ctc_weight=0.0, **options), scorer, requests, batch_size=3)
        beam = decode(make_strategy("beam", {**options, "early_stopping": "false"}), scorer, requests)
        assert [each.hypotheses for each in found] == [each.hypotheses for each in beam]
        assert scorer.read == []  # CTC is not even computed


def test_the_best_hypotheses_are_those_of_a_longer_search() -> None:
    """It ends as soon as nothing that goes on can be among those that are given back."""
    spared = 0
    for seed in range(10):
        scorer = JointPasses(8, seed=seed)
        requests = requests_of(random.Random(seed), 6, 8, longest=10)
        one, all_of_them = (
            decode(joint(beam_size=6, nbest=nbest), scorer, requests, batch_size=2) for nbest in (1, 6)
        )
        assert [each.hypotheses[0] for each in one] == [each.hypotheses[0] for each in all_of_them]
        spared += sum(each.passes for each in all_of_them) - sum(each.passes for each in one)
    assert spared > 0


def test_hypotheses_are_the_same_in_any_batch() -> None:
    for seed in range(6):
        rng = random.Random(seed)
        scorer = JointPasses(20, seed=seed, frames=lambda size: 3 * size)
        requests = requests_of(rng, 12, 20, most=12, longest=12)
        strategy = joint(beam_size=rng.randint(1, 6), candidates=rng.randint(1, 20), nbest=1)
        alone = decode(strategy, scorer, requests, batch_size=1)
        for size in (2, 5, 12):
            together = decode(strategy, scorer, requests, batch_size=size)
            assert [each.hypotheses for each in together] == [each.hypotheses for each in alone]


def test_a_pre_beam_of_all_words_is_refused() -> None:
    with pytest.raises(UsageError, match=r"pre_beam_ratio=1\.5 with ctc_weight=1, where"):
        joint(pre_beam_ratio=1.5, ctc_weight=1.0)


def test_what_the_frames_cannot_say_still_ends() -> None:
    """Prefixes longer than the recording, and shortest outputs that it cannot give."""
    scorer = JointPasses(8, seed=3, frames=lambda size: 1)
    requests = [Request(0, (4, 5, EOS), 6, (4, 5, 6)), Request(1, (5, EOS), 6)]
    found = decode(joint(min_len=4), scorer, requests)
    for request, each in zip(requests, found, strict=True):
        (best,) = each.hypotheses
        assert best.tokens[: len(request.prefix)] == request.prefix
        assert len(best.tokens) >= 5
        assert 0.3 * 2 * IMPOSSIBLE < best.score < 0.3 * IMPOSSIBLE / 2


def test_ctc_puts_a_decoder_right_that_repeats_itself() -> None:
    """What it is for: a decoder that loops is held to what the frames say."""

    class Looping(JointPasses):
        def scores(self, sources: Any, paths: Any) -> Any:
            logits = np.zeros((len(sources), len(self.vocab)))
            for row, source, path in zip(logits, sources, paths, strict=True):
                at = len(path) - 1
                row[source[at] if at < len(source) else EOS] = 6
                if 0 < at < len(source) - 1:
                    row[path[-1]] = 8  # the word again
            return logits

        def frame_logits(self, source: Sequence[int]) -> Any:
            labels = [label for word in source[:-1] for label in (word, BLANK)]
            return (9 * np.eye(len(self.vocab))[labels]).astype(np.float32)

    scorer = Looping(9, seed=0, frames=lambda size: 2 * (size - 1))
    requests = [Request(0, (4, 6, 5, 7, EOS), 12), Request(1, (8, 8, 4, EOS), 12)]
    alone = decode(joint(ctc_weight=0.0), scorer, requests)
    assert alone[0].hypotheses[0].tokens == (4, 4, 4, 4, EOS)
    found = decode(joint(), scorer, requests)
    assert [each.hypotheses[0].tokens for each in found] == [request.source for request in requests]


def test_models_and_options_that_do_not_fit_are_refused() -> None:
    scorer = JointPasses(6, seed=0)
    scorer.blank = None
    with pytest.raises(StrategyMismatchError, match="'joint-ctc' needs a model whose frames may be blank"):
        decode(joint(), scorer, [Request(0, (4, EOS), 3)])
    with pytest.raises(
        UsageError, match=r"ctc_weight of 'joint-ctc' is 1\.5\. Fix: give a value between 0 and"
    ):
        joint(ctc_weight=1.5)
    with pytest.raises(UsageError, match="nbest is 11, above beam_size=10"):
        joint(nbest=11)
