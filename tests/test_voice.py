"""Where a recording holds speech: Silero by its own program, the gate by Kaldi's rule, and what they cut."""

from __future__ import annotations

import math
import sys
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from support.spoken_numbers import spoken_numbers

from nartk.data.audio.sounds import read_sound
from nartk.data.audio.voice import LEAST_PAUSE, PAD, RATE, EnergyGate, chunks, detector, is_loud, spans_of
from nartk.errors import MissingDependencyError, UsageError


def sound(*parts: tuple[float, float], seed: int = 0) -> np.ndarray:
    """Noise of so many seconds and amplitude each."""
    draw = np.random.default_rng(seed)
    return np.concatenate([draw.normal(0, level, round(s * RATE)) for s, level in parts]).astype(np.float32)


def test_the_gate_is_kaldis_rule() -> None:
    """Over random energies, written as loops: threshold 5.5 + 0.5 x mean, 2 frames on either side, 12 %."""
    draw = np.random.default_rng(1)
    for count in (1, 2, 3, 50):
        energies = draw.normal(9.0, 5.0, count).astype(np.float32)
        expected = []
        for t in range(count):
            near = [energies[i] for i in range(t - 2, t + 3) if 0 <= i < count]
            above = sum(each > 5.5 + 0.5 * math.fsum(energies.tolist()) / count for each in near)
            expected.append(above >= 0.12 * len(near))
        assert is_loud(energies).tolist() == expected


def test_the_gate_finds_what_is_loud() -> None:
    found = EnergyGate()
    found.listen(sound((2, 1e-4), (1.5, 0.1), (3, 1e-4), (1, 0.1), (0.1, 1e-4), (1, 0.1), (2, 1e-4)))
    assert np.array(found.spans(30.0)) == pytest.approx(
        np.array([[2 - PAD, 3.5 + PAD], [6.5 - PAD, 8.6 + PAD]]), abs=0.05
    )


@pytest.mark.parametrize("size", [7, 399, 16000, 1 << 20])
def test_blocks_do_not_matter(size: int) -> None:
    samples = sound((1, 1e-4), (2, 0.1), (1, 1e-4), (0.013, 0.1), seed=2)
    whole, parts = EnergyGate(), EnergyGate()
    whole.listen(samples)
    for begin in range(0, len(samples), size):
        parts.listen(samples[begin : begin + size])
    assert parts.spans(30.0) == whole.spans(30.0)


@pytest.mark.parametrize("seed", range(5))
def test_spans_are_in_order_and_inside(seed: int) -> None:
    draw = np.random.default_rng(seed)
    parts = [(float(draw.uniform(0.05, 9)), float(draw.choice([0.0, 1e-4, 0.1]))) for _ in range(20)]
    samples = sound(*parts, seed=seed)
    found = EnergyGate()
    found.listen(samples)
    spans = found.spans(5.0)
    assert all(0 <= begin < end <= len(samples) / RATE and end - begin <= 5.0 + 1e-9 for begin, end in spans)
    assert all(one[1] <= other[0] for one, other in pairwise(spans))
    # Nothing that is loud lies outside.
    at = np.cumsum([0.0, *(seconds for seconds, _ in parts)])
    for (seconds, level), begin in zip(parts, at, strict=False):
        if level == 0.1 and seconds > LEAST_PAUSE:
            covered = sum(max(0.0, min(begin + seconds, b) - max(begin, a)) for a, b in spans)
            assert covered == pytest.approx(seconds, abs=0.03)


def test_probabilities_become_spans() -> None:
    """By hand, 10 frames a second: a pause of 0.2 s divides, one of 0.1 s does not, nor what is half sure."""
    sure, half, no = [0.9], [0.4], [0.1]
    values = np.array(no * 20 + sure * 5 + no + sure * 5 + half * 9 + no * 3 + sure * 4 + no * 20, np.float32)
    found = spans_of(values, values, 10.0, len(values) / 10, 30.0)
    # The first talk ends where it is quiet, behind what is half sure; 0.3 s are too short for two pads.
    assert np.array(found) == pytest.approx(np.array([[1.6, 4.15], [4.15, 4.7 + PAD]]))


def test_long_spans_are_cut_where_they_are_speech_least() -> None:
    """By hand: 10 frames a second, 5 s at most."""
    values = np.full(120, 0.9, np.float32)
    values[[12, 41, 70]] = 0.6
    found = spans_of(values, values, 10.0, 12.0, 5.0)
    assert np.array(found) == pytest.approx(np.array([[0, 4.1], [4.1, 7.0], [7.0, 12.0]]))


def test_what_holds_no_frame() -> None:
    found = EnergyGate()
    assert found.spans(30.0) == []
    found.listen(np.zeros(100, np.float32))
    assert found.spans(30.0) == [(0.0, 100 / RATE)]  # too short to tell


def test_spans_in_groups() -> None:
    """By hand."""
    spans = [(1.0, 9.0), (10.0, 20.0), (21.0, 33.0), (40.0, 41.0), (60.0, 89.5), (90.0, 90.5)]
    assert chunks(spans, 30.0) == [tuple(spans[:3]), tuple(spans[3:4]), tuple(spans[4:])]
    assert chunks([(0.0, 40.0), (41.0, 42.0)], 30.0) == [((0.0, 40.0),), ((41.0, 42.0),)]
    assert chunks([], 30.0) == []


@pytest.mark.parametrize("size", [511, 16000, 1 << 22])
def test_silero_is_its_own_program(size: int, tmp_path: Path) -> None:
    """Its spans are those of the package's program, which reads frame by frame, whatever the blocks."""
    package = pytest.importorskip("silero_vad")
    pytest.importorskip("onnxruntime")
    torch = pytest.importorskip("torch")
    paths, _ = spoken_numbers(tmp_path, 6)
    pause = np.zeros(RATE, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = np.concatenate([part for path in paths for part in (read_sound(path, rate=RATE), pause)])
        expected = package.get_speech_timestamps(
            torch.tensor(samples),
            package.load_silero_vad(),
            min_silence_duration_ms=1000 * LEAST_PAUSE,
            speech_pad_ms=1000 * PAD,
            min_speech_duration_ms=0,
        )
    found = detector("silero")
    for begin in range(0, len(samples), size):
        found.listen(samples[begin : begin + size])
    theirs = [(each["start"] / RATE, each["end"] / RATE) for each in expected]
    assert np.array(found.spans(30.0)) == pytest.approx(np.array(theirs), abs=1.5 / RATE)  # which they round
    assert len(theirs) > 6


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingDependencyError, match="needs the package 'onnxruntime'") as caught:
        detector("silero")
    assert "nartk[vad]" in caught.value.fix
    monkeypatch.setitem(sys.modules, "onnxruntime", type(sys)("onnxruntime"))
    monkeypatch.setattr("nartk.data.audio.voice.find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match="needs the package 'silero_vad'"):
        detector("silero")
    with pytest.raises(UsageError, match="is 'loud'"):
        detector("loud")
