"""Sound files are read as their samples, whatever their format, rate and channels, in bounded memory."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.memory import rising_at_most
from support.sounds import RATE, cases, noise, sine, wav

from nartk.data.audio.sounds import open_sound, read_sound, resample, sound_blocks
from nartk.errors import InputFileError
from nartk.protocols.passes import FloatArray

PLAIN = noise(RATE // 2)


@pytest.mark.parametrize(
    ("subtype", "form", "most"),
    [
        ("PCM_16", "WAV", 2**-15),
        ("PCM_24", "WAV", 2**-22),
        ("PCM_32", "WAV", 2**-24),
        ("PCM_U8", "WAV", 2**-6),
        ("FLOAT", "WAV", 0),
        ("DOUBLE", "WAV", 0),
        ("PCM_16", "FLAC", 2**-15),
        ("PCM_24", "FLAC", 2**-22),
        ("PCM_16", "AIFF", 2**-15),
    ],
)
def test_samples_are_those_that_were_written(tmp_path: Path, subtype: str, form: str, most: float) -> None:
    data = wav(PLAIN, subtype=subtype, form=form)
    found = read_sound(data)
    assert (found.dtype, found.shape) == (np.float32, PLAIN.shape)
    assert np.abs(found - PLAIN).max() <= most
    path = tmp_path / "a.raw"  # a suffix that soundfile would believe
    path.write_bytes(data)
    assert (read_sound(path) == found).all()
    assert (read_sound(str(path)) == found).all()


@pytest.mark.parametrize(
    ("subtype", "form", "most"),
    [("VORBIS", "OGG", 0.05), ("OPUS", "OGG", 0.05), ("MPEG_LAYER_III", "MP3", 0.05)],
)
def test_lossy_formats_are_near(subtype: str, form: str, most: float) -> None:
    """A tone survives; its begin and end are the codec's affair."""
    tone = 0.5 * sine(RATE, 440)
    found = read_sound(wav(tone, subtype=subtype, form=form))
    assert abs(len(found) - RATE) <= 1
    assert np.abs(found[2000:-2000] - tone[2000 : len(found) - 2000]).max() < most


def test_channels_are_averaged() -> None:
    three = np.stack([PLAIN, 0.5 * PLAIN, -PLAIN], axis=1)
    assert read_sound(wav(three, subtype="FLOAT")) == pytest.approx(PLAIN / 6, abs=1e-7)


@pytest.mark.parametrize("rate", [8000, 11127, 22050, 44100, 48000, 192000])
def test_a_tone_of_another_rate_is_the_same_tone(rate: int) -> None:
    found = read_sound(wav(0.5 * sine(rate, 440, rate), rate, subtype="FLOAT"))
    assert abs(len(found) - RATE) <= 1
    wanted = 0.5 * sine(len(found), 440)
    assert np.abs(found - wanted)[500:-500].max() < 1e-4


def told_of(samples: FloatArray, **options: Any) -> tuple[FloatArray, list[str]]:
    """The samples [N] of channels [N, C], and what is noticed."""
    told: list[str] = []
    blocks = sound_blocks(wav(samples, subtype="FLOAT"), tell=lambda _, what: told.append(what), **options)
    return np.concatenate([*blocks]), told


@pytest.mark.parametrize(
    ("gains", "loudest"),
    [((1, -1), 1), ((-1, 1), 1), ((0.9, -1), 2), ((1, -0.9, 0, 0), 1), ((0.5, 0.5, -1), 3)],
)
@pytest.mark.parametrize("seconds", [10.0, 0.25, 0.001])
def test_of_channels_that_cancel_the_loudest_is_taken(
    gains: tuple[float, ...], loudest: int, seconds: float
) -> None:
    found, told = told_of(np.stack([gain * PLAIN for gain in gains], axis=1), seconds=seconds)
    assert found == pytest.approx(gains[loudest - 1] * PLAIN, abs=1e-7)
    assert told == [
        f"{len(gains)} channels that cancel each other, of which the loudest, number {loudest}, is taken"
    ]


def test_channels_that_do_not_cancel_are_averaged() -> None:
    other = noise(RATE // 2, seed=8)
    for second in (PLAIN, 0 * PLAIN, -0.5 * PLAIN, other, -other):
        found, told = told_of(np.stack([PLAIN, second], axis=1))
        assert found == pytest.approx((PLAIN + second) / 2, abs=1e-6)
        assert told == ["2 channels, which are averaged"]
    silence = np.zeros((RATE, 2), np.float32)
    assert told_of(silence) == (pytest.approx(silence[:, 0]), ["2 channels, which are averaged"])


@pytest.mark.parametrize("seconds", [10.0, 0.5, 0.13])
def test_channels_may_begin_to_cancel_later(seconds: float) -> None:
    """Where there is next to nothing before, what cancels is told and taken from its beginning on."""
    hiss = 1e-3 * np.stack([noise(2 * RATE, seed=seed) for seed in (5, 6)], axis=1)
    found, told = told_of(np.concatenate([hiss, np.stack([PLAIN, -PLAIN], axis=1)]), seconds=seconds)
    assert found[2 * RATE :] == pytest.approx(PLAIN, abs=1e-6)
    assert found[: 2 * RATE] == pytest.approx(hiss.mean(1), abs=1e-6)
    assert told[-1].startswith("2 channels that cancel each other, of which the loudest, number 1, is taken")
    assert len(told) == 1 + (seconds < 2)


def test_channels_that_cancel_are_refused_if_asked() -> None:
    data = wav(np.stack([PLAIN, -PLAIN], axis=1))
    with pytest.raises(InputFileError, match="has 2 channels, which are averaged"):
        read_sound(data, strict=True)


def test_what_the_rate_cannot_hold_is_left_out() -> None:
    high = sine(48000, 11000, 48000)
    assert np.abs(read_sound(wav(high, 48000, subtype="FLOAT"))[500:-500]).max() < 1e-3
    assert np.abs(high[::3]).max() > 0.9  # every third sample alone would be another tone


@pytest.mark.parametrize("rate", [16000, 44100])
@pytest.mark.parametrize("form", ["WAV", "MP3"])
def test_blocks_are_the_whole(rate: int, form: str) -> None:
    data = wav(noise(rate), rate, subtype="PCM_16" if form == "WAV" else "MPEG_LAYER_III", form=form)
    whole = read_sound(data)
    for seconds in (1.0, 0.25, 0.0371, 1e-3):
        blocks = [*sound_blocks(data, seconds=seconds)]
        assert all(len(block) for block in blocks)
        assert len(blocks) > 1 or seconds == 1.0
        assert np.concatenate(blocks).tobytes() == whole.tobytes()


def test_a_resampled_block_is_soxrs_own_whole() -> None:
    import soxr

    samples = noise(44100)
    found = read_sound(wav(samples, 44100, subtype="FLOAT"))
    assert found == pytest.approx(soxr.resample(samples, 44100, RATE), abs=1e-6)
    assert resample(samples, 44100, RATE) == pytest.approx(found, abs=1e-6)
    assert resample(samples, RATE, RATE) is samples


STEREO = wav(np.stack([PLAIN] * 2, axis=1), 8000)
GOOD = wav(PLAIN)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (STEREO, "2 channels, which are averaged and 8000 samples a second, which become 16000"),
        (GOOD[:8044], "8000 bytes of sound, its header says 16000"),
        (wav(PLAIN, subtype="MPEG_LAYER_III", form="MP3")[:-1500], "its header says (8000|0.5)"),
    ],
    ids=["converted", "cut", "cut mp3"],
)
def test_conversions_are_noticed_or_refused(data: bytes, what: str) -> None:
    told: list[tuple[str, str]] = []
    assert len(read_sound(data, tell=lambda *notice: told.append(notice))) >= 0
    assert [name for name, _ in told] == [f"{len(data)} bytes"]
    assert re.search(f"{what}$", told[0][1])
    with pytest.raises(InputFileError, match=f"has .*{what}. Fix: .*, or leave strict_audio=True out"):
        read_sound(data, strict=True)


def test_nothing_is_noticed_of_what_fits() -> None:
    told: list[tuple[str, str]] = []
    read_sound(GOOD, tell=lambda *notice: told.append(notice), strict=True)
    # Of a sound that was written to a pipe, the header cannot say how long it is.
    piped = GOOD[:40] + b"\xff\xff\xff\xff" + GOOD[44:]
    assert len(read_sound(piped, tell=lambda *notice: told.append(notice), strict=True)) == len(PLAIN)
    assert told == []


def test_what_a_file_says_of_itself() -> None:
    with open_sound(STEREO) as sound:
        assert (sound.rate, sound.channels, sound.samples) == (8000, 2, RATE // 2)


def test_a_file_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "a.wav").write_bytes(GOOD)
    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(InputFileError, match=r"a\.wav' cannot be read: Permission denied"):
        read_sound(tmp_path / "a.wav")


def test_the_time_to_refuse_a_long_file_does_not_grow(tmp_path: Path) -> None:
    write, _ = cases()["two hours.wav"]
    write(tmp_path / "long.wav")
    with rising_at_most(24_000):
        blocks = sound_blocks(tmp_path / "long.wav")
        assert sum(len(next(blocks)) for _ in range(12)) == 120 * RATE
        blocks.close()


def test_an_mp3_is_read_to_its_end() -> None:
    """Two files in a row, of which the first says how long it is: an FFmpeg's join, and many a broadcast."""
    pytest.importorskip("av", reason="takes nartk[media]")
    one = wav(PLAIN, subtype="MPEG_LAYER_III", form="MP3")
    told: list[tuple[str, str]] = []
    found = read_sound(one + one, rate=RATE, tell=lambda *notice: told.append(notice))
    alone = read_sound(one, rate=RATE)
    assert 2 * len(alone) <= len(found) <= 2.3 * len(alone)  # with what an encoder puts in front
    assert len(alone) == pytest.approx(len(PLAIN), abs=0.1 * RATE)
    assert [what for _, what in told] in ([], ["1 packet that cannot be decoded, and left out"])


@pytest.mark.shared
def test_recordings_are_as_long_as_they_are(shared_data: Path) -> None:
    """Of five corpora, by other people's programs."""
    folder = shared_data / "asr" / "samples_smoke"
    rows = [line.split("\t") for line in (folder / "manifest.tsv").read_text("utf-8").splitlines()[1:]]
    with tarfile.open(folder / "samples.tar.xz") as archive:
        for name, seconds, rate, *_ in rows:
            member = archive.extractfile(f"samples/{name}")
            assert member is not None
            data = member.read()
            with open_sound(data) as sound:
                assert sound.rate == int(rate)
            assert len(read_sound(data)) / RATE == pytest.approx(float(seconds), abs=0.006)
