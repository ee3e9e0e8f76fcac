"""recipes/asr/whisper_hour.py: the recording that it makes, what counts as invented, rows that are kept."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.recipe_scripts import imported

hour = imported("asr", "whisper_hour.py")


def test_a_recording_is_clips_and_pauses() -> None:
    """Clips are constants, so that they are found again in the samples; pauses have their share."""
    clips = [(np.full(16000 * (i + 2), 0.1 * (i + 1), np.float32), f"WORD {i}") for i in range(3)]
    samples, spoken, spans = hour.long_recording(clips, 600.0, 0.3)
    assert len(samples) >= 600 * 16000
    assert len(spoken) == len(spans)
    for text, (begin, end) in zip(spoken, spans, strict=True):
        own = clips[int(text.split()[1])][0]
        part = samples[round(begin * 16000) : round(end * 16000)]
        assert np.array_equal(part, own)
    pauses = [other[0] - one[1] for one, other in pairwise(spans)]
    assert 0.2 <= min(pauses) < 1.0 < 2.0 < max(pauses) <= 8.0
    assert sum(pauses) / (len(samples) / 16000) == pytest.approx(0.3, abs=0.02)
    between = [samples[round(one[1] * 16000) : round(other[0] * 16000)] for one, other in pairwise(spans)]
    silent = sum(not part.any() for part in between)
    assert 0 < silent < len(between)
    assert max(abs(part).max() for part in between) < 0.01


def test_words_in_pauses() -> None:
    """By hand: what touches a clip, or lies within half a second of one, is not invented."""
    spans = [(1.0, 2.0), (6.0, 7.0)]
    segments = [(0.0, 0.4, "one two"), (0.0, 0.6, "x"), (2.4, 3.0, "x"), (2.6, 5.4, "three"), (2.6, 5.6, "x")]
    assert hour.invented(segments, spans) == 3
    assert hour.invented([], spans) == 0


def test_a_run_that_was_broken_off_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows are told and kept as they end; those of another model or recording are not taken for them."""
    clips = [(np.full(16000 * 2, 0.1, np.float32), "ONE TWO\tTHREE"), (np.zeros(16000, np.float32), "FOUR")]
    called = []

    def run_apart(number: int, options: Any, sound: str) -> dict[str, Any]:
        called.append(number)
        if len(called) == 3:
            raise KeyboardInterrupt
        return {"segments": [[0.0, 1.0, f"one\\ttwo {number}"]], "seconds": 2.5 + number, "memory": 100.0}

    monkeypatch.setattr(hour, "read_clips", lambda _: clips)
    monkeypatch.setattr(hour, "run_apart", run_apart)
    monkeypatch.setattr(hour, "chosen", lambda: range(4))
    arguments = ["tiny.en", "--clips", "list", "--minutes", "0.5", "--rows", str(tmp_path / "rows")]
    with pytest.raises(KeyboardInterrupt):
        hour.main(arguments)
    shown = capsys.readouterr()
    assert [line.split(" | ")[:2] for line in shown.err.splitlines()] == [
        [*each] for each in [*hour.ROWS][:2]
    ]
    assert len((tmp_path / "rows").read_text().splitlines()) == 1 + 2
    hour.main([*arguments, "--json", str(tmp_path / "json")])
    assert called == [0, 1, 2, 2, 3]
    found = json.loads((tmp_path / "json").read_text())["rows"]
    assert [row["seconds"] for row in found] == [2.5, 3.5, 4.5, 5.5]
    assert [row["segments"] for row in found] == [[[0.0, 1.0, f"one\\ttwo {i}"]] for i in range(4)]
    capsys.readouterr()
    for other in (["base"], ["tiny.en", "--dtype", "int8"], ["tiny.en", "--pauses", "0.5"]):
        called[:] = [9, 9, 9]
        hour.main([*other, *arguments[1:]])
        assert called == [9, 9, 9, 0, 1, 2, 3]
