"""Word and character error rates equal sclite's counts, and a plain edit distance."""

from __future__ import annotations

import json
import math
import random
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support import oracles
from support.metrics import error_rate

from nartk.cli.score import main
from nartk.errors import InputFileError, LengthMismatchError, MissingDependencyError, UsageError
from nartk.metrics.bootstrap import compare, confidence
from nartk.metrics.wer import error_statistics, normalizer, without_punctuation
from nartk.version import __version__

jiwer = pytest.importorskip("jiwer", reason="jiwer is not installed")
regex = pytest.importorskip("regex", reason="regex is not installed")

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


def test_wrong_sentences_are_those_with_errors_of_sclite() -> None:
    """Each counts once, however many words it has wrong; one where nothing was said may be wrong too."""
    lower = [[text.lower() for text in texts] for texts in (REFERENCES, OUTPUTS)]
    result = error_rate(*lower, unit="ser")
    wrong = [sum(each["counts"][1:]) > 0 for each in UTTERANCES]
    assert 0 < sum(wrong) < len(wrong)
    assert result.score == pytest.approx(100 * sum(wrong) / len(wrong))
    assert result.each is not None
    assert result.each().tolist() == [100 * each for each in wrong]
    weights = np.array([[2.0] * 3 + [0.0] * (len(wrong) - 3)])
    assert result.resample(weights).tolist() == pytest.approx([100 * sum(wrong[:3]) / 3])
    assert error_rate(["", "a b", "c"], ["x", "y z w", "c"], unit="ser").score == pytest.approx(200 / 3)


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


SPOKEN = [
    "Mr. Smith's colour isn't grey, is it?",
    "[noise] It cost twenty-five dollars and fifty cents (um, I think).",
    "They've won 3,000 prizes in nineteen ninety nine; Él niño!",
    "",
]


@pytest.fixture(scope="module")
def theirs() -> dict[str, Callable[[str], str]]:
    """The normalisers in transformers, with the spellings that Whisper's tokenisers hold."""
    package = pytest.importorskip("whisper_normalization", reason="whisper-normalization is not installed")
    published = pytest.importorskip("transformers.models.whisper.english_normalizer")
    spellings = json.loads((Path(package.__file__).parent / "english.json").read_text(encoding="utf-8"))
    return {
        "english": published.EnglishTextNormalizer(spellings),
        "basic": published.BasicTextNormalizer(),
    }


@pytest.mark.parametrize("name", ["english", "basic"])
def test_normalised_text_is_what_transformers_makes_of_it(
    name: str, theirs: dict[str, Callable[[str], str]]
) -> None:
    ours = normalizer(name)
    assert ours is not None
    lines = [*SPOKEN, *REFERENCES, *(row[0] for row in oracles.rows("wikisplit.test.tsv.xz"))]
    assert [ours(line) for line in lines] == [theirs[name](line) for line in lines]
    outputs = [line.lower().replace(",", "") for line in SPOKEN]
    found = error_rate(SPOKEN, outputs, normalize=name)
    wanted = [[" ".join(theirs[name](line).split()) for line in lines] for lines in (SPOKEN, outputs)]
    assert found.score == pytest.approx(100 * jiwer.process_words(*wanted).wer)
    assert found.score < error_rate(SPOKEN, outputs).score
    assert f"|norm:{name}-" in found.signature


@pytest.mark.shared
@pytest.mark.parametrize("name", ["english", "basic"])
def test_transcripts_of_recordings_are_normalised_as_transformers_does(
    name: str, shared_data: Path, theirs: dict[str, Callable[[str], str]]
) -> None:
    rows = (shared_data / "asr" / "samples_smoke" / "manifest.tsv").read_text(encoding="utf-8").splitlines()
    lines = [row.split("\t")[3] for row in rows[1:]]
    ours = normalizer(name)
    assert ours is not None
    assert [ours(line) for line in lines] == [theirs[name](line) for line in lines]


def test_composed_letters_are_one() -> None:
    composed = "El niño bebió café"
    assert error_rate([composed], [unicodedata.normalize("NFD", composed)]).score == 0
    assert error_rate([composed], [unicodedata.normalize("NFD", composed)], unit="cer").score == 0


def test_punctuation_is_left_out_on_request() -> None:
    said, output = ["He said: “don't—stop!” (Really, 3.5 %?)"], ["he said don't stop really 3 5 %"]
    assert without_punctuation("'a' b's c’d' -e_f") == " a  b's c’d   e f"
    kept = error_rate(said, output, lowercase=True)
    bare = error_rate(said, output, lowercase=True, punctuation=False)
    assert kept.score > 50
    assert bare.parts["substitutions"] + bare.parts["insertions"] == 0
    assert bare.parts["reference_length"] == 7  # he said don't stop really 3 5
    assert "|punct:0|" in bare.signature
    # The same as with the punctuation of Unicode taken out by another library.
    lines = [row[0] for row in oracles.rows("wikisplit.test.tsv.xz")[:300]]
    for line in lines:
        wanted = regex.sub(r"(?<![\p{L}\p{N}])['’]|['’](?![\p{L}\p{N}])|(?!['’])\p{P}", " ", line)
        assert without_punctuation(line) == wanted


def test_words_of_text_without_spaces_are_no_measure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["广州市房地产中介协会分析", "甚至出现交易几乎停滞的情况"]
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = [str(tmp_path / "text"), "--ref", str(tmp_path / "text")]
    assert main(["wer", *files]) == 0
    assert capsys.readouterr().err == (
        "nartk: wer counts words between spaces, which do not part those of Chinese: use cer, which counts "
        "characters\n"
    )
    assert main(["cer", *files]) == 0
    assert capsys.readouterr().err == ""
    (tmp_path / "text").write_text("".join(f"{' '.join(line)}\n" for line in lines), encoding="utf-8")
    assert main(["wer", *files]) == 0
    assert capsys.readouterr().err == ""


def test_says_how_to_get_the_normaliser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "whisper_normalization", None)
    with pytest.raises(
        MissingDependencyError, match="normalize='english' needs the package whisper-norm"
    ) as e:
        error_rate(["a"], ["a"], normalize="english")
    assert e.value.fix == "pip install 'nartk[score]'"
    with pytest.raises(UsageError, match="there is no normaliser 'whisper'"):
        normalizer("whisper")
    with pytest.raises(UsageError, match="normalize of 'wer' is 'whisper'"):
        error_rate(["a"], ["a"], normalize="whisper")


def test_refuses_what_cannot_be_scored() -> None:
    with pytest.raises(InputFileError, match="no reference holds a word"):
        error_rate(["...", "!"], ["a", "b"], punctuation=False)
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
