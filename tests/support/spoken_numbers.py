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
    print(each.text)
"""


def spoken_numbers(folder: Path, count: int) -> tuple[list[str], list[str]]:
    """Writes sound files of connected digits, at most 500, and gives their names and their words."""
    pytest.importorskip("soundfile", reason="reading sound needs nartk[audio]")
    said = run([sys.executable, "-c", _CODE, str(folder), str(RECIPES / "asr"), str(count)]).splitlines()
    assert len(said) == count
    return [str(folder / f"{i}.wav") for i in range(count)], said
