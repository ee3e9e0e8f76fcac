"""Speech in little: words that are tones, one after the other, which small models learn in seconds."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nartk.data.audio.features import FeatureSettings, compute
from nartk.data.audio.normalization import Statistics

RATE = 8000  # Hz
PITCHES = {"low": 300.0, "mid": 900.0, "high": 2400.0}  # Hz
AUDIO = {"name": "audio", "sample_rate": RATE, "bins": 20, "cmvn": "global", "statistics": "cmvn.json"}


def sound_of(words: Sequence[str], rng: random.Random, shift: float = 1.0) -> np.ndarray:
    """Samples [N]: a tone of about 0.12 s a word, with gaps and noise of which no two are alike.

    Args:
        shift: What pitches are multiplied by.
    """
    parts = []
    for word in words:
        length = int(RATE * rng.uniform(0.1, 0.15))
        wave = np.sin(2 * np.pi * PITCHES[word] * shift * rng.uniform(0.97, 1.03) * np.arange(length) / RATE)
        parts += [np.zeros(int(RATE * rng.uniform(0.04, 0.07))), wave * np.hanning(length)]
    samples = np.concatenate([*parts, np.zeros(400)])
    noise = np.random.default_rng(rng.randrange(2**32)).standard_normal(len(samples))
    return (0.5 * samples + 0.01 * noise).astype(np.float32)


def write_corpus(folder: Path, count: int, seed: int = 0) -> list[str]:
    """Writes a folder as `--task nartk_speech` reads it, of so many sounds; what is said in valid's."""
    import soundfile

    rng, sounds = random.Random(seed), folder / "sounds"
    sounds.mkdir(parents=True)
    frames = []
    for split, size in (("train", count), ("valid", 12)):
        lines = [rng.sample([*PITCHES], k=rng.randint(1, 3)) for _ in range(size)]
        paths = [f"{split}{i}.wav" for i in range(size)]
        for path, words in zip(paths, lines, strict=True):
            samples = sound_of(words, rng)
            soundfile.write(sounds / path, samples, RATE)
            frames.append(compute(samples, FeatureSettings(sample_rate=RATE, bins=20)))
        (folder / f"{split}.tsv").write_text("\n".join([str(sounds), *(f"{path}\t0" for path in paths), ""]))
        said = [" ".join(words) for words in lines]
        (folder / f"{split}.txt").write_text("\n".join([*said, ""]))
    Statistics.of(frames).write(folder / "cmvn.json")
    (folder / "input.json").write_text(json.dumps(AUDIO))
    (folder / "dict.txt").write_text("".join(f"{word} 1\n" for word in PITCHES))
    return said
