"""Transcripts of Kaldi are matched by the ids that their lines begin with, in whatever order these are."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from support import oracles

from nartk.cli.score import main
from nartk.errors import InputFileError, LengthMismatchError
from nartk.metrics.utterances import begin_with_ids, in_order, split_ids

pytest.importorskip("jiwer", reason="jiwer is not installed")

UTTERANCES = oracles.expected("sclite")
IDS = [f"{each['id']}-a1" for each in UTTERANCES]
REFERENCES = [each["ref"].lower() for each in UTTERANCES]
OUTPUTS = [each["hyp"].lower() for each in UTTERANCES]
SUBSTITUTIONS = sum(each["counts"][1] for each in UTTERANCES)


def run(tmp_path: Path, references: list[str], outputs: list[str], *flags: str, metric: str = "wer") -> int:
    for name, lines in (("ref", references), ("hyp", outputs)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = [metric, str(tmp_path / "hyp"), "--ref", str(tmp_path / "ref"), "--bootstrap", "0", *flags]
    return main([*command, "--json"])


def test_lines_are_matched_by_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The counts are sclite's, whatever the order; before, ids and other utterances were errors."""
    order = random.Random(1).sample(range(len(IDS)), len(IDS))
    references = [f"{key} {text}" for key, text in zip(IDS, REFERENCES, strict=True)]
    outputs = [f"{IDS[i]}\t{OUTPUTS[i]}" for i in order]
    plain: dict[str, Any] = {}
    for lines in ((REFERENCES, OUTPUTS), (references, outputs)):
        assert run(tmp_path, *lines, "--per-line") == 0
        captured = capsys.readouterr()
        report = json.loads(captured.out)
        assert report["substitutions"] == SUBSTITUTIONS
        assert report["lines"].pop("id", None) == (IDS if lines[0] is references else None)
        plain = plain or report
        assert report == plain
    assert captured.err == (
        f"nartk: lines are matched by the utterance ids that they begin with, such as {IDS[0]!r}; --ids no "
        "takes these for words\n"
    )
    assert run(tmp_path, references, outputs, "--ids", "no") == 0
    assert json.loads(capsys.readouterr().out)["score"] > 50
    # Ids that look like words are matched where the user says so, without a notice.
    named = [f"u {REFERENCES[0]}", "v"], ["v spoken", f"u {OUTPUTS[0]}"]
    assert run(tmp_path, *named, "--ids", "yes") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["insertions"] == 1 + UTTERANCES[0]["counts"][3]
    assert "utterance ids" not in captured.err
    assert run(tmp_path, *named, "--ids", "yes", "--blank", "missing", metric="cer") == 0
    assert json.loads(capsys.readouterr().out)["sentences"] == 1


def test_scores_of_lines_carry_the_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines are matched by id, so that the number of a row is no line of the output."""
    (tmp_path / "ref").write_text("utt-1 a b\nutt-2 c d\nutt-3\n")
    (tmp_path / "hyp").write_text("utt-3 e\nutt-2 c d\nutt-1 a x\n")
    command = ["wer", str(tmp_path / "hyp"), "--ref", str(tmp_path / "ref"), "--per-line"]
    assert main([*command, "--blank", "missing", "--quiet"]) == 0
    assert capsys.readouterr().out == "id\twer\nutt-1\t50.00\nutt-2\t0.00\nutt-3\t\n"
    assert main([*command, "--json", "--blank", "missing", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["lines"] == {
        "id": ["utt-1", "utt-2", "utt-3"],
        "wer": [50, 0, None],
    }
    assert main([*command, "--ids", "no"]) == 0
    assert [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()] == ["line", "1", "2", "3"]


def test_a_single_line_has_an_id_where_both_sides_have_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def rate(reference: str, output: str, *flags: str) -> float:
        assert run(tmp_path, [reference], [output], *flags) == 0
        found: float = json.loads(capsys.readouterr().out)["score"]
        return found

    assert rate("utt-001 a b c", "utt-001 a b x") == pytest.approx(100 / 3)
    assert rate("utt-001 a b c", "utt-001 a b x", "--ids", "no") == 25
    assert rate("utt-001 a b c", "a b c") == 25  # of a single line nobody can tell
    assert rate("three a b c", "three a b x") == 25
    # A baseline that has no id is compared with other words than the output: no pair.
    (tmp_path / "base").write_text("a b c\n")
    files = [str(tmp_path / name) for name in ("hyp", "ref", "base")]
    run(tmp_path, ["utt-001 a b c"], ["utt-001 a b x"])
    capsys.readouterr()
    assert main(["wer", files[0], "--ref", files[1], "--baseline", files[2], "--quiet"]) == 4
    assert "the utterance id 'utt-001'" in capsys.readouterr().err


def test_ids_that_do_not_fit_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(references: list[str], outputs: list[str], *flags: str, code: int) -> str:
        assert run(tmp_path, references, outputs, *flags) == code
        captured = capsys.readouterr()
        assert captured.out == ""
        return captured.err.splitlines()[-1]

    reference, output = str(tmp_path / "ref"), str(tmp_path / "hyp")
    references = ["utt_1 a b", "utt_2 c", "utt_3 d"]
    assert refused(references, ["a b", "c", "d"], code=4) == (
        f"nartk: error[E301 LengthMismatch] {reference} begins its lines with utterance ids, such as "
        f"'utt_1', and {output} does not. Fix: give both with ids or both without, or --ids no if these are "
        "words."
    )
    assert f"{reference} begins its lines" in refused(references, ["a b", "a b", ""], code=4)
    assert f"{output} lacks 1 of 3 utterance ids, first 'utt_2'. Fix: give the same utterances, or" in (
        refused(references, [references[2], references[0]], code=4)
    )
    assert f"{reference} lacks 1 of 4 utterance ids, first 'utt_9'" in refused(
        references, [*references, "utt_9 e"], code=4
    )
    assert f"{output} begins its lines with utterance ids, such as 'utt_1', and {reference} does not" in (
        refused(["a b", "c", "d"], references, code=4)
    )
    assert f"{output}:3: the utterance id 'utt_1' is an earlier line's" in refused(
        references, ["utt_1 a", "utt_2 b", "utt_1 c"], code=2
    )
    assert f"{reference}:2: the line has no utterance id" in refused(
        ["u a", ""], ["u a", "v"], "--ids", "yes", code=2
    )


@pytest.mark.parametrize(
    ("lines", "are"),
    [
        (["BAC009S0764W0121 甚至 出现", "BAC009S0764W0122 一"], True),
        (["1089-134686-0000 HE", "1089-134686-0001"], True),
        (["fash-an251-b YES", "fash-an253-b GO"], True),
        (["common_voice_en_1.mp3 a", "common_voice_en_2.mp3 b"], True),
        (["fash-an251-b YES"], False),  # of a single line nobody can tell
        (["fash-an251-b YES", "fash-an251-b GO"], False),
        (["fash-an251-b YES", ""], False),
        (["one two", "two one"], False),
        (["1998 was dry", "2001 was wet", "3 4 5"], False),
        (["3rd place", "2nd place"], False),
        (["他 说", "我 说"], False),
        ([], False),
    ],
)
def test_ids_are_told_from_words(lines: list[str], are: bool) -> None:
    assert begin_with_ids(lines) is are


def test_in_python() -> None:
    assert split_ids(["u1 a b", "u2"], "ref") == {"u1": "a b", "u2": ""}
    assert in_order(["u2", "u1"], ["u1 a b", "u2"], "hyp", "ref") == ["", "a b"]
    with pytest.raises(LengthMismatchError, match="hyp lacks 1 of 1 utterance ids, first 'u'"):
        in_order(["u"], ["v a"], "hyp", "ref")
    with pytest.raises(InputFileError, match="give ids='no' if lines have none"):
        split_ids([""], "hyp")
