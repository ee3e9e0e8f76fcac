"""Sound files become a model's sources; `nartk-decode` writes a line for each, whatever the others are."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tiny
from support.frames import FEATURES, declared, frame_model
from support.memory import rising_at_most
from support.sounds import RATE, cases, noise, wav

import nartk
from nartk.cli import _job
from nartk.cli.decode import main
from nartk.data.audio.features import FeatureSettings, compute
from nartk.data.audio.manifests import read_manifest
from nartk.data.audio.normalization import Statistics, normalize
from nartk.data.audio.sounds import read_sound, sound_blocks
from nartk.data.audio.stored import write_features
from nartk.errors import (
    CheckpointError,
    InputFileError,
    InputTooLongError,
    MissingDependencyError,
    UsageError,
    VocabMismatchError,
    naming_flags,
)
from nartk.processors.audio import AudioInput
from nartk.processors.text import TextInput, WhitespaceTokenizer
from nartk.serving.model import Model
from nartk.vocab import Vocab

BY_TORCH = "nartk: the engine has no 'frames'"  # what a run of the model here begins with
LONGEST = 200  # frames of the model's longest source
CASES = cases()
BAD = [name for name, (_, problem) in CASES.items() if problem]


@pytest.fixture(scope="module", autouse=True)
def architecture() -> Iterator[None]:
    with declared():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cases, and a model of frames that reads sound."""
    folder = tmp_path_factory.mktemp("sounds")
    for name, (write, _) in CASES.items():
        write(folder / name)
    frame_model(folder / "model", seed=13, d_model=16, layers=2)
    configure(folder / "model", bins=FEATURES, cmvn="utterance")
    return folder


def configure(model: Path, **settings: Any) -> None:
    """Has a model folder read sound."""
    config = json.loads((model / "config.json").read_text())
    config["input"] = {"name": "audio", **settings}
    config["model"]["max_source_len"] = LONGEST
    (model / "config.json").write_text(json.dumps(config))


def quiet(**settings: Any) -> AudioInput:
    found = AudioInput(FeatureSettings(**settings))
    found.tell = lambda notice: None
    return found


@pytest.mark.parametrize("name", CASES)
def test_odd_files_are_read_or_named(folder: Path, name: str) -> None:
    path, problem = str(folder / name), CASES[name][1]
    if problem:
        with pytest.raises((InputFileError, InputTooLongError)) as caught:
            quiet().read(path, longest=LONGEST)
        assert problem in caught.value.message
        assert caught.value.fix
    else:
        source = quiet().read(path, longest=LONGEST)
        assert source.frames.dtype == np.float32
        assert source.frames.shape[1] == 80
        assert np.isfinite(source.frames).all()
        assert source.shift == 10.0


def test_there_are_enough_odd_files() -> None:
    assert len(CASES) >= 26
    assert len(BAD) >= 13


@pytest.mark.parametrize("name", ["24 bit.wav", "float64.wav", "flac named.wav", "six channels.wav"])
def test_other_ways_to_store_a_sound_make_the_same_features(folder: Path, name: str) -> None:
    plain, other = (quiet().read(str(folder / each), longest=LONGEST).frames for each in ("plain.wav", name))
    loud = plain > 5  # of silence, a rounded sample makes other features
    assert np.abs(plain - other)[loud].max() < 0.05


def test_features_are_computed_and_normalised_as_set(folder: Path, tmp_path: Path) -> None:
    line = str(folder / "plain.wav")
    settings = FeatureSettings(bins=23, window="hamming")
    plain = compute(read_sound(line), settings)
    rng = np.random.default_rng(0)
    statistics = Statistics.of([rng.normal(3, 2, (50, 23)).astype(np.float32)])
    assert (AudioInput(settings).read(line, longest=99).frames == plain).all()
    found = AudioInput(settings, cmvn="utterance").read(line, longest=99).frames
    assert (found == normalize(plain)).all()
    assert abs(found.mean()) < 1e-5
    by_corpus = AudioInput(settings, cmvn="global", statistics=statistics)
    assert (by_corpus.read(line, longest=99).frames == normalize(plain, statistics)).all()
    assert by_corpus.seconds == 0.5
    (tmp_path / "model").mkdir()
    statistics.write(tmp_path / "model" / "cmvn.json")
    loaded = nartk.processors.load_processor(
        "input",
        tmp_path / "model",
        {"name": "audio", "bins": 23, "window": "hamming", "cmvn": "global", "statistics": "cmvn.json"},
        Vocab.from_words(["a"]).specials,
    )
    loaded.require_equal(by_corpus, "the model", "the other")
    assert (loaded.read(line, longest=99).frames == by_corpus.read(line, longest=99).frames).all()


def test_longer_sounds_are_refused_or_cut(tmp_path: Path) -> None:
    samples, settings = noise(RATE), FeatureSettings()
    (tmp_path / "a.wav").write_bytes(wav(samples, subtype="FLOAT"))
    line, audio = str(tmp_path / "a.wav"), quiet()
    whole = compute(samples, settings)
    assert len(whole) == 98
    assert (audio.read(line, longest=98).frames == whole).all()
    with pytest.raises(InputTooLongError, match=r"more than 1\.0 s of sound, 97 frames") as caught:
        audio.read(line, longest=97)
    assert caught.value.fix == (
        "use `Model.buffers` with a strategy that reads frames, split the recording, or use truncate=True"
    )
    with naming_flags(), pytest.raises(InputTooLongError, match="use --long-form 30 with a strategy that"):
        audio.read(line, longest=97)
    assert (audio.read(line, longest=97, truncate=True).frames == whole[:97]).all()


def test_whispers_sounds_are_filled_up_or_cut(tmp_path: Path) -> None:
    settings = FeatureSettings(features="whisper", seconds=2.0)
    audio, line = AudioInput(settings), str(tmp_path / "a.wav")
    (tmp_path / "a.wav").write_bytes(wav(noise(3 * RATE), subtype="FLOAT"))
    with pytest.raises(InputTooLongError, match=r"more than 2\.0 s of sound"):
        audio.read(line, longest=3000)
    cut = audio.read(line, longest=3000, truncate=True).frames
    assert (cut == compute(noise(3 * RATE)[: 2 * RATE], settings)).all()
    assert audio.of_samples(noise(RATE)).frames.shape == (200, 80)
    with pytest.raises(InputTooLongError, match=r"3\.0 s of sound > 2 s"):
        audio.of_samples(noise(3 * RATE))


def test_conversions_are_told_once(folder: Path) -> None:
    told: list[str] = []
    audio = AudioInput(FeatureSettings())
    audio.tell = told.append
    for name in ("8k.wav", "8k.wav", "stereo.wav", "plain.wav", "cut.wav"):
        audio.read(str(folder / name), longest=LONGEST)
    path = str(folder)
    assert told == [
        f"'{path}/8k.wav' has 8000 samples a second, which become 16000",
        f"'{path}/stereo.wav' has 2 channels, which are averaged",
        f"'{path}/cut.wav' has 7978 bytes of sound, its header says 16000",
    ]
    audio.strict = True
    audio.read(str(folder / "plain.wav"), longest=LONGEST)
    for name in ("8k.wav", "stereo.wav", "cut.wav"):
        with pytest.raises(InputFileError, match="or leave strict_audio=True out"):
            audio.read(str(folder / name), longest=LONGEST)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        AudioInput(FeatureSettings()).read(str(folder / "8k.wav"), longest=LONGEST)
    assert len(caught) == 1


def test_a_stream_of_a_file_is_the_file(folder: Path, tmp_path: Path) -> None:
    statistics = Statistics(1, np.full(80, 7.0), np.full(80, 4.0))
    (tmp_path / "a.wav").write_bytes(wav(noise(25 * 8000, seed=4), 8000))
    audio = AudioInput(FeatureSettings(), cmvn="global", statistics=statistics)
    audio.tell = lambda notice: None
    line = str(tmp_path / "a.wav")
    blocks = [*audio.stream(line)]
    assert len(blocks) > 2
    assert np.concatenate(blocks).tobytes() == audio.read(line, longest=9999).frames.tobytes()
    for other in (AudioInput(FeatureSettings(), cmvn="utterance"), quiet(features="whisper")):
        with pytest.raises(UsageError, match="need the whole sound"):
            next(other.stream(line))
    with pytest.raises(InputFileError, match="NaN or infinity"):
        [*audio.stream(str(folder / "nan.wav"))]


def test_padding_lies_around_the_sound(folder: Path, tmp_path: Path) -> None:
    statistics = Statistics(1, np.full(80, 7.0), np.full(80, 4.0))
    of = {"cmvn": "global", "statistics": statistics}
    bare, padded = (AudioInput(FeatureSettings(), padding=padding, **of) for padding in (0, 8))
    (tmp_path / "a.wav").write_bytes(wav(noise(15 * 8000, seed=4), 8000))
    line = str(tmp_path / "a.wav")
    for audio in (bare, padded):
        audio.tell = lambda notice: None
    plain = bare.read(line, longest=9999).frames
    found = padded.read(line, longest=len(plain) + 16).frames
    assert (found == np.pad(plain, ((8, 8), (0, 0)))).all()
    assert np.concatenate([*padded.stream(line)]).tobytes() == found.tobytes()
    with pytest.raises(InputTooLongError, match=f"{len(plain) - 1} frames"):
        padded.read(line, longest=len(plain) + 15)
    levels = bare.levels(plain)
    assert levels is not None
    expected = np.pad(levels, 8, constant_values=np.nan)
    np.testing.assert_array_equal(padded.levels(found), expected)
    with pytest.raises(VocabMismatchError, match="other sources"):
        bare.require_equal(padded, "the model", "the drafter")
    # Nothing, and less than the model reads without padding.
    (tmp_path / "c.wav").write_bytes(wav(np.zeros(0, np.float32), 16000))
    with pytest.raises(InputFileError, match="holds no sound"):
        padded.read(str(tmp_path / "c.wav"), longest=9999)
    with pytest.raises(InputFileError, match="has 0 frames, the model reads 1 or more"):
        [*padded.stream(str(tmp_path / "c.wav"))]
    (tmp_path / "b.wav").write_bytes(wav(noise(600, seed=4), 16000))
    assert len(padded.read(str(tmp_path / "b.wav"), longest=9999).frames) == 16 + 2


def test_memory_does_not_grow_with_a_stream(folder: Path) -> None:
    """Five minutes of a file of two hours; the samples of 40, which a list holds, take 154 MB."""
    line, most, audio = str(folder / "two hours.wav"), 16_000, quiet()
    next(audio.stream(line))
    with rising_at_most(most):
        assert 29_000 < sum(map(len, islice(audio.stream(line), 30))) <= 30_000
    kept: list[np.ndarray] = []
    with pytest.raises(AssertionError), rising_at_most(most):
        kept += islice(sound_blocks(line), 240)


def test_stored_features_are_sources(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).normal(size=(20, 13)).astype(np.float16)
    path = tmp_path / "a.npz"
    write_features(path, {"one": frames, "bad": np.full((9, 13), np.nan), "few": frames[:2]})
    audio = AudioInput(FeatureSettings(features="stored", bins=13), cmvn="utterance")
    found = audio.read(f"{path}#one", longest=20)
    assert (found.frames == normalize(frames.astype(np.float32))).all()
    assert len(audio.read(f"{path}#one", longest=9, truncate=True)) == 9
    for line, longest, message in [
        (f"{path}#one", 19, "20 frames > 19"),
        (f"{path}#bad", 20, "hold NaN or infinity"),
        (f"{path}#few", 20, "has 2 frames, the model reads 7 or more"),
        (f"{path}#none", 20, "has no features"),
        (str(path), 20, "names no features"),
    ]:
        with pytest.raises((InputFileError, InputTooLongError), match=message):
            audio.read(line, longest=longest)
    with pytest.raises(InputFileError, match="has 13 features a frame, the model reads 80"):
        AudioInput(FeatureSettings(features="stored")).read(f"{path}#one", longest=20)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bins": 0}, "'input': `bins` is 0"),
        ({"cmvn": "sliding"}, "'input': `cmvn` is 'sliding'"),
        ({"cmvn": "global"}, "takes statistics"),
        ({"strict": 1}, "`strict` is 1"),
        ({"shortest": 0}, "`shortest` 0"),
        ({"padding": -1, "cmvn": "utterance"}, "`padding` is -1"),
        ({"padding": 8}, "zero is not the mean of features without normalisation"),
        ({"mel": 3}, "unknown settings ['mel']"),
        ({"cmvn": "global", "statistics": "../a"}, "not the name of a file"),
        ({"cmvn": "global", "statistics": "none.json"}, "the file 'none.json' is missing"),
    ],
)
def test_settings_that_make_no_sense_are_a_corrupt_model(
    folder: Path, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        nartk.processors.load_processor(
            "input", tmp_path, {"name": "audio", **settings}, Vocab.from_words(["a"]).specials
        )
    assert message in caught.value.message


def test_models_of_other_features_are_not_mixed() -> None:
    one = AudioInput(FeatureSettings())
    one.require_equal(AudioInput(FeatureSettings()), "the model", "the drafter")
    ones, twos = (Statistics(1, np.ones(80), np.full(80, value)) for value in (1.0, 2.0))
    by = {"cmvn": "global"}
    pairs: list[tuple[AudioInput, Any]] = [
        (one, AudioInput(FeatureSettings(shift_ms=12.0))),
        (one, AudioInput(FeatureSettings(), cmvn="utterance")),
        (
            AudioInput(FeatureSettings(), statistics=ones, **by),
            AudioInput(FeatureSettings(), statistics=twos, **by),
        ),
        (one, TextInput(WhitespaceTokenizer(Vocab.from_words(["a"])))),
    ]
    for mine, theirs in pairs:
        with pytest.raises(VocabMismatchError, match="the drafter other sources"):
            mine.require_equal(theirs, "the model", "the drafter")


@pytest.mark.parametrize("package", ["soundfile", "soxr", "kaldi_native_fbank"])
def test_a_missing_package_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=rf"{package}.*pip install 'nartk\[audio\]'"):
        quiet().read(str(folder / "8k.wav"), longest=LONGEST)


def test_reading_sound_loads_no_torch(folder: Path) -> None:
    code = (
        "import sys; import nartk.processors.audio\n"
        "print([name for name in ('soundfile', 'soxr', 'kaldi_native_fbank') if name in sys.modules])\n"
        "from nartk.data.audio.features import FeatureSettings\n"
        "audio = nartk.processors.audio.AudioInput(FeatureSettings())\n"
        f"audio.read({str(folder / 'plain.wav')!r}, longest=99)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "False"]


# nartk-decode


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    found = nartk.load(folder / "model", threads=1)
    found.checkpoint.input.tell = lambda notice: None  # type: ignore[attr-defined]
    return found


@pytest.fixture(scope="module")
def outputs(folder: Path, model: Model) -> dict[str, str]:
    """The output of each good file, decoded alone."""
    names = [name for name in CASES if name not in BAD]
    found = {name: model.decode([str(folder / name)], max_len=9)[0].text for name in names}
    assert len(set(found.values())) > 5  # what is heard decides
    assert all(found.values())
    return found


def decoded(
    capture: pytest.CaptureFixture[bytes], *arguments: str, code: int = 0
) -> tuple[list[str], list[str]]:
    """The lines on stdout and on stderr of nartk-decode."""
    assert main([*arguments, "--max-len", "9", "--strategy", "greedy", "--threads", "1"]) == code
    done = capture.readouterr()
    told = [line for line in done.err.decode().splitlines() if not line.startswith(BY_TORCH)]
    return done.out.decode().split("\n")[:-1], told


@pytest.mark.parametrize("batch", ["1", "64"])
def test_each_file_is_a_line_and_bad_ones_harm_no_other(
    folder: Path, outputs: dict[str, str], batch: str, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    files = [str(folder / name) for name in CASES]
    lines, told = decoded(capsysbinary, str(folder / "model"), *files, "--batch-size", batch, code=3)
    assert lines == [outputs.get(name, "") for name in CASES]
    errors = [line for line in told if line.startswith("nartk: error[")]
    assert [line.partition("] ")[2].partition(": ")[0] for line in errors] == [
        str(folder / name) for name in BAD
    ]
    assert not [line for line in told if "Traceback" in line]


def test_folders_and_patterns_are_their_sound_files(
    folder: Path, outputs: dict[str, str], tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """In the order of their names; hidden files and others are left out, and a name goes before a pattern."""
    names = [name for name in outputs if name.endswith((".wav", ".flac"))][:4]
    places = ["b/2.WAV", "a.flac", "b/10.wav", "[c].wav"]
    for name, place in zip(names, places, strict=True):
        (tmp_path / "talks" / place).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / "talks" / place).write_bytes((folder / name).read_bytes())
    for place in ("._a.wav", "notes.txt", "b/.hidden/x.wav"):
        (tmp_path / "talks" / place).parent.mkdir(exist_ok=True)
        (tmp_path / "talks" / place).write_bytes(b"no sound")
    by_place = dict(zip(places, (outputs[name] for name in names), strict=True))
    model, talks = str(folder / "model"), str(tmp_path / "talks")
    for given, wanted in (
        (talks, ["[c].wav", "a.flac", "b/10.wav", "b/2.WAV"]),
        (f"{talks}/b/*.wav", ["b/10.wav"]),
        (f"{talks}/**/*.[wW]*", ["[c].wav", "b/10.wav", "b/2.WAV"]),
        (f"{talks}/?", ["b/10.wav", "b/2.WAV"]),
        (f"{talks}/[c].wav", ["[c].wav"]),
    ):
        assert decoded(capsysbinary, model, given)[0] == [by_place[place] for place in wanted]
    (tmp_path / "empty").mkdir()
    for given, message in (("empty", "a folder without a sound file"), ("*.mp3", "no file matches")):
        assert decoded(capsysbinary, model, str(tmp_path / given), code=2)[0] == []
        assert main([model, str(tmp_path / given)]) == 2
        assert message in capsysbinary.readouterr().err.decode()


def test_windows_of_features_join_seamlessly(
    folder: Path,
    outputs: dict[str, str],
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_job, "WINDOW_OF_FEATURES", 2)
    files = [str(folder / name) for name in outputs]
    lines, _ = decoded(capsysbinary, str(folder / "model"), *files)
    assert lines == [*outputs.values()]


def write_manifest(folder: Path, suffix: str, names: list[str]) -> str:
    path = folder / f"list{suffix}"
    rows = {
        ".tsv": [str(folder), *(f"{name}\t8000" for name in names)],
        ".scp": [f"id{i} {folder / name}" for i, name in enumerate(names)],
        ".txt": [str(folder / name) for name in names],
    }[suffix]
    path.write_text("".join(f"{row}\n" for row in rows))
    return str(path)


def test_paths_of_a_tsv_are_in_its_folder() -> None:
    file = BytesIO(b"/a\nb/c.wav\t17\n\n/d.wav\t18\textra\n e.wav\n")
    found = [(each.text, each.where, each.id) for each in read_manifest(file, "m.tsv")]
    assert found == [
        ("/a/b/c.wav", "m.tsv:2", None),
        ("", "m.tsv:3", None),
        ("/d.wav", "m.tsv:4", None),
        ("/a/ e.wav", "m.tsv:5", None),
    ]


@pytest.mark.parametrize("suffix", [".tsv", ".scp", ".txt"])
def test_manifests_are_the_files_that_they_list(
    folder: Path, outputs: dict[str, str], suffix: str, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    names = ["plain.wav", "missing.wav", "stereo.wav", "8k.wav"]
    manifest = write_manifest(folder, suffix, names)
    wanted = [outputs.get(name, "") for name in names]
    arguments = [str(folder / "model"), "--manifest", manifest]
    lines, told = decoded(capsysbinary, *arguments, code=3)
    assert lines == wanted
    number = 3 if suffix == ".tsv" else 2
    where = f"{manifest}:{number}" + (" (id1)" if suffix == ".scp" else "")
    assert f"{where}: '{folder / 'missing.wav'}' cannot be read" in "\n".join(told)
    lines, _ = decoded(capsysbinary, *arguments, "--output-format", "jsonl", code=3)
    ids = [json.loads(line)["id"] for line in lines]
    assert ids == ([f"id{i}" for i in range(4)] if suffix == ".scp" else [1, 2, 3, 4])
    assert json.loads(lines[0])["source"] == str(folder / "plain.wav")
    if suffix != ".tsv":  # by their suffix, and as text
        assert decoded(capsysbinary, str(folder / "model"), manifest, code=3)[0] == wanted


def test_lines_of_a_manifest_that_name_no_file(
    folder: Path, tmp_path: Path, outputs: dict[str, str], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    model, scp = str(folder / "model"), tmp_path / "a.scp"
    scp.write_bytes(
        b"alone\nid sox in.wav -t wav - |\n\n\xff\nid " + str(folder / "plain.wav").encode() + b"\n"
    )
    lines, told = decoded(capsysbinary, model, "--manifest", str(scp), code=3)
    assert lines == ["", "", "", "", outputs["plain.wav"]]
    text = "\n".join(told)
    assert f"{scp}:1 (alone): 'alone' names no file" in text
    assert f"{scp}:2 (id): a shell command, which nartk does not run" in text
    assert f"E202 InputEncoding] {scp}:4: " in text
    arguments = [model, "--manifest", str(scp), "--output-format", "jsonl"]
    scp.write_bytes(b"a sox in.wav -t wav - |\nb /\xff.wav\nc\n\xff x.wav\nd none.wav\n")
    lines, told = decoded(capsysbinary, *arguments, code=3)
    assert [json.loads(line)["id"] for line in lines] == ["a", "b", "c", 4, "d"]
    places = [f"{scp}:1 (a)", f"{scp}:2 (b)", f"{scp}:3 (c)", f"{scp}:4", f"{scp}:5 (d)"]
    assert [json.loads(line)["error"]["where"] for line in lines] == places
    assert [line.partition("] ")[2].partition(": ")[0] for line in told[:5]] == places
    scp.write_text("out /plain.wav\n")
    lines, _ = decoded(capsysbinary, *arguments, "--root", str(tmp_path), code=3)
    assert [json.loads(line)["id"] for line in lines] == ["out"]
    tsv = tmp_path / "a.tsv"
    for first in ("a.wav\t3", "", "\xff"):
        tsv.write_text(f"{first}\nb.wav\t8000\n", encoding="latin-1")
        assert main([model, "--manifest", str(tsv), "--strategy", "greedy"]) == 2
        assert b"is no folder" in capsysbinary.readouterr().err
    tsv.write_text("")
    assert decoded(capsysbinary, model, "--manifest", str(tsv))[0] == []
    assert main([model, "--manifest", str(tmp_path / "none.tsv")]) == 2


def test_files_outside_of_the_root_are_refused(
    folder: Path, tmp_path: Path, outputs: dict[str, str], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    inside = tmp_path / "root"
    (inside / "deep").mkdir(parents=True)
    (inside / "deep" / "plain.wav").write_bytes((folder / "plain.wav").read_bytes())
    (inside / "link.wav").symlink_to(folder / "plain.wav")
    (inside / "near.wav").symlink_to("deep/plain.wav")
    (tmp_path / "rooted.wav").write_bytes((folder / "plain.wav").read_bytes())
    paths = {
        "deep/plain.wav": True,
        "near.wav": True,
        "deep/../near.wav": True,
        str(inside / "near.wav"): True,
        "../rooted.wav": False,
        "deep/../../rooted.wav": False,
        "../root/../rooted.wav": False,
        str(folder / "plain.wav"): False,
        "/dev/zero": False,
        "link.wav": False,
        "/": False,
        "..": False,
    }
    (tmp_path / "m.tsv").write_text("/nowhere\n" + "".join(f"{path}\t1\n" for path in paths))
    arguments = [str(folder / "model"), "--manifest", str(tmp_path / "m.tsv")]
    lines, told = decoded(capsysbinary, *arguments, "--root", str(inside), code=3)
    assert lines == [outputs["plain.wav"] if good else "" for good in paths.values()]
    assert sum("is not in the folder" in line for line in told) == 8
    lines, _ = decoded(capsysbinary, *arguments, code=3)  # unless a folder is named, paths lead anywhere
    assert [bool(line) for line in lines[:8]] == [False] * 3 + [True] + [False] * 3 + [True]


def test_arrays_of_stored_features_are_lines(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    frame_model(tmp_path / "model", seed=13, d_model=16, layers=2)
    configure(tmp_path / "model", features="stored", bins=FEATURES)
    rng = np.random.default_rng(1)
    arrays = {f"u{n}": rng.normal(size=(n, FEATURES)).astype(np.float32) for n in (9, 30, 3, 14)}
    write_features(tmp_path / "a.npz", arrays)
    lines, _ = decoded(
        capsysbinary, str(tmp_path / "model"), str(tmp_path / "a.npz"), "--output-format", "jsonl", code=3
    )
    found = [json.loads(line) for line in lines]
    assert [each["id"] for each in found] == [*arrays]
    assert "error" in found[2]
    model = nartk.load(tmp_path / "model")
    wanted = [
        model.decode([f"{tmp_path / 'a.npz'}#{name}"], max_len=9)[0].text for name in ("u9", "u30", "u14")
    ]
    assert [found[i]["hypotheses"][0]["text"] for i in (0, 1, 3)] == wanted


def test_notices_go_to_stderr_once_a_run(folder: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    files = [str(folder / name) for name in ("8k.wav", "8k.wav", "stereo.wav")]
    _, told = decoded(capsysbinary, str(folder / "model"), *files)
    assert told[0] == f"nartk: '{files[0]}' has 8000 samples a second, which become 16000"
    assert told[1] == f"nartk: '{files[2]}' has 2 channels, which are averaged"
    assert len([line for line in told if "has" in line.split()]) == 2
    assert decoded(capsysbinary, str(folder / "model"), *files, "--quiet")[1] == []
    lines, told = decoded(capsysbinary, str(folder / "model"), *files, "--strict-audio", "--quiet", code=3)
    assert lines == ["", "", ""]
    assert "or leave --strict-audio out" in told[0]


def test_the_real_time_factor_is_of_the_sound_that_was_read(
    folder: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    files = [str(folder / name) for name in ("plain.wav", "8k.wav", "nan.wav")]
    stats = tmp_path / "stats.json"
    _, told = decoded(capsysbinary, str(folder / "model"), *files, "--stats", str(stats), code=3)
    report = json.loads(stats.read_text())
    assert report["sound_seconds"] == 1.5
    assert report["real_time_factor"] == pytest.approx(report["seconds"] / 1.5)
    assert f"real-time factor {report['real_time_factor']:.4f}" in told[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plain.wav"], "E305 SourceMismatch] '{folder}/plain.wav' holds sound"),
        (["text.txt", "plain.wav"], "E305 SourceMismatch] '{folder}/plain.wav' holds sound"),
        (["a.npz"], "E305 SourceMismatch]"),
        (["--manifest", "list.scp"], "E305 SourceMismatch]"),
        (["text.txt", "--strict-audio"], "--strict-audio, but the model reads text"),
        (["text.txt", "--no-vad"], "--no-vad, but the model reads text"),
        (["a.wav", "--strategy", "windows", "--vad", "energy", "--no-vad"], "--vad energy with --no-vad"),
        (["text.txt", "--root", "."], "--root without a manifest"),
        (["text.txt", "--manifest", "list.scp"], "--manifest with '{folder}/text.txt'"),
    ],
)
def test_a_model_of_text_is_given_no_sound(
    folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
    arguments: list[str],
    message: str,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    text = tiny.random_model(tmp_path_factory.mktemp("text"), words=["a", "b"])
    (folder / "text.txt").write_text("a b\n")
    write_features(folder / "a.npz", {"a": np.zeros((9, 5), np.float32)})
    write_manifest(folder, ".scp", ["plain.wav"])
    assert main([str(text), *(str(folder / each) if "." in each[1:] else each for each in arguments)]) in (
        2,
        4,
    )
    done = capsysbinary.readouterr()
    assert message.format(folder=folder) in done.err.decode()
    assert done.out == b""


def test_text_is_no_sound(folder: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    (tmp_path / "in.txt").write_text("She go to school .\n")
    lines, told = decoded(capsysbinary, str(folder / "model"), str(tmp_path / "in.txt"), code=3)
    assert lines == [""]
    assert "'She go to school .' cannot be read: No such file or directory" in told[0]
