"""ESPnet's OWSM-CTC, converted, gives what its own program gives of sound, languages, tasks and prompts.

tests/oracles/owsm_ctc.py wrote the numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.owsm_ctc_models import (
    CASES,
    LONG,
    MODELS,
    ORACLE,
    RATE,
    SECONDS,
    TOKENS,
    config_of,
    sound_of,
    state_of,
    write,
)
from support.sounds import wav

import nartk
from nartk.architectures.owsm_ctc import OwsmCtcConfig
from nartk.checkpoints.loading import load_checkpoint
from nartk.cli.convert import main as convert
from nartk.cli.decode import main as decode_command
from nartk.engine import available
from nartk.errors import InputFormatError, InputTooLongError, PassError, UsageError
from nartk.protocols.passes import FeatureSource, Want
from nartk.serving.buffers import FixedBuffers
from nartk.serving.long_form import buffers_for, read_long
from nartk.serving.scorers import load_network

yaml = pytest.importorskip("yaml")
needs_engine = pytest.mark.skipif(not available(), reason="no engine")

BLANK = 0


def oracle(name: str, key: str) -> Any:
    with np.load(ORACLE) as stored:
        return stored[f"{name} {key}"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The models, converted."""
    folder = tmp_path_factory.mktemp("owsm")
    for name in MODELS:
        theirs = write(folder / f"{name}.theirs", name)
        assert convert([str(theirs), "--output", str(folder / name), "--quiet"]) == 0
    return {name: folder / name for name in MODELS}


def line_of(folder: Path, case: tuple[float, str, str, tuple[int, ...]]) -> str:
    """A sound's file, its language, task and prompt as a line names them."""
    seconds, language, task, prompt = case
    path = folder / f"{seconds}.wav"
    path.write_bytes(wav(sound_of(seconds), RATE, "FLOAT"))
    return (
        f"{path}\t{language} {task}\t{''.join(TOKENS[id] for id in prompt).replace(chr(0x2581), ' ').strip()}"
    )


def source_of(model: Path, case: tuple[float, str, str, tuple[int, ...]]) -> FeatureSource:
    checkpoint = load_checkpoint(model)
    reader: Any = checkpoint.input
    seconds, *front, prompt = case
    ids = checkpoint.target_vocab.ids
    found = reader.of_samples(sound_of(seconds))
    return replace(found, words=tuple(ids(front)), prompt=tuple(ids(TOKENS[id] for id in prompt)))


def by_theirs(model: Path, logits: np.ndarray) -> np.ndarray:
    """Log-probabilities [N,V] by ESPnet's ids, which a word of nartk's has no part in."""
    words = load_checkpoint(model).target_vocab.words
    rows = torch.from_numpy(logits).double().log_softmax(1).numpy()
    assert np.exp(rows[:, words.index("<pad>")]).max() == 0
    return rows[:, [words.index(word) for word in TOKENS]]


@pytest.mark.parametrize("name", MODELS)
def test_features_are_espnets(name: str, models: dict[str, Path]) -> None:
    """Sound filled up with silence, normalised."""
    found = source_of(models[name], CASES["plain"])
    theirs = oracle(name, "plain features")
    assert found.frames.shape == theirs.shape
    assert np.abs(found.frames - theirs).max() < 2e-3
    assert np.abs(found.frames - theirs).mean() < 1e-5
    assert found.sound == 1 + int(1.3 * RATE) // 160


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("case", CASES)
def test_the_network_is_espnets(name: str, case: str, models: dict[str, Path]) -> None:
    """All CTC, intermediate ones too, in fp64; another language, task or prompt gives something else."""
    network: Any = load_network(load_checkpoint(models[name])).eval().double()
    source = source_of(models[name], CASES[case])
    frames = torch.from_numpy(source.frames).double()[None]
    if case == "plain":
        frames = torch.from_numpy(oracle(name, "plain features")).double()[None]
    words = torch.tensor([source.words])
    prompt = torch.tensor([source.prompt], dtype=torch.int64) if source.prompt else None
    with torch.no_grad():
        encoded = network.encoder(frames, torch.tensor([frames.shape[1]]), words, prompt)
        last = network.encoder.ctc(encoded.memory)
        other = network.encoder(frames, torch.tensor([frames.shape[1]]), words.flip(1), prompt)
    layers = MODELS[name]["encoder_conf"]["interctc_layer_idx"]
    heads = dict(zip([f"ctc {each}" for each in layers], encoded.intermediate, strict=True)) | {"ctc": last}
    for key, logits in heads.items():
        theirs = oracle(name, f"{case} {key}")
        assert np.abs(by_theirs(models[name], logits[0].numpy()) - theirs).max() < (
            1e-5 if case == "plain" else 1e-3
        ), key
    assert (network.encoder.ctc(other.memory) - last).abs().max() > 0.05


@needs_engine
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("type", ["fp32", "bf16", "int8"])
def test_the_engine_scores_as_espnet(name: str, type: str, models: dict[str, Path]) -> None:
    """Each source alone and all in a batch, to the bit; fp32 as ESPnet, the others near it."""
    scorer: Any = nartk.load(models[name], dtype=type).passes
    sources = [source_of(models[name], case) for case in CASES.values()]

    def scored(*given: FeatureSource) -> list[np.ndarray]:
        memory = scorer.encode(given)
        counts = scorer.frames(memory)
        rows = scorer.read_frames(memory, Want()).rows(range(counts.sum()))
        scorer.free(memory)
        return np.split(rows, np.cumsum(counts)[:-1])

    together = scored(*sources)
    bound = {"fp32": (2e-3, 1e-4), "bf16": (9.0, 0.4), "int8": (9.0, 0.6)}[type]
    for case, source, rows in zip(CASES, sources, together, strict=True):
        assert (scored(source)[0] == rows).all()
        theirs = oracle(name, f"{case} ctc")
        assert len(rows) == len(theirs)
        differences = np.abs(by_theirs(models[name], rows) - theirs)
        assert differences.max() < bound[0]
        assert differences.mean() < bound[1]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("engine", [pytest.param(True, marks=needs_engine), False])
def test_outputs_are_espnets(
    name: str, engine: bool, models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens of all cases in one batch, and text without symbols."""
    if not engine:
        monkeypatch.setenv("NARTK_NO_ENGINE", "1")
    loaded = replace(nartk.load(models[name]), vad=False)
    words = loaded.checkpoint.target_vocab.words
    lines = [line_of(tmp_path, case) for case in CASES.values()]
    found = loaded.decode(lines, "ctc-greedy")
    for case, each in zip(CASES, found, strict=True):
        theirs = [TOKENS[id] for id in oracle(name, f"{case} greedy")]
        assert [words[id] for id in each.tokens[:-1]] == theirs
        plain = [word for word in theirs if not word.startswith("<")]
        assert str(oracle(name, f"{case} text")) == " ".join(plain)
        assert each.text == "".join(plain).replace("\u2581", " ").removeprefix(" ")
        assert len({*plain}) > 2
    assert len({each.tokens for each in found}) == len(CASES)


@needs_engine
@pytest.mark.parametrize("name", MODELS)
def test_long_sound_is_read_in_espnets_buffers(name: str, models: dict[str, Path], tmp_path: Path) -> None:
    loaded = replace(nartk.load(models[name]), vad=False)
    lines = [line_of(tmp_path, LONG), line_of(tmp_path, CASES["plain"])]
    run = loaded.run(lines, "ctc-greedy")
    assert isinstance(run.errors[0], InputTooLongError)
    assert "long_form" in str(run.errors[0]) or "Model.buffers" in str(run.errors[0])
    loaded = replace(loaded, buffers=buffers_for(loaded, SECONDS))
    assert loaded.buffers == FixedBuffers(22, 4, 4, 8, 30, frames=241)
    found, short = loaded.decode(lines, "ctc-greedy")
    words = loaded.checkpoint.target_vocab.words
    labels = oracle(name, "long").ravel().tolist()
    theirs = [TOKENS[id] for id, _ in itertools.groupby(labels) if id != BLANK]
    assert [words[id] for id in found.tokens[:-1]] == theirs
    plain = [word for word in theirs if not word.startswith("<")]
    assert str(oracle(name, "long text")) == " ".join(plain)
    assert len(plain) > 10
    assert [words[id] for id in short.tokens[:-1]] == [TOKENS[id] for id in oracle(name, "plain greedy")]
    (alone,) = loaded.decode(lines[:1], "ctc-greedy")
    assert (alone.tokens, alone.positional_scores) == (found.tokens, found.positional_scores)
    assert found.times is not None
    ends = [end for _, end in found.times]
    assert ends == sorted(ends)
    assert (
        LONG[0] - 2 < ends[-1] <= LONG[0] + SECONDS
    )  # the last buffer is filled up, and random weights speak there


def test_a_buffers_frames_are_the_recordings(models: dict[str, Path], tmp_path: Path) -> None:
    """By their times, but for two frames at either end of it, whose windows lie over silence."""
    loaded = nartk.load(models["published"])
    line = line_of(tmp_path, LONG)
    found = read_long(loaded.sound, line, buffers_for(loaded, SECONDS))
    plain = load_checkpoint(models["published"]).input
    plain.fill = 0.0  # type: ignore[union-attr]
    wanted = plain.read(line, longest=10**6)
    assert len(found) == len(wanted.frames)
    assert np.abs(found.frames[:][2:-2] - wanted.frames[2:-2]).max() < 1e-3
    for part in (slice(0, 300), slice(170, 180), slice(175, 177), slice(900, 999), slice(5, 5)):
        assert (found.frames[part] == found.frames[:][part]).all()
    assert found.words == wanted.words
    assert loaded.sound is not None
    assert loaded.sound.seconds == pytest.approx(LONG[0])


def test_silence_that_fills_a_source_has_no_level(models: dict[str, Path]) -> None:
    loaded = nartk.load(models["published"])
    assert loaded.sound is not None
    levels = loaded.sound.levels(source_of(models["published"], CASES["plain"]).frames)
    assert levels is not None
    assert np.isnan(levels[135:]).all()
    assert not np.isnan(levels[:100]).all()


def test_lines_that_are_refused(models: dict[str, Path], tmp_path: Path) -> None:
    loaded = nartk.load(models["published"])
    line = line_of(tmp_path, CASES["plain"]).split("\t")[0]
    assert loaded.encode(line).words == loaded.encode(f"{line}\t<nolang> <asr>").words != ()
    run = loaded.run([f"{line}\t<xyz> <asr>"], "ctc-greedy")
    assert isinstance(run.errors[0], InputFormatError)
    assert "'<xyz>' is no word of the model" in str(run.errors[0])
    with pytest.raises(UsageError, match=r"is 30, of a model that reads 2.4 s at a time. Fix: give 2.4"):
        buffers_for(loaded, 30.0)


@needs_engine
def test_the_command_decodes_long_sound(
    models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = line_of(tmp_path, LONG).split("\t")[0]
    arguments = [str(models["wide"]), line, "--strategy", "ctc-greedy", "--no-vad", "--quiet"]
    assert decode_command([*arguments, "--long-form", "2.4"]) == 0
    assert capsys.readouterr().out.strip()
    assert decode_command([*arguments, "--long-form", "30"]) == 2
    assert (
        "--long-form is 30, of a model that reads 2.4 s at a time. Fix: give 2.4" in capsys.readouterr().err
    )
    assert decode_command([*arguments, "--partials"]) == 2
    assert "chunks with a model that reads 2.4 s of sound at a time" in capsys.readouterr().err


@needs_engine
def test_it_becomes_int8(tmp_path: Path) -> None:
    theirs = write(tmp_path / "theirs", "published")
    assert convert([str(theirs), "--quantize", "int8", "--output", str(tmp_path / "int8"), "--quiet"]) == 0
    one, other = (
        nartk.load(folder, dtype="int8").passes
        for folder in (tmp_path / "int8", convert_plain(theirs, tmp_path / "plain"))
    )
    source, rows = source_of(tmp_path / "int8", CASES["prompt"]), []
    for scorer in (one, other):
        memory = scorer.encode([source])
        rows.append(scorer.read_frames(memory, Want()).rows(range(int(scorer.frames(memory)[0]))))
    assert (rows[0] == rows[1]).all()


def convert_plain(theirs: Path, output: Path) -> Path:
    assert convert([str(theirs), "--output", str(output), "--quiet"]) == 0
    return output


def test_a_model_whose_layers_read_no_prompt(tmp_path: Path) -> None:
    """Its prompt encoder is left out, and a prompt is refused."""
    config = config_of("published")
    config["encoder_conf"]["use_cross_attention"] = False
    state = {key: value for key, value in state_of("published").items() if "cross_attn" not in key}
    theirs = write(tmp_path / "theirs", "published", config, state)
    loaded = nartk.load(convert_plain(theirs, tmp_path / "model"))
    found = loaded.config
    assert isinstance(found, OwsmCtcConfig)
    assert (found.prompt_layers, found.prompted_layers, found.prompt_features) == (0, (), 12)
    line = line_of(tmp_path, CASES["prompt"])
    with pytest.raises(PassError, match="words beside its frames, which the model does not read"):
        loaded.run([line], "ctc-greedy")
    assert loaded.run([line.rpartition("\t")[0]], "ctc-greedy").errors == {}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "encoder": ({"encoder": "e_branchformer"}, "encoder is 'e_branchformer'"),
    "prompts": ({"promptencoder": "conformer"}, "promptencoder is 'conformer'"),
    "no prompts": ({"promptencoder": None}, "promptencoder is None"),
    "tokens": ({"token_type": "char"}, "token_type is 'char'"),
    "absent": ({"model_conf.sym_na": "<none>"}, "model_conf.sym_na is '<none>'"),
    "no language": (
        {"token_list": [each for each in TOKENS if each != "<nolang>"]},
        "token_list has 0 of '<nolang>'",
    ),
    "no absent": ({"token_list": [each for each in TOKENS if each != "<na>"]}, "token_list has 0 of '<na>'"),
    "readers": ({"encoder_conf.use_cross_attention": [0, 1]}, "use_cross_attention is [0, 1], not true"),
    "no readers": ({"encoder_conf.use_cross_attention": "2"}, "use_cross_attention is '2', not true"),
    "layers": ({"encoder_conf.interctc_layer_idx": [4]}, "`intermediate_ctc` is '4'"),
    "subsampling": ({"encoder_conf.input_layer": "conv2d"}, "input_layer is 'conv2d'"),
    "length": ({"preprocessor_conf.speech_length": "30s"}, "speech_length is '30s', not 1 to 600 seconds"),
    "endless": ({"preprocessor_conf.speech_length": 1e9}, "speech_length is 1000000000.0, not 1 to 600"),
    "other sound": ({"preprocessor": "s2t"}, "preprocessor is 's2t'"),
    "prompt": ({"promptencoder_conf.input_layer": "embed"}, "promptencoder_conf.input_layer is 'embed'"),
    "post-norm": ({"promptencoder_conf.normalize_before": False}, "normalize_before is False"),
    "heads": ({"promptencoder_conf.attention_heads": 5}, "`prompt_features` 12 is no multiple of"),
    "odd": ({"promptencoder_conf.output_size": 15}, "`prompt_features` is 15, which is not even"),
    "wider": ({"promptencoder_conf.output_size": 18}, "has shape ["),
    "deeper": ({"promptencoder_conf.num_blocks": 3}, "'prompt_encoder.encoders.2.self_attn.linear_q.weight'"),
    "words": ({"token_list": [*TOKENS, "more"]}, "has shape [21"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_known_is_named(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes, message = REFUSED[case]
    config = config_of("published")
    for key, value in changes.items():
        part, _, inner = key.rpartition(".")
        (config[part] if part else config)[inner] = value
    path = write(tmp_path / "theirs", "published", config)
    assert convert([str(path), "--output", str(tmp_path / "model")]) in (5, 6)
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "model").exists()


def lost(state: dict[str, Any]) -> None:
    del state["prompt_proj.bias"]


def shorter(state: dict[str, Any]) -> None:
    state["embed_proj.weight"] = state["embed_proj.weight"][:, :-1].clone()


def more(state: dict[str, Any]) -> None:
    state["encoder.encoders.0.cross_attn.linear_q.weight"] = torch.zeros(16, 16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lost, "tensor 'prompt_proj.bias' is missing"),
        (shorter, "tensor 'embed_proj.weight' has shape [16, 11], the configuration says [16, 12]"),
        (more, "tensor 'encoder.encoders.0.cross_attn.linear_q.weight' is not in the configuration"),
    ],
)
def test_damaged_weights_are_named(
    change: Callable[[dict[str, Any]], None],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    state: dict[str, Any] = state_of("published")
    change(state)
    path = write(tmp_path / "theirs", "published", state=state)
    assert convert([str(path), "--output", str(tmp_path / "model")]) == 5
    assert message in capsys.readouterr().err
    assert not (tmp_path / "model").exists()
