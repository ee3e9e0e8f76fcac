"""Windows of sound by the rules of OpenAI's program, whose own results of scripted outputs are stored."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import whisper_models as models
from support.whisper_models import EOS

from nartk.checkpoints.loading import load_checkpoint
from nartk.decoders.windowing.sharing import SharedSources
from nartk.decoders.windowing.transcribe import TranscribeRun
from nartk.errors import UsageError
from nartk.protocols.hypothesis import Hypothesis, Request, Result
from nartk.protocols.passes import FeatureSource, Limits
from nartk.protocols.prompts import Prompts
from nartk.protocols.runs import run_through
from nartk.registry import make_strategy
from nartk.serving.scorers import load_network
from nartk.vocab import SpecialIds

ORACLE = json.loads((Path(__file__).parent / "oracles" / "whisper_windows.json").read_text(encoding="utf-8"))
WORDS = {int(id): text for id, text in ORACLE["words"].items()}
PROMPTS = Prompts({}, {}, ORACLE["no_timestamps"], latest_start=50)


class ScriptedRun:
    """Implements `Run`: the next outputs of a script, which all temperatures share."""

    def __init__(self, script: list[Any], calls: list[Any], temperature: float) -> None:
        self.script, self.calls, self.temperature = script, calls, temperature
        self.waiting: list[Request] = []

    def __len__(self) -> int:
        return len(self.waiting)

    def admit(self, request: Request) -> None:
        assert len(request.source) == 3000
        self.calls.append([[*request.before], self.temperature])
        self.waiting.append(request)

    def step(self) -> list[tuple[Request, Result]]:
        (request,) = self.waiting
        self.waiting = []
        tokens, mean, no_speech = self.script.pop(0)
        scores = (mean,) * (len(tokens) + 1)
        best = Hypothesis((*tokens, ORACLE["eos"]), sum(scores), scores)
        return [(request, Result(0, (best,), prompt=(ORACLE["start"],), no_speech=no_speech))]

    def drop(self, request: Request) -> None: ...

    def close(self) -> None: ...


class Scripted:
    """What of a scorer the run itself reads."""

    limits = Limits(3000, ORACLE["context"], 60_000)
    start_token = ORACLE["start"]
    vocab = SpecialIds(0, 1, ORACLE["eos"], 3)
    numerics = ""


def decoded(case: dict[str, Any]) -> tuple[Result, list[Any]]:
    """Our result of a case, and what stood before each output at which temperature."""
    given = case["options"]
    options = {
        "temperatures": " ".join(map(str, given["temperature"])),
        "condition": given["condition_on_previous_text"],
        "clips": "" if given["clip_timestamps"] == "0" else given["clip_timestamps"],
        "carry_prompt": given["carry_initial_prompt"],
        "compression_ratio": given["compression_ratio_threshold"],
        "no_speech": given["no_speech_threshold"],
        "timestamps": True,
    }
    strategy: Any = dataclasses.replace(
        make_strategy("windows", options),
        pieces=(tuple(case["initial"]), ()),  # type: ignore[call-arg]
    )
    calls: list[Any] = []
    script = [*case["script"]]
    scorer: Any = SharedSources(Scripted(), PROMPTS)  # type: ignore[arg-type]
    run = TranscribeRun(
        strategy.window_rules(),
        scorer,
        lambda temperature: ScriptedRun(script, calls, temperature),
        strategy.limit,
        lambda tokens: "".join(WORDS[token] for token in tokens),
        1,
    )
    source = FeatureSource(np.zeros((case["frames"] + 3, 2), np.float32), 10.0, sound=case["frames"])
    ((_, result),) = run_through(run, [Request(0, source, 448, vad=True)])
    assert script == []
    return result, calls


@pytest.mark.parametrize("number", range(len(ORACLE["cases"])))
def test_windows_follow_each_other_as_in_openais_program(number: int) -> None:
    """What stands in front of each output, at which temperatures it is decoded, and the segments."""
    case = ORACLE["cases"][number]
    result, calls = decoded(case)
    assert calls == case["calls"]
    (best,) = result.hypotheses
    end = case["frames"] / 100
    assert len(best.segments) == len(case["segments"])
    for found, wanted in zip(best.segments, case["segments"], strict=True):
        seek, start, stop, text, tokens, temperature, mean, ratio, no_speech = wanted
        assert (found.seek, found.text, [*found.tokens], found.temperature) == (
            seek,
            text,
            tokens,
            temperature,
        )
        assert (found.start, found.end) == pytest.approx((min(start, end), min(stop, end)))
        measured = (found.avg_logprob, found.compression_ratio, found.no_speech_prob)
        assert measured == pytest.approx((mean, ratio, no_speech))
    words = [token for token in best.tokens if token <= PROMPTS.no_timestamps and token != ORACLE["eos"]]
    assert "".join(WORDS[token] for token in words) == case["text"]


def test_the_stored_cases_reach_every_rule() -> None:
    """Fallback, prompts that are kept, cut and reset, skipped windows, and empty segments."""
    cases = ORACLE["cases"]
    calls = [call for case in cases for call in case["calls"]]
    assert {temperature for _, temperature in calls} >= {0.0, 0.2, 0.4, 0.6, 1.0}
    lengths = [len(before) for before, _ in calls]
    assert 0 in lengths
    assert max(lengths) == ORACLE["context"] // 2
    skipped = sum(len(case["segments"]) == 0 for case in cases)
    assert 0 < skipped < len(cases) // 2
    assert any(end > case["frames"] / 100 for case in cases for _, _, end, *_ in case["segments"])


# Random models


def random_model(seed: int, folder: Path) -> tuple[Any, Any, random.Random]:
    rng = random.Random(seed)
    settings = models.random_settings(rng, seconds=1.0)
    model = models.random_model(settings, seed, ends=3.0, times=2.0)
    checkpoint = load_checkpoint(models.save(model, folder))
    from nartk.architectures import architecture

    scorer: Any = architecture("whisper").scorer(
        load_network(checkpoint), checkpoint.target_vocab, start_token=checkpoint.start_token
    )
    scorer.prompts = checkpoint.output.prompts
    return checkpoint, scorer, rng


def strategy_of(checkpoint: Any, **options: Any) -> Any:
    made = make_strategy("windows", {"max_ratio": 1e6, "max_len": 20, **options})
    return made.in_pieces(checkpoint.output)


@pytest.mark.parametrize(
    "options", [{}, {"min_log_prob": 9.0, "temperatures": "0 0.5 1"}, {"language": "de"}]
)
def test_a_recording_is_decoded_alike_alone_and_among_others(options: dict[str, Any], tmp_path: Path) -> None:
    """Draws too, whatever the number of the recording: outputs with all that segments say of them."""
    checkpoint, scorer, rng = random_model(3, tmp_path)
    sources = models.random_frames(scorer_bins(scorer), rng, [30, 100, 170, 250, 99, 330])
    made = strategy_of(checkpoint, timestamps=True, **options)
    requests = [Request(i, source, 20, vad=True) for i, source in enumerate(sources)]
    together = sorted(made.run(scorer, requests, batch_size=4), key=lambda each: each.index)
    assert scorer.cells_in_use == 0
    for source, result in zip(sources, together, strict=True):
        (alone,) = made.run(scorer, [Request(0, source, 20, vad=True)], batch_size=1)
        (one,), (other,) = result.hypotheses, alone.hypotheses
        assert one.tokens == other.tokens
        assert [(each.text, each.start, each.end, each.temperature) for each in one.segments] == [
            (each.text, each.start, each.end, each.temperature) for each in other.segments
        ]
        np.testing.assert_allclose(one.positional_scores, other.positional_scores, atol=1e-4)
    if "temperatures" in options:
        assert {each.temperature for result in together for each in result.hypotheses[0].segments} == {1.0}


def scorer_bins(scorer: Any) -> Any:
    """What `models.random_frames` reads of a model."""
    from types import SimpleNamespace

    return SimpleNamespace(config=SimpleNamespace(num_mel_bins=scorer.model.config.input_features))


def test_a_source_is_encoded_once_however_often_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, scorer, rng = random_model(4, tmp_path)
    (source,) = models.random_frames(scorer_bins(scorer), rng, [300])
    encode, encoded = scorer.encode, []
    monkeypatch.setattr(scorer, "encode", lambda given: encoded.extend(given) or encode(given))
    made = strategy_of(checkpoint, language="en", min_log_prob=9.0, temperatures="0 0.6 1")
    (result,) = made.run(scorer, [Request(0, source, 20, vad=False)], batch_size=2)
    assert len(encoded) == result.sentences > 1
    assert scorer.cells_in_use == 0


def test_log_probabilities_are_of_the_words_that_are_left(tmp_path: Path) -> None:
    """Against transformers' log-probabilities, of which the rules leave some words: their softmax."""
    checkpoint, scorer, rng = random_model(0, tmp_path)
    model = models.random_model(models.random_settings(random.Random(0), seconds=1.0), 0, ends=3.0, times=2.0)
    (source,) = models.random_frames(scorer_bins(scorer), rng, [100])
    made = strategy_of(checkpoint, language="en", temperatures="0", timestamps=True, no_speech=1.0)
    (result,) = made.run(scorer, [Request(0, source, 20)], batch_size=1)
    (best,) = result.hypotheses
    shown = best.tokens[: best.tokens.index(EOS)]
    prompt = [models.START, models.id_of("en"), models.id_of("transcribe")]
    logits = models.their_log_probs(model, source, [*prompt, *shown])[len(prompt) - 1 :].numpy()
    from nartk.decoders.loop.timestamps import TimestampRules

    never, first = made.unspoken
    names = ("translate", "transcribe", "startoflm", "startofprev", "nospeech")
    banned = {*never, models.START, *map(models.id_of, names)}
    rules = TimestampRules(dataclasses.replace(scorer.prompts, latest_start=50), EOS)
    for i, token in enumerate(shown):
        allowed = rules.allowed(logits[i], shown[:i], [*banned, *([] if i else first)])
        left = np.where(allowed, logits[i], -np.inf)
        wanted = left[token] - np.log(np.exp(left.astype(np.float64)).sum())
        assert left.argmax() == token
        assert best.positional_scores[i] == pytest.approx(float(wanted), abs=1e-4)


def test_hotwords_stand_in_front_of_what_was_said(tmp_path: Path) -> None:
    """As in faster-whisper's ``get_prompt``, of which the sum is cut to half the context."""
    checkpoint, scorer, rng = random_model(1, tmp_path)
    (source,) = models.random_frames(scorer_bins(scorer), rng, [100])
    made = strategy_of(checkpoint, language="en", hotwords="the", initial_prompt="a a")
    asked: list[Request] = []
    begin = type(made).run_at

    def spying(self: Any, *args: Any) -> Any:
        run = begin(self, *args)
        admit = run.admit
        run.admit = lambda request: asked.append(request) or admit(request)
        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(made), "run_at", spying)
        [*made.run(scorer, [Request(0, source, 20)], batch_size=1)]
    tokenizer = models.tokenizer(1.0)
    wanted = tokenizer.encode(" the", add_special_tokens=False) + tokenizer.encode(
        " a a", add_special_tokens=False
    )
    assert [*asked[0].before] == [models.id_of("startofprev"), *wanted]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clips": "3 1"}, "clips is '3 1', not in order"),
        ({"clips": "0 x"}, "clips has 'x'"),
        ({"temperatures": ""}, "temperatures is empty"),
        ({"temperatures": "0 -1"}, "temperatures has '-1'"),
        ({"rules": "transformers", "hotwords": "a"}, "hotwords with rules='transformers', which has no such"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_strategy("windows", options)
    assert caught.value.message.startswith(message)
