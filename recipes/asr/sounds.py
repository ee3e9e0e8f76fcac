"""Sounds of the recipes of speech as nartk-train reads them: copies that are changed, lists, statistics."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
from corpora import RATE, READERS, Utterance, recordings

from nartk.checkpoints.names import INPUT
from nartk.data.audio.augmentation import SPEEDS, change_speed
from nartk.data.audio.features import FeatureSettings, compute
from nartk.data.audio.normalization import Statistics
from nartk.data.audio.sounds import read_sound, write_wav
from nartk.data.audio.stored import write_features
from nartk.files import JsonObject
from nartk.protocols.passes import FloatArray

STATISTICS = "cmvn.json"
FIRST_TRAINED = 10  # recording of each digit and speaker of fsdd: those before validate and test
QUICK = {"train": 400, "valid": 30, "test": 30}  # utterances
LOUDNESS_DB = (-10.0, 10.0)  # of a changed copy, less that of its recording
NOISE_DB = (-60.0, -20.0)  # of white noise in a changed copy, less the loudest sample
SAMPLE = 2000  # sounds of a large corpus whose features are normalised by
TELEPHONE = {"name": "audio", "sample_rate": RATE, "bins": 40, "cmvn": "global", "statistics": STATISTICS}
# Of 80 ms: single digits that are cut tight lose a sixth of their words without (README.md).
DIGITS = {**TELEPHONE, "padding": 8}  # settings of the processor of connected digits


def log(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def utterances_of(
    corpus: str, split: str, *, without: str, quick: bool, count: int, rng: np.random.Generator
) -> Iterator[Utterance]:
    """The utterances of a part of a corpus that ships.

    Args:
        without: A speaker who is in no part but the test, which is then of this speaker alone.
        quick: Some of them alone.
        count: Copies of each that trains, all but one changed.
    """
    utterances = list(READERS[corpus](split))
    if without:
        if split == "test":
            utterances += READERS[corpus]("valid")
        utterances = [each for each in utterances if (each.speaker == without) == (split == "test")]
        if not utterances:
            raise SystemExit(f"prepare.py: --without {without!r}: {corpus} has no such speaker")
    if quick:
        utterances = utterances[:: max(1, len(utterances) // QUICK[split])]
    if count > 1 and utterances[0].signal.ndim > 1:
        raise SystemExit(f"prepare.py: --copies {count}: {corpus} has features, and no sound to change")
    return copies(utterances, count if split == "train" else 1, rng)


def trained_recordings(without: str) -> dict[str, FloatArray]:
    """The recordings of digits that train, by name, but those of a speaker."""
    return {
        name: sound
        for name, sound in recordings("fsdd.tar.xz").items()
        if int(name.rsplit("_", 1)[1]) >= FIRST_TRAINED and name.split("_")[1] != without
    }


def changed(sound: FloatArray, speed: float, rng: np.random.Generator) -> FloatArray:
    """A sound at another speed and loudness, with white noise.

    Recordings that are put together have silence of exact zeros between, which nobody's microphone gives.
    """
    faster = change_speed(sound, speed) * 10 ** (rng.uniform(*LOUDNESS_DB) / 20)
    level = float(np.abs(faster).max()) * 10 ** (rng.uniform(*NOISE_DB) / 20)
    noisy = faster + level * rng.standard_normal(len(faster)).astype(np.float32)
    return np.clip(noisy, -1, 1).astype(np.float32)


def copies(utterances: Iterable[Utterance], count: int, rng: np.random.Generator) -> Iterator[Utterance]:
    """Each utterance, and of so many copies less one that are changed."""
    for each in utterances:
        yield each
        for number in range(1, count):
            signal = changed(each.signal, float(rng.choice(SPEEDS)), rng)
            yield replace(each, id=f"{each.id}-{number}", signal=signal)


def write_sound(path: Path, samples: FloatArray) -> None:
    write_wav(path, samples, RATE)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as out:
        out.writelines(f"{line}\n" for line in lines)


def write_split(output: Path, split: str, found: Sequence[tuple[str, str]], root: Path) -> None:
    """Writes the list of sources, whose paths are in a folder, and the text of each."""
    write_lines(output / f"{split}.tsv", [str(root), *(path for path, _ in found)])
    write_lines(output / f"{split}.txt", (text for _, text in found))
    log(f"{split}: {len(found)} utterances")


def write_signals(output: Path, split: str, utterances: Iterable[Utterance]) -> list[tuple[str, Utterance]]:
    """Writes sounds, or features in one file; returns their paths in the folder with the utterances."""
    found, features = [], {}
    (output / split).mkdir(exist_ok=True)
    for each in utterances:
        if each.signal.ndim == 1:
            path = f"{split}/{each.id}.wav"
            write_sound(output / path, each.signal)
        else:
            path = f"{split}/features.npz#{each.id}"
            features[each.id] = each.signal
        found.append((path, each))
    if features:
        write_features(output / split / "features.npz", features)
    return found


def write_input(output: Path, settings: JsonObject) -> None:
    """Writes OUT/input.json, how sounds are read."""
    write_lines(output / INPUT, [json.dumps(settings, indent=2)])


def write_statistics(output: Path, settings: JsonObject) -> None:
    """Writes OUT/cmvn.json, the means and variances of the features of some sounds that train."""
    own = {item.name for item in fields(FeatureSettings)} & settings.keys()
    features = FeatureSettings(**{name: settings[name] for name in own})
    root, *paths = (output / "train.tsv").read_text(encoding="utf-8").splitlines()
    sample = random.Random(1).sample(paths, min(SAMPLE, len(paths)))
    sounds = (read_sound(Path(root) / path, rate=features.sample_rate) for path in sample)
    Statistics.of(compute(sound, features) for sound in sounds).write(output / STATISTICS)
