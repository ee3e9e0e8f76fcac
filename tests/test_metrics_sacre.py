"""BLEU and chrF equal what sacrebleu prints; the paired bootstrap agrees with its other test."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from support import oracles

from nartk.errors import LengthMismatchError, MissingDependencyError, UsageError
from nartk.metrics.bootstrap import compare
from nartk.metrics.result import MetricResult
from nartk.metrics.sacre import bleu_score, chrf_score

SYSTEMS = ("copied", "mixed20.1.2")


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bleu", {}),
        ("bleu none", {"tokenize": "none"}),
        ("bleu lc", {"lowercase": True}),
        ("bleu intl", {"tokenize": "intl"}),
    ],
)
def test_bleu_is_what_sacrebleu_prints(system: str, name: str, options: dict[str, Any]) -> None:
    texts = oracles.translations()
    result = bleu_score([texts["ref"]], texts[system], **options)
    assert result.score == pytest.approx(oracles.expected("sacrebleu")[f"{system} {name}"], abs=1e-9)


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize(("name", "word_order"), [("chrF2", 0), ("chrF2++", 2)])
def test_chrf_is_what_sacrebleu_prints(system: str, name: str, word_order: int) -> None:
    texts = oracles.translations()
    result = chrf_score([texts["ref"]], texts[system], word_order=word_order)
    assert result.score == pytest.approx(oracles.expected("sacrebleu")[f"{system} {name}"], abs=1e-9)


@pytest.mark.parametrize("system", ["mixed30.0.10", "mixed20.0.10", "mixed20.1.2"])
def test_paired_bootstrap_agrees_with_approximate_randomisation(system: str) -> None:
    """sacrebleu's p-values, two-sided: another test of the same question."""
    texts = oracles.translations()
    results = [bleu_score([texts["ref"]], texts[name], tokenize="none") for name in (system, "copied")]
    difference = compare(*results, samples=2000)
    assert difference.p_value == pytest.approx(oracles.expected("sacrebleu")[f"p {system}"], abs=0.03)
    assert difference.interval.low < difference.difference < difference.interval.high


def test_published_unit_cases() -> None:
    case = oracles.expected("sacrebleu")["published"]
    for tokenize, score in case["scores"].items():
        found = bleu_score(case["references"], case["hypotheses"], tokenize=tokenize)
        assert found.score == pytest.approx(score, abs=1e-6)
    assert found.signature.startswith("nrefs:2|case:mixed|eff:no|tok:intl|smooth:exp|version:")
    assert bleu_score(case["references"], ["", "", ""]).score == 0


def test_resampling_every_sentence_once_gives_the_score() -> None:
    texts = [["the cat sat on the mat", "a dog barked"]], ["the cat sat on a mat", "the dog barked"]
    results: list[MetricResult] = [bleu_score(*texts), chrf_score(*texts)]
    for result in results:
        assert result.resample(np.ones((1, 2)))[0] == pytest.approx(result.score, abs=1e-12)


def test_refuses_what_cannot_be_scored() -> None:
    with pytest.raises(UsageError, match="no tokeniser 'moses'") as caught:
        bleu_score([["a"]], ["a"], tokenize="moses")
    assert "13a" in caught.value.fix
    with pytest.raises(LengthMismatchError, match="reference 1 has 2 sentences, but hypothesis has 1"):
        chrf_score([["a", "b"]], ["a"])


def test_names_the_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(MissingDependencyError, match="need the package sacrebleu"):
        bleu_score([["a"]], ["a"])
