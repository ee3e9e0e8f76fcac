"""Spoken numbers of recordings that ship, and that nothing was trained on."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.commands import run
from support.recipe_scripts import RECIPES

_CODE = """
import sys
from pathlib import Path
from itertools import islice
sys.path.insert(0, sys.argv[2])
from corpora import numbers
from sounds import write_sound
for i, each in enumerate(islice(numbers("test"), int(sys.argv[3]))):
    write_sound(Path(sys.argv[1], f"{i}.wav"), each.signal)
    print(each.translations[sys.argv[4]] if len(sys.argv) > 4 else each.text)
"""


def spoken_numbers(folder: Path, count: int, language: str | None = None) -> tuple[list[str], list[str]]:
    """Writes sound files of connected digits, at most 500, and gives their names and their words.

    Args:
        language: Code of the language that the words are in; None: what is said.
    """
    pytest.importorskip("soundfile", reason="reading sound needs nartk[audio]")
    words = [] if language is None else [language]
    command = [sys.executable, "-c", _CODE, str(folder), str(RECIPES / "asr"), str(count), *words]
    said = run(command).splitlines()
    assert len(said) == count
    return [str(folder / f"{i}.wav") for i in range(count)], said


_PLACES = """
import json, sys
sys.path.insert(0, sys.argv[1])
from corpora import recordings, RATE
from nartk.data.text import read_shipped
parts = recordings("fsdd.tar.xz")
header, *lines = read_shipped("fsdd_numbers.test.tsv.xz")
for line in lines[:int(sys.argv[2])]:
    row = dict(zip(header.split("\\t"), line.split("\\t")))
    first, *gaps = (int(gap) / 1000 for gap in row["gaps_ms"].split(","))
    times, at = [], first
    for name, gap in zip(row["recordings"].split(","), gaps):
        times.append((at, at + len(parts[name]) / RATE))
        at = times[-1][1] + gap
    print(json.dumps(times))
"""


def spoken_places(count: int) -> list[list[tuple[float, float]]]:
    """Where each word of `spoken_numbers` begins and ends, seconds: numbers are recordings in a row."""
    command = [sys.executable, "-c", _PLACES, str(RECIPES / "asr"), str(count)]
    return [json.loads(line) for line in run(command).splitlines()]


def misplaced(
    found: Sequence[Sequence[Any]], places: Sequence[Sequence[tuple[float, float]]]
) -> dict[str, float]:
    """How far words with `start` and `end` are from their places, seconds.

    Returns:
        Median of absolute differences and mean of differences, of starts and ends, and the number of words.
    """
    every = np.array(
        [
            (word.start - start, word.end - end)
            for words, own in zip(found, places, strict=True)
            for word, (start, end) in zip(words, own, strict=True)
        ]
    )
    medians, means = np.median(np.abs(every), 0), every.mean(0)
    named = {"words": float(len(every)), "start": medians[0], "end": medians[1]}
    return {**named, "mean start": means[0], "mean end": means[1]}
