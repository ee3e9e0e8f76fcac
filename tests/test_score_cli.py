"""`nartk-score`: its numbers, its JSON, its errors and exit codes."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nartk.cli.score import main, scorer_of
from nartk.errors import UsageError
from nartk.version import __version__

SOURCE = "The cat sat at mat .\nThe dog .\nGiant otters is an apex predator .\n"
GOLD = """S The cat sat at mat .
A 3 4|||Prep|||on|||REQUIRED|||-NONE-|||0
A 4 4|||ArtOrDet|||the||a|||REQUIRED|||-NONE-|||0

S The dog .
A 1 2|||NN|||dogs|||REQUIRED|||-NONE-|||0
A -1 -1|||noop|||-NONE-|||-NONE-|||-NONE-|||1

S Giant otters is an apex predator .
A 2 3|||SVA|||are|||REQUIRED|||-NONE-|||0
A 3 4|||ArtOrDet|||-NONE-|||REQUIRED|||-NONE-|||0
A 5 6|||NN|||predators|||REQUIRED|||-NONE-|||0
A 1 2|||NN|||otter|||REQUIRED|||-NONE-|||1
"""
HYPOTHESIS = "A cat sat on the mat .\nThe dog .\nGiant otters are apex predator .\n"

Write = Callable[[str, str | bytes], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file and tells its name."""

    def write(name: str, content: str | bytes) -> str:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


@pytest.fixture
def score(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Runs a metric with --json and reads what it says."""

    def score(*arguments: str) -> dict[str, Any]:
        metric, *rest = arguments
        assert main([metric, *rest, "--json"]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        report: dict[str, Any] = json.loads(captured.out)
        return report

    return score


def _fails(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err.removesuffix("\n")


def test_m2_in_words(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    files = [write("hyp", HYPOTHESIS), "--gold", write("gold.m2", GOLD)]
    assert main(["m2", *files, "--bootstrap", "0"]) == 0
    assert capsys.readouterr().out == (
        "m2 0.8000\nprecision 0.8000\nrecall 0.8000\nbeta 0.5000\ncorrect 4\nproposed 5\ngold 5\n"
        "annotators 0 1 0\nsentences 3\n"
        f"signature metric:m2|beta:0.5|unchanged:2|case:kept|nartk:{__version__}\n"
    )
    assert main(["m2", *files, "--baseline", files[0]]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("m2 0.8000 (95% interval ")
    assert lines[1] == "baseline 0.8000 difference 0.0000 (95% interval 0.0000 to 0.0000) p 1.0000"


def test_m2_in_json(write: Write, score: Callable[..., dict[str, Any]]) -> None:
    gold = write("gold.m2", GOLD)
    report = score("m2", write("hyp", HYPOTHESIS), "--gold", gold, "--baseline", write("src", SOURCE))
    interval = report.pop("confidence")
    comparison = report.pop("comparison")
    assert report == {
        "metric": "m2",
        "score": pytest.approx(0.8),
        "sentences": 3,
        "precision": 0.8,
        "recall": 0.8,
        "beta": 0.5,
        "correct": 4,
        "proposed": 5,
        "gold": 5,
        "annotators": [0, 1, 0],
        "signature": f"metric:m2|beta:0.5|unchanged:2|case:kept|nartk:{__version__}",
    }
    assert interval["low"] <= 0.8 <= interval["high"]
    assert (interval["level"], interval["samples"], interval["seed"]) == (0.95, 1000, 12345)
    assert comparison["difference"] == pytest.approx(0.8 - comparison["baseline"])
    assert set(comparison) == {"baseline", "difference", "interval", "p_value"}


def test_the_other_metrics(write: Write, score: Callable[..., dict[str, Any]]) -> None:
    source, reference = write("src", SOURCE), write("ref", HYPOTHESIS)
    perfect = score("gleu", reference, "--source", source, "--ref", reference, reference)
    assert (perfect["score"], perfect["references"], perfect["std"]) == (pytest.approx(1.0), 2, 0.0)
    bleu = score("bleu", reference, "--ref", reference, "--tokenize", "none")
    assert bleu["score"] == pytest.approx(100.0)
    assert bleu["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:none|")
    chrf = score("chrf", reference, "--word-order", "2", "--ref", reference)
    assert (chrf["score"], chrf["word_order"]) == (pytest.approx(100.0), 2)


def test_errant_of_two_m2_files_needs_no_pipeline(
    write: Write, score: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "spacy", None)
    gold = write("gold.m2", "S a b\nA 0 1|||R:SPELL|||x|||REQUIRED|||-NONE-|||0\n\nS c\n")
    system = write(
        "hyp.m2", "S a b\nA 0 1|||R:NOUN|||x|||REQUIRED|||-NONE-|||0\n\nS c\nA 0 1|||R:X|||y|||||||||0\n"
    )
    report = score("errant", "--hyp-m2", system, "--gold", gold)
    assert (report["tp"], report["fp"], report["fn"]) == (1, 1, 0)
    assert report["score"] == pytest.approx(1.25 * 0.5 / (0.25 * 0.5 + 1))
    assert report["types"]["R:SPELL"]["tp"] == 1
    assert report["signature"] == f"metric:errant|beta:0.5|level:span-correction|nartk:{__version__}"


def test_errant_of_text(write: Write, score: Callable[..., dict[str, Any]]) -> None:
    pytest.importorskip("errant", reason="errant is not installed")
    from nartk.errors import MissingDependencyError
    from nartk.metrics.errant import find_pipeline

    try:
        find_pipeline()
    except MissingDependencyError as error:
        pytest.skip(f"{error.message}: {error.fix}")
    source, reference = write("src", "This are a tset .\n"), write("ref", "This is a test .\n")
    report = score("errant", "--source", source, "--ref", reference, "--", write("hyp", "This is a tset .\n"))
    assert (report["tp"], report["fp"], report["fn"]) == (1, 0, 1)
    assert report["types"]["R:SPELL"]["fn"] == 1
    assert "|errant:" in report["signature"]
    assert "|spacy:en_" in report["signature"]
    gold = write("gold.m2", "S This are a tset .\nA 1 2|||R:VERB:SVA|||is|||REQUIRED|||-NONE-|||0\n")
    assert score("errant", write("hyp", "This is a tset .\n"), "--gold", gold)["score"] == 1.0


def test_reads_stdin(
    write: Write, score: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(HYPOTHESIS.encode())))
    assert score("bleu", "-", "--ref", write("ref", HYPOTHESIS))["score"] == pytest.approx(100.0)


def test_a_byte_order_mark_is_no_text(write: Write, score: Callable[..., dict[str, Any]]) -> None:
    marked, plain = write("marked", "\ufeff" + HYPOTHESIS), write("plain", HYPOTHESIS)
    assert score("wer", marked, "--ref", plain)["score"] == 0
    assert score("wer", plain, "--ref", marked)["score"] == 0


def test_only_line_feeds_end_lines(write: Write, score: Callable[..., dict[str, Any]]) -> None:
    text = write("hyp", "a\u2028b c d\r\ne\u0085f g h\x0ci\n")
    assert score("bleu", text, "--ref", text)["sentences"] == 2


def test_gold_edits_outside_their_sentence_are_left_out_with_a_notice(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    gold = write("gold.m2", "S a b\nA 0 1|||X|||x|||R|||-|||0\nA 3 3|||X|||y|||R|||-|||0\n")
    assert main(["m2", write("hyp", "x b\n"), "--gold", gold, "--bootstrap", "0"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("m2 1.0000\n")
    assert captured.err == (
        f"nartk: left out gold edits outside their sentence: 1, first {gold}:3: "
        "the span 3 3 does not lie in the source of 2 tokens\n"
    )


def test_refuses_files_that_do_not_fit(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    gold, empty = write("gold.m2", GOLD), write("empty", "")
    system = write("hyp", "one\n")
    assert _fails(capsys, 4, "m2", system, "--gold", gold) == (
        f"nartk: error[E301 LengthMismatch] {system} has 1 sentence, but {gold} has 3. "
        "Fix: give files with the same sentences in the same order."
    )
    one, two = write("one", "a b\n"), write("two", "a b\nc d\n")
    assert f"] {two} has 2 sentences, but {one} has 1. Fix" in _fails(
        capsys, 4, "chrf", two, "--ref", two, "--baseline", one
    )
    other = write("other", "a b\n")
    assert f"] {two} has 2 sentences, but {one} has 1. Fix" in _fails(
        capsys, 4, "chrf", one, "--ref", two, "--baseline", other
    )
    assert f"] {two} has 2 sentences, but {other} has 1. Fix" in _fails(
        capsys, 4, "gleu", one, "--source", other, "--ref", two
    )
    assert _fails(capsys, 4, "m2", empty, "--gold", gold).startswith("nartk: error[E301 LengthMismatch]")
    for arguments in (["bleu", empty, "--ref", empty], ["m2", empty, "--gold", empty]):
        assert f"E201 InputFile] {empty} has no sentences" in _fails(capsys, 2, *arguments)
    assert f"E201 InputFile] {empty} has no sentences" in _fails(
        capsys, 2, "gleu", empty, "--source", empty, "--ref", empty
    )


def test_stdin_is_named_so(
    write: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(data: str, code: int, *arguments: str) -> str:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data.encode())))
        return _fails(capsys, code, *arguments).partition("] ")[2]

    two, gold = write("two", "a b\nc d\n"), write("gold.m2", GOLD)
    assert fails("a\n", 4, "bleu", "-", "--ref", two).startswith(f"{two} has 2 sentences, but stdin has 1.")
    assert fails("a\n", 4, "m2", "-", "--gold", gold).startswith(f"stdin has 1 sentence, but {gold} has 3.")
    assert fails("a\n", 3, "m2", two, "--gold", "-").startswith("stdin:1: a line starts with 'S '")
    assert fails("a\n", 3, "errant", two, "--gold", "-").startswith("stdin:1: a line starts with 'S '")
    assert fails("a\n", 3, "errant", "--hyp-m2", "-", "--gold", gold).startswith("stdin:1: a line starts")


def test_refuses_files_that_cannot_be_read(
    write: Write, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    absent = str(tmp_path / "absent")
    assert _fails(capsys, 2, "chrf", absent, "--ref", absent) == (
        f"nartk: error[E201 InputFile] {absent}: cannot read: No such file or directory. "
        "Fix: give a readable file."
    )
    broken = write("broken", b"fine\n\xff\n")
    assert f"{broken}:2: byte 0xff is not UTF-8" in _fails(capsys, 2, "bleu", broken, "--ref", broken)
    assert "E204 InputFormat]" in _fails(capsys, 3, "m2", broken, "--gold", write("gold.m2", "hello\n"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["comet"],
            "E102 UnknownStrategy] no metric 'comet'. Fix: choose from asr-bleu, bleu, cer, chrf, errant, "
            "gleu, m2, rouge, sari, ser, ter, wer.",
        ),
        ([], "the following arguments are required: METRIC"),
        (
            ["gleu", "--source", "s", "--ref", "r", "h"],
            "E101 Usage] HYP is missing. Fix: put HYP before --ref, --json and --per-line, or -- between",
        ),
        (
            ["bleu", "--ref", "r", "--per-line", "h"],
            "put HYP before --ref, --json and --per-line, or -- betw",
        ),
        (["m2", "h", "--gold", "g", "--tokenize", "13a"], "unrecognized arguments: --tokenize 13a"),
        (["m2", "h", "--gold", "g", "--beta", "0"], "--beta of 'm2' is 0.0. Fix: give a value above 0.0"),
        (
            ["m2", "h", "--gold", "g", "--bootstrap", "-1"],
            "--bootstrap: must be a whole number of at least 0",
        ),
        (["gleu", "h", "--source", "s", "--iterations", "0", "--ref", "r"], "--iterations of 'gleu' is 0"),
        (["bleu", "h", "--ref", "r", "--baseline", "b", "--bootstrap", "0"], "--baseline needs a bootstrap"),
        (["errant", "h"], "errant takes --gold, or --source and --ref"),
        (["errant", "h", "--gold", "g", "--source", "s"], "errant takes --gold, or --source and --ref"),
        (["errant", "h", "--source", "s"], "--source and --ref belong together"),
        (["errant", "h", "--gold", "g", "--blank", "empty"], "--blank without --ref"),
        (["chrf", "-", "--ref", "-"], "E101 Usage] HYP and --ref are both stdin. Fix: name a file in"),
        (["chrf", "h", "--ref", "-", "r", "--baseline", "-"], "--baseline and --ref are both stdin"),
        (["gleu", "h", "--source", "-", "--ref", "-"], "--source and --ref are both stdin"),
        (["errant", "--hyp-m2", "-", "--gold", "-"], "--hyp-m2 and --gold are both stdin"),
        (
            ["rouge", "h", "--ref", "r", "--json", "a", "--per-line", "./a"],
            "E101 Usage] two outputs go to 'a'. Fix: name two files.",
        ),
        (["errant", "h", "--hyp-m2", "m", "--gold", "g"], "HYP and --hyp-m2 both name the output"),
    ],
)
def test_refuses_wrong_usage(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert message in _fails(capsys, 2, *arguments)


def test_help_names_every_metric(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n    {name} " in shown for name in ("errant", "m2", "gleu", "bleu", "chrf"))
    assert main(["m2", "--help"]) == 0
    assert "nartk-score m2 HYP --gold GOLD.m2" in capsys.readouterr().out


def test_figures_go_where_they_are_wanted(write: Write, tmp_path: Path, capsys: Any) -> None:
    text, path = write("text", "the cat sat down .\n"), tmp_path / "score.json"
    command = ["bleu", text, "--ref", text]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert main([*command, "--json", str(path)]) == 0
    assert capsys.readouterr().out == printed
    for flags in (["--json"], ["--json", "-"]):
        assert main([*command, *flags]) == 0
        assert capsys.readouterr().out == path.read_text()
    assert json.loads(path.read_text())["score"] == pytest.approx(100)
    # What would be taken for the file is none: the output to score is missing.
    assert main(["bleu", "--json", text, "--ref", text]) == 2
    assert Path(text).read_text() == "the cat sat down .\n"


def test_scores_of_lines(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As TSV in place of the text, in a file beside it, or in the report; a line each, scored or not."""
    system, other = write("hyp", "a b\nx\nc d\n"), write("other", "a b\nx\ny\n")
    command = ["rouge", system, "--ref", write("ref", "a b\n\nc e\n"), "--quiet"]
    table = (
        "line\trouge1\trouge2\trougeL\trougeLsum\n1\t1.00000\t1.00000\t1.00000\t1.00000\n2\t\t\t\t\n"
        "3\t0.50000\t0.00000\t0.50000\t0.50000\n"
    )
    assert main([*command, "--per-line"]) == 0
    assert capsys.readouterr().out == table
    assert main(command) == 0
    text = capsys.readouterr().out
    assert main([*command, "--per-line", str(tmp_path / "scores.tsv")]) == 0
    assert capsys.readouterr().out == text
    assert (tmp_path / "scores.tsv").read_text() == table
    assert main([*command, "--per-line", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["lines"] == {
        "rouge1": [1, None, 0.5],
        "rouge2": [1, None, 0],
        "rougeL": [1, None, 0.5],
        "rougeLsum": [1, None, 0.5],
    }
    assert main([*command, "--per-line", "--baseline", other]) == 0
    head, *rows = [line.split("\t")[:3] for line in capsys.readouterr().out.splitlines()]
    assert head == ["line", "rouge1", "baseline rouge1"]
    assert rows == [["1", "1.00000", "1.00000"], ["2", "", ""], ["3", "0.50000", "0.00000"]]


def test_a_metric_that_others_score_with_takes_no_files_of_its_own(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of `nartk-bench --metric`, whose outputs are what is scored."""
    text = write("text", "a b c d\n")
    for metric, flag in (
        ("bleu nofile", "HYP"),
        ("bleu --baseline nofile", "--baseline"),
        ("bleu --json nofile", "--json"),
        ("bleu --per-line nofile", "--per-line"),
        ("bleu --bootstrap 10", "--bootstrap"),
        ("bleu --seed 1", "--seed"),
        (f"errant --hyp-m2 nofile --source {text}", "--hyp-m2"),
    ):
        with pytest.raises(UsageError, match=f"--metric is '{metric}', and {flag} is for nartk-score alone"):
            scorer_of(metric, references=[text], source=text)
    [result] = scorer_of("bleu --tokenize none", references=[text], source=text)(text)
    assert result.score == pytest.approx(100)


def test_quiet_holds_before_the_metric_too(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    system, reference = write("hyp", "a b c d\ne\n"), write("ref", "a b c d\n\n")
    for command in (["--quiet", "bleu"], ["bleu", "--quiet"]):
        assert main([*command, system, "--ref", reference]) == 0
        assert capsys.readouterr().err == ""
    assert main(["bleu", system, "--ref", reference]) == 0
    assert "1 of 2 lines have no reference" in capsys.readouterr().err


def test_a_metric_without_scores_of_lines_is_refused(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    """The MaxMatch scorer prints, of each sentence, the figures of all up to it."""
    files = [write("hyp", HYPOTHESIS), "--gold", write("gold.m2", GOLD)]
    assert _fails(capsys, 2, "m2", *files, "--per-line") == (
        "nartk: error[E101 Usage] m2 has no score of a single line. Fix: leave --per-line out."
    )
