"""SARI equals EASSE's published examples, and the authors' script where it is read as they wrote it."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from support.metrics import sari_score

from nartk.cli.score import main
from nartk.errors import InputFileError, LengthMismatchError, UsageError
from nartk.metrics.bootstrap import compare, confidence
from nartk.version import __version__

pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")

# The example of Xu et al. 2016, figure 1.
SOURCE = "About 95 species are currently accepted ."
REFERENCES = [
    "About 95 species are currently known .",
    "About 95 species are now accepted .",
    "95 species are now accepted .",
]
OUTPUTS = [
    "About 95 you now get in .",
    "About 95 species are now agreed .",
    "About 95 species are currently agreed .",
]
# What the authors' SARI.py prints for the three, times 100 (EASSE's test_sari.py gives these digits).
OF_THE_SCRIPT = [26.82782411698074, 58.89995423074248, 50.71608864657479]


def _columns(references: Sequence[str]) -> list[list[str]]:
    return [[reference] for reference in references]


def _twin(
    source: str, references: Sequence[str], output: str, *, deletion: str, mean_of_ratios: bool = False
) -> Fraction:
    """SARI of one tokenised sentence, 0 to 100, n-gram by n-gram in exact fractions.

    With `mean_of_ratios` as the authors' SARI.py reads the paper: each n-gram has a ratio of its counts, and
    precision and recall are means of these over n-grams.
    """
    total = Fraction(0)
    for n in range(1, 5):

        def count(text: str, gram: tuple[str, ...], n: int = n) -> int:
            words = text.lower().split()
            return sum(tuple(words[i : i + n]) == gram for i in range(len(words) - n + 1))

        texts = [source, output, *references]
        split = [text.lower().split() for text in texts]
        grams = sorted({tuple(words[i : i + n]) for words in split for i in range(len(words) - n + 1)})
        many = len(references)
        right: dict[str, list[tuple[int, int, int]]] = {"add": [], "keep": [], "delete": []}
        for gram in grams:
            had, said = many * count(source, gram), many * count(output, gram)
            asked = sum(count(reference, gram) for reference in references)
            new = (int(said > 0), int(asked > 0)) if had == 0 else (0, 0)
            right["add"].append((min(new), *new))
            kept, to_keep = min(had, said), min(had, asked)
            right["keep"].append((min(kept, to_keep), kept, to_keep))
            cut, to_cut = max(had - said, 0), max(had - asked, 0)
            right["delete"].append((min(cut, to_cut), cut, to_cut))
        for operation, rows in right.items():

            def rate(part: int, rows: list[tuple[int, int, int]] = rows) -> Fraction:
                if mean_of_ratios:
                    ratios = [Fraction(row[0], row[part]) for row in rows if row[part]]
                    return sum(ratios, Fraction(0)) / (len(ratios) or 1)
                return Fraction(sum(row[0] for row in rows), sum(row[part] for row in rows) or 1)

            precision, recall = rate(1), rate(2)
            if operation == "delete" and deletion == "precision":
                total += precision
            elif precision + recall:
                total += 2 * precision * recall / (precision + recall)
    return 100 * total / 12


def test_easses_example_of_a_corpus() -> None:
    # The README of EASSE: corpus_sari of these two sentences.
    references = [
        ["About 95 species are currently known.", "The cat sat on the mat."],
        ["About 95 species are now accepted.", "The cat is on the mat."],
        ["95 species are now accepted.", "The cat sat."],
    ]
    sources = ["About 95 species are currently accepted.", "The cat perched on the mat."]
    outputs = ["About 95 you now get in.", "Cat on mat."]
    expected = 33.17472563619544
    assert sari_score(sources, references, outputs).score == pytest.approx(expected, abs=1e-10)
    # Variants that must not give that number.
    assert sari_score(sources, references, outputs, level="sentence").score != pytest.approx(
        expected, abs=0.1
    )
    variant = sari_score(sources, references, outputs, deletion="precision")
    assert variant.score != pytest.approx(expected, abs=0.1)
    assert sari_score(sources, references, outputs, lowercase=False).score != pytest.approx(expected, abs=0.1)
    variant = sari_score(sources, references, outputs, tokenize="none")
    assert variant.score != pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize(
    ("output", "references", "expected"),
    [
        # EASSE's README, of sentence_sari, which took the precision of deletions.
        (OUTPUTS[0], REFERENCES, 26.953601953601954),
        # github.com/huggingface/evaluate/issues/376
        (OUTPUTS[1], REFERENCES, 61.709656084656075),
    ],
)
def test_published_examples_with_the_precision_of_deletions(
    output: str, references: list[str], expected: float
) -> None:
    for level in ("corpus", "sentence"):
        result = sari_score([SOURCE], _columns(references), [output], deletion="precision", level=level)
        assert result.score == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        # github.com/feralvam/easse/issues/62, whose call gives the first reference alone
        (
            "This is my simplified sentence that has no token overlap with "
            "the source or reference sentences.",
            19.246031746031743,
        ),
        ("species accepted .", 16.402116402116405),
    ],
)
def test_easses_examples_of_one_sentence(output: str, expected: float) -> None:
    result = sari_score([SOURCE], [REFERENCES[:1]], [output])
    assert result.score == pytest.approx(expected, abs=1e-10)


def test_a_copy_of_the_only_reference_that_adds_no_word() -> None:
    # github.com/feralvam/easse/issues/99: unigrams that nobody adds count as 0.
    source = "Shu Abe (born June 7 1984) is a former Japanese football player."
    reference = "Shu Abe (born June 7 1984) is a Japanese football player."
    result = sari_score([source], [[reference]], [reference])
    assert result.score == pytest.approx(91.66666666666667, abs=1e-10)
    assert [result.parts[name] for name in ("add", "keep", "delete")] == pytest.approx([75, 100, 100])


@pytest.mark.parametrize(("output", "printed"), list(zip(OUTPUTS, OF_THE_SCRIPT, strict=True)))
def test_the_authors_script_takes_means_of_ratios(output: str, printed: float) -> None:
    script = _twin(SOURCE, REFERENCES, output, deletion="precision", mean_of_ratios=True)
    assert float(script) == pytest.approx(printed, abs=1e-10)
    mine = sari_score([SOURCE], _columns(REFERENCES), [output], deletion="precision").score
    assert mine == pytest.approx(float(_twin(SOURCE, REFERENCES, output, deletion="precision")), abs=1e-10)
    assert mine != pytest.approx(printed, abs=0.1)


@pytest.mark.parametrize("deletion", ["f1", "precision"])
def test_equals_a_twin_in_exact_fractions(deletion: str) -> None:
    draw = random.Random(5)
    words = ["a", "b", "c", "d", "e", "f"]

    def sentence() -> str:
        return " ".join(draw.choices(words, k=draw.randrange(0, 9)))

    sources, outputs = [sentence() for _ in range(60)], [sentence() for _ in range(60)]
    for many in (1, 3):
        references = [[sentence() for _ in sources] for _ in range(many)]
        twins = [
            float(_twin(source, mine, output, deletion=deletion))
            for source, output, *mine in zip(sources, outputs, *references, strict=True)
        ]
        result = sari_score(sources, references, outputs, level="sentence", deletion=deletion)
        assert result.score == pytest.approx(np.mean(twins), abs=1e-10)
        for source, output, *mine, twin in zip(sources, outputs, *references, twins, strict=True):
            alone = sari_score([source], _columns(mine), [output], deletion=deletion)
            assert alone.score == pytest.approx(twin, abs=1e-10)


@pytest.mark.parametrize("deletion", ["f1", "precision"])
def test_scores_of_sentences_do_not_depend_on_the_level(deletion: str) -> None:
    sources, references, outputs = [SOURCE] * 3, [[text] * 3 for text in REFERENCES], OUTPUTS
    twins = [float(_twin(SOURCE, REFERENCES, output, deletion=deletion)) for output in OUTPUTS]
    for level in ("corpus", "sentence"):
        each = sari_score(sources, references, outputs, level=level, deletion=deletion).each
        assert each is not None
        assert each() == pytest.approx(twins, abs=1e-10)


@pytest.mark.parametrize("level", ["corpus", "sentence"])
def test_resampling(level: str) -> None:
    sources = [SOURCE, SOURCE, "The cat perched on the mat ."]
    references = [[REFERENCES[0], REFERENCES[1], "The cat sat on the mat ."]]
    outputs = [OUTPUTS[1], OUTPUTS[2], "The cat is on the mat ."]
    result = sari_score(sources, references, outputs, level=level)
    assert result.resample(np.ones((1, 3)))[0] == pytest.approx(result.score, abs=1e-10)
    # A corpus that holds a sentence twice is what a weight of 2 stands for.
    twice = sari_score(
        [*sources, sources[0]], [[*references[0], REFERENCES[0]]], [*outputs, outputs[0]], level=level
    )
    assert result.resample(np.array([[2.0, 1.0, 1.0]]))[0] == pytest.approx(twice.score, abs=1e-10)
    interval = confidence(result, samples=200)
    assert interval.low <= result.score <= interval.high
    copied = sari_score(sources, references, sources, level=level)
    assert compare(result, copied, samples=200).difference == pytest.approx(result.score - copied.score)


def test_refuses_what_cannot_be_scored() -> None:
    with pytest.raises(UsageError, match="level of 'sari' is 'system'") as caught:
        sari_score(["a"], [["a"]], ["a"], level="system")
    assert caught.value.fix == "choose from corpus, sentence"
    with pytest.raises(UsageError, match="deletion of 'sari' is 'recall'"):
        sari_score(["a"], [["a"]], ["a"], deletion="recall")
    with pytest.raises(UsageError, match="no tokeniser 'moses'"):
        sari_score(["a"], [["a"]], ["a"], tokenize="moses")
    with pytest.raises(InputFileError, match="SARI needs a reference"):
        sari_score(["a"], [], ["a"])
    with pytest.raises(LengthMismatchError, match="reference 2 has 1 sentence, but source has 2"):
        sari_score(["a", "b"], [["a", "b"], ["a"]], ["a", "b"])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for name, text in (("src", SOURCE), ("hyp", OUTPUTS[0]), *(zip("012", REFERENCES, strict=True))):
        (tmp_path / name).write_text(text + "\n", encoding="utf-8")
        files.append(str(tmp_path / name))
    source, system, *references = files
    arguments = [system, "--source", source, "--ref", *references]
    assert main(["sari", *arguments, "--bootstrap", "0", "--deletion", "precision"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "sari 26.95"
    assert [line.split()[0] for line in lines[1:]] == [
        *["add", "keep", "delete", "references", "sentences", "signature"]
    ]
    assert lines[-1] == (
        f"signature metric:sari|level:corpus|del:precision|refs:3|case:lc|tok:13a|order:4|nartk:{__version__}"
    )
    assert main(["sari", *arguments, "--keep-case", "--baseline", source, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) >= {"score", "add", "keep", "delete", "confidence", "comparison"}
    assert "case:mixed" in report["signature"]
