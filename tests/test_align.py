"""Durations, pitch and energy of phonemes: borders of known recordings, and figures worked by hand."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from support import tiny
from support.commands import main_of
from support.recipe_scripts import RECIPES
from support.sounds import noise, sine, wav
from support.spoken_numbers import spoken_numbers

import nartk
from nartk.data.audio.pitch import fundamental, interpolated
from nartk.data.audio.prosody import durations_of, means_of, speech_of
from nartk.data.audio.sounds import read_sound
from nartk.data.audio.spectra import mel_and_energy
from nartk.data.audio.targets import SpeechCorpus
from nartk.errors import InputFileError, UsageError
from nartk.models.ctc_alignment import ctc_best_states
from nartk.processors.speech import mel_settings
from nartk.protocols.parallel import FrameScorer
from nartk.protocols.passes import Want
from nartk.protocols.spectrograms import MelSettings

RATE = 22050
OF = MelSettings()


@pytest.mark.parametrize(("first", "last"), [(70, 75), (90, 180), (220, 180), (300, 220), (450, 480)])
def test_the_pitch_of_a_glide(first: float, last: float) -> None:
    """Of seven harmonics, after silence and before noise."""
    count = 2 * RATE
    frequency = np.linspace(first, last, count)
    phase = 2 * np.pi * np.cumsum(frequency) / RATE
    sound = sum(np.sin(k * phase) / k for k in range(1, 8)).astype(np.float32) * 0.2
    sound[: RATE // 4] = 0
    sound[-RATE // 2 :] = np.random.default_rng(0).normal(0, 0.05, RATE // 2)
    found = fundamental(sound, RATE, 256)
    assert found.shape == (1 + count // 256,)
    at = np.arange(len(found)) * 256
    inside = (at > RATE // 4 + 700) & (at < count - RATE // 2 - 700)
    outside = (at < RATE // 4 - 700) | (at > count - RATE // 2 + 700)
    assert not found[outside].any()
    assert np.abs(found[inside] / frequency[at[inside]] - 1).max() < 1e-3


def test_pitch_is_a_line_over_unvoiced_frames() -> None:
    pitch = np.array([0, 100, 0, 0, 130, 0], np.float32)
    assert interpolated(pitch).tolist() == [100, 100, 110, 120, 130, 130]
    with pytest.raises(UsageError, match="no frame is voiced"):
        interpolated(np.zeros(3, np.float32))
    assert not fundamental(np.zeros(0, np.float32), RATE, 256).any()
    for lowest, highest in ((10, 500), (500, 65), (65, 6000)):
        with pytest.raises(UsageError, match="give bounds between 20 and 5512"):
            fundamental(sine(3000, 200, RATE), RATE, 256, lowest=lowest, highest=highest)


def test_durations_share_out_all_frames() -> None:
    frame = 256 / 22050
    # Frames 2.4, 2.6 and 10 of 9: rounded to 2 and 3, and cut at the end; the first begins with the sound.
    begins = np.array([1.7, 2.4, 2.6, 10]) * frame
    assert durations_of(begins, 9, OF).tolist() == [2, 1, 6, 0]
    assert durations_of([0.5], 4, OF).tolist() == [4]
    means = means_of(np.array([1, 2, 3, 4, 5, 6, 7, 8, 9], np.float32), np.array([2, 1, 6, 0]))
    assert means.tolist() == [1.5, 3, 6.5, 9]


def test_speech_of_a_tone_and_noise() -> None:
    """A second of 200 Hz, a second of noise: its pitch is held, its energy is its own."""
    sound = np.concatenate([0.3 * sine(RATE, 200, RATE), noise(RATE) / 10])
    found = speech_of(sound, [0.0, 1.0], OF)
    mel, energy = mel_and_energy(sound, OF)
    assert found.mel.tobytes() == mel.tobytes()
    assert found.durations.tolist() == [86, len(mel) - 86]
    assert np.exp(found.pitch[0]) - 1 == pytest.approx(200, rel=0.01)
    wanted = [energy[:86].mean(), energy[86:].mean()]
    assert np.exp(found.energy) - 1 == pytest.approx(wanted, rel=1e-4)
    with pytest.raises(InputFileError, match="the recording has no pitch"):
        speech_of(np.random.default_rng(1).normal(0, 0.1, RATE).astype(np.float32), [0.0], OF)


needs_recordings = pytest.mark.skipif(not RECIPES.is_dir(), reason="the recordings are not beside the tests")


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A list of eight recordings of numbers, with what is said in each beside."""
    folder = tmp_path_factory.mktemp("numbers")
    files, said = spoken_numbers(folder, 8)
    (folder / "test.tsv").write_text("\n".join([str(folder), *(Path(file).name for file in files)]) + "\n")
    (folder / "test.txt").write_text("".join(f"{line}\n" for line in said))
    return folder, said


def pieces_of(line: str) -> str:
    """A line as the model's pieces."""
    return " ".join(f"▁{word}" for word in line.split())


@needs_recordings
def test_durations_are_those_of_the_best_states(
    spoken: tuple[Path, list[str]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, said = spoken
    code, _, err = main_of(f"align asr-digits {folder}/test.tsv -o {tmp_path}/out", capfd)
    corpus = SpeechCorpus.read(tmp_path / "out" / "test.speech.npz")
    assert (code, len(corpus)) == (0, 8)
    assert "8 recordings of" in err
    assert (tmp_path / "out" / "test.txt").read_text().splitlines() == [pieces_of(line) for line in said]
    assert mel_settings(json.loads((tmp_path / "out" / "mel.json").read_text()), "") == MelSettings()
    files = (tmp_path / "out" / "test.lst").read_text().splitlines()
    assert files == [str(folder / f"{i}.wav") for i in range(8)]

    model = nartk.load("asr-digits")
    scorer, subsampling = model.passes, model.config.subsampling
    assert isinstance(scorer, FrameScorer)
    for file, line, found in zip(files, said, corpus, strict=True):
        source, ids = model.encode(file), model.checkpoint.output.encode(line)
        memory = scorer.encode([source])
        count = int(scorer.frames(memory)[0])
        logits = torch.from_numpy(scorer.read_frames(memory, Want()).rows(range(count)).copy())
        scorer.free(memory)
        lengths = torch.tensor([count]), torch.tensor([len(ids)])
        states = ctc_best_states(
            logits.log_softmax(1)[None], torch.tensor([ids]), *lengths, blank=scorer.blank
        )[0]
        # Eight frames of padding stand before the sound.
        positions = [int((states == 2 * i + 1).nonzero()[0, 0]) for i in range(len(ids))]
        begins = [(each * subsampling - 8) / 100 for each in positions]
        frames = 1 + len(read_sound(file, rate=22050)) // 256
        wanted = np.rint(np.array(begins) * 22050 / 256)
        wanted[0] = 0
        assert found.durations.tolist() == np.diff([*wanted, frames]).tolist()
        assert (np.exp(found.pitch) > 60).all()
        assert (found.energy > 0).all()


@needs_recordings
def test_what_cannot_be_aligned_is_named_and_left_out(
    spoken: tuple[Path, list[str]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, said = spoken
    hiss = np.random.default_rng(1).normal(0, 0.1, 8000).astype(np.float32)
    (tmp_path / "hiss.wav").write_bytes(wav(hiss, 8000))
    files = [f"{folder}/0.wav", f"{folder}/1.wav", f"{folder}/2.wav", "nowhere.wav", "hiss.wav"]
    files.append(f"{folder}/3.wav")
    texts = [said[0], "one " * 200, "one eleventy", "one", "one", ""]
    (tmp_path / "in.tsv").write_text("\n".join([str(tmp_path), *files]) + "\n")
    (tmp_path / "said.txt").write_text("".join(f"{text}\n" for text in texts))
    command = f"align asr-digits {tmp_path}/in.tsv --text {tmp_path}/said.txt -o {tmp_path}/out"
    code, _, err = main_of(command, capfd)
    assert code == 3
    for number, message in (
        (3, "200 tokens in "),
        (4, "its text 'one eleventy' has a word that the model does not know"),
        (5, "nowhere.wav' cannot be read: No such file"),
        (6, "the recording has no pitch"),
        (7, "its text '' is empty"),
    ):
        (line,) = [each for each in err.splitlines() if f"in.tsv:{number}: " in each]
        assert message in line
    assert "1 recording of 2 s aligned, 5 left out" in err
    assert (tmp_path / "out" / "in.txt").read_text() == pieces_of(said[0]) + "\n"
    assert len(SpeechCorpus.read(tmp_path / "out" / "in.speech.npz")) == 1


@needs_recordings
@pytest.mark.parametrize(
    ("prepare", "flags", "code", "message"),
    [
        (lambda folder: (folder / "test.txt").write_text("one\n"), "", 4, "has 1 line, "),
        (lambda folder: (folder / "test.txt").unlink(), "", 2, "test.txt: cannot read"),
        (lambda folder: (folder / "test.tsv").write_text(f"{folder}\n"), "", 4, "0 recordings"),
        (lambda folder: (folder / "test.txt").write_text("x\n" * 8), "", 2, "no recording is aligned"),
        (lambda folder: None, "--hop 4096", 2, "`hop` is 4096"),
        (lambda folder: None, "-o FOLDER/test.txt", 6, "cannot write"),
    ],
)
def test_bad_input_is_named(
    spoken: tuple[Path, list[str]],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    prepare: Callable[[Path], object],
    flags: str,
    code: int,
    message: str,
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(spoken[0], copy)
    prepare(copy)
    output = "" if "-o" in flags else f"-o {tmp_path}/out"
    found, _, err = main_of(
        f"align asr-digits {copy}/test.tsv {output} {flags.replace('FOLDER', str(copy))}", capfd
    )
    assert found == code
    assert message in err


@needs_recordings
def test_a_model_of_text_is_refused(
    spoken: tuple[Path, list[str]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = tiny.random_model(tmp_path / "text", words=tiny.WORDS.split())
    code, _, err = main_of(f"align {model} {spoken[0]}/test.tsv -o {tmp_path}/out", capfd)
    assert code == 2
    assert "/text has no CTC. Fix: name a model of speech that has" in err
