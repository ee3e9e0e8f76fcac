"""A blank line of the references is no reference: scores are those of the references that there are."""

from __future__ import annotations

import json
import lzma
import random
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import oracles
from support.metrics import gleu_score, sari_score

from nartk.cli.score import main, scorer_of
from nartk.metrics.gleu import draw_references, gleu_of, gleu_statistics
from nartk.metrics.metric import BLANKS
from nartk.metrics.sari import sari_operations, sari_statistics
from nartk.registry import METRICS

pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")

# Those of references that need nothing but text; each scores with its defaults.
OF_TEXT = [
    name
    for name, metric in METRICS.all().items()
    if "ref" in metric.reads  # type: ignore[attr-defined]
    and {"gold", "hyp_m2"}.isdisjoint(metric.reads)  # type: ignore[attr-defined]
    and not metric.reads_sound  # type: ignore[attr-defined]
]
OF_ONE = ("wer", "cer", "ser")
SOURCES = ["the cat sit on a mat .", "a b c d e f", "he go home now then", "rain fall", "we was late ."]
OUTPUTS = ["the cat sits on a mat .", "a b d e f", "he goes home now then", "rain fall down", "we were late"]
FIRST = ["the cat sits on the mat .", "a b c d e f", "he went home then", "rain falls", "we were late ."]
SECOND = ["a cat sits on a mat .", "a c d e f", "he goes home now", "the rain falls", "we came late ."]
THIRD = ["the cats sit on a mat .", "a b d f", "then he goes home", "rain fell down", "we had been late ."]
Score = Callable[..., dict[str, Any]]


def halves(references: list[list[str]], kept: int) -> tuple[list[list[str]], list[list[str]]]:
    """Of each line so many references, of each line others: the rest blank, and without the rest."""
    chosen = [*combinations(range(len(references)), kept)]
    blanked = [[""] * len(references[0]) for _ in references]
    compact = [[""] * len(references[0]) for _ in range(kept)]
    for row in range(len(references[0])):
        for place, column in enumerate(chosen[row % len(chosen)]):
            blanked[column][row] = compact[place][row] = references[column][row]
    return blanked, compact


@pytest.fixture
def score(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Score:
    """Scores texts by the command; the report also has what stderr says."""

    def score(
        metric: str, outputs: list[str], references: list[list[str]], sources: list[str], *flags: str
    ) -> dict[str, Any]:
        texts = {"hyp": outputs, "src": sources} | {f"ref{i}": lines for i, lines in enumerate(references)}
        for name, lines in texts.items():
            (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        command = [metric, str(tmp_path / "hyp"), *flags, "--json"]
        if "source" in METRICS.find(metric).reads:  # type: ignore[attr-defined]
            command += ["--source", str(tmp_path / "src")]
        assert main([*command, "--ref", *(str(tmp_path / f"ref{i}") for i in range(len(references)))]) == 0
        captured = capsys.readouterr()
        return {**json.loads(captured.out), "stderr": captured.err}

    return score


def figures(report: dict[str, Any]) -> dict[str, Any]:
    return {name: report[name] for name in ("score", "sentences", "confidence")}


@pytest.mark.parametrize("metric", [name for name in OF_TEXT if name not in OF_ONE])
def test_a_blank_is_no_reference(metric: str, score: Score) -> None:
    """Of any metric of several references that is declared, with its interval."""
    blanked, compact = halves([FIRST, SECOND, THIRD], 2)
    found = score(metric, OUTPUTS, blanked, SOURCES)
    assert figures(found) == figures(score(metric, OUTPUTS, compact, SOURCES))
    assert found["stderr"] == ""


@pytest.mark.parametrize("metric", OF_TEXT)
def test_a_line_without_a_reference_is_not_scored(metric: str, score: Score) -> None:
    missing = ("--blank", "missing")
    kept = [0, 1, 3, 4]
    few = [[lines[row] for row in kept] for lines in (OUTPUTS, FIRST, SOURCES)]
    blanked = [*FIRST[:2], " ", *FIRST[3:]]
    found = score(metric, OUTPUTS, [blanked], SOURCES, *missing)
    assert figures(found) == figures(score(metric, few[0], [few[1]], few[2]))
    assert found["sentences"] == 4
    assert found["stderr"] == (
        "nartk: 1 of 5 lines have no reference and are not scored; --blank empty scores them against "
        "empty ones\n"
    )
    # What is blank by the original programs is a reference without words.
    assert score(metric, OUTPUTS, [blanked], SOURCES, "--blank", "empty")["sentences"] == 5


def test_of_speech_a_blank_says_that_nothing_was_said(score: Score) -> None:
    """Else words that a recogniser makes of silence would not count."""
    for metric in OF_ONE:
        found = score(metric, ["a", "b"], [["a", ""]], [])
        assert (found["insertions"], found["stderr"]) == (
            1,
            "nartk: 1 of 2 lines have an empty reference, against which they are scored; --blank missing "
            "leaves them out\n",
        )
        assert score(metric, ["a", "b"], [["a", ""]], [], "--blank", "empty")["stderr"] == ""
        found = score(metric, ["a", "b"], [["a", ""]], [], "--blank", "missing")
        assert (found["score"], found["sentences"]) == (0, 1)
        assert found["signature"].endswith("|blank:missing")


def test_the_readings_are_of_the_declaration(capsys: pytest.CaptureFixture[str]) -> None:
    assert BLANKS == ("missing", "empty")
    for metric in OF_TEXT:
        assert main([metric, "--help"]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert f"or an empty one (default: {'empty' if metric in OF_ONE else 'missing'})" in shown
    assert main(["m2", "--help"]) == 0
    assert "--blank" not in capsys.readouterr().out


@pytest.mark.parametrize("metric", ["sari", "gleu"])
def test_the_originals_reading_is_an_option(metric: str, score: Score) -> None:
    """Their authors' programs read a blank as a reference that deletes all."""
    blanked, _ = halves([FIRST, SECOND, THIRD], 2)
    function = {"sari": sari_score, "gleu": gleu_score}[metric]
    found = score(metric, OUTPUTS, blanked, SOURCES, "--blank", "empty")
    assert found["score"] == function(SOURCES, blanked, OUTPUTS).score  # type: ignore[operator]
    assert found["signature"].endswith("|blank:empty")
    assert found["score"] < score(metric, OUTPUTS, blanked, SOURCES)["score"]


def test_nothing_to_compare_with_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hyp").write_text("a\n")
    (tmp_path / "ref").write_text(" \n")
    assert main(["bleu", str(tmp_path / "hyp"), "--ref", str(tmp_path / "ref")]) == 2
    assert "E201 InputFile] no line has a reference. Fix: give references, or --blank empty" in (
        capsys.readouterr().err
    )


def test_gleu_is_what_the_original_prints_of_what_is_there() -> None:
    """compute_gleu of gec-ranking 50b5032 on the files without the missing references."""
    texts = oracles.corrected()
    blanked, _ = halves(oracles.references("0123"), 2)
    missing = [[line or None for line in lines] for lines in blanked]
    found = gleu_score(texts["source"], missing, texts["mix"])
    assert f"{found.score:.6f}" == "0.794500"
    assert "|refs:2|" in found.signature
    assert found.resample(np.ones((1, found.sentences)))[0] == pytest.approx(found.score, abs=1e-12)
    # Read as empty references they give another number.
    assert gleu_score(texts["source"], blanked, texts["mix"]).score < 0.6


def test_gleu_draws_of_as_many_as_there_are() -> None:
    """One to three references, by a twin that sums the statistics of single pairs."""
    rows = list(zip(FIRST, SECOND, THIRD, strict=True))
    missing = [
        [row[column] if column <= i % 3 else None for i, row in enumerate(rows)] for column in range(3)
    ]
    found = gleu_score(SOURCES, missing, OUTPUTS, iterations=40)
    assert "|refs:var|" in found.signature
    scores = []
    for iteration in range(40):
        draw = random.Random(101 * iteration).random
        total = np.zeros(10)
        for i, row in enumerate(rows):
            picked = row[int(draw() * (i % 3 + 1))]
            total += gleu_statistics([SOURCES[i]], [[picked]], [OUTPUTS[i]])[0, 0]
        scores.append(float(gleu_of(total)))
    assert found.score == pytest.approx(np.mean(scores), abs=1e-12)
    assert draw_references([1, 2, 3], 500).max(0).tolist() == [0, 1, 2]


def test_sari_counts_the_references_that_there_are() -> None:
    rows = list(zip(FIRST, SECOND, THIRD, strict=True))
    missing = [
        [row[column] if column <= i % 3 else None for i, row in enumerate(rows)] for column in range(3)
    ]
    found = sari_score(SOURCES, missing, OUTPUTS, tokenize="none")
    counts = sum(
        sari_statistics(source, row[: i % 3 + 1], output)
        for i, (source, row, output) in enumerate(zip(SOURCES, rows, OUTPUTS, strict=True))
    )
    assert found.score == pytest.approx(float(sari_operations(np.asarray(counts)).mean()), abs=1e-12)
    assert "|refs:var|" in found.signature


@pytest.mark.shared
def test_half_of_jflegs_references(shared_data: Path, score: Score) -> None:
    """compute_gleu of gec-ranking 50b5032 on two files of the references that are left."""

    def lines(name: str) -> list[str]:
        return (shared_data / name).read_text(encoding="utf-8").split("\n")[:-1]

    blanked, compact = halves([lines(f"gec/jfleg/dev.ref{number}") for number in range(4)], 2)
    outputs, source = lines("oracles/gleu_jfleg/dev.mix"), lines("gec/jfleg/dev.src")
    found = score("gleu", outputs, blanked, source)
    assert f"{found['score']:.6f}" == "0.450937"
    for metric in ("bleu", "chrf"):
        half = score(metric, outputs, blanked, source, "--bootstrap", "0", "--quiet")
        assert (
            half["score"] == score(metric, outputs, compact, source, "--bootstrap", "0", "--quiet")["score"]
        )


@pytest.mark.shared
def test_half_of_assets_references(shared_data: Path, score: Score) -> None:
    """EASSE 0.2.4's corpus_sari, of four of nine references; every second output is the tenth."""

    def lines(name: str) -> list[str]:
        file = shared_data / "summ" / "asset" / f"asset.valid.{name}.xz"
        with lzma.open(file, "rt", encoding="utf-8", newline="\n") as text:
            return text.read().split("\n")[:-1]

    source = lines("orig")
    references = [lines(f"simp.{number}") for number in range(10)]
    outputs = [text if i % 2 else source[i] for i, text in enumerate(references.pop())]
    whole = score("sari", outputs, references, source, "--bootstrap", "0")
    assert whole["score"] == pytest.approx(34.50749163660502, abs=1e-9)
    blanked, _ = halves(references, 4)
    found = score("sari", outputs, blanked, source, "--bootstrap", "0")
    assert found["score"] == pytest.approx(34.60364107242489, abs=1e-9)
    assert score("sari", outputs, blanked, source, "--bootstrap", "0", "--blank", "empty")["score"] < 30


def test_a_benchmark_scores_lines_that_have_a_reference(tmp_path: Path) -> None:
    (tmp_path / "ref").write_text("".join(f"{line}\n" for line in [*FIRST[:2], "", *FIRST[3:]]))
    (tmp_path / "hyp").write_text("".join(f"{line}\n" for line in OUTPUTS))
    told: list[str] = []
    scorer = scorer_of("chrf", references=[str(tmp_path / "ref")], source="", tell=told.append)
    (result,) = scorer(str(tmp_path / "hyp"))
    scorer(str(tmp_path / "hyp"))
    assert len(told) == 1
    assert result.lines == (0, 1, 3, 4)
    (tmp_path / "ref").write_text(FIRST[1] + "\n" + FIRST[3] + "\n")
    (tmp_path / "hyp").write_text(OUTPUTS[1] + "\n" + OUTPUTS[3] + "\n")
    (alone,) = scorer_of("chrf", references=[str(tmp_path / "ref")], source="")(str(tmp_path / "hyp"))
    part = result.of_lines([1, 2, 3])
    assert (part.score, part.sentences) == (pytest.approx(alone.score), 2)
    assert part.lines == (1, 3)
    assert part.of_lines([3, 4]).lines == (3,)
    weights = np.array([[2.0, 0.0], [1.0, 1.0]])
    assert part.resample(weights).tolist() == pytest.approx(alone.resample(weights).tolist())
