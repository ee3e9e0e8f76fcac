"""GLEU equals the original program to its last printed digit."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from support import oracles
from support.metrics import gleu_score

from nartk.errors import InputFileError, LengthMismatchError
from nartk.metrics import gleu
from nartk.metrics.bootstrap import confidence
from nartk.metrics.gleu import gleu_of, gleu_statistics


def _printed(hypothesis: str, references: str) -> str:
    texts = oracles.corrected()
    score = gleu_score(texts["source"], oracles.references(references), texts[hypothesis]).score
    return f"{score:.6f}"


@pytest.mark.parametrize(("case", "printed"), oracles.expected("gleu").items())
def test_official_score(case: str, printed: str) -> None:
    assert _printed(*case.split()) == printed


@pytest.mark.shared
def test_published_scores_of_jfleg(shared_data: Path) -> None:
    """Four references, and each of them against the other three."""

    def lines(name: str) -> list[str]:
        folder = "oracles/gleu_jfleg" if name == "dev.mix" else "gec/jfleg"
        return (shared_data / folder / name).read_text(encoding="utf-8").split("\n")[:-1]

    source, references = lines("dev.src"), [lines(f"dev.ref{number}") for number in range(4)]
    for row in (shared_data / "oracles/gleu_jfleg/gleu_official_dev.txt").read_text().splitlines():
        if row.startswith("#"):
            continue
        case, _, printed = row.rpartition(" ")
        kind, _, name = case.rpartition(": ")
        used = references[:1] if kind.startswith("single") else references
        if kind == "leave-one-out":
            used = [each for number, each in enumerate(references) if name != f"dev.ref{number}"]
        assert f"{gleu_score(source, used, lines(name)).score:.6f}" == printed, row


def _python3_draw(references: Sequence[int], iterations: int) -> np.ndarray:
    """The draw of a port to Python 3, whose `randint` takes other numbers from the same generator."""
    rows = []
    for k in range(iterations):
        generator = random.Random(101 * k)
        rows.append([generator.randint(0, many - 1) for many in references])
    return np.array(rows)


def test_another_draw_of_references_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gleu, "draw_references", _python3_draw)
    assert _printed("source", "0123") != oracles.expected("gleu")["source 0123"]


def test_the_port_to_python_3(monkeypatch: pytest.MonkeyPatch) -> None:
    # gec-metrics published these values; its draw is that of Python 3.
    case = oracles.expected("gec_metrics")["gleu"]
    monkeypatch.setattr(gleu, "draw_references", _python3_draw)
    score = gleu_score(case["src"], case["refs"], case["hyp"]).score
    assert f"{score:.6f}" == str(case["expected_official"]["corpus"])
    statistics = gleu_statistics(case["src"], case["refs"], case["hyp"])
    assert gleu_of(statistics).mean(axis=1) == pytest.approx(case["expected_official"]["sentence"], abs=2e-7)


def test_scores_of_sentences_are_what_the_original_prints() -> None:
    """compute_gleu -d, which counts a statistic of 0 as 1: the mean over a sentence's references."""
    texts = oracles.corrected()
    each = gleu_score(texts["source"], oracles.references("0123"), texts["mix"]).each
    assert each is not None
    printed = "0.513462 0.925422 0.838670 0.898981 0.774935 0.669570 0.832938 0.838871 0.489432 0.978275"
    assert [f"{score:.6f}" for score in each()[:10]] == printed.split()
    assert each().mean() == pytest.approx(0.7827403600000001, abs=1e-6)


def test_by_hand() -> None:
    # The source's "a d" and its longer n-grams are gone from the reference, and the hypothesis kept none.
    statistics = gleu_statistics(["a d c e f"], [["a b c e f"]], ["a b c e f g"])
    assert statistics[0, 0].tolist() == [6, 5, 5, 6, 4, 5, 3, 4, 2, 3]
    assert gleu_of(statistics[0, 0]) == pytest.approx((5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25)
    # Left as it was: "d" counts against the matches "a c e f", and the output is shorter than the reference.
    statistics = gleu_statistics(["a d c e f"], [["a b c e f g"]], ["a d c e f"])
    assert statistics[0, 0].tolist() == [5, 6, 3, 5, 0, 4, 0, 3, 0, 2]
    assert gleu_of(statistics[0, 0]) == 0
    assert gleu_of(np.array([5, 6, 5, 5, 4, 4, 3, 3, 2, 2])) == pytest.approx(math.exp(1 - 6 / 5))


def test_only_ascii_space_separates_tokens() -> None:
    statistics = gleu_statistics(["a\u00a0b c"], [["a\u00a0b c"]], ["a\u00a0b\tc"])
    assert statistics[0, 0, :2].tolist() == [2, 2]


def test_an_interval_does_not_depend_on_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = ["the cat sit on a mat", "a b c d e", "he go home now then"]
    references = [
        ["the cat sits on a mat", "a b c d e", "he went home then ."],
        [*sources[:2], "he goes home now then"],
    ]
    result = gleu_score(sources, references, sources, iterations=7)
    whole = confidence(result, samples=20)
    monkeypatch.setattr(gleu, "BLOCK", 1)
    small = gleu_score(sources, references, sources, iterations=7)
    assert small.score == pytest.approx(result.score, abs=1e-15)
    parts = confidence(small, samples=20)
    assert (parts.low, parts.high) == pytest.approx((whole.low, whole.high), abs=1e-12)
    assert result.resample(np.ones((1, 3)))[0] == pytest.approx(result.score, abs=1e-12)


def test_refuses_what_cannot_be_scored() -> None:
    with pytest.raises(LengthMismatchError, match="reference 2 has 2 sentences, but source has 1"):
        gleu_score(["a"], [["a"], ["a", "b"]], ["a"])
    with pytest.raises(InputFileError, match="GLEU needs a reference"):
        gleu_score(["a"], [], ["a"])
    with pytest.raises(InputFileError, match="source has no sentences"):
        gleu_score([], [[]], [])
