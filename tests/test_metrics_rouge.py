"""ROUGE equals what ROUGE-1.5.5 printed, and hand computation where rouge-score chooses otherwise."""

from __future__ import annotations

import json
import math
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support import oracles
from support.metrics import rouge_score

from nartk.cli.score import main
from nartk.errors import InputFileError, LengthMismatchError, MissingDependencyError, UsageError
from nartk.metrics.bootstrap import compare, confidence
from nartk.metrics.rouge import F, characters, rouge_statistics, unicode_words
from nartk.version import __version__

pytest.importorskip("rouge_score", reason="rouge-score is not installed")
regex = pytest.importorskip("regex", reason="regex is not installed")

# ROUGE-1.5.5 reads one sentence a line, and its ROUGE-L is over all of them: the package's ROUGE-Lsum.
ORACLES = {"ROUGE-1": ("rouge1", 0, 1), "ROUGE-2": ("rouge2", 1, 2), "ROUGE-L": ("rougeLsum", 3, 1)}


def _words(text: str, n: int) -> int:
    """How many n-grams of words of ASCII letters and digits a text has."""
    runs = "".join(char if char.isascii() and char.isalnum() else " " for char in text.lower()).split()
    return max(len(runs) + 1 - n, 0)


def _pooled(table: np.ndarray, hypothesis: str, references: list[str], n: int) -> tuple[float, float]:
    """ROUGE-1.5.5 -f A: precision and recall of matches summed over the references, from scores [R, 3]."""
    proposed, wanted = _words(hypothesis, n), [_words(text, n) for text in references]
    matches = sum(round(precision * proposed) for precision in table[:, 0])
    return matches / (proposed * len(references) or 1), matches / (sum(wanted) or 1)


def _printed(precision: float, recall: float) -> list[float]:
    """Recall, precision and F as ROUGE-1.5.5 prints them: F is made of the other two as they are printed."""
    p, r = float(f"{precision:.5f}"), float(f"{recall:.5f}")
    return [r, p, float(f"{2 * p * r / (p + r) if p + r else 0:.5f}")]


@pytest.mark.parametrize(("corpus", "mode"), [("wikisplit", "A"), ("scitldr", "A"), ("scitldr", "B")])
def test_equals_rouge_155_in_every_digit_it_prints(corpus: str, mode: str) -> None:
    items = oracles.summaries(corpus)
    tables = [rouge_statistics([[text] for text in references], [hyp])[0] for hyp, references in items]
    for oracle, (_, column, n) in ORACLES.items():
        expected, mine = oracles.expected("rouge155")[f"{corpus} {mode} {oracle}"], []
        for (hypothesis, references), table in zip(items, tables, strict=True):
            scores = table[:, column]
            if mode == "A":
                mine.append(_printed(*_pooled(scores, hypothesis, references, n)))
            else:  # -f B: the reference with the highest recall
                mine.append(_printed(*scores[scores[:, 1].argmax(), :2]))
        assert mine == expected["items"]
        # Its averages are those of 1,000 resamples, drawn without a seed: their error is that of a mean of N
        # of which 1,000 were drawn, here at most five times its deviation.
        noise = 5 * np.std(mine, axis=0) / math.sqrt(1000 * len(mine)) + 5e-6
        assert (np.abs(np.mean(mine, axis=0) - expected["average"]) <= noise).all()


def test_of_one_reference_the_score_is_rouge_155s() -> None:
    items = oracles.summaries("wikisplit")
    results = rouge_score([[references[0] for _, references in items]], [text for text, _ in items])
    by_name = {result.metric: result.score for result in results}
    for oracle, (name, *_) in ORACLES.items():
        printed = oracles.expected("rouge155")[f"wikisplit A {oracle}"]["items"]
        each = next(result.each for result in results if result.metric == name)
        assert each is not None
        assert each() == pytest.approx([f for _, _, f in printed], abs=1e-5)
        assert by_name[name] == pytest.approx(np.mean([f for _, _, f in printed]), abs=1e-5)  # it rounds each


def test_examples_of_the_paper() -> None:
    # Lin 2004, section 3.1: reference "police killed the gunman".
    reference = "police killed the gunman"
    one, two, longest, _ = rouge_score([[reference]], ["police kill the gunman"])
    assert (one.score, two.score, longest.score) == (0.75, pytest.approx(1 / 3), 0.75)
    assert [result.score for result in rouge_score([[reference]], ["the gunman kill police"])][2] == 0.5
    # Section 3.2: the union of both sentences' subsequences is w1 w2 w3 w5; as one text they have w1 w3 w5.
    *_, longest, union = rouge_score(
        [["w1 w2 w3 w4 w5"]], ["w1 w3 w8 w9 w5<n>w1 w2 w6 w7 w8"], separator="<n>"
    )
    assert union.parts["recall"] == pytest.approx(4 / 5)
    assert union.parts["precision"] == pytest.approx(4 / 10)
    assert longest.parts["recall"] == pytest.approx(3 / 5)


def test_stemming_joins_forms_of_a_word() -> None:
    texts = [["police killed the gunmen"]], ["police kills the gunman"]
    assert rouge_score(*texts)[0].score == 0.5
    assert rouge_score(*texts, stem=True)[0].score == 0.75


def test_each_type_takes_its_best_reference_by_f() -> None:
    references = [["a b c d"], ["x y a"], [""]]
    one, two, _, _ = rouge_score(references, ["x y a b"])
    assert one.score == pytest.approx(2 * (3 / 4) * 1 / (3 / 4 + 1))  # of the second
    assert two.score == pytest.approx(2 * (2 / 3) * 1 / (2 / 3 + 1))
    # By recall, as ROUGE-1.5.5 -f B has it, a single word that is there would win.
    by_recall = [["a b c x"], ["a"]]
    assert rouge_score(by_recall, ["a b c d"])[0].score == 0.75
    table = rouge_statistics(by_recall, ["a b c d"])[0, :, 0]
    assert table[table[:, 1].argmax(), F] == pytest.approx(0.4)


def test_an_empty_line_among_the_references_is_none() -> None:
    full = rouge_score([["a b", "c d"], ["a x", "c d"]], ["a x", "c"])
    padded = rouge_score([["a b", "c d"], ["a x", ""]], ["a x", "c"])
    assert [result.score for result in padded] == [result.score for result in full]


def _renamed(texts: list[list[str]], name: Callable[[str], list[str]]) -> list[list[str]]:
    """Texts of which each word has a name of ASCII letters, so that the original's tokeniser keeps it."""
    ids: dict[str, str] = {}
    return [
        [" ".join(ids.setdefault(word, f"w{len(ids)}") for word in name(text)) for text in lines]
        for lines in texts
    ]


def _marked_letters(text: str) -> list[str]:
    return regex.findall(r"[\p{L}\p{N}]\p{M}*", unicodedata.normalize("NFC", text.lower()))


def _marked_words(text: str) -> list[str]:
    return regex.findall(r"[\p{L}\p{M}\p{N}]+", unicodedata.normalize("NFC", text.lower()))


# Chinese, Japanese, Hindi, Arabic and Vietnamese, composed and not.
OTHERS = [
    ("他昨天买了3本书，很高兴。", "他今天买了三本新书。"),
    ("猫がマットの上に座っている。", "猫はマットに座った！"),
    ("मैं कल दिल्ली गया था।", "मैं आज दिल्ली जा रहा था।"),
    ("ذهبت إلى المدرسة أمس.", "ذهب الولد إلى المدرسة"),
    ("Hôm qua tôi đã đến trường", unicodedata.normalize("NFD", "Hôm nay tôi đến trường")),
]


@pytest.mark.parametrize(("tokenize", "name"), [("unicode", _marked_words), ("char", _marked_letters)])
def test_other_scripts_score_as_the_same_words_in_ascii(
    tokenize: str, name: Callable[[str], list[str]]
) -> None:
    """ROUGE sees but which words are equal: named anew they are scored by the original's tokeniser."""
    texts = oracles.corrected()
    references = [texts["ann0"] + [one for one, _ in OTHERS], texts["ann1"] + [one for one, _ in OTHERS]]
    outputs = texts["mix"] + [two for _, two in OTHERS]
    *ascii_references, ascii_outputs = _renamed([*references, outputs], name)
    wanted = rouge_statistics(ascii_references, ascii_outputs)
    assert rouge_statistics(references, outputs, tokenize=tokenize) == pytest.approx(wanted, abs=1e-12)
    for found, by_ascii in zip(
        rouge_score(references, outputs, tokenize=tokenize),
        rouge_score(ascii_references, ascii_outputs),
        strict=True,
    ):
        assert found.score == pytest.approx(by_ascii.score, abs=1e-12)
        assert f"|tok:{tokenize}|" in found.signature
    for one, _ in OTHERS:
        assert rouge_score([[one]], [one], tokenize=tokenize)[0].score == 1


def test_words_of_other_scripts_by_hand() -> None:
    assert unicode_words("Él niño_1 don't मैं, 3½") == ["él", "niño", "1", "don", "t", "मैं", "3½"]
    assert characters("मैं 他!") == ["मैं", "他"]
    # No mark is the first of a word's: what it stands on is gone.
    assert characters("\u0301a") == ["\u0301", "a"]


def test_the_user_is_told_what_does_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(text: str, *flags: str) -> str:
        (tmp_path / "text").write_text(text + "\n", encoding="utf-8")
        assert main(["rouge", str(tmp_path / "text"), "--ref", str(tmp_path / "text"), *flags]) == 0
        return capsys.readouterr().err

    # 31 of 38 letters.
    assert told("Señor Núñez bebió café en el jardín con su niña") == (
        "nartk: rouge counts a to z and 0 to 9, which are 81.6% of the references' letters and digits, "
        "and parts words at the others: use --tokenize unicode\n"
    )
    assert told("the cat sat on the mat") == ""
    assert told("Señor Núñez", "--tokenize", "unicode") == ""
    assert told("他昨天买了三本书，很高兴。", "--tokenize", "unicode") == (
        "nartk: rouge with --tokenize unicode counts words between spaces, which do not part those of "
        "Chinese: use --tokenize char\n"
    )
    assert told("他昨天买了三本书，很高兴。", "--tokenize", "char") == ""


def test_resampling_every_text_once_gives_the_score() -> None:
    references = [["the cat sat on the mat", "a dog barked", "rain"]]
    hypotheses = ["the cat sat on a mat", "the dog barked", "snow"]
    for result in rouge_score(references, hypotheses):
        assert result.resample(np.ones((1, 3)))[0] == pytest.approx(result.score, abs=1e-12)
        twice = rouge_score([[*references[0], references[0][0]]], [*hypotheses, hypotheses[0]])
        weighted = result.resample(np.array([[2.0, 1.0, 1.0]]))[0]
        assert weighted == pytest.approx({other.metric: other.score for other in twice}[result.metric])
    assert confidence(result, samples=100).low <= result.score <= confidence(result, samples=100).high
    worse = rouge_score(references, ["snow"] * 3)[0]
    best = rouge_score(references, references[0])[0]
    assert compare(best, worse, samples=100).difference == 1.0


def test_refuses_what_cannot_be_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LengthMismatchError, match="reference 1 has 2 sentences, but hypothesis has 1"):
        rouge_score([["a", "b"]], ["a"])
    with pytest.raises(InputFileError, match="rouge needs a reference"):
        rouge_score([], ["a"])
    # Without the refusal each Japanese line would score 0.
    assert rouge_statistics([["猫がいる"]], ["猫がいる"]).max() == 0
    with pytest.raises(InputFileError, match=r"rouge counts a to z and 0 to 9, which are 0\.0% of the ref"):
        rouge_score([["猫がいる"]], ["猫がいる"])
    # With a number in common they would score 1.
    assert rouge_statistics([["他买了3本书。"]], ["她卖掉3只猫!"])[0, 0, 0, F] == 1
    with pytest.raises(InputFileError, match=r"which are 16\.7% of the references' letters") as caught:
        rouge_score([["他买了3本书。"]], ["她卖掉3只猫!"])
    assert caught.value.fix == "use tokenize='unicode', or, where no spaces part words, tokenize='char'"
    with pytest.raises(InputFileError, match="no reference holds a letter or a digit"):
        rouge_score([["..."]], ["a"])
    with pytest.raises(InputFileError, match="sentence 2: rouge needs a reference"):
        rouge_score([["a", None]], ["a", "b"])
    with pytest.raises(UsageError, match="rouge has no tokeniser 'jieba'"):
        rouge_statistics([["a"]], ["a"], tokenize="jieba")
    with pytest.raises(UsageError, match="tokenize of 'rouge' is 'jieba'"):
        rouge_score([["a"]], ["a"], tokenize="jieba")
    with pytest.raises(UsageError, match="stem=True with tokenize='char', but Porter's stemmer is for Engl"):
        rouge_score([["a"]], ["a"], tokenize="char", stem=True)
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(MissingDependencyError, match="rouge needs the package rouge-score"):
        rouge_score([["a"]], ["a"])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference, system, other = (tmp_path / name for name in ("ref", "hyp", "other"))
    reference.write_text("police killed the gunman\n", encoding="utf-8")
    system.write_text("police kill the gunman\n", encoding="utf-8")
    other.write_text("the gunman kill police\n", encoding="utf-8")
    from importlib.metadata import version

    assert main(["rouge", str(system), "--ref", str(reference), "--bootstrap", "0"]) == 0
    signature = (
        f"metric:rouge|refs:1|stem:0|sep:none|rouge-score:{version('rouge-score')}|nartk:{__version__}"
    )
    assert capsys.readouterr().out == (
        "rouge1 0.75000\nprecision 0.75000\nrecall 0.75000\nreferences 1\n"
        "rouge2 0.33333\nprecision 0.33333\nrecall 0.33333\nreferences 1\n"
        "rougeL 0.75000\nprecision 0.75000\nrecall 0.75000\nreferences 1\n"
        "rougeLsum 0.75000\nprecision 0.75000\nrecall 0.75000\nreferences 1\n"
        f"sentences 1\nsignature {signature}\n"
    )
    assert main(["rouge", str(system), "--ref", str(reference), "--baseline", str(other), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    others = {part["metric"]: part for part in report["others"]}
    assert report["metric"] == "rouge1"
    assert list(others) == ["rouge2", "rougeL", "rougeLsum"]
    assert others["rougeL"]["comparison"]["difference"] == 0.25
    assert others["rougeL"]["confidence"]["low"] == 0.75
    assert others["rouge2"]["signature"] == signature
