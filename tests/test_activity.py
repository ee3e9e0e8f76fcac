"""Nobody speaks: levels by hand, and what the shipped model makes of silence, noise and hum."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.speech_models import save_random_speech

import nartk
from nartk.cli.decode import main
from nartk.data.audio.features import FeatureSettings, compute, levels
from nartk.data.audio.normalization import Statistics, normalize, restore
from nartk.serving.activity import STEADY_DB, contrast, is_speech
from nartk.tracing import read_trace

RATE = 8000


def test_contrast_is_the_loudest_moment_over_the_floor() -> None:
    """By hand: 90 frames of 20 dB, then 10 of 50 dB; three loud frames are a click, four are not."""
    quiet = np.full(90, 20.0, np.float32)
    assert contrast(quiet) == pytest.approx(0)
    assert contrast(np.concatenate([quiet, np.full(10, 50.0)])) == pytest.approx(30, abs=1e-6)
    for size, rises in ((3, 0), (4, 30)):
        assert contrast(np.concatenate([quiet, np.full(size, 50.0), quiet])) == pytest.approx(rises)
    assert contrast(np.array([3.0])) == 0


def test_a_click_of_five_milliseconds_is_left_out_wherever_it_is() -> None:
    """Of frames of 25 ms, every 10 ms, at most three hold it; one of 10 ms may be in four."""
    pytest.importorskip("kaldi_native_fbank")
    settings, rng = FeatureSettings(bins=80), np.random.default_rng(0)
    quiet = 1e-3 * rng.standard_normal(48000).astype(np.float32)
    for milliseconds, wanted in ((5, {False}), (10, {False, True}), (20, {True})):
        found = set()
        for begin in range(16000, 16160, 16):
            click = quiet.copy()
            click[begin : begin + 16 * milliseconds] *= 500
            found.add(contrast(levels(compute(click, settings), settings)) >= STEADY_DB)
        assert found == wanted


def test_words_count_where_sound_is_loud_or_the_model_sure() -> None:
    steady, some, clear = np.zeros(100), np.repeat([0.0, 10.0], 50), np.repeat([0.0, 13.0], 50)
    for found, sure in ((steady, False), (some, True), (clear, True)):
        assert is_speech(found) is sure
        assert is_speech(found, [-0.1, -0.3]) is sure
    assert not is_speech(some, [-1.5, -0.6])
    assert is_speech(clear, [-9.0])
    assert not is_speech(np.zeros(0))
    assert is_speech(None)


@pytest.mark.parametrize("features", ["fbank", "whisper"])
def test_levels_are_those_of_the_samples(features: str) -> None:
    """Ten times the amplitude is 20 dB; normalising and back changes nothing."""
    pytest.importorskip("kaldi_native_fbank")
    settings = FeatureSettings(features=features, bins=80, seconds=2)
    rng = np.random.default_rng(0)
    sound = rng.normal(size=16000).astype(np.float32) * np.repeat([0.001, 0.01], 8000).astype(np.float32)
    frames = compute(sound, settings)
    found = levels(frames, settings)
    assert len(found) == pytest.approx(100, abs=3)  # without what fills it up to 2 s
    assert np.median(found[60:90]) - np.median(found[10:40]) == pytest.approx(20, abs=1)
    own = Statistics.of([frames])
    assert restore(normalize(frames, own), own) == pytest.approx(frames, abs=1e-4)


def unspeaking() -> dict[str, np.ndarray]:
    """Ten seconds each in which nobody speaks."""
    rng, times = np.random.default_rng(99), np.arange(10 * RATE) / RATE
    white = 0.1 * rng.standard_normal(len(times))
    spectrum = np.fft.rfft(white)
    spectrum /= np.sqrt(np.maximum(np.arange(len(spectrum)), 1))
    pink = np.fft.irfft(spectrum, len(times))
    clicks = 0.001 * rng.standard_normal(len(times))
    clicks[:: RATE // 2] += 0.5
    clicks[1 :: RATE // 2] -= 0.4
    return {
        "clicks": clicks,
        "zeros": np.zeros(len(times)),
        "offset": np.full(len(times), 0.1),
        "white": white,
        "pink": 0.1 * pink / np.abs(pink).max(),
        "hum": 0.1 * np.sin(2 * np.pi * 50 * times) + 0.05 * np.sin(2 * np.pi * 150 * times),
        "tone": 0.3 * np.sin(2 * np.pi * 440 * times),
    }


@pytest.fixture(scope="module")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    soundfile = pytest.importorskip("soundfile", reason="reading sound needs nartk[audio]")
    folder = tmp_path_factory.mktemp("sounds")
    for name, samples in unspeaking().items():
        soundfile.write(folder / f"{name}.wav", samples, RATE)
    return [str(folder / f"{name}.wav") for name in unspeaking()]


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--long-form", "4"],
        ["--long-form", "4", "--hotwords", "nine"],
        ["--long-form", "4", "--strategy", "ctc-beam"],
        ["--partials"],
    ],
)
def test_silence_noise_and_hum_give_no_words(
    flags: list[str], sounds: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["asr-digits", *sounds, *flags]) == 0
    out, err = capsys.readouterr()
    assert out == "\n" * len(sounds)
    told = [line for line in err.splitlines() if "holds no speech" in line]
    assert told == [f"nartk: {name!r} holds no speech" for name in sounds]


@pytest.mark.parametrize("strategy", ["ctc-greedy", "ctc-beam"])
def test_a_model_that_is_unsure_says_nothing(strategy: str, tmp_path: Path) -> None:
    """Noise that rises by 8 dB, and a random model, whose words are not likely."""
    soundfile = pytest.importorskip("soundfile", reason="reading sound needs nartk[audio]")
    save_random_speech(tmp_path / "model", "owsm_ctc", 3, words=12)
    noise = 0.02 * np.random.default_rng(0).standard_normal(32000) * np.repeat([1.0, 2.5], 16000)
    soundfile.write(tmp_path / "noise.wav", noise, 16000)
    model = nartk.load(tmp_path / "model")
    with pytest.warns(UserWarning, match="holds no speech"):
        (found,) = model.decode([str(tmp_path / "noise.wav")], strategy)
    assert found.text == ""
    model = replace(model, vad=False)
    assert model.decode([str(tmp_path / "noise.wav")], strategy)[0].text


def test_scores_that_are_fused_tell_nothing(tmp_path: Path) -> None:
    """The decoder is sure of what it makes of the same noise; CTC's share makes its scores small."""
    soundfile = pytest.importorskip("soundfile", reason="reading sound needs nartk[audio]")
    save_random_speech(tmp_path / "model", "conformer", 3, words=12)
    noise = 0.02 * np.random.default_rng(0).standard_normal(32000) * np.repeat([1.0, 2.5], 16000)
    soundfile.write(tmp_path / "noise.wav", noise, 16000)
    model, sound = nartk.load(tmp_path / "model"), str(tmp_path / "noise.wav")
    found = model.decode(sound, "joint-ctc")
    assert found.text
    assert np.mean(found.positional_scores[:-1]) < -1


@pytest.mark.parametrize("flags", [[], ["--long-form", "4"]])
def test_a_trace_of_no_speech_is_read_again(
    flags: list[str], sounds: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["asr-digits", *sounds, *flags, "--trace", str(tmp_path / "trace"), "--quiet"]) == 0
    with open(tmp_path / "trace", "rb") as file:
        traced = [*read_trace(file, "trace")]
    assert [each.output for each in traced] == [("</s>",)] * len(sounds)
    assert {each.origin for each in traced} == {("model",)}


def test_the_attribute_turns_it_off(sounds: list[str]) -> None:
    """Of the frames of a model, whatever it would say."""
    model = nartk.load("asr-digits")
    with pytest.warns(UserWarning, match="holds no speech"):
        (found,) = model.decode(sounds[2:3])
    assert (found.text, found.tokens) == ("", (model.checkpoint.target_vocab.eos,))
    model = replace(model, vad=False)
    (found,) = model.decode(sounds[2:3])  # without a warning
    assert found.positional_scores is not None
