"""Spoken numbers of recordings that ship, and that nothing was trained on."""

from __future__ import annotations

import sys
from pathlib import Path

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
