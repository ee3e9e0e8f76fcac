"""recipes/speed/acoustic.py: what is timed, and what its page says."""

from __future__ import annotations

import pytest
from support.recipe_scripts import imported

acoustic = imported("speed", "acoustic.py")


def test_the_page_by_hand() -> None:
    models = {
        "fastspeech2": {"seconds": [0.08, 0.08, 0.10], "frames": 250},
        "2 a step": {"seconds": [0.04, 0.02, 0.10], "frames": 250},
        "torch": {"seconds": [0.08, 0.16, 0.20], "frames": 250},
    }
    around = {"cpu": "a CPU", "load_average": 0.5, "versions": {}}
    cells = [{"dtype": "int8", "models": models}]
    found = {"command": ["run", "a b"], "environment": around, "rounds": 3, "cells": cells}
    lines = acoustic.page(found).splitlines()
    assert "- command: `run 'a b'`" in lines
    assert [line for line in lines if line.startswith("| int8")] == [
        "| int8 | fastspeech2 | 80.0 | 0.0276 | 1.00 (1.00-1.00) | 2.00 (1.00-2.00) |",
        "| int8 | 2 a step | 40.0 | 0.0138 | 2.00 (1.00-4.00) | 2.00 (2.00-8.00) |",
        "| int8 | fastspeech2 in PyTorch, fp32 | 160.0 | 0.0551 | 0.50 (0.50-1.00) | 1.00 (1.00-1.00) |",
    ]


def test_all_speak_as_many_frames() -> None:
    pytest.importorskip("torch")
    (cell,) = acoustic.measure("test", dtypes=["fp32"], rounds=1)
    assert [*cell["models"]] == [*acoustic.MODELS, "torch"]
    assert {each["frames"] for each in cell["models"].values()} == {250}
    assert all(each["seconds"][0] > 0 for each in cell["models"].values())
