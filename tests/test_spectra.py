"""Log-mel spectrograms of speech output equal transformers'; energies equal a plain formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.sounds import noise

from nartk.data.audio import spectra
from nartk.data.audio.spectra import log_mel, mel_and_energy
from nartk.errors import UsageError
from nartk.protocols.spectrograms import MelSettings, Speech, SpeechOutput

SETTINGS = [
    MelSettings(),
    MelSettings(sample_rate=16000, bins=64, window=800, hop=200, low=0, high=7600),
    MelSettings(sample_rate=24000, window=1200, hop=300, high=12000.0),
]


def transformers_log_mel(samples: np.ndarray, of: MelSettings) -> np.ndarray:
    from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

    filters = mel_filter_bank(
        of.window // 2 + 1, of.bins, of.low, of.high, of.sample_rate, norm="slaney", mel_scale="slaney"
    )
    return spectrogram(
        samples.astype(np.float64),
        window_function(of.window, "hann"),
        of.window,
        of.hop,
        of.window,
        power=1.0,
        mel_filters=filters,
        mel_floor=1e-5,
        log_mel="log",
        dtype=np.float64,
    ).T


@pytest.mark.parametrize("of", SETTINGS)
def test_the_spectrogram_is_transformers(of: MelSettings) -> None:
    samples = noise(30_001) * np.geomspace(1e-5, 1, 30_001).astype(np.float32)
    found, wanted = log_mel(samples, of), transformers_log_mel(samples, of)
    assert found.dtype == np.float32
    assert found.shape == wanted.shape == (1 + 30_001 // of.hop, of.bins)
    assert np.abs(found - wanted).max() < 1e-4
    assert wanted.min() == np.log(1e-5)  # the floor counts too
    # Known bad: the power in place of the magnitude.
    assert np.abs(2 * found - wanted).max() > 1


def test_energy_is_the_norm_of_a_frames_magnitudes() -> None:
    of, samples = MelSettings(), noise(5_000)
    padded = np.pad(samples.astype(np.float64), 512, mode="reflect")
    shape = np.hanning(1025)[:1024]
    frames = [padded[256 * t : 256 * t + 1024] * shape for t in range(20)]
    wanted = [np.linalg.norm(np.abs(np.fft.rfft(each))) for each in frames]
    assert np.allclose(mel_and_energy(samples, of)[1], wanted, rtol=1e-5)


def test_long_sounds_are_read_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = noise(20_000)
    whole = mel_and_energy(samples, MelSettings())
    monkeypatch.setattr(spectra, "_TOGETHER", 7)
    for found, wanted in zip(mel_and_energy(samples, MelSettings()), whole, strict=True):
        assert found.shape == wanted.shape
        assert np.allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("count", [0, 1, 2, 255, 256, 511, 512, 513])
def test_sounds_shorter_than_a_window_have_frames(count: int) -> None:
    found, energy = mel_and_energy(noise(count), MelSettings())
    assert found.shape == (1 + count // 256, 80)
    assert np.isfinite(found).all()
    if count == 0:
        assert (found == np.float32(np.log(1e-5))).all()
        assert not energy.any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sample_rate": 999}, "`sample_rate` is 999. Fix: give 1000 to 768000"),
        ({"hop": 2048}, "`hop` is 2048. Fix: give 1 to 1024"),
        ({"high": 12000.0}, "`high` is 12000.0. Fix: give 1 to 11025"),
        ({"low": 8000}, "`low` is 8000. Fix: give 0 to 7999"),
        ({"bins": "80"}, "`bins` is '80'. Fix: give a value of type int"),
        ({"sample_rate": True}, "`sample_rate` is True. Fix: give a value of type int"),
    ],
)
def test_settings_out_of_bounds_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        MelSettings(**settings)
    assert str(refused.value).endswith(f"{message}.")


def test_an_output_of_speech_has_text_too() -> None:
    speech = Speech("un deux", np.zeros((7, 80), np.float32), MelSettings())
    assert isinstance(speech, SpeechOutput)
    assert not isinstance("un deux", SpeechOutput)
    assert (str(speech), speech.fields()) == ("un deux", {"text": "un deux", "mel_frames": 7})
    found = MelSettings().differences(MelSettings(sample_rate=16000, bins=64))
    assert found == "sample_rate 22050 and not 16000, bins 80 and not 64"
