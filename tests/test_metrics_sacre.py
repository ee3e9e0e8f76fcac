"""BLEU and chrF equal what sacrebleu printed for WMT17; the paired bootstrap agrees with MultEval."""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nartk.errors import LengthMismatchError, MissingDependencyError, UsageError
from nartk.metrics.bootstrap import compare
from nartk.metrics.result import MetricResult
from nartk.metrics.sacre import bleu_score, chrf_score

SYSTEMS = ["newstest2017.LIUM-NMT.4900.en-de", "newstest2017.LMU-nmt-reranked.4934.en-de"]


class Wmt17:
    """The oracle's texts and numbers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.expected: dict[str, Any] = json.loads((folder / "expected.json").read_text())
        self.reference = self.text("ref")

    def text(self, name: str) -> list[str]:
        with lzma.open(self.folder / f"{name}.txt.xz", "rt", encoding="utf-8", newline="\n") as lines:
            return [line.rstrip("\n") for line in lines]


@pytest.fixture(scope="module")
def wmt17(shared_data: Path) -> Wmt17:
    return Wmt17(shared_data / "oracles" / "sacrebleu" / "wmt17_en_de")


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("BLEU_13a", {}),
        ("BLEU_none", {"tokenize": "none"}),
        ("BLEU_13a_lc", {"lowercase": True}),
        ("BLEU_intl", {"tokenize": "intl"}),
    ],
)
def test_wmt17_bleu(wmt17: Wmt17, system: str, name: str, options: dict[str, Any]) -> None:
    result = bleu_score([wmt17.reference], wmt17.text(system), **options)
    assert result.score == pytest.approx(wmt17.expected["corpus"][system][name], abs=1e-10)
    if name == "BLEU_13a":
        detail = wmt17.expected["corpus"][system]["BLEU_13a_detail"]
        assert result.parts["counts"] == detail["counts"]
        assert result.parts["brevity_penalty"] == detail["bp"]
        assert result.signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


@pytest.mark.parametrize(("name", "word_order"), [("chrF2", 0), ("chrF2++", 2)])
def test_wmt17_chrf(wmt17: Wmt17, name: str, word_order: int) -> None:
    result = chrf_score([wmt17.reference], wmt17.text(SYSTEMS[0]), word_order=word_order)
    assert result.score == pytest.approx(wmt17.expected["corpus"][SYSTEMS[0]][name], abs=1e-10)


@pytest.mark.parametrize(
    "system", ["FBK.4870", "LMU-nmt-reranked.4934", "LMU-nmt-single.4893", "SYSTRAN.4847", "xmu.4910"]
)
def test_paired_bootstrap_agrees_with_multeval(wmt17: Wmt17, system: str) -> None:
    name = f"newstest2017.{system}.en-de"
    baseline = bleu_score([wmt17.reference], wmt17.text(SYSTEMS[0]), tokenize="none")
    result = bleu_score([wmt17.reference], wmt17.text(name), tokenize="none")
    difference = compare(result, baseline, samples=2000)
    # Two-sided approximate randomisation by MultEval: another test of the same question.
    p_value = wmt17.expected["significance"]["multeval_ar_p"][name][0]
    assert difference.p_value == pytest.approx(p_value, abs=0.03)
    assert difference.interval.low < difference.difference < difference.interval.high


def test_published_unit_cases(shared_data: Path) -> None:
    cases = json.loads((shared_data / "oracles" / "sacrebleu" / "unit_cases.json").read_text())
    for hypotheses, references, options, expected in cases["test_bleu.py"]["test_corpus_bleu_cases"]:
        if set(options) <= {"tokenize", "lowercase"}:
            assert bleu_score(references, hypotheses, **options).score == pytest.approx(expected, abs=1e-6)


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
