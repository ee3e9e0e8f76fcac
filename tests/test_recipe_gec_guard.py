"""The thresholds of a correction model's guard: how they are fitted, what the shipped ones let through."""

from __future__ import annotations

import numpy as np
import pytest
from support.recipe_scripts import imported

import nartk
from nartk.engine import available
from nartk.processors.guard import Guard

recipe = imported("gec", "fit_guard.py")


@pytest.mark.parametrize("is_most", [True, False])
def test_a_threshold_leaves_out_what_is_worth_least(is_most: bool) -> None:
    """Against every cut between two values."""
    draw = np.random.default_rng(3)
    for _ in range(200):
        values = draw.integers(0, 12, 20) / 4
        worth = draw.integers(-6, 4, 20).astype(float)
        bound = recipe._threshold(values, worth, is_most)
        beyond = values > bound if is_most else values < bound
        cuts = np.unique(values)[:-1] if is_most else np.unique(values)[1:]
        sums = [worth[values > cut if is_most else values < cut].sum() for cut in cuts]
        if min(sums) < 0:
            assert worth[beyond].sum() == min(sums)
        else:
            assert not (worth[beyond] > 0).any()


def test_thresholds_are_fitted_on_short_sentences_too() -> None:
    """One token of four that changes is a share that long sentences hardly have."""
    lengths = [len(source) for pairs in recipe.sentences([], 100, 1) for source, _ in pairs]
    assert len(lengths) == 200
    assert sum(length <= 6 for length in lengths) > 20
    assert sum(length > 20 for length in lengths) > 20


@pytest.mark.skipif(not available(), reason="there is no engine here")
@pytest.mark.parametrize("name", ["gec-en", "gec-en-medium"])
def test_a_short_sentence_may_be_corrected(name: str) -> None:
    """One word of three may become another form of it."""
    guard = nartk.load(name, threads=1).checkpoint.guard
    assert isinstance(guard, Guard)
    source = ["She", "go", "home", "."]
    for written in ("She went home .", "She goes home ."):
        assert guard.reasons(source, written.split(), (-0.1,) * 5) == []
