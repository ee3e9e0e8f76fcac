"""recipes/speed/speech_translators.py: what is timed, and what its page says."""

from __future__ import annotations

import pytest
from support.fairseq_host import require_fairseq
from support.recipe_scripts import imported

translators = imported("speed", "speech_translators.py")


def test_the_page_by_hand() -> None:
    decodings = {
        "`beam` 5": {"encoder": [0.1] * 3, "decoder": [0.03, 0.06, 0.03], "search": [0.01] * 3, "length": 60},
        "`dag-greedy`, 0.5 vertices a frame": {
            "encoder": [0.1, 0.2, 0.1],
            "decoder": [0.01] * 3,
            "search": [0.01] * 3,
            "length": 7,
        },
    }
    peers = [
        {"engine": "nartk", "dtype": "int8", "strategy": "`greedy`", "encoder": [0.1], "whole": [0.2]},
        {"engine": "fairseq, x", "dtype": "fp32", "strategy": "`greedy`", "encoder": [0.2], "whole": [0.5]},
    ]
    found = {
        "command": ["run", "a b"],
        "environment": {"cpu": "a CPU", "load_average": 0.5, "versions": {}},
        "rounds": 3,
        "cells": [{"dtype": "int8", "output": "phonemes", "decodings": decodings}],
        "peers": peers,
    }
    lines = translators.page(found).splitlines()
    assert "- command: `run 'a b'`" in lines
    assert [line for line in lines if "| int8" in line or "| fp32" in line] == [
        "| phonemes | int8 | `beam` 5 | 100.0 | 30.0 | 10.0 | 1.00 (1.00-1.00) | 60 |",
        "| phonemes | int8 | `dag-greedy`, 0.5 vertices a frame | 100.0 | 10.0 | 10.0 | 2.00 (2.00-3.50) "
        "| 7 |",
        "| nartk | int8 | `greedy` | 100.0 | 200.0 | 2.50 (2.50-2.50) |",
        "| fairseq, x | fp32 | `greedy` | 200.0 | 500.0 | 1.00 (1.00-1.00) |",
    ]


def test_words_one_by_one_are_as_many_as_are_measured() -> None:
    pytest.importorskip("torch")
    cells = translators.measure("test", dtypes=["fp32"], rounds=1)
    assert [cell["output"] for cell in cells] == ["phonemes", "subwords"]
    for cell in cells:
        count, _ = translators.OUTPUTS[cell["output"]]
        assert [*cell["decodings"]] == [each.title for each in translators.DECODINGS]
        for title, each in cell["decodings"].items():
            assert each["encoder"][0] > 0
            assert each["decoder"][0] > 0
            assert "vertices" in title or each["length"] == count, title


def test_all_libraries_give_as_many_words() -> None:
    """Each contender asserts the length of its output."""
    pytest.importorskip("transformers")
    require_fairseq()
    cells = translators.measure_peers("test", dtypes=["fp32"], rounds=1)
    assert len(cells) == 3 * len(translators.PEERS)
    assert all(0 < each["encoder"][0] < each["whole"][0] for each in cells)
