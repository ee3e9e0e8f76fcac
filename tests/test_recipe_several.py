"""recipes/several.py: its figures by hand, and sacrebleu's as it gives them to others."""

from __future__ import annotations

from pathlib import Path

import pytest
from sacrebleu import corpus_bleu
from support.recipe_scripts import imported

from nartk.metrics.rouge import Rouge
from nartk.metrics.sacre import Bleu

several = imported(".", "several.py")


@pytest.mark.parametrize(
    ("texts", "n", "share"),
    [
        (["a b a"], 1, 2 / 3),
        (["a b", "a c"], 1, 3 / 4),
        (["a b", "a c"], 2, 1),
        (["a b c", "a b"], 2, 2 / 3),
        (["", "a"], 2, 1),
    ],
)
def test_distinct_is_the_share_of_different_ngrams(texts: list[str], n: int, share: float) -> None:
    assert several.distinct(texts, n) == pytest.approx(share)


def test_three_words_in_a_row_twice_repeat() -> None:
    assert [several.repeats(text) for text in ("a b c a b c", "a a a a", "a b c b c a", "a b", "")] == [
        *(True, True, False, False, False)
    ]


def test_figures_of_outputs(tmp_path: Path) -> None:
    """The first outputs are not the best ones, which the oracle finds."""
    references = ["the cat sat on the mat .", "it rains today ."]
    (tmp_path / "ref").write_text("\n".join(references) + "\n")
    outputs = [["a dog ran", "the cat sat on a mat .", "a dog ran"], ["it rains today .", "no", "it"]]
    found = several.measured(outputs, several.against(Bleu(), [], [str(tmp_path / "ref")]))
    assert found["score"] == corpus_bleu([each[0] for each in outputs], [references]).score
    assert found["oracle"] == corpus_bleu([outputs[0][1], outputs[1][0]], [references]).score
    assert found["oracle"] > found["score"] + 20
    assert found["outputs"] == (2 + 3) / 2
    assert found["repeat"] == 0


def test_a_line_may_have_more_references_and_fewer_outputs(tmp_path: Path) -> None:
    """The best reference counts; a blank one is none."""
    (tmp_path / "0").write_text("a b c d\nx y\n")
    (tmp_path / "1").write_text("a b e f\n\n")
    outputs = [["a q r s", "a b e f"], ["x z"]]
    scored = several.against(Rouge(), [], [str(tmp_path / "0"), str(tmp_path / "1")])
    assert several.oracle(outputs, scored) == ["a b e f", "x z"]
    found = several.measured(outputs, scored)
    assert found["score"] == pytest.approx((1 / 4 + 1 / 2) / 2)
    assert found["oracle"] == pytest.approx((1 + 1 / 2) / 2)
