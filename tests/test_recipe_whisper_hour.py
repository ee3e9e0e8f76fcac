"""recipes/asr/whisper_hour.py: the recording that it makes, and what counts as invented."""

from __future__ import annotations

from itertools import pairwise

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
