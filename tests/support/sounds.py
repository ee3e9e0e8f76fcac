"""Sounds made by formula, files of them that are odd or broken, and what other programs make of them.

``python -m support.sounds FILE``, in tests/, computes the features that tests compare with, by torchaudio
(beside a torch without CUDA its extension cannot be loaded, which is left out) and transformers.
"""

from __future__ import annotations

import math
import os
import random
import struct
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nartk.protocols.passes import FloatArray

RATE = 16000
ORACLE = Path(__file__).resolve().parents[1] / "oracles" / "features.npz"
# Of the filterbank, by name: the settings that differ from the default ones.
FBANKS: dict[str, dict[str, Any]] = {
    "default": {},
    "telephone": {"sample_rate": 8000, "bins": 40, "window": "hamming"},
    "narrow": {"bins": 23, "shift_ms": 12.5, "window_ms": 20.0, "window": "hanning"},
}
WHISPERS = (80, 128)
KEPT = 60  # frames of Whisper's features that are stored; the others are silence


def noise(samples: int, *, seed: int = 1, loudness: float = 0.3) -> FloatArray:
    """Even noise with a hum, and a silence in its middle."""
    draw = random.Random(seed).random  # whose numbers are those of every version of Python
    found = np.array([loudness * (2 * draw() - 1) for _ in range(samples)], np.float32)
    found += np.float32(0.1) * sine(samples, 150.0)
    found[samples // 2 : samples // 2 + samples // 5] = 0
    return found


def sine(samples: int, frequency: float, rate: float = RATE) -> FloatArray:
    return np.sin(2 * math.pi * frequency / rate * np.arange(samples)).astype(np.float32)


def tones(seconds: float) -> FloatArray:
    """Sound [N] whose features change all the time, so quiet that they take many values."""
    time = np.arange(int(RATE * seconds)) / RATE
    found = sum(np.sin(2000 * f * time + 9 * np.sin(f * time)) for f in (1, 2.3, 4.1))
    found = found * np.exp(2.5 * np.sin(9 * time)) + np.random.default_rng(4).normal(size=len(time))
    return (found / 2**15).astype(np.float32)


def wav(samples: FloatArray, rate: int = RATE, subtype: str = "PCM_16", form: str = "WAV") -> bytes:
    """The bytes of a sound file; samples [N] or [N, channels]."""
    import io

    import soundfile

    data = io.BytesIO()
    soundfile.write(data, samples, rate, subtype=subtype, format=form)
    return data.getvalue()


def _bare_header(seconds: int) -> bytes:
    """The head of a wav file of so many seconds."""
    size = 2 * RATE * seconds
    parts = (b"RIFF", 36 + size, b"WAVE", b"fmt ", 16, 1, 1, RATE, 2 * RATE, 2, 16, b"data", size)
    return struct.pack("<4sI4s4sIHHIIHH4sI", *parts)


def _two_hours(path: Path) -> None:
    """Silence, of which the disk holds nothing."""
    path.write_bytes(_bare_header(7200))
    os.truncate(path, 44 + 2 * RATE * 7200)


def _bytes(data: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(data) and None


def cases() -> dict[str, tuple[Callable[[Path], Any], str]]:
    """Odd files by name: what writes one, and what the error says of it; empty: it is decoded."""
    plain = noise(RATE // 2)
    good = wav(plain)
    pair = np.stack([plain, -0.5 * plain], axis=1)
    flac = wav(plain, form="FLAC")

    def but(at: int, new: bytes) -> bytes:
        return good[:at] + new + good[at + len(new) :]

    def floats(value: float) -> bytes:
        changed = plain.copy()
        changed[777] = value
        return wav(changed, subtype="FLOAT")

    return {
        "plain.wav": (_bytes(good), ""),
        "no samples.wav": (_bytes(wav(plain[:0])), "holds no sound"),
        "one sample.wav": (_bytes(wav(plain[:1])), "has 0 frames, the model reads 7 or more"),
        "a moment.wav": (_bytes(wav(plain[:1000])), "has 4 frames, the model reads 7 or more"),
        "nan.wav": (_bytes(floats(math.nan)), "holds NaN or infinity at sample 777"),
        "infinity.wav": (_bytes(floats(-math.inf)), "holds NaN or infinity at sample 777"),
        "too loud.wav": (_bytes(floats(1e30)), "hold NaN or infinity"),
        "constant.wav": (_bytes(wav(np.full(8000, 0.5, np.float32))), ""),
        "silence.wav": (_bytes(wav(np.zeros(8000, np.float32))), ""),
        "clipped.wav": (_bytes(wav(np.sign(plain) * 0.99997)), ""),
        "8k.wav": (_bytes(wav(plain, 8000)), ""),
        "44k.wav": (_bytes(wav(plain, 44100)), ""),
        "48k.flac": (_bytes(wav(plain, 48000, form="FLAC")), ""),
        "odd rate.wav": (_bytes(wav(plain, 11127)), ""),
        "stereo.wav": (_bytes(wav(pair)), ""),
        "six channels.wav": (_bytes(wav(np.stack([plain] * 6, axis=1))), ""),
        "24 bit.wav": (_bytes(wav(plain, subtype="PCM_24")), ""),
        "8 bit.wav": (_bytes(wav(plain, subtype="PCM_U8")), ""),
        "float64.wav": (_bytes(wav(plain, subtype="DOUBLE")), ""),
        "vorbis.ogg": (_bytes(wav(plain, subtype="VORBIS", form="OGG")), ""),
        "opus.opus": (_bytes(wav(plain, subtype="OPUS", form="OGG")), ""),
        "mpeg.mp3": (_bytes(wav(plain, subtype="MPEG_LAYER_III", form="MP3")), ""),
        "flac named.wav": (_bytes(flac), ""),
        "cut.wav": (_bytes(good[: len(good) // 2]), ""),
        "cut header.wav": (_bytes(good[:20]), "cannot be read as audio: Error in WAV/W64/RF64 file"),
        "header alone.wav": (_bytes(good[:44]), "holds no sound"),
        "cut.flac": (_bytes(flac[: len(flac) // 2]), "is damaged after"),
        "text.wav": (
            _bytes(b"She go to school yesterday .\n" * 40),
            "cannot be read as audio: Format not recognised",
        ),
        "empty.wav": (_bytes(b""), "cannot be read as audio: Format not recognised"),
        "no channel.wav": (_bytes(but(22, b"\0\0")), "cannot be read as audio: Channel count is zero"),
        "no rate.wav": (_bytes(but(24, b"\0\0\0\0")), "cannot be read as audio: "),
        "1 Hz.wav": (_bytes(but(24, b"\1\0\0\0")), "has 1 samples a second, not 1000 to 768000"),
        "2 GHz.wav": (_bytes(but(24, b"\xff\xff\xff\x7f")), "samples a second, not 1000 to 768000"),
        "two hours.wav": (_two_hours, "s of sound, 200 frames"),
        "missing.wav": (lambda path: None, "cannot be read: No such file or directory"),
        "folder.wav": (Path.mkdir, "is no file"),
        "pipe.wav": (os.mkfifo, "is no file"),
        "endless.wav": (lambda path: path.symlink_to("/dev/zero"), "is no file"),
        "loop.wav": (lambda path: path.symlink_to(path), "cannot be read: Too many levels of symbolic links"),
    }


def expected(name: str) -> FloatArray:
    """The features that another program computed: ``fbank NAME`` of `FBANKS`, ``whisper BINS``."""
    with np.load(ORACLE) as file:
        return file[name]


def sound_of(settings: Mapping[str, Any]) -> FloatArray:
    """What the filterbank's expected features are of."""
    return noise(int(settings.get("sample_rate", RATE) * 0.4), seed=2)


def main(path: Path) -> None:
    import torch

    if torch.version.cuda is None:
        without: Any = types.ModuleType("torchaudio._extension")
        without.fail_if_no_align, without._IS_TORCHAUDIO_EXT_AVAILABLE = lambda function: function, False
        sys.modules["torchaudio._extension"] = without
    from torchaudio.compliance import kaldi
    from transformers import WhisperFeatureExtractor

    found = {}
    for name, settings in FBANKS.items():
        found[f"fbank {name}"] = kaldi.fbank(
            torch.from_numpy(sound_of(settings))[None] * 32768,
            dither=0.0,
            sample_frequency=settings.get("sample_rate", RATE),
            num_mel_bins=settings.get("bins", 80),
            frame_shift=settings.get("shift_ms", 10.0),
            frame_length=settings.get("window_ms", 25.0),
            window_type=settings.get("window", "povey"),
        ).numpy()
    for bins in WHISPERS:
        extract = WhisperFeatureExtractor(feature_size=bins)
        for what, samples in (("whisper", noise(RATE // 2)), ("whisper full", noise(30 * RATE))):
            frames = extract(samples, sampling_rate=RATE, return_tensors="np").input_features[0].T
            assert what == "whisper full" or (frames[KEPT:] == frames[-1]).all()
            found[f"{what} {bins}"] = frames[:KEPT] if what == "whisper" else frames[-KEPT:]
    np.savez_compressed(path, **{name: frames.astype(np.float32) for name, frames in found.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
