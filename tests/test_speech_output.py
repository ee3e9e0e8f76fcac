"""Outputs that hold a spectrogram, of a processor from outside, become sound files beside their text."""

from __future__ import annotations

import json
import shutil
import wave
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from support import tiny
from support.commands import main_of
from support.sounds import noise, wav

import nartk
from nartk import files, processors
from nartk.data.audio.sounds import read_sound, write_wav
from nartk.data.audio.spectra import log_mel
from nartk.errors import OutputError
from nartk.files import Folder, JsonObject
from nartk.processors import OutputProcessor, register_processor
from nartk.protocols.hypothesis import Hypothesis
from nartk.protocols.outputs import Output
from nartk.protocols.paragraph import Paragraph
from nartk.protocols.spectrograms import MelSettings, Speech
from nartk.vocab import SpecialIds, Vocab
from nartk.vocoders.vocoder import load_vocoder

OF = MelSettings(sample_rate=16000, bins=20, window=96, hop=24, high=7000)
NAME = "speech-of-a-test"
WORDS = tiny.WORDS.split()
LINES = ["she go to school", "", "the big old cat sees it ."]
BROKEN = "dog"  # a word whose spectrogram is none


class Speaker:
    """Implements `OutputProcessor` and `SpeaksMel`: a tone of each word."""

    mel_settings = OF

    def __init__(self, text: OutputProcessor) -> None:
        self._text = text

    @property
    def vocab(self) -> Vocab:
        return self._text.vocab

    def encode(self, text: str) -> list[int]:
        return self._text.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self._text.decode(ids)

    def write(self, hypothesis: Hypothesis) -> Speech:
        text = self.decode(hypothesis.tokens)
        return Speech(text, mel_of(text), OF)

    def join(self, outputs: Sequence[Output], paragraph: Paragraph) -> Output:
        (output,) = outputs
        return output


def mel_of(text: str) -> np.ndarray:
    """40 frames a word, its letters' bins loud."""
    mel = np.full((40 * len(text.split()), 20), -6, np.float32)
    for i, word in enumerate(text.split()):
        mel[40 * i : 40 * i + 40, [ord(each) % 20 for each in word]] = -1
        if word == BROKEN:
            mel[:] = np.nan
    return mel


def spoken(folder: Path, original: str) -> Path:
    """The folder of a model, whose outputs become speech."""
    config = json.loads((folder / "config.json").read_text())
    config["output"]["name"] = f"{NAME}-{original}"
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(autouse=True)
def declared() -> Iterator[None]:
    """Speech of words between spaces, and of pieces."""

    @register_processor("output", f"{NAME}-text")
    def load_text(folder: Folder, settings: JsonObject, specials: SpecialIds) -> Speaker:
        from nartk.processors.text import load_output

        return Speaker(load_output(folder, settings, specials))

    yield
    del processors._LOADERS["output", f"{NAME}-text"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return spoken(tiny.random_model(tmp_path / "model", words=WORDS, seed=6), "text")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    found = tmp_path / "in.txt"
    found.write_text("".join(f"{line}\n" for line in LINES))
    return found


def samples_of(path: Path) -> np.ndarray:
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 16000)
        return np.frombuffer(file.readframes(file.getnframes()), "<i2")


def test_each_line_becomes_a_file(
    folder: Path, source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out, stats = tmp_path / "out", tmp_path / "stats.json"
    code, text, err = main_of(
        f"decode {folder} {source} --strategy greedy --speech {out} --stats {stats}", capfd
    )
    assert code == 0
    texts = text.splitlines()
    assert texts == [each.text for each in nartk.load(folder).decode(LINES, "greedy")]
    assert texts[0]
    assert texts[2]
    assert sorted(each.name for each in out.iterdir()) == ["1.wav", "3.wav"]
    assert f"{source}:2: the output has no sound, and no file" in err
    assert "2 sound files of" in err
    vocoder, frames = load_vocoder(settings=OF), 0
    for line, name in ((0, "1.wav"), (2, "3.wav")):
        mel = mel_of(texts[line])
        wanted = (vocoder.samples(mel) * 32768).round().clip(-32768, 32767)
        assert np.abs(samples_of(out / name) - wanted).max() <= 1
        frames += len(mel)
    report = json.loads(stats.read_text())["speech"]
    assert (report["vocoder"], report["files"], report["frames"]) == ("griffin-lim", 2, frames)
    assert report["sound_seconds"] == pytest.approx(frames * 24 / 16000)
    assert report["real_time_factor"] == pytest.approx(report["seconds"] / report["sound_seconds"])


def test_a_vocoders_options_are_given_behind_its_name(
    folder: Path, source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = f"decode {folder} {source} --strategy greedy --speech {tmp_path / 'out'}"
    assert main_of(f"{command} --vocoder griffin-lim:iterations=2", capfd)[0] == 0
    mel = mel_of(nartk.load(folder).decode(LINES[0], "greedy").text)
    wanted = load_vocoder("griffin-lim", OF, {"iterations": 2}).samples(mel)
    found = samples_of(tmp_path / "out" / "1.wav")
    assert np.abs(found - (wanted * 32768).round().clip(-32768, 32767)).max() <= 1


def test_ids_name_files(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = [{"id": each, "text": "she go"} for each in ("a/b", "..", 7)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = f"decode {folder} {tmp_path / 'in.jsonl'} --key text --speech {tmp_path / 'out'}"
    assert main_of(f"{command} --output-format jsonl", capfd)[0] == 0
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["2.wav", "7.wav", "a_b.wav"]


def test_recordings_name_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = tmp_path / "model"
    shutil.copytree(Path(nartk.__file__).parent / "data" / "models" / "asr-digits", made)
    spoken(made, "text")
    for name in ("a.wav", "b/a.wav", "b/c.wav"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(wav(noise(8000), 8000))
    out, flags = tmp_path / "out", "--no-vad --quiet"
    first, same, other = (tmp_path / name for name in ("a.wav", "b/a.wav", "b/c.wav"))
    code, _, err = main_of(f"decode {made} {first} {other} --speech {out} {flags}", capfd)
    assert (code, err) == (0, "")
    code, text, err = main_of(
        f"decode {made} {first} {other} {same} --speech {tmp_path / 'two'} {flags}", capfd
    )
    assert (code, text) == (2, "")
    assert f"{first} and {same} would both become a.wav" in err
    assert not [*(tmp_path / "two").iterdir()]


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        ("--speech IN", 6, "E501 Output] IN: is a file"),
        ("--speech IN/x", 6, "E501 Output] IN/x: cannot write: Not a directory"),
        ("--speech OUT --vocoder griffin", 2, "no vocoder 'griffin'"),
        ("--speech OUT --vocoder hifi-gan", 2, "'hifi-gan' has weights, but no folder is named"),
        ("--speech OUT --vocoder hifi-gan:OUT", 5, "cannot read"),
        ("--speech OUT --vocoder griffin-lim:steps=9", 2, "griffin-lim knows iterations, momentum"),
        ("--speech OUT --vocoder griffin-lim:iterations=0", 2, "--iterations of 'griffin-lim' is 0"),
        ("--vocoder griffin-lim", 2, "--vocoder without --speech"),
        ("--speech OUT --score IN", 2, "--speech with --score"),
        ("--speech OUT --stream", 2, "--speech with --stream"),
    ],
)
def test_impossible_flags_are_refused(
    folder: Path,
    source: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    flags: str,
    code: int,
    message: str,
) -> None:
    def named(text: str) -> str:
        return text.replace("OUT", str(tmp_path / "out")).replace("IN", str(source))

    found, text, err = main_of(f"decode {folder} {source} {named(flags)}", capfd)
    assert (found, text) == (code, "")
    assert named(message) in err


def test_a_model_of_text_is_refused(tmp_path: Path, source: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = tiny.random_model(tmp_path / "plain", words=WORDS)
    code, text, err = main_of(f"decode {made} {source} --speech {tmp_path / 'out'}", capfd)
    assert (code, text) == (2, "")
    assert "but the model's outputs are text. Fix: name a model of speech output" in err
    assert not (tmp_path / "out").exists()


def test_a_spectrogram_that_is_none_fails_its_line(
    folder: Path,
    source: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = nartk.load(folder).decode(LINES[0], "greedy").text
    monkeypatch.setattr(__name__ + ".BROKEN", first.split()[0])
    command = f"decode {folder} {source} --strategy greedy --speech {tmp_path / 'out'}"
    code, text, err = main_of(command, capfd)
    assert code == 3
    assert len(text.splitlines()) == 3
    assert f"{source}:1: the spectrogram holds NaN or infinity" in err


def test_a_full_disk_leaves_no_half_file(
    folder: Path,
    source: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    code, _, err = main_of(f"decode {folder} {source} --strategy greedy --speech {tmp_path / 'out'}", capfd)
    assert code == 6
    assert "1.wav: cannot write: No space left on device" in err
    assert [*(tmp_path / "out").iterdir()] == []


def test_a_wav_file_is_read_back(tmp_path: Path) -> None:
    samples = np.array([0, 0.5, -0.5, 1, -1, 3, -3, 1e-6], np.float32)
    write_wav(tmp_path / "a.wav", samples, 22050)
    found = read_sound(tmp_path / "a.wav", rate=22050)
    assert np.abs(found - np.clip(samples, -1, 32767 / 32768)).max() <= 0.5 / 32768
    write_wav(tmp_path / "a.wav", samples[:0], 22050)
    assert read_sound(tmp_path / "a.wav", rate=22050).shape == (0,)
    assert log_mel(found, MelSettings()).shape == (1, 80)
    with pytest.raises(OutputError, match="cannot write"):
        write_wav(tmp_path / "nowhere" / "a.wav", samples, 22050)
