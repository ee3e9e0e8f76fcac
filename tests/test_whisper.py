"""Whisper's checkpoints of Hugging Face: what they output is what transformers makes of them."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import whisper_models as models
from support.hf_folders import transformers
from support.scripted_passes import decode
from support.whisper_models import BEGIN, EOS, NO_TIMESTAMPS, START

import nartk
from nartk.architectures import architecture
from nartk.checkpoints.checkpoint import Checkpoint, read_config
from nartk.checkpoints.generation import read_generation, with_generation
from nartk.checkpoints.hugging_face.speech import FAMILY
from nartk.checkpoints.loading import load_checkpoint
from nartk.cli.convert import main as convert
from nartk.cli.decode import main as nartk_decode
from nartk.decoders.drafters.own_layers import OwnLayers
from nartk.decoders.loop.prompting import Prompt, prompts_of
from nartk.decoders.loop.timestamps import TimestampRules
from nartk.engine import available
from nartk.errors import (
    CheckpointError,
    NartkError,
    StrategyMismatchError,
    UnsupportedCheckpointError,
    UsageError,
)
from nartk.protocols.hypothesis import Request, Result
from nartk.protocols.passes import FeatureSource, Pass, PassScorer, Want
from nartk.protocols.prompts import LANGUAGES, Prompted, Prompts
from nartk.registry import make_strategy
from nartk.serving.long_form import buffers_for
from nartk.serving.scorers import load_network

SCORERS = ("torch", "engine") if available() else ("torch",)
SECONDS = 1.0  # that a model reads at once


@pytest.fixture(autouse=True)
def library() -> Any:
    return transformers()


def network_of(checkpoint: Checkpoint) -> Any:
    return load_network(checkpoint)


def scorer_of(name: str, checkpoint: Checkpoint) -> Any:
    """The scorer of a checkpoint, in torch or on the engine."""
    made, words = architecture("whisper"), {"start_token": checkpoint.start_token}
    if name == "engine":
        found = made.engine(read_config(checkpoint), checkpoint.tensors, checkpoint.target_vocab, **words)
    else:
        found = made.scorer(network_of(checkpoint), checkpoint.target_vocab, **words)
    found.prompts = checkpoint.output.prompts  # type: ignore[attr-defined]
    return found


def prompts_for(scorer: Any, sources: Sequence[FeatureSource], words: Any, **asked: Any) -> list[Prompt]:
    memory = scorer.encode(sources)
    found = prompts_of(scorer, memory, [words] * len(sources), **asked)
    scorer.free(memory)
    assert scorer.cells_in_use == 0
    return found


def longest_output(scorer: Any) -> int:
    """Tokens that fit behind a prompt."""
    return int(scorer.limits.target) - int(scorer.prompts.length)


def random_folder(seed: int, folder: Path, **fields: Any) -> tuple[Any, Checkpoint, random.Random]:
    """transformers' model, what was read of its folder, and more random numbers."""
    rng = random.Random(seed)
    settings = models.random_settings(rng, seconds=SECONDS)
    pushed = {"ends": rng.choice([0.0, 3.0, 6.0]), "times": rng.choice([0.0, 2.0, 4.0])}
    model = models.random_model(settings, seed, **pushed, **fields)
    return model, load_checkpoint(models.save(model, folder)), rng


def longest_of(model: Any) -> int:
    """Frames that a model reads at once."""
    return 2 * int(model.config.max_source_positions)


def results_of(
    name: str, scorer: Any, sources: Sequence[FeatureSource], generation: dict[str, Any], **options: Any
) -> list[Result]:
    strategy = make_strategy(name, with_generation(generation, name, options))
    requests = [
        Request(i, source, min(strategy.limit(len(source)), longest_output(scorer)))
        for i, source in enumerate(sources)
    ]
    return decode(strategy, scorer, requests, batch_size=3)


def outputs_of(results: Sequence[Result]) -> list[list[int]]:
    """Tokens without eos."""
    return [[token for token in each.hypotheses[0].tokens if token != EOS] for each in results]


# The network


def our_log_probs(scorer: PassScorer, source: FeatureSource, target: Sequence[int]) -> torch.Tensor:
    """[T,V] after each token of a target, of one pass."""
    count = len(target)
    memory, contexts = scorer.encode([source]), scorer.open(1)
    numbers = [target, range(count), [memory[0]] * count, [contexts[0]] * count, range(-1, count - 1)]
    scores = scorer.run(Pass(*(np.array(each, np.int32) for each in numbers)), Want())
    found = torch.from_numpy(np.array(scores.rows(range(count)))).log_softmax(-1)
    scorer.commit(scores, ())
    scorer.close(contexts)
    scorer.free(memory)
    return found


@pytest.mark.parametrize("name", SCORERS)
@pytest.mark.parametrize("seed", range(3))
def test_log_probabilities_are_transformers(seed: int, name: str, tmp_path: Path) -> None:
    model, checkpoint, rng = random_folder(seed, tmp_path)
    scorer = scorer_of(name, checkpoint)
    for source in models.random_frames(model, rng, [longest_of(model)] * 2):
        target = [START, *rng.choices(range(BEGIN), k=12)]
        wanted = models.their_log_probs(model, source, target)
        torch.testing.assert_close(our_log_probs(scorer, source, target), wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", SCORERS)
def test_sources_shorter_than_the_longest_are_read_as_they_are(name: str, tmp_path: Path) -> None:
    """Against transformers' model with a position table as short as the source, in a batch of others."""
    model, checkpoint, rng = random_folder(1, tmp_path)
    scorer = scorer_of(name, checkpoint)
    lengths = [longest_of(model), 2, 26]
    sources = models.random_frames(model, rng, lengths)
    memory, contexts = scorer.encode(sources), scorer.open(3)
    columns = [[START] * 3, [0] * 3, memory, contexts, [-1] * 3]
    scores = scorer.run(Pass(*(np.array(each, np.int32) for each in columns)), Want())
    found = torch.from_numpy(np.array(scores.rows(range(3)))).log_softmax(-1)
    table = model.model.encoder.embed_positions.weight
    for row, source in enumerate(sources):
        settings = {**model.config.to_dict(), "max_source_positions": len(source) // 2}
        short = type(model)(type(model.config)(**settings)).eval()
        weights = {**model.state_dict(), "model.encoder.embed_positions.weight": table[: len(source) // 2]}
        short.load_state_dict(weights)
        wanted = models.their_log_probs(short, source, [START])
        torch.testing.assert_close(found[row : row + 1], wanted, atol=1e-4, rtol=0)


def test_teacher_forcing_is_the_scorer(tmp_path: Path) -> None:
    model, checkpoint, rng = random_folder(2, tmp_path)
    network = network_of(checkpoint).eval()
    (source,) = models.random_frames(model, rng, [longest_of(model)])
    target = [START, *rng.choices(range(EOS), k=5)]
    frames, lengths = torch.tensor(source.frames)[None], torch.tensor([len(source)])
    with torch.inference_mode():
        found = network(frames, lengths, torch.tensor([target])).log_softmax(-1)[0]
    wanted = models.their_log_probs(model, source, target)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)


# Decoding


@pytest.mark.parametrize("name", SCORERS)
@pytest.mark.parametrize("seed", range(3))
def test_outputs_without_timestamps_are_those_of_generate(seed: int, name: str, tmp_path: Path) -> None:
    """Words that are times are suppressed: transformers decodes what follows them again, even here."""
    suppressed = [*range(START, models.WORDS + 999)][: BEGIN + 51 - START]
    model, checkpoint, rng = random_folder(seed, tmp_path, suppress_tokens=suppressed)
    scorer = scorer_of(name, checkpoint)
    sources = models.random_frames(model, rng, [longest_of(model)] * 4)
    for language, task in (("de", "translate"), ("", "transcribe"), ("english", "")):
        theirs = {"language": language or None, "task": task or None}
        for beams in (1, 3):
            wanted = models.their_outputs(model, sources, num_beams=beams, **theirs)
            ours = {"language": language, "task": task, "beam_size": beams, "rules": "transformers"}
            found = results_of("windows", scorer, sources, dict(checkpoint.generation), **ours)
            assert outputs_of(found) == wanted, (theirs, beams)
    assert scorer.cells_in_use == 0


@pytest.mark.parametrize("name", SCORERS)
@pytest.mark.parametrize("seed", range(3))
def test_timestamps_and_long_sound_are_those_of_generate(seed: int, name: str, tmp_path: Path) -> None:
    model, checkpoint, rng = random_folder(seed, tmp_path)
    scorer = scorer_of(name, checkpoint)
    longest = longest_of(model)
    sources = models.random_frames(
        model, rng, [3 * longest, *(rng.randint(longest // 2, 3 * longest) for _ in range(2))]
    )
    for language, beams in (("fr", 1), ("", 1), ("de", 3)):
        theirs = {"language": language or None, "task": "transcribe", "return_timestamps": True}
        wanted = models.their_outputs(model, sources, num_beams=beams, **theirs)
        ours = {"language": language, "task": "transcribe", "timestamps": True, "beam_size": beams}
        ours["rules"] = "transformers"
        found = results_of("windows", scorer, sources, dict(checkpoint.generation), **ours)
        assert outputs_of(found) == wanted, (language, beams)
        without = results_of(
            "windows", scorer, sources[:1], dict(checkpoint.generation), **{**ours, "timestamps": False}
        )
        assert outputs_of(without) == [[word for word in wanted[0] if word < BEGIN]]
    assert scorer.cells_in_use == 0


@pytest.mark.parametrize("name", SCORERS)
def test_the_probability_of_no_speech_is_transformers(name: str, tmp_path: Path) -> None:
    """That of the word before the one for no timestamps, behind the start token."""
    model, checkpoint, rng = random_folder(2, tmp_path)
    scorer = scorer_of(name, checkpoint)
    sources = models.random_frames(model, rng, [longest_of(model)] * 2)
    assert [each.no_speech for each in prompts_for(scorer, sources, None)] == [None, None]
    found = prompts_for(scorer, sources, (), listening=[True, True])
    for source, prompt in zip(sources, found, strict=True):
        wanted = models.their_log_probs(model, source, [START])[0, scorer.prompts.no_timestamps - 1].exp()
        assert prompt.no_speech == pytest.approx(float(wanted), rel=1e-3)
        assert prompt.tokens == (START,)


def test_a_window_without_speech_has_no_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Whisper's rule: the model thinks that nobody speaks, and is not sure of its words."""
    model, checkpoint, rng = random_folder(0, tmp_path)
    scorer = scorer_of("torch", checkpoint)
    sources = models.random_frames(model, rng, [longest_of(model), 3 * longest_of(model)])
    strategy = make_strategy("windows", {"language": "en", "max_ratio": 1e6, "rules": "transformers"})

    def words(**settings: float) -> list[int]:
        for key, value in settings.items():
            monkeypatch.setattr(f"nartk.decoders.windowing.generate.{key}", value)
        requests = [Request(i, source, 99, vad=True) for i, source in enumerate(sources)]
        results = sorted(strategy.run(scorer, requests, batch_size=2), key=lambda each: each.index)
        assert results[1].sentences > 1
        return [len(each) for each in outputs_of(results)]

    spoken = words(NO_SPEECH=1.0, UNSURE=99.0)
    assert all(spoken)
    assert words(NO_SPEECH=0.0, UNSURE=-999.0) == spoken
    assert words(NO_SPEECH=0.0, UNSURE=99.0) == [0, 0]


class EveryOther:
    """A threshold that the probability of every other window is above."""

    def __init__(self) -> None:
        self.compared = 0

    def __lt__(self, prob: float) -> bool:
        self.compared += 1
        return self.compared % 2 == 0


@pytest.mark.parametrize("windows", [1, 4])
def test_scores_and_traces_are_those_of_what_is_left(
    windows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file of which every other window has no words, the first of two files among them."""
    model, checkpoint, rng = random_folder(0, tmp_path)
    scorer = scorer_of("torch", checkpoint)
    sources = models.random_frames(model, rng, [windows * longest_of(model)] * 2)
    strategy = make_strategy("windows", {"language": "en", "max_ratio": 1e6, "rules": "transformers"})
    monkeypatch.setattr("nartk.decoders.windowing.generate.NO_SPEECH", EveryOther())
    monkeypatch.setattr("nartk.decoders.windowing.generate.UNSURE", 99.0)
    requests = [Request(i, source, 99, vad=True) for i, source in enumerate(sources)]
    silent = 0
    for result in strategy.run(scorer, requests, batch_size=1, trace=True):
        (best,) = result.hypotheses
        assert len(best.trace) == len(best.tokens)
        if windows > 1:
            assert len(best.positional_scores) == len(best.tokens)
            assert best.score == pytest.approx(sum(best.positional_scores))
        silent += (EOS, EOS) in itertools.pairwise((EOS, *best.tokens))
    assert silent > 0


def test_what_a_window_gives_is_in_its_result(tmp_path: Path) -> None:
    """Tokens with their log-probabilities and traces, one eos a window, and the time that they took."""
    model, checkpoint, rng = random_folder(0, tmp_path)
    scorer = scorer_of("torch", checkpoint)
    (source,) = models.random_frames(model, rng, [3 * longest_of(model)])
    strategy = make_strategy(
        "windows", {"timestamps": True, "language": "en", "max_ratio": 1e6, "rules": "transformers"}
    )
    (result,) = strategy.run(scorer, [Request(5, source, 99)], batch_size=2, trace=True)
    (best,) = result.hypotheses
    assert result.index == 5
    assert best.tokens.count(EOS) == result.sentences > 1
    assert len(best.tokens) == len(best.positional_scores) == len(best.trace)
    assert max(each.verifier_pass for each in best.trace) <= result.passes
    phases = dataclasses.astuple(result.phases)
    assert 0 < sum(phases) <= result.seconds


def test_a_window_is_encoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one of a file too, whose language is detected and kept."""
    model, checkpoint, rng = random_folder(0, tmp_path)
    scorer = scorer_of("torch", checkpoint)
    sources = models.random_frames(model, rng, [3 * longest_of(model)] * 2)
    encode, encoded = scorer.encode, []
    monkeypatch.setattr(scorer, "encode", lambda given: encoded.extend(given) or encode(given))
    results = results_of("windows", scorer, sources, {}, timestamps=True, max_ratio=1e6, rules="transformers")
    assert len(encoded) == sum(each.sentences for each in results) > 2


@pytest.mark.parametrize("name", SCORERS)
@pytest.mark.parametrize(
    ("strategy", "options"), [("greedy", {}), ("beam", {"beam_size": 3}), ("sample", {"top_k": 5})]
)
def test_rows_with_and_without_timestamps_share_a_batch(
    strategy: str, options: dict[str, Any], name: str, tmp_path: Path
) -> None:
    """Each request's own prompt tells which rules its output keeps to."""
    model, checkpoint, rng = random_folder(0, tmp_path)
    scorer = scorer_of(name, checkpoint)
    timed = scorer.prompts.words(timestamps=True)
    requests = [
        Request(i, source, 20, prompt=timed if i % 2 else None)
        for i, source in enumerate(models.random_frames(model, rng, [longest_of(model)] * 6))
    ]
    made = make_strategy(strategy, options)
    together = decode(made, scorer, requests, batch_size=6)
    alone = [decode(made, scorer, [request], batch_size=1)[0] for request in requests]
    assert [each.hypotheses[0].tokens for each in together] == [each.hypotheses[0].tokens for each in alone]
    for request, result in zip(requests, together, strict=True):
        output = result.hypotheses[0].tokens[:-1]
        if request.prompt is not None:
            latest = BEGIN + scorer.prompts.latest_start
            assert BEGIN <= output[0] <= latest
            times = [word for word in output if word >= BEGIN]
            assert times == sorted(times)
        assert (NO_TIMESTAMPS in result.prompt) == (request.prompt is None)


@pytest.mark.parametrize("name", SCORERS)
def test_every_strategy_reads_the_prompt(name: str, tmp_path: Path) -> None:
    """Drafts that are verified give greedy search's bits, and a small Whisper drafts for another."""
    suppressed = [*range(START, BEGIN + 51)]
    model, _, rng = random_folder(3, tmp_path / "a", suppress_tokens=suppressed)
    asked = load_checkpoint(tmp_path / "a", source_lang="de", target_lang="en")
    scorer = scorer_of(name, asked)
    sources = models.random_frames(model, rng, [longest_of(model)] * 5)
    wanted = models.their_outputs(model, sources, language="de", task="translate")
    generation = dict(asked.generation)
    greedy = results_of("greedy", scorer, sources, generation)
    assert outputs_of(greedy) == wanted

    def bits(results: Sequence[Result]) -> list[Any]:
        return [(each.hypotheses[0].tokens, each.hypotheses[0].positional_scores) for each in results]

    options = with_generation(generation, "speculative", {"drafter": "itself", "adaptive": False})
    small = dataclasses.replace(make_strategy("speculative", options), auxiliary={"drafter": scorer})
    requests = [Request(i, source, longest_output(scorer)) for i, source in enumerate(sources)]
    drafted = decode(small, scorer, requests, batch_size=3)
    own = decode(
        dataclasses.replace(small, auxiliary={"drafter": OwnLayers(1)}), scorer, requests, batch_size=3
    )
    assert sum(each.drafted for each in own) > 0
    for found in (drafted, own, results_of("recycling", scorer, sources, generation, adaptive=False)):
        assert outputs_of(found) == wanted
        if name == "engine":
            assert bits(found) == bits(greedy)
    assert sum(each.accepted for each in drafted) > 0
    assert scorer.cells_in_use == 0


# Prompts and the rules of timestamps


def test_rules_of_timestamps_are_transformers(library: Any) -> None:
    """What may follow random outputs, by random logits; without one of the rules it is something else."""
    from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

    rng, numbers, words = random.Random(0), np.random.default_rng(0), BEGIN + 30
    prompts = Prompts({}, {}, NO_TIMESTAMPS, latest_start=9)
    differing = 0
    for _ in range(400):
        latest = rng.choice([None, 9])
        output = [
            rng.choice([rng.randrange(EOS), rng.randrange(BEGIN, words)])
            for _ in range(rng.choice([0, 1, 2, 6]))
        ]
        logits = numbers.normal(size=words).astype(np.float32)
        logits[BEGIN:] += rng.choice([-9.0, -3.0, 0.0, 3.0])
        banned = rng.sample(range(EOS), 9)
        config = library.GenerationConfig(
            eos_token_id=EOS, no_timestamps_token_id=NO_TIMESTAMPS, max_initial_timestamp_index=latest
        )
        processor = WhisperTimeStampLogitsProcessor(config, begin_index=1)
        scores = torch.tensor(logits)[None]
        scores[0, banned] = -math.inf
        wanted = processor(torch.tensor([[START, *output]]), scores)[0].isfinite().numpy()
        own = dataclasses.replace(prompts, latest_start=-1 if latest is None else latest)
        found = TimestampRules(own, EOS).allowed(logits, output, banned)
        np.testing.assert_array_equal(found, wanted)
        differing += (TimestampRules(prompts, EOS).allowed(logits, output[:-1], banned) != wanted).any()
    assert differing > 100


def test_windows_follow_each_other_as_in_transformers(library: Any) -> None:
    rng = random.Random(1)
    prompts = Prompts({}, {}, NO_TIMESTAMPS)
    advances = set()
    for _ in range(300):
        tokens = [rng.choice([7, BEGIN + rng.randint(1, 50)]) for _ in range(rng.randint(1, 9))]
        frames = rng.randint(1, 100)
        segments, offset = library.WhisperForConditionalGeneration._retrieve_segment(
            seek_sequence=torch.tensor(tokens),
            seek_outputs=[None],
            time_offset=torch.zeros(1, dtype=torch.float64),
            timestamp_begin=BEGIN,
            seek_num_frames=torch.tensor([frames]),
            time_precision=0.02,
            time_precision_features=0.01,
            input_stride=2,
            prev_idx=0,
            idx=0,
            return_token_timestamps=False,
            decoder_input_ids=torch.zeros(1, 1),
        )
        wanted = [word for segment in segments for word in segment["tokens"].tolist()]
        assert prompts.window(tokens, frames) == (wanted, int(offset))
        advances.add(int(offset) == frames)
    assert advances == {True, False}


def test_names_of_languages_are_transformers() -> None:
    from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

    assert LANGUAGES == TO_LANGUAGE_CODE


FORCED = [
    ({}, {}),
    ({"forced_decoder_ids": [[1, None], [2, models.id_of("transcribe")]]}, {}),
    (
        {"forced_decoder_ids": [[1, models.id_of("fr")], [2, models.id_of("translate")], [3, NO_TIMESTAMPS]]},
        {},
    ),
    ({"forced_decoder_ids": [[1, models.id_of("en")]], "language": "german"}, {}),
    ({"language": "<|de|>", "task": "translate"}, {}),
    ({"lang_to_id": {}, "task_to_id": {}, "forced_decoder_ids": [[1, NO_TIMESTAMPS]]}, {}),
    ({"task": "transcribe"}, {"source_lang": "french"}),
    ({"task": "transcribe"}, {"source_lang": "fr", "target_lang": "en"}),
]


@pytest.mark.parametrize(("fields", "chosen"), FORCED)
@pytest.mark.parametrize("timestamps", [False, True])
def test_prompts_are_those_of_generate(
    fields: dict[str, Any], chosen: dict[str, str], timestamps: bool, tmp_path: Path
) -> None:
    """Where a configuration leaves the task open, transformers is asked for the one of OpenAI's program."""
    model, _, rng = random_folder(4, tmp_path, **fields)
    checkpoint = load_checkpoint(tmp_path, **chosen)
    scorer = scorer_of("torch", checkpoint)
    sources = models.random_frames(model, rng, [longest_of(model)] * 4)
    config = model.generation_config
    config.return_timestamps = timestamps
    if "source_lang" in chosen:
        config.language = chosen["source_lang"]
        config.task = "translate" if "target_lang" in chosen else "transcribe"
    elif not fields:
        config.task = "transcribe"
    wanted = model._retrieve_init_tokens(
        models.features_of(sources)["input_features"],
        batch_size=4,
        generation_config=config,
        config=model.config,
        num_segment_frames=longest_of(model),
        kwargs={},
    ).tolist()
    words = scorer.prompts.words(timestamps=timestamps)
    assert [[*each.tokens] for each in prompts_for(scorer, sources, words)] == wanted
    assert timestamps or prompts_for(scorer, sources, None) == prompts_for(scorer, sources, words)
    assert {len(each) for each in wanted} == {scorer.prompts.length - timestamps}


def test_a_scorer_with_prompts_is_refused_what_a_scorer_is(tmp_path: Path) -> None:
    _, checkpoint, _ = random_folder(0, tmp_path)
    scorer = scorer_of("torch", checkpoint)
    assert isinstance(scorer, PassScorer)
    assert isinstance(scorer, Prompted)
    for name, given in (("language", "xx"), ("task", "summarize")):
        known = {"language": "de, en, fr", "task": "transcribe, translate"}[name]
        with pytest.raises(UsageError) as caught:
            scorer.prompts.asking(**{name: given})
        assert caught.value.message == f"{name} is {given!r}, which this model does not know"
        assert caught.value.fix == f"choose from {known}"
    with pytest.raises(UsageError, match="into which this model does not translate"):
        load_checkpoint(tmp_path, source_lang="en", target_lang="de")
    with pytest.raises(UsageError, match="which reads sound"):
        load_checkpoint(tmp_path, source_prefix="summarize:")


# Settings


def written(folder: Path, name: str, **changes: Any) -> None:
    """Changes values in a JSON file; None takes one out."""
    path = folder / name
    values = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


def test_every_setting_of_the_class_is_read_irrelevant_or_refused(library: Any, tmp_path: Path) -> None:
    """What is read changes the configuration, or no longer fits; what is not changes no logit of theirs."""
    model, _, rng = random_folder(0, tmp_path)
    whole = json.loads((tmp_path / "config.json").read_text())
    (source,) = models.random_frames(model, rng, [longest_of(model)])
    target = [START, 5, 6]
    wanted = models.their_log_probs(model, source, target)
    before = load_checkpoint(tmp_path).settings
    plain = library.WhisperConfig()
    assert FAMILY.aliases == type(plain).attribute_map
    for name, value in FAMILY.read.items():
        assert (name, getattr(plain, name)) == (name, value)
    for field in dataclasses.fields(type(model.config)):
        value = whole.get(field.name, None if field.default is dataclasses.MISSING else field.default)
        if field.name in ("tie_word_embeddings", "return_dict"):
            continue
        other = not value if isinstance(value, bool) else None
        if isinstance(value, (int, float)) and other is None:
            other = value + 1
        elif field.name == "activation_function":
            other = "relu" if value != "relu" else "silu"
        if field.name in FAMILY.read:
            written(tmp_path, "config.json", **{field.name: other})
            with contextlib.suppress(NartkError):
                assert load_checkpoint(tmp_path).settings != before, field.name
        elif isinstance(value, bool) and field.name.startswith("is_"):
            written(tmp_path, "config.json", **{field.name: other})
            with pytest.raises(UnsupportedCheckpointError, match=f"the setting '{field.name}' is"):
                load_checkpoint(tmp_path)
        elif other is not None and not field.name.endswith("_token_id"):
            written(tmp_path, "config.json", **{field.name: other})
            assert load_checkpoint(tmp_path).settings == before, field.name
            changed = type(model)(type(model.config)(**{**model.config.to_dict(), field.name: other})).eval()
            changed.load_state_dict(model.state_dict())
            found = models.their_log_probs(changed, source, target)
            torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0, msg=field.name)
        (tmp_path / "config.json").write_text(json.dumps(whole))
    written(tmp_path, "config.json", a_setting_of_mine={"0": {}})
    written(tmp_path, "generation_config.json", of_mine=9)
    assert load_checkpoint(tmp_path).notices == (
        "config.json: the setting 'a_setting_of_mine' is {'0': {}}, which is not known and is passed over",
        "generation_config.json: of_mine is 9, which is not known and is passed over",
    )


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("generation_config.json", {"no_speech_threshold": 0.6}, "no_speech_threshold is 0.6, which is not"),
        ("generation_config.json", {"condition_on_prev_tokens": True}, "condition_on_prev_tokens is True"),
        ("generation_config.json", {"min_length": 9}, "min_length is 9, which is not supported"),
        ("generation_config.json", {"language": "xx"}, "a prompt: language is 'xx', which this model"),
        ("generation_config.json", {"forced_decoder_ids": [[2, 5]]}, "a prompt: forced_decoder_ids is"),
        ("generation_config.json", {"no_timestamps_token_id": 9999}, "a prompt: the words of prompts are"),
        ("generation_config.json", {"lang_to_id": ["en"]}, "lang_to_id is ['en'], not ids by name"),
        ("preprocessor_config.json", {"hop_length": 80}, "hop_length is 80"),
        ("preprocessor_config.json", {"feature_size": 23}, "feature_size is 23"),
        ("preprocessor_config.json", {"chunk_length": 30}, "chunk_length is 30"),
        ("preprocessor_config.json", {"of_tomorrow": 9}, "of_tomorrow is 9"),
        ("config.json", {"use_weighted_layer_sum": True}, "the setting 'use_weighted_layer_sum' is True"),
        (
            "config.json",
            {"architectures": ["WhisperForAudioClassification"]},
            "the setting 'architectures' is",
        ),
        ("config.json", {"d_model": 7}, "`d_model` 7 is no multiple"),
    ],
)
def test_what_cannot_be_honoured_is_refused(
    file: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    random_folder(1, tmp_path)
    written(tmp_path, file, **changes)
    with pytest.raises(NartkError) as caught:
        load_checkpoint(tmp_path)
    assert isinstance(caught.value, (CheckpointError, UnsupportedCheckpointError))
    assert message in caught.value.message


def test_generation_of_text_knows_no_prompts() -> None:
    """What Whisper's files may have is passed over in those of a model of text."""
    fields = models.generation_config()
    assert read_generation({"model_type": "whisper"}, fields)["strategy"] == "windows"
    told: list[str] = []
    found = read_generation({"model_type": "t5"}, fields, tell=told.append)
    assert not {"strategy", "timestamps"} & found.keys()
    assert all(each.endswith("which is not known and is passed over") for each in told)
    assert told


# Sound in, text out


def write_sounds(folder: Path, seconds: Sequence[float]) -> list[str]:
    soundfile = pytest.importorskip("soundfile")
    numbers, paths = np.random.default_rng(0), []
    for i, length in enumerate(seconds):
        count = int(16000 * length)
        samples = numbers.normal(size=count) * np.linspace(0, 0.3, count)
        paths.append(str(folder / f"{i}.wav"))
        soundfile.write(paths[-1], samples.astype(np.float32), 16000, subtype="FLOAT")
    return paths


def theirs_of_sound(model: Any, folder: Path, path: str, **fields: Any) -> tuple[list[int], str]:
    """Tokens and text that transformers gives of a file, as its documentation reads one."""
    import soundfile

    library = transformers()
    extractor = library.WhisperFeatureExtractor.from_pretrained(folder)
    samples, _ = soundfile.read(path, dtype="float32")
    long = {} if len(samples) <= 16000 * SECONDS else {"truncation": False, "padding": "longest"}
    given = extractor(samples, sampling_rate=16000, return_tensors="pt", **long)
    fields = {"return_timestamps": True, **fields} if long else fields
    with torch.inference_mode():
        found = model.generate(given.input_features, language="de", task="translate", **fields)[0].tolist()
    text = library.WhisperTokenizer.from_pretrained(folder).decode(found, skip_special_tokens=True)
    return [word for word in found if word != EOS], text


def test_recordings_without_speech_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Once each, where the model finds none in any window and the levels have not told."""
    soundfile = pytest.importorskip("soundfile", reason="reading sound needs nartk[audio]")
    random_folder(0, tmp_path / "model", suppress_tokens=[*range(START, BEGIN)])
    noise, paths = np.random.default_rng(0).standard_normal(50000), []
    for i, seconds in enumerate((0.5, 3.0)):
        samples = 1e-3 * noise[: int(16000 * seconds)]
        samples[-1600:] *= 100
        paths.append(str(tmp_path / f"{i}.wav"))
        soundfile.write(paths[-1], samples, 16000)
    unsure = ["--min-log-prob", "99", "--temperatures", "0"]
    for threshold, count in (("0", 2), ("1", 0)):
        assert nartk_decode([str(tmp_path / "model"), *paths, *unsure, "--no-speech", threshold]) == 0
        out, err = capsys.readouterr()
        assert out.splitlines().count("") == count
        assert err.count("holds no speech") == count


@pytest.mark.parametrize("name", SCORERS)
def test_sound_to_text_as_transformers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("nartk.engine.available", lambda: name == "engine")
    suppressed = [*range(START, BEGIN)]
    folder, native = tmp_path / "model", tmp_path / "native"
    model, _, _ = random_folder(3, folder, suppress_tokens=suppressed)
    paths = write_sounds(tmp_path, (0.4, 1.0, 3.3))
    wanted = [theirs_of_sound(model, folder, path) for path in paths]
    loaded = nartk.load(folder)
    loaded = dataclasses.replace(loaded, vad=False)  # the sounds are noise
    found = loaded.decode(paths, language="de", task="translate", rules="transformers")
    for hypothesis, (tokens, text) in zip(found, wanted, strict=True):
        words = [word for word in hypothesis.tokens if word != EOS]
        assert words == [word for word in tokens if word < BEGIN]
        assert hypothesis.text == text.strip()
    assert convert([str(folder), "--output", str(native), "--source-lang", "de", "--target-lang", "en"]) == 0
    capsys.readouterr()
    assert nartk_decode([str(native), *paths, "--quiet", "--no-vad", "--as", "transformers"]) == 0
    assert capsys.readouterr().out == "".join(f"{text.strip()}\n" for _, text in wanted)


def test_times_are_those_of_segments(tmp_path: Path) -> None:
    """Each window's times are from the beginning of the sound, as transformers has those of segments."""
    model, checkpoint, rng = random_folder(2, tmp_path)
    (source,) = models.random_frames(model, rng, [6 * longest_of(model)])
    features = models.features_of([source])["input_features"]
    fields = {"language": "de", "task": "translate", "return_timestamps": True, "return_segments": True}
    with torch.inference_mode():
        segments = model.generate(features, **fields)["segments"][0]
    windows = [[*group] for _, group in itertools.groupby(segments, key=lambda each: id(each["result"]))]
    assert len(windows) > 2
    tokenizer, wanted = models.tokenizer(SECONDS), ""
    for window in windows:
        tokens = [token for segment in window for token in segment["tokens"].tolist()]
        begin = float(window[0]["start"])
        if any(a >= BEGIN and b >= BEGIN for a, b in itertools.pairwise(tokens)):
            begin -= 0.02 * (tokens[0] - BEGIN)  # else what starts is the window itself
        for is_time, run in itertools.groupby(tokens, key=lambda token: token >= BEGIN):
            if is_time:
                wanted += "".join(f"<|{begin + 0.02 * (token - BEGIN):.2f}|>" for token in run)
            else:
                wanted += tokenizer.decode([*run])
    options = {"language": "de", "task": "translate", "timestamps": True, "rules": "transformers"}
    scorer = scorer_of("torch", checkpoint)
    (found,) = results_of("windows", scorer, [source], dict(checkpoint.generation), **options)
    (best,) = found.hypotheses
    assert checkpoint.output.decode(best.tokens) == wanted.strip()
    spoken = [each for each in segments if any(token < EOS for token in each["tokens"].tolist())]
    assert len(best.segments) == len(spoken) > 2
    for ours, theirs in zip(best.segments, spoken, strict=True):
        assert (ours.start, ours.end) == pytest.approx((float(theirs["start"]), float(theirs["end"])))
        assert [*ours.tokens] == theirs["tokens"].tolist()[: len(ours.tokens)]


def test_sound_that_is_too_long_for_a_strategy_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nartk.engine.available", lambda: False)
    random_folder(0, tmp_path / "model")
    paths = write_sounds(tmp_path, (0.5, 1.2))
    model = nartk.load(tmp_path / "model")
    with pytest.warns(
        UserWarning, match=r"line 2: more than 1.0 s of sound, 100 frames. .*strategy='windows'"
    ):
        found = model.decode(paths, "greedy", max_len=5)
    assert [bool(each.tokens) for each in found] == [True, False]
    assert model.decode(paths[1:], "greedy", max_len=5, truncate=True)[0].tokens
    with pytest.raises(StrategyMismatchError, match=r"reads its own windows of sound.*strategy='windows'"):
        buffers_for(model)
