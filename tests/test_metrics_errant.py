"""ERRANT's counts equal those of its own `errant_compare`; its edits come from a spaCy pipeline."""

from __future__ import annotations

import dataclasses
import io
import json
import lzma
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import oracles
from support.pipelines import tagged_by_hand

from nartk.cli.score import main
from nartk.data.m2 import M2Edit, M2Sentence, apply_edits, read_m2, write_m2
from nartk.errors import (
    InputFileError,
    InputTooLongError,
    LengthMismatchError,
    MissingDependencyError,
    UsageError,
)
from nartk.metrics import errant
from nartk.metrics.errant import ErrantAnnotator, errant_score, find_pipeline

TYPES = ("R:SPELL", "M:DET", "U:PREP", "R:VERB:SVA", "UNK")


def _random_edits(generator: random.Random, annotators: int, length: int) -> list[M2Edit]:
    edits = []
    for annotator in range(annotators):
        found = {}
        for _ in range(generator.randrange(3)):
            start = generator.randrange(length)
            end = start + generator.randrange(2)
            found[start, end, generator.choice("xy")] = generator.choice(TYPES)
        for (start, end, correction), kind in sorted(found.items()):
            edits.append(M2Edit(start, end, kind, correction, annotator=annotator))
        if not found:
            edits.append(M2Edit(-1, -1, "noop", "", annotator=annotator))
    return edits


def _random_corpus(seed: int) -> tuple[list[M2Sentence], list[M2Sentence]]:
    """References of one to three annotators, and a system that is right about half the time."""
    generator = random.Random(seed)
    references, hypotheses = [], []
    for _ in range(200):
        source = [f"w{n}" for n in range(generator.randrange(2, 6))]
        edits = _random_edits(generator, generator.randrange(1, 4), len(source))
        references.append(M2Sentence(source, edits))
        kept = [
            dataclasses.replace(edit, annotator=0)
            for edit in edits
            if not edit.is_noop and generator.random() < 0.4
        ]
        others = [] if kept else _random_edits(generator, 1, len(source))
        hypotheses.append(M2Sentence(source, [*kept, *others]))
    return references, hypotheses


def _errant_compare(
    references: list[M2Sentence],
    hypotheses: list[M2Sentence],
    *options: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> list[list[str]]:
    """Runs the real program; the words of its lines."""
    compare = pytest.importorskip("errant.commands.compare_m2", reason="errant is not installed")
    files = {"-ref": tmp_path / "ref.m2", "-hyp": tmp_path / "hyp.m2"}
    files["-ref"].write_text("".join(write_m2(references)), encoding="utf-8")
    files["-hyp"].write_text("".join(write_m2(hypotheses)), encoding="utf-8")
    named = [word for flag, file in files.items() for word in (flag, str(file))]
    monkeypatch.setattr(sys, "argv", ["errant_compare", *named, *options])
    # It would leave both files to the garbage collector, which warns.
    monkeypatch.setattr(compare, "open", lambda path: io.StringIO(Path(path).read_text()), raising=False)
    capsys.readouterr()
    compare.main()
    return [line.split() for line in capsys.readouterr().out.splitlines()]


FLAGS = {
    "span-correction": "-cs",
    "span-correction-type": "-cse",
    "span-detection": "-ds",
    "token-detection": "-dt",
}


@pytest.mark.parametrize("level", FLAGS)
@pytest.mark.parametrize("beta", ["0.5", "2"])
@pytest.mark.parametrize("seed", range(20))
def test_equals_errant_compare(
    seed: int,
    beta: str,
    level: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    references, hypotheses = _random_corpus(seed)
    lines = _errant_compare(
        references,
        hypotheses,
        "-b",
        beta,
        "-cat",
        "3",
        FLAGS[level],
        "-v",
        tmp_path=tmp_path,
        monkeypatch=monkeypatch,
        capsys=capsys,
    )
    result = errant_score(references, hypotheses, beta=float(beta), level=level)
    assert f"|level:{level}|" in result.signature
    assert result.each is not None
    assert [round(score, 4) for score in result.each()] == _chosen(lines, beta)
    assert result.resample(np.ones((1, 200)))[0] == pytest.approx(result.score)
    lines = lines[next(i for i, line in enumerate(lines) if "Span-Based" in line or "Token-Based" in line) :]
    at = next(number for number, line in enumerate(lines) if line[:3] == ["TP", "FP", "FN"])
    assert _row({**result.parts, "f": result.score}) == lines[at + 1]
    names = {name for name in TYPES if name != "UNK" or level.endswith("detection")}
    by_type = {line[0]: line[1:] for line in lines if line and line[0] in names}
    assert {name: _row(row) for name, row in result.parts["types"].items()} == by_type


def _chosen(lines: list[list[str]], beta: str) -> list[float]:
    """The scores that errant_compare -v prints of the annotators that it chooses, sentence by sentence."""
    scores: dict[tuple[str, ...], float] = {}
    found = []
    for line in lines:
        if line[:1] == ["SENTENCE"]:
            pair = (line[4], line[7])
        elif line[:2] == ["Local", f"P/R/F{float(beta)}"]:
            scores[pair] = float(line[-1])
        elif line[:2] == ["^^", "HYP"]:
            found.append(scores[line[2].rstrip(","), line[4]])
            scores = {}
    return found


def _row(report: dict[str, float]) -> list[str]:
    scores = [str(round(report[name], 4)) for name in ("precision", "recall", "f")]
    return [str(report[name]) for name in ("tp", "fp", "fn")] + scores


def test_equals_errant_compare_on_ua_gec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    references = oracles.corrections()
    # Every third sentence as annotator 0 has it, the others unchanged.
    hypotheses = [M2Sentence(s.source, s.edits_of(0) if n % 3 == 0 else []) for n, s in enumerate(references)]
    printed = _errant_compare(
        references, hypotheses, tmp_path=tmp_path, monkeypatch=monkeypatch, capsys=capsys
    )
    result = errant_score(references, hypotheses)
    at = next(number for number, line in enumerate(printed) if line[:3] == ["TP", "FP", "FN"])
    assert _row({**result.parts, "f": result.score}) == printed[at + 1]


def test_groups_by_operation_and_category() -> None:
    reference = M2Sentence(["a", "b"], [M2Edit(0, 1, "R:VERB:SVA", "x"), M2Edit(2, 2, "M:VERB:SVA", "y")])
    result = errant_score([reference], [M2Sentence(["a", "b"], [M2Edit(0, 1, "R:OTHER", "x")])])
    assert {name: row["tp"] for name, row in result.parts["operations"].items()} == {"M": 0, "R": 1}
    assert result.parts["categories"] == {
        "VERB:SVA": {"tp": 1, "fp": 0, "fn": 1, "precision": 1.0, "recall": 0.5, "f": 1.25 * 0.5 / 0.75}
    }


def test_an_error_that_is_found_counts_where_it_is_detected() -> None:
    """Its span is right and its correction is not; an error that nobody corrected has a span too."""
    reference = M2Sentence(["a", "b", "c"], [M2Edit(0, 2, "R:X", "x"), M2Edit(2, 3, "UNK", "c")])
    system = M2Sentence(["a", "b", "c"], [M2Edit(0, 2, "R:Y", "y"), M2Edit(2, 3, "R:Y", "d")])
    counts = {}
    for level in FLAGS:
        parts = errant_score([reference], [system], level=level).parts
        counts[level] = (parts["tp"], parts["fp"], parts["fn"])
    assert counts == {
        "span-correction": (0, 2, 1),
        "span-correction-type": (0, 2, 1),
        "span-detection": (2, 0, 0),
        "token-detection": (3, 0, 0),
    }


def test_refuses_other_sources_and_lengths() -> None:
    with pytest.raises(UsageError, match="errant has no level 'detection'"):
        errant_score([M2Sentence(["a"])], [M2Sentence(["a"])], level="detection")
    with pytest.raises(InputFileError, match="the sources of sentence 1 differ: 'a' in gold, 'b' in"):
        errant_score([M2Sentence(["a"])], [M2Sentence(["b"])])
    with pytest.raises(LengthMismatchError, match="hypothesis has 0 sentences, but gold has 1"):
        errant_score([M2Sentence(["a"])], [])


def test_says_how_to_get_a_pipeline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NARTK_SPACY", raising=False)
    monkeypatch.setattr(errant, "OFFICIAL", "no_such_pipeline")
    monkeypatch.setattr(errant, "TRAINED", tmp_path / "absent")
    with pytest.raises(MissingDependencyError, match="ERRANT needs a spaCy pipeline") as caught:
        find_pipeline()
    assert caught.value.fix.startswith("run recipes/gec/train_spacy.sh")
    (tmp_path / "absent").mkdir()
    assert find_pipeline() == str(tmp_path / "absent")
    monkeypatch.setenv("NARTK_SPACY", "mine")
    assert find_pipeline() == "mine"
    assert find_pipeline("yours") == "yours"


def test_names_a_pipeline_whose_tags_errant_does_not_know(tmp_path: Path) -> None:
    spacy = pytest.importorskip("spacy")
    spacy.blank("en").to_disk(tmp_path / "blank")  # a pipeline without a tagger
    annotator = ErrantAnnotator(str(tmp_path / "blank"))
    with pytest.raises(MissingDependencyError, match="blank' gives the tag '', which ERRANT does not know"):
        annotator.annotate([["She", "go", "home"]], [["She", "went", "home"]])


def test_names_a_pipeline_that_does_not_load(tmp_path: Path) -> None:
    pytest.importorskip("errant", reason="errant is not installed")
    with pytest.raises(MissingDependencyError, match="spaCy cannot load the pipeline"):
        ErrantAnnotator(str(tmp_path / "absent"))


# Of the published examples' words: word, Penn tag, universal part of speech, lemma.
@pytest.fixture(scope="module")
def annotator(tmp_path_factory: pytest.TempPathFactory) -> ErrantAnnotator:
    return ErrantAnnotator(tagged_by_hand(tmp_path_factory.mktemp("pipeline")))


def test_the_example_of_errants_readme(annotator: ErrantAnnotator) -> None:
    case = oracles.expected("gec_metrics")["errant_readme"]
    [found] = annotator.annotate([case["orig"].split()], [case["cor"].split()], [case["orig"].split()])
    assert "".join(write_m2([found])).splitlines() == [*case["m2"], ""]


@pytest.mark.parametrize("which", [0, 1], ids=["beta 0.5", "beta 2"])
def test_published_scores(annotator: ErrantAnnotator, which: int) -> None:
    case = oracles.expected("gec_metrics")["errant"]
    expected = case["expected"][which]
    tokens = [[line.split() for line in text] for text in (case["src"], case["hyp"], *case["refs"])]
    references = annotator.annotate(tokens[0], *tokens[2:])
    hypotheses = annotator.annotate(tokens[0], tokens[1])
    for reference, hypothesis, score in zip(references, hypotheses, expected["sentence_F"], strict=True):
        one = errant_score([reference], [hypothesis], beta=expected["beta"])
        assert one.score == pytest.approx(score, abs=1e-12)
    score = errant_score(references, hypotheses, beta=expected["beta"]).score
    assert score == pytest.approx(expected["corpus_F"], abs=1e-12)


def test_a_missing_reference_is_no_annotator(
    annotator: ErrantAnnotator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where M2 has no such annotator; the original's reading is one who deletes all."""
    case = oracles.expected("gec_metrics")["errant"]
    first, second = case["refs"]
    texts = {"src": case["src"], "hyp": case["hyp"], "ref0": ["", *first[1:]], "ref1": [*second[:-1], ""]}
    for name, lines in texts.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = [str(tmp_path / name) for name in ("hyp", "src", "ref0", "ref1")]
    command = ["errant", files[0], "--source", files[1], "--ref", *files[2:], "--spacy", annotator._name]

    def score(*flags: str) -> float:
        assert main([*command, "--json", *flags]) == 0
        found: float = json.loads(capsys.readouterr().out)["score"]
        return found

    tokens = [[line.split() for line in lines] for lines in (case["src"], case["hyp"], first, second)]
    gold = annotator.annotate(tokens[0], *tokens[2:])
    gold[0] = M2Sentence(gold[0].source, [edit for edit in gold[0].edits if edit.annotator != 0])
    gold[-1] = M2Sentence(gold[-1].source, [edit for edit in gold[-1].edits if edit.annotator != 1])
    wanted = errant_score(gold, annotator.annotate(tokens[0], tokens[1])).score
    assert score() == pytest.approx(wanted, abs=1e-12)
    assert score("--blank", "empty") == pytest.approx(
        errant_score(
            annotator.annotate(
                tokens[0], *([line.split() for line in texts[name]] for name in ("ref0", "ref1"))
            ),
            annotator.annotate(tokens[0], tokens[1]),
        ).score,
        abs=1e-12,
    )


def test_m2_in_place_of_text_against_references(
    annotator: ErrantAnnotator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output's own edits count as those of its text would; lines without a reference are left out."""
    case = oracles.expected("gec_metrics")["errant"]
    blank = [case["refs"][0][0], "", case["refs"][0][2]]
    sides = {"src": case["src"], "hyp": case["hyp"], "ref": blank}
    tokens = {name: [line.split() for line in lines] for name, lines in sides.items()}
    for name in ("hyp", "src"):
        lines = write_m2(annotator.annotate(tokens["src"], tokens[name]))
        (tmp_path / f"{name}.m2").write_text("".join(lines), encoding="utf-8")
    for name, text in sides.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
    files = ["--source", str(tmp_path / "src"), "--ref", str(tmp_path / "ref"), "--spacy", annotator._name]

    def score(*output: str) -> dict[str, Any]:
        assert main(["errant", *output, *files, "--json", "--per-line"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    wanted = score(str(tmp_path / "hyp"), "--baseline", str(tmp_path / "src"))
    assert wanted["sentences"] == len(blank) - 1
    assert 0 < wanted["score"] < 1
    assert score("--hyp-m2", str(tmp_path / "hyp.m2"), "--baseline", str(tmp_path / "src.m2")) == wanted
    assert main(["errant", "--hyp-m2", str(tmp_path / "hyp"), *files]) == 3
    assert f"{tmp_path / 'hyp'}:1: a line starts with 'S '" in capsys.readouterr().err
    (tmp_path / "one.m2").write_text("S a\n", encoding="utf-8")
    assert main(["errant", "--hyp-m2", str(tmp_path / "one.m2"), *files]) == 4
    assert f"one.m2 has 1 sentence, but {tmp_path / 'src'} has {len(blank)}" in capsys.readouterr().err


def test_empty_sides_and_inner_spaces(annotator: ErrantAnnotator) -> None:
    sources, targets = [[], ["a"], ["a\u00a0b", "c"]], [["x"], [], ["a\u00a0b", "d"]]
    found = annotator.annotate(sources, targets)
    assert [(e.start, e.end, e.correction) for s in found for e in s.edits] == [
        (0, 0, "x"),
        (0, 1, ""),
        (1, 2, "d"),
    ]


def test_too_long_sentences_are_refused_by_number(annotator: ErrantAnnotator) -> None:
    with pytest.raises(InputTooLongError, match=r"sentence 2: 3000 source tokens .* 9000000 cells"):
        annotator.annotate([["a"], ["a"] * 3000], [["a"], ["b"] * 3000])


@pytest.mark.shared
def test_spans_agree_with_published_annotations(shared_data: Path) -> None:
    """With a trained pipeline, where one is installed."""
    pytest.importorskip("errant", reason="errant is not installed")
    try:
        annotator = ErrantAnnotator()
    except MissingDependencyError as error:
        pytest.skip(f"{error.message}: {error.fix}")
    file = shared_data / "gec" / "cweb" / "m2" / "CWEB-S.dev.ann0.m2.xz"
    with lzma.open(file, "rt", encoding="utf-8") as lines:
        gold = [sentence for sentence in read_m2(lines) if sentence.edits_of(0)][:150]
    found = annotator.annotate([s.source for s in gold], [apply_edits(s) for s in gold])
    parts = errant_score(gold, found, beta=1).parts
    assert parts["precision"] > 0.97
    assert parts["recall"] > 0.97
