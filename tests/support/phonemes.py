"""Small corpora of phonemes and their speech, as `--task nartk_tts` reads them."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from nartk.data.audio.targets import SpeechCorpus, Utterance


def utterances(seed: int, lines: list[list[str]]) -> list[Utterance]:
    """Speech in which a phoneme has its own duration, pitch, energy and frame."""
    rng, made = np.random.default_rng(seed), []
    for line in lines:
        numbers = np.array([SYMBOLS.index(word) for word in line])
        durations = (1 + numbers % 3).astype(np.int32)
        frames = np.eye(len(SYMBOLS), dtype=np.float32)[np.repeat(numbers, durations)] * 4.0 - 7.0
        pitch, energy = (4.5 + 0.03 * numbers).astype(np.float32), (1.0 + 0.02 * numbers).astype(np.float32)
        noise = rng.normal(scale=0.01, size=frames.shape).astype(np.float32)
        made.append(Utterance(frames + noise, durations, pitch, energy))
    return made


SYMBOLS = ["AA", "K", "S"]


def write_phonemes(folder: Path, count: int) -> None:
    """Writes a folder as `--task nartk_tts` reads it."""
    rng = random.Random(1)
    (folder / "dict.txt").write_text("".join(f"{word} 1\n" for word in SYMBOLS))
    for split, size in (("train", count), ("valid", 4)):
        lines = [rng.choices(SYMBOLS, k=rng.randint(2, 6)) for _ in range(size)]
        (folder / f"{split}.txt").write_text("".join(" ".join(line) + "\n" for line in lines))
        SpeechCorpus.of(utterances(2, lines)).write(folder / f"{split}.speech.npz")
