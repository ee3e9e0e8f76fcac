"""Word and character error rates equal sclite's counts, and a plain edit distance."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
from support import oracles

from nartk import __version__
from nartk.cli.score import main
from nartk.errors import InputFileError, LengthMismatchError
from nartk.metrics.bootstrap import compare, confidence
from nartk.metrics.wer import error_rate, error_statistics

jiwer = pytest.importorskip("jiwer", reason="jiwer is not installed")

UTTERANCES = oracles.expected("sclite")
REFERENCES = [each["ref"] for each in UTTERANCES]
OUTPUTS = [each["hyp"] for each in UTTERANCES]


def distance(reference: str, output: str) -> int:
    """Fewest edits between sequences, row by row."""
    row = [*range(len(output) + 1)]
    for i, wanted in enumerate(reference, start=1):
        before, row = row, [i]
        for j, found in enumerate(output, start=1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (wanted != found)))
    return row[-1]


def test_counts_are_sclites() -> None:
    lower = ([text.lower() for text in texts] for texts in (REFERENCES, OUTPUTS))
    assert error_statistics(*lower, unit="wer").tolist() == [each["counts"] for each in UTTERANCES]
    result = error_rate(REFERENCES, OUTPUTS, lowercase=True)
    hits, substitutions, deletions, insertions = np.sum([each["counts"] for each in UTTERANCES], 0).tolist()
    length = sum(len(text.split()) for text in REFERENCES)
    assert hits + substitutions + deletions == length
    assert result.parts == {
        "hits": hits,
        "substitutions": substitutions,
        "deletions": deletions,
        "insertions": insertions,
        "reference_length": length,
        "wrong_sentences": sum(each["counts"][1:] != [0, 0, 0] for each in UTTERANCES),
    }
    assert result.score == pytest.approx(100 * (substitutions + deletions + insertions) / length)
    assert error_rate(REFERENCES, OUTPUTS).score > result.score  # a word there is in lower case


def test_characters_are_counted_by_hand() -> None:
    for spaces in (True, False):
        errors = length = 0
        for reference, output in zip(REFERENCES, OUTPUTS, strict=True):
            texts = [text if spaces else text.replace(" ", "") for text in (reference, output)]
            errors, length = errors + distance(*texts), length + len(texts[0])
        result = error_rate(REFERENCES, OUTPUTS, unit="cer", spaces=spaces)
        assert result.score == pytest.approx(100 * errors / length)


def test_rates_are_of_the_corpus() -> None:
    """Not the mean of sentences; white space counts once; an output may be empty, or longer."""
    result = error_rate(["a b\tc  d", "a", ""], ["a b c d", "x y z", "q"])
    assert result.score == pytest.approx(100 * 4 / 5)
    assert result.parts["insertions"] == 3
    assert error_rate(["a b"], [""]).parts["deletions"] == 2
    assert error_rate(["广州市"], ["广洲"], unit="cer").score == pytest.approx(100 * 2 / 3)


def test_rates_of_sentences_are_sclites() -> None:
    lower = ([text.lower() for text in texts] for texts in (REFERENCES, OUTPUTS))
    each = error_rate(*lower).each
    assert each is not None
    counts = [each["counts"] for each in UTTERANCES]
    assert each() == pytest.approx([100 * (s + d + i) / (h + s + d) for h, s, d, i in counts], abs=1e-12)
    # Of words where nothing was said there is none.
    silent = error_rate(["", "", "a"], ["b", "", "a"]).each
    assert silent is not None
    assert silent().tolist() == pytest.approx([math.nan, 0, 0], nan_ok=True)


def test_resamples_are_the_corpora_that_they_stand_for() -> None:
    result, draw = error_rate(REFERENCES, OUTPUTS), random.Random(1)
    weights = np.zeros((20, len(OUTPUTS)))
    for row in weights:
        picked = draw.choices(range(len(OUTPUTS)), k=len(OUTPUTS))
        row += np.bincount(picked, minlength=len(OUTPUTS))
        again = error_rate([REFERENCES[i] for i in picked], [OUTPUTS[i] for i in picked])
        assert result.resample(row[None])[0] == pytest.approx(again.score)
    interval = confidence(result)
    assert interval.low < result.score < interval.high
    perfect = error_rate(REFERENCES, REFERENCES)
    assert perfect.score == 0
    assert compare(perfect, result).p_value < 0.01
    assert error_rate(["", "a"], ["b", "a"]).resample(np.array([[1.0, 0.0], [2.0, 0.0]])).tolist() == [0, 0]


def test_refuses_what_cannot_be_scored() -> None:
    with pytest.raises(InputFileError, match="no reference holds a word"):
        error_rate([" ", ""], ["a", "b"])
    with pytest.raises(LengthMismatchError, match="reference 1 has 2 sentences, but hypothesis has 1"):
        error_rate(["a", "b"], ["a"])


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, lines in (("ref", REFERENCES), ("hyp", OUTPUTS)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    command = ["wer", str(tmp_path / "hyp"), "--ref", str(tmp_path / "ref"), "--lowercase"]
    assert main(command) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("wer 11.31")  # (109 + 7 + 17) / 1176
    assert f"signature metric:wer|case:lc|jiwer:{jiwer_version()}|nartk:{__version__}" in rest
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    counts = {name: report[name] for name in ("substitutions", "deletions", "insertions")}
    assert counts == {"substitutions": 109, "deletions": 7, "insertions": 17}
    assert main(["cer", *command[1:4], "--no-spaces"]) == 0
    assert "|case:mixed|spaces:0|" in capsys.readouterr().out
    assert main(["wer", command[1], "--ref", command[3], command[3]]) == 2
    assert "wer takes one reference, but there are 2. Fix: name one with --ref" in capsys.readouterr().err


def jiwer_version() -> str:
    from importlib.metadata import version

    return version("jiwer")


@pytest.mark.shared
def test_the_oracle_is_what_sclite_printed(shared_data: Path) -> None:
    lines = (shared_data / "oracles" / "sclite" / "csrnab_per_utt.tsv").read_text().splitlines()[1:]
    rows = [line.split("\t") for line in lines]
    wanted = {row[0]: [*map(int, row[1:5])] for row in rows if row[5] == "0"}
    assert {each["id"]: each["counts"] for each in UTTERANCES} == wanted
