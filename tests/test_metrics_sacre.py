"""BLEU, chrF and TER equal what sacrebleu prints; the paired bootstrap agrees with its other test."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import oracles
from support.metrics import bleu_score, chrf_score, ter_score

from nartk.cli.score import main
from nartk.errors import LengthMismatchError, MissingDependencyError, UsageError
from nartk.metrics.bootstrap import compare
from nartk.metrics.result import MetricResult

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


# sacrebleu 2.6.0: `sacrebleu ref -i HYP -m ter -b -w 10` of the first 200 lines, with --ter-OPTION.
TER = {
    "copied": 18.7021414666,
    "copied normalized": 18.7943720150,
    "copied no_punct": 17.2228670923,
    "copied keep_case": 19.8312783907,
    "mixed20.1.2": 20.0129785853,
    "mixed20.1.2 normalized": 20.0851942687,
    "mixed20.1.2 no_punct": 16.4393499710,
    "mixed20.1.2 keep_case": 21.0772225827,
}


@pytest.mark.parametrize("case", TER)
def test_ter_is_what_sacrebleu_prints(case: str) -> None:
    texts = {name: lines[:200] for name, lines in oracles.translations().items()}
    system, *options = case.split()
    settings = {"lowercase": False} if options == ["keep_case"] else dict.fromkeys(options, True)
    result = ter_score([texts["ref"]], texts[system], **settings)
    assert result.score == pytest.approx(TER[case], abs=1e-9)
    assert result.resample(np.ones((1, 200)))[0] == pytest.approx(result.score, abs=1e-12)
    weights = np.zeros((1, 200))
    weights[0, :50] = 1
    part = ter_score([texts["ref"][:50]], texts[system][:50], **settings)
    assert result.resample(weights)[0] == pytest.approx(part.score)


def test_the_papers_example_of_ter() -> None:
    """Snover et al. 2006, section 3: a shift, two substitutions and an insertion, of 13 words."""
    reference = "SAUDI ARABIA denied THIS WEEK information published in the AMERICAN new york times"
    output = "THIS WEEK THE SAUDIS denied information published in the new york times"
    result = ter_score([[reference]], [output])
    assert (result.score, result.parts["edits"]) == (pytest.approx(100 * 4 / 13), 4)
    # Of two references the nearest counts, by their mean length.
    assert ter_score([[reference], [output]], [output]).score == 0
    assert ter_score([[reference], ["a"]], [output]).score == pytest.approx(100 * 4 / 7)


# `sacrebleu ref -i copied -m METRIC --sentence-level -w 6`, of the first three lines.
SENTENCES = {
    "bleu": [73.634847, 86.457073, 90.999513],
    "chrf": [88.842314, 96.213109, 97.318828],
    "ter": [11.764706, 3.571429, 2.439024],
}


@pytest.mark.parametrize("metric", SENTENCES)
def test_scores_of_lines_are_what_sacrebleu_prints(
    metric: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = oracles.translations()
    for name in ("ref", "copied"):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in texts[name][:3]), encoding="utf-8")
    files = [str(tmp_path / "copied"), "--ref", str(tmp_path / "ref")]
    assert main([metric, *files, "--per-line"]) == 0
    rows = [f"{number}\t{score:.2f}" for number, score in enumerate(SENTENCES[metric], start=1)]
    assert capsys.readouterr().out.splitlines() == [f"line\t{metric}", *rows]


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
    with pytest.raises(UsageError, match="asian=True changes what normalized=True or no_punct=True does"):
        ter_score([["a"]], ["a"], asian=True)


def _told(tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[str], *command: str) -> list[str]:
    """The lines of stderr where texts are scored against themselves, beside a baseline."""
    path = str(tmp_path / "text")
    Path(path).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    metric, *flags = command
    files = ["--ref", path, "--baseline", path, "--bootstrap", "2"]
    if metric in ("sari", "gleu"):
        files += ["--source", path]
    assert main([metric, path, *files, *flags]) == 0
    return capsys.readouterr().err.splitlines()


def test_what_sacrebleu_warns_of_reaches_the_user_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    tokenised = ["the cat sat on the mat ."] * 100
    assert _told(tmp_path, capsys, tokenised, "bleu") == [
        "nartk: sacrebleu: That's 100 lines that end in a tokenized period ('.'). It looks like you forgot "
        "to detokenize your test data, which may hurt your score. Detokenize it, or use --tokenize none"
    ]
    assert _told(tmp_path, capsys, tokenised[1:], "bleu") == []
    assert _told(tmp_path, capsys, tokenised, "bleu", "--tokenize", "none") == []
    assert _told(tmp_path, capsys, tokenised, "bleu", "--quiet") == []
    assert caplog.records == []
    logging.getLogger("sacrebleu").warning("still heard")
    assert [record.getMessage() for record in caplog.records] == ["still heard"]


CHINESE = ["他昨天买了三本书，很高兴。", "我们明天去北京。", "天气很好。"]
JAPANESE = ["".join(row[1].split()) for row in oracles.rows("tanaka_enja.dev.tsv.xz")[:50]]


@pytest.mark.parametrize(
    ("lines", "command", "fix"),
    [
        (CHINESE, ["bleu"], "Chinese: use --tokenize zh"),
        (CHINESE, ["bleu", "--tokenize", "intl"], "Chinese: use --tokenize zh"),
        (CHINESE, ["bleu", "--tokenize", "zh"], None),
        (CHINESE, ["bleu", "--tokenize", "char"], None),
        ([" ".join(line) for line in CHINESE], ["bleu"], None),
        (CHINESE, ["chrf"], None),
        (CHINESE, ["sari"], "Chinese: use --tokenize zh"),
        (CHINESE, ["gleu"], "Chinese: put spaces between words or characters"),
        (CHINESE, ["ter"], "Chinese: use --normalized --asian"),
        (CHINESE, ["ter", "--normalized", "--asian"], None),
        (JAPANESE, ["bleu"], "Japanese: use --tokenize ja-mecab, or --tokenize char"),
        ([row[1] for row in oracles.rows("tanaka_enja.dev.tsv.xz")[:50]], ["bleu"], None),
        (["สวัสดีครับผมชื่อสมชาย", "วันนี้อากาศดีมาก"], ["bleu"], "Thai: use --tokenize char"),
        (["ذهبت إلى المدرسة أمس.", "كيف حالك اليوم؟"], ["bleu"], None),
        (["저는 어제 학교에 갔습니다.", "오늘 날씨가 좋네요."], ["bleu"], None),
        (["the cat sat on the mat", "他"], ["bleu"], None),
    ],
)
def test_text_without_spaces_is_named_with_a_tokeniser(
    lines: list[str], command: list[str], fix: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = _told(tmp_path, capsys, lines, *command)
    if fix is None:
        assert told == []
    else:
        (line,) = told
        assert line.startswith(f"nartk: {command[0]}")
        assert line.endswith(f" counts words between spaces, which do not part those of {fix}")
