"""The speech model that ships hears what is said in the recordings that ship."""

from __future__ import annotations

import gzip
import json
import re
import sys
import warnings
from dataclasses import replace
from io import BytesIO, StringIO
from pathlib import Path
from tempfile import TemporaryFile
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.commands import run
from support.metrics import error_rate
from support.recipe_scripts import RECIPES
from support.spoken_numbers import spoken_numbers, spoken_places

import nartk
from nartk.cli.decode import main
from nartk.data.audio.sounds import read_sound
from nartk.protocols.passes import FeatureSource
from nartk.protocols.sources import as_given
from nartk.serving import Session
from nartk.serving.long_form import buffers_for, read_long
from nartk.serving.streaming import stream

pytestmark = pytest.mark.skipif(not RECIPES.is_dir(), reason="the recordings are not beside the tests")
COUNT = 60  # of the 500 numbers that are tested


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str]]:
    """Sound files of connected digits, recordings and numbers that were not trained on, and their words."""
    return spoken_numbers(tmp_path_factory.mktemp("numbers"), COUNT)


@pytest.mark.parametrize("dtype", ["fp32", "int8"])
def test_numbers_are_translated(dtype: str, tmp_path: Path) -> None:
    """German says units before tens, so that words change their order."""
    sounds, wanted = spoken_numbers(tmp_path, COUNT, "de")
    for strategy in (None, "dag-beam"):
        found = [each.text for each in nartk.load("st-digits", dtype=dtype).decode(sounds, strategy)]
        assert error_rate(wanted, found).score < 3, strategy  # 0.7 of all 500
    assert error_rate(wanted, found[1:] + found[:1]).score > 50
    options = ["--stats", str(tmp_path / "stats.json"), "--output", str(tmp_path / "out.txt")]
    assert main(["st-digits", sounds[0], "--dtype", dtype, "--quiet", *options]) == 0
    assert json.loads((tmp_path / "stats.json").read_text())["cuda_graphs"] is None


_FRENCH = """
import sys
from itertools import islice
sys.path[:0] = [f"{sys.argv[1]}/asr", f"{sys.argv[1]}/st"]
from corpora import numbers
from prepare_speech import number_of, phonemes_of, target_voice
from prompts import RATE, names_of
voice = target_voice("prompts", "fr")
for each in islice(numbers("test"), int(sys.argv[2])):
    names = names_of(number_of(each.text), "fr")
    print(len(voice(names)) / RATE, phonemes_of(names, "fr"), sep="\t")
"""


@pytest.mark.parametrize("dtype", ["fp32", "int8"])
def test_numbers_are_spoken_in_another_language(
    dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The phonemes are those of the numbers, and sound is as long as the person's, neither silent nor cut."""
    sounds, _ = spoken_numbers(tmp_path, 20)
    lines = run([sys.executable, "-c", _FRENCH, str(RECIPES), "20"]).splitlines()
    seconds, wanted = zip(*(line.split("\t") for line in lines), strict=True)
    command = ["s2s-digits", *sounds, "--speech", str(tmp_path / "out"), "--dtype", dtype, "--quiet"]
    assert main(command) == 0
    found = capsys.readouterr().out.splitlines()
    assert error_rate(wanted, found).score < 5  # 0.6 of all 500
    assert error_rate(wanted, found[1:] + found[:1]).score > 50
    spoken = [read_sound(str(tmp_path / "out" / Path(each).name), rate=16000) for each in sounds]
    lengths = [len(each) / 16000 for each in spoken]
    ratios = np.log(np.array(lengths) / np.array(seconds, np.float64))
    assert np.abs(ratios).mean() < 0.15  # 0.015 of all 500
    for each in spoken:
        assert 0.1 < np.abs(each).max() < 1
        assert np.sqrt(np.square(each).mean()) > 0.02


@pytest.mark.parametrize("dtype", ["fp32", "int8"])
def test_few_words_are_wrong(dtype: str, numbers: tuple[list[str], list[str]]) -> None:
    sounds, said = numbers
    found = [each.text for each in nartk.load("asr-digits", dtype=dtype).decode(sounds)]
    assert error_rate(said, found).score < 1  # 0.15 of all 500
    assert error_rate(said, found[1:] + found[:1]).score > 50


def test_sound_in_memory_is_heard_as_its_file(numbers: tuple[list[str], list[str]]) -> None:
    """Samples of any type and order of channels, with their rate, a file's bytes, datasets, and features."""
    import soundfile
    import torch

    path, model = numbers[0][0], nartk.load("asr-digits")
    expected = model.decode([path])[0]
    samples, rate = soundfile.read(path, dtype="float32")
    whole, _ = soundfile.read(path, dtype="int16")
    data = Path(path).read_bytes()
    frames = model.encode(path)
    # As torchcodec's decoder has it, which datasets 4 gives: [channels,N].
    heard = SimpleNamespace(data=torch.from_numpy(samples)[None], sample_rate=rate)
    given: list[Any] = [
        Path(path),
        data,
        (samples, rate),
        (samples[None], float(rate)),
        (samples[:, None], rate),
        (whole, rate),
        (torch.from_numpy(samples), rate),
        (torch.from_numpy(samples)[None], rate),  # as torchaudio's `load` gives it
        (samples.astype(np.float64), rate),
        {"array": samples, "sampling_rate": rate, "path": None},
        {"bytes": data, "path": None},
        {"bytes": None, "path": path},
        SimpleNamespace(get_all_samples=lambda: heard),
        bytearray(data),
        frames,
    ]
    for each in given:
        assert model.decode(each) == expected
    assert model.decode(given) == [expected] * len(given)
    assert [*model.iterate(iter(given))] == [expected] * len(given)
    with Session(model) as session:
        assert [ticket.result() for ticket in map(session.submit, given)] == [expected] * len(given)


def test_open_files_are_heard_as_their_names(numbers: tuple[list[str], list[str]], tmp_path: Path) -> None:
    """From where they are on, in whichever object they come."""
    path, model = Path(numbers[0][0]), nartk.load("asr-digits")
    expected, data = model.decode(path), path.read_bytes()
    behind = BytesIO(b"12345" + data)
    behind.seek(5)
    with (
        path.open("rb") as file,
        path.open("rb", buffering=0) as raw,
        TemporaryFile() as temporary,
        Session(model) as session,
    ):
        temporary.write(data)
        temporary.seek(0)
        assert model.decode(file) == expected
        assert model.decode([raw, BytesIO(data), behind, temporary]) == [expected] * 4
        assert session.submit(BytesIO(data)).result() == expected
    with pytest.raises(nartk.errors.InputFileError, match=r"cannot be read: .*closed"):
        model.decode([file])
    paths = StringIO(f"{path}\n{path}\n")  # a file of text has lines
    assert model.decode(paths) == [expected] * 2


def test_long_features_are_decoded_in_buffers_as_their_file_is(
    numbers: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    soundfile = pytest.importorskip("soundfile", reason="reading sound needs nartk[audio]")
    model = nartk.load("asr-digits")
    parts = [soundfile.read(path, dtype="float32") for path in numbers[0][:12]]
    path, rate = str(tmp_path / "long.wav"), parts[0][1]
    soundfile.write(path, np.concatenate([samples for samples, _ in parts]), rate)
    model = replace(model, buffers=buffers_for(model, 4.0))
    source = read_long(model.checkpoint.input, path)
    assert len(source) > model.config.max_source_len
    expected = model.decode([path])[0]
    assert expected.text
    assert model.decode([FeatureSource(np.array(source.frames[:]), source.shift)]) == [expected]


def test_stereo_and_other_rates_in_memory_are_converted_as_files_are(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile", reason="reading sound needs nartk[audio]")
    draw, model = np.random.default_rng(0), nartk.load("asr-digits")
    model.checkpoint.input.tell = lambda line: None  # type: ignore[attr-defined]
    for rate in (8000, 16_000, 44_100):
        stereo = (0.3 * draw.standard_normal((rate, 2))).astype(np.float32)
        soundfile.write(tmp_path / "stereo.wav", stereo, rate, subtype="FLOAT")
        by_file = model.encode(str(tmp_path / "stereo.wav"))
        by_samples = model.request(0, as_given("sound", (stereo.T, rate)), nartk.strategy_class("greedy")())
        np.testing.assert_array_equal(by_file.frames, by_samples.source.frames)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros(8000, np.float32), r"not a string or a sound.*pass samples with their rate"),
        ((np.zeros(8000), 0), "has the rate 0"),
        ((np.zeros(8000), 8000.5), "has the rate 8000.5"),
        ((np.zeros((3, 4, 5)), 8000), r"samples of shape \(3, 4, 5\)"),
        ({"sampling_rate": 8000}, "not a string or a sound"),
        (7, "not a string or a sound"),
    ],
)
def test_what_is_no_sound_is_refused(given: Any, message: str) -> None:
    with pytest.raises(nartk.UsageError, match=message):
        nartk.load("asr-digits").decode([given])


def test_what_does_not_fit_fails_its_line_alone() -> None:
    model = nartk.load("asr-digits")
    bad = FeatureSource(np.zeros((50, 3), np.float32), 10.0)
    sounds = [(np.zeros(0, np.float32), 8000), b"no sound", (np.full(8000, np.nan), 8000)]
    with pytest.warns(UserWarning, match="line [1-4]: "):
        found = model.decode([bad, *sounds])
    assert [type(each.error).__name__ for each in found] == [
        "InputFormatError",
        "InputFileError",
        "InputFileError",
        "InputFileError",
    ]
    with pytest.raises(nartk.UsageError, match="not a string"):
        nartk.load("gec-en").decode(b"text")


def test_it_decodes_by_its_own_strategy(
    numbers: tuple[list[str], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    sounds, _ = numbers
    assert main(["asr-digits", *sounds[:3], "--verbose"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        each.text for each in nartk.load("asr-digits").decode(sounds[:3], "ctc-greedy")
    ]
    assert "strategy:ctc-greedy|" in err


def test_a_long_recording_is_heard_as_its_parts_are(
    numbers: tuple[list[str], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two minutes and more at once, of which the model reads 20 s."""
    import soundfile

    sounds, said = numbers
    samples = [soundfile.read(each, dtype="float32")[0] for each in sounds]
    whole = str(tmp_path / "long.wav")
    soundfile.write(whole, np.concatenate(samples), 8000)
    assert main(["asr-digits", whole]) == 3
    assert "InputTooLong" in capsys.readouterr().err
    assert main(["asr-digits", whole, "--long-form", "4", "--quiet"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert error_rate([" ".join(said)], [line]).score < 5
    assert main(["asr-digits", whole, "--partials", "--quiet"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert error_rate([" ".join(said)], [line]).score < 5  # 20 with words lost and doubled between chunks


def test_sound_that_was_read_is_never_more_than_there_is(numbers: tuple[list[str], list[str]]) -> None:
    """The padding behind it is none."""
    import soundfile

    model = nartk.load("asr-digits")
    for sound in numbers[0][:5]:
        read = [each.audio_ms for each in stream(model, sound, chunk_ms=40, look_ahead_ms=0)]
        assert read == sorted(read)
        assert read[-1] <= 1000 * soundfile.info(sound).duration
        assert read[-1] > 1000 * soundfile.info(sound).duration - 40


def test_words_have_the_times_of_their_recordings(numbers: tuple[list[str], list[str]]) -> None:
    """A number is recordings in a row, so that the times of its words are known."""
    sounds, said = numbers
    truth = spoken_places(COUNT)
    differences = [
        np.array(found.times) - np.array(times)
        for found, times, text in zip(nartk.load("asr-digits").decode(sounds), truth, said, strict=True)
        if found.text == text
    ]
    assert len(differences) > 0.9 * COUNT
    every = np.concatenate(differences)
    assert np.abs(every.mean(0)).max() < 0.03  # s; ends were 0.27 s early
    assert np.abs(every).mean(0).max() < 0.04


@pytest.mark.parametrize("strategy", ["ctc-greedy", "ctc-beam"])
def test_a_pause_takes_no_words_away(
    strategy: str, numbers: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    """Noise 5 dB below, and six seconds of it behind: frames without words tell nothing of the words."""
    import soundfile

    model, rng, sounds = nartk.load("asr-digits"), np.random.default_rng(0), []
    for i, each in enumerate(numbers[0][:8]):
        samples, rate = soundfile.read(each)
        noise = rng.standard_normal(len(samples) + 6 * rate) * np.sqrt(np.mean(samples**2)) * 10 ** (-5 / 20)
        noise[: len(samples)] += samples
        sounds.append(str(tmp_path / f"{i}.wav"))
        soundfile.write(sounds[-1], 0.9 * noise / np.abs(noise).max(), rate)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [each.text for each in model.decode(sounds, strategy)]
    model = replace(model, vad=False)
    every = model.decode(sounds, strategy)
    sure = [bool(np.mean(each.positional_scores[:-1]) >= -0.9) for each in every]
    assert found == [each.text if is_sure else "" for each, is_sure in zip(every, sure, strict=True)]
    assert sum(sure) >= 3


def test_subtitles_of_a_recording(
    numbers: tuple[list[str], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    sounds, said = numbers
    assert main(["asr-digits", sounds[0], "--output-format", "srt", "--quiet"]) == 0
    number, clock, text = capsys.readouterr().out.splitlines()
    assert (number, text) == ("1", said[0])
    assert re.fullmatch(r"00:00:0\d,\d{3} --> 00:00:0\d,\d{3}", clock)
    assert main(["asr-digits", *sounds[:2], "--output-format", "vtt", "--quiet"]) == 2
    out, err = capsys.readouterr()
    assert out == ""  # refused before the first is decoded
    assert "of more than one recording" in err
    assert main(["gec-en", "--output-format", "srt"]) == 2
    assert "the model reads text" in capsys.readouterr().err


def test_each_recording_has_a_file_in_each_format(
    numbers: tuple[list[str], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Words, their times and probabilities are the same in all, and those of Python."""
    sounds, folder = numbers[0][:3], tmp_path / "out"
    best = nartk.load("asr-digits").decode(sounds)[1]
    for form in ("text", "srt", "vtt", "json", "tsv", "ctm", "jsonl"):
        command = ["asr-digits", *sounds, "--output-format", form, "--output-dir", str(folder), "--quiet"]
        assert main(command) == 0
    assert capsys.readouterr().out == ""
    suffixes = ("txt", "srt", "vtt", "json", "tsv", "ctm", "jsonl")
    assert sorted(each.name for each in folder.iterdir()) == sorted(
        f"{i}.{s}" for i in range(3) for s in suffixes
    )
    files = {suffix: (folder / f"1.{suffix}").read_text() for suffix in suffixes}
    assert files["txt"] == f"{best.text}\n"
    found, words = json.loads(files["json"]), best.words
    assert [word["word"].strip() for word in found["words"]] == best.text.split()
    assert "".join(word["word"] for word in found["words"]).strip() == found["text"] == best.text
    assert [word for each in found["segments"] for word in each["words"]] == found["words"]
    lines = [line.split(" ") for line in files["ctm"].splitlines()]
    for word, line, ours in zip(found["words"], lines, words, strict=True):
        assert (word["start"], word["end"]) == (round(ours.start, 3), round(ours.end, 3))
        assert line == [
            *("1", "1", f"{ours.start:.3f}", f"{ours.end - ours.start:.3f}"),
            *(ours.text.strip(), f"{ours.probability:.4f}"),
        ]
    (row,) = [line.split("\t") for line in files["tsv"].splitlines()[1:]]
    assert row == [str(round(1000 * words[0].start)), str(round(1000 * words[-1].end)), best.text]
    samples = read_sound(sounds[1], rate=8000)
    assert found["duration"] == pytest.approx(len(samples) / 8000, abs=0.03)  # a window of 25 ms
    assert 0 <= words[0].start < words[-1].end <= best.seconds  # type: ignore[operator]
    assert json.loads(files["jsonl"])["hypotheses"][0]["text"] == best.text
    assert main(["asr-digits", *sounds, "--output-format", "ctm", "--quiet"]) == 0
    every = "".join((folder / f"{i}.ctm").read_text() for i in range(3))
    assert capsys.readouterr().out == every  # one file may hold several recordings


def test_files_of_recordings_that_cannot_be_written_are_refused_first(
    numbers: tuple[list[str], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b").mkdir()
    for name in ("a.wav", "b/a.wav"):
        (tmp_path / name).write_bytes(Path(numbers[0][0]).read_bytes())
    (tmp_path / "broken.wav").write_bytes(b"no sound")
    (tmp_path / "file").touch()
    one, out = str(tmp_path / "a.wav"), str(tmp_path / "out")
    for flags, code, message in (
        (
            [one, str(tmp_path / "b/a.wav"), "--output-dir", out],
            2,
            "would both become a.txt. Fix: ",
        ),
        ([one, "--output-dir", str(tmp_path / "file")], 6, "is a file"),
        ([one, "--output-dir", out, "-o", "x.txt"], 2, "--output-dir with --output"),
        ([one, "--output-dir", out, "--partials"], 2, "--output-dir with --partials"),
        ([one, one, "--output-format", "json"], 2, "of more than one recording. Fix: give --output-dir"),
    ):
        assert main(["asr-digits", *flags, "--quiet"]) == code
        written, told = capsys.readouterr()
        assert (written, message in told) == ("", True), told
        assert not Path(out).exists() or not [*Path(out).iterdir()]
    assert main(["gec-en", str(tmp_path / "file"), "--output-dir", out]) == 2
    assert "but the model reads text" in capsys.readouterr().err
    broken = str(tmp_path / "broken.wav")
    assert main(["asr-digits", broken, one, "--output-dir", out, "--output-format", "vtt", "--quiet"]) == 3
    assert [each.name for each in Path(out).iterdir()] == ["a.vtt"]


def test_what_there_is_to_say_of_a_recording_comes_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    soundfile = pytest.importorskip("soundfile", reason="reading sound needs nartk[audio]")
    soundfile.write(tmp_path / "a.wav", np.zeros(8000), 8000)
    stats = str(tmp_path / "stats.json")
    assert main(["asr-digits", str(tmp_path / "a.wav"), "--stats", stats]) == 0
    assert capsys.readouterr().err.count("holds no speech") == 1


def test_replicas_of_buffers_are_refused_as_such(
    numbers: tuple[list[str], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    sounds, _ = numbers
    assert main(["asr-digits", sounds[0], "--long-form", "4", "--replicas", "2"]) == 2
    assert "--replicas with --long-form" in capsys.readouterr().err


@pytest.mark.parametrize("packed", [False, True])
def test_a_list_may_be_packed(
    packed: bool,
    numbers: tuple[list[str], list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sounds, said = numbers
    for name, text in {
        "wav.scp": f"utt1 {sounds[0]}\n",
        "m.tsv": f"{Path(sounds[0]).parent}\n{Path(sounds[0]).name}\t9\n",
    }.items():
        data = text.encode()
        path = tmp_path / (name + ".gz" * packed)
        path.write_bytes(gzip.compress(data) if packed else data)
        assert main(["asr-digits", "--manifest", str(path), "--output-format", "jsonl", "--quiet"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["hypotheses"][0]["text"] == said[0]
        assert found["id"] == ("utt1" if name == "wav.scp" else 1)
