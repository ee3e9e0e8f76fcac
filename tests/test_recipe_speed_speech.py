"""recipes/speed/speech_decoders.py: what is timed, and what its page says."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.recipe_scripts import imported

import nartk
from nartk.data.audio.stored import write_features

speech = imported("speed", "speech_decoders.py")


def test_the_page_by_hand() -> None:
    strategies = {
        "paraformer": {"encoder": [0.1, 0.2, 0.1], "decoder": [0.001, 0.002, 0.001], "length": 14.6},
        "beam": {"encoder": [0.1, 0.1, 0.1], "decoder": [0.004, 0.010, 0.006], "length": 15.0},
    }
    cell = {"dtype": "int8", "batch": 1, "torch": [0.2, 0.2, 0.4], "strategies": strategies}
    around = {"cpu": "a CPU", "load_average": 0.5, "versions": {}}
    found = {"command": ["run", "a b"], "environment": around, "rounds": 3, "cells": [cell]}
    lines = speech.page(found).splitlines()
    assert "- command: `run 'a b'`" in lines
    assert [line for line in lines if line.startswith("| int8")] == [
        "| int8 | 1 | `paraformer` | 100.0 | 2.00 (1.00-4.00) | 1.00 | 5.00 (4.00-6.00) | 14.6 |",
        "| int8 | 1 | `beam` | 100.0 | 2.00 (2.00-4.00) | 6.00 | 1.00 (1.00-1.00) | 15.0 |",
    ]


def test_what_is_timed_is_what_the_network_says(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    network = speech.save_random_model(tmp_path / "m", "conformer", speech.SIZES["test"], seed=3)
    frames = torch.randn(70, speech.BINS, generator=torch.Generator().manual_seed(1))
    write_features(tmp_path / "f.npz", {"a": frames.numpy()})
    (found,) = nartk.load(tmp_path / "m").decode([f"{tmp_path}/f.npz#a"], strategy="greedy", max_len=6)
    tokens = [2]
    with torch.inference_mode():
        for _ in range(6):
            logits = network(frames[None], torch.tensor([70]), torch.tensor([tokens]))
            tokens.append(int(logits[0, -1].argmax()))
    assert list(found.tokens) == tokens[1 : 1 + len(found.tokens)]
    assert len(found.tokens) >= 5
