"""What the correction recipe measures: parts of data sets, misspellings and their counts, harm."""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.recipe_scripts import RECIPES, imported

from nartk.data.gec.lexicon import is_held_out
from nartk.data.gec.rates import align
from nartk.data.m2 import M2Sentence
from nartk.data.text import read_shipped

sys.path.insert(0, str(RECIPES / "gec"))

testsets = imported("gec", "testsets.py")
spelling = imported("gec", "spelling.py")
quality = imported("gec", "quality.py")

KNOWN = frozenset(
    "we saw the old house in a lot of rain i like color receive letters and my people here are you".split()  # noqa: SIM905
)


def text(source: str, *golds: str) -> Any:
    return testsets.Corrected("made", source, golds)


def test_misspellings_are_unlisted_words_that_annotators_write_otherwise() -> None:
    found = spelling.spellings(
        text("We saw the hosue of Zwiebel in alot of rian.", "We saw the house of Zwiebel in a lot of rain."),
        KNOWN,
    )
    assert found.wrong == {
        "hosue": frozenset(["house"]),
        "alot": frozenset(["a lot"]),
        "rian": frozenset(["rain"]),
    }
    assert found.others == {}  # nobody changes the name


def test_disputed_words_are_none() -> None:
    """One of two annotators leaves the word, so that it may be right; what the other writes is right too."""
    found = spelling.spellings(text("I like colour.", "I like color.", "I like colour."), KNOWN)
    assert found.wrong == {}
    assert found.others == {"colour": frozenset(["color"])}


@pytest.mark.parametrize(
    ("source", "gold"),
    [
        ("I saw a house.", "I like a house."),  # a listed word
        ("I saw Zorb.", "I saw rain."),  # a word without letters in common
        ("I saw the Rain.", "I saw the rain."),  # case
        ("I saw yu.", "I saw you."),  # two letters
    ],
)
def test_other_edits_are_no_misspellings(source: str, gold: str) -> None:
    assert spelling.spellings(text(source, gold), KNOWN).wrong == {}


def test_counts_by_hand() -> None:
    """Of five misspellings two come out right. Six changes: those two, a wrong one, a name, a word made
    up, and a disputed word, which an annotator has too; three are right."""
    texts = [
        text("We saw teh hosue.", "We saw the house."),
        text("We saw Zwiebel in the rian.", "We saw Zwiebel in the rain."),
        text("I like peeple and colour.", "I like people and color.", "I like people and colour."),
        text("I recieve letters.", "I receive letters."),
    ]
    outputs = [
        "We saw the horse.",  # teh right, hosue wrong
        "We saw Zwiebeln in the rian.",  # the name spoilt, rian missed
        "I like people and color.",  # right, and as one of two has it
        "I recieve lettters.",  # missed, and a listed word spoilt
    ]
    found = spelling.count([spelling.spellings(each, KNOWN) for each in texts], outputs, KNOWN)
    assert found == spelling.SpellingCounts(wrong=5, recovered=2, changes=6, right=3)
    assert found.recall == pytest.approx(0.4)
    assert found.precision == pytest.approx(0.5)


def test_sources_and_golds_score_nothing_and_everything() -> None:
    texts = [
        text("We saw teh hosue.", "We saw the house."),
        text("I like alot of rian.", "I like a lot of rain."),
    ]
    found = [spelling.spellings(each, KNOWN) for each in texts]
    assert spelling.count(found, [each.text for each in texts], KNOWN) == spelling.SpellingCounts(wrong=4)
    golds = spelling.count(found, [each.golds[0] for each in texts], KNOWN)
    assert golds == spelling.SpellingCounts(4, 4, 4, 4)


def test_held_out_misspellings_are_a_share_by_hash() -> None:
    names = [f"word{i}" for i in range(20_000)]
    held = [name for name in names if is_held_out(name)]
    assert 0.009 < len(held) / len(names) < 0.0145  # 3 of 256 are 0.0117
    assert all(hashlib.sha256(name.encode()).hexdigest()[:2] in ("00", "01", "02") for name in held)
    assert is_held_out(held[0].upper())


def test_held_out_misspellings_stand_for_what_they_mean() -> None:
    rows = [line.partition("->") for line in read_shipped("misspellings.tsv.xz")]
    listed = {
        (wrong.lower(), right.strip().lower()) for wrong, _, rights in rows for right in rights.split(",")
    }
    clean = [f"7 {right}." for right in sorted({right for _, right in listed}) if right.isalpha()]
    found = spelling.inserted(clean, KNOWN)
    assert len(found) > 300
    for each in found:
        ((misspelt, forms),) = each.wrong.items()
        (right,) = forms
        assert is_held_out(misspelt)
        assert (misspelt, right) in listed
        assert each.text.text.lower() == f"7 {misspelt}."
        assert each.text.golds[0].lower() == f"7 {right}."


TREEBANK = """# newdoc id = a
# newpar id = 1
# text = They dont know who's cat it is.
1\tThey\t_\t_\t_\t_\t_\t_\t_\t_
2-3\tdont\t_\t_\t_\tTypo=Yes\t_\t_\t_\t_
2\tdo\t_\t_\t_\t_\t_\t_\t_\t_
3\tnt\t_\t_\t_\t_\t_\t_\t_\tCorrectForm=n't
4\tknow\t_\t_\t_\t_\t_\t_\t_\t_
5-6\twho's\t_\t_\t_\tTypo=Yes\t_\t_\t_\tCorrectForm=whose
5\twho\t_\t_\t_\t_\t_\t_\t_\t_
6\t's\t_\t_\t_\t_\t_\t_\t_\t_
7\tcat\t_\t_\t_\t_\t_\t_\t_\t_
7.1\tthat\t_\t_\t_\t_\t_\t_\t_\t_
8\tit\t_\t_\t_\t_\t_\t_\t_\t_
9\tis\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
10\t.\t_\t_\t_\t_\t_\t_\t_\t_

# text = So it is.
1\tSo\t_\t_\t_\t_\t_\t_\t_\t_
2\tit\t_\t_\t_\t_\t_\t_\t_\t_
3\tis\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
4\t.\t_\t_\t_\t_\t_\t_\t_\t_
"""


def test_typos_of_a_treebank_are_undone(tmp_path: Path) -> None:
    path = tmp_path / "en_ewt-ud-dev.conllu"
    path.write_text(TREEBANK, encoding="utf-8")
    first, second = testsets.treebank(path)
    assert first.text == "They dont know who's cat it is."
    assert first.corrected == "They don't know whose cat it is."
    assert first.has_typo
    assert not second.has_typo
    assert second.corrected == second.text == "So it is."


def test_paragraphs_are_long_and_whole() -> None:
    def sentence(text: str, begins: bool) -> Any:
        return testsets.Sentence(text, [], begins)

    long = "one two three four five six seven eight nine ten eleven."
    lines = [sentence(long, True), sentence(long, False), sentence(long, True), sentence(long, True)]
    assert testsets.paragraphs(lines) == [f"{long} {long}"]


def test_hard_inputs_are_many_and_have_a_class() -> None:
    found = testsets.untouched(quality.UNTOUCHED)
    assert len(found) >= 150
    assert len({*found}) == len(found)
    assert min(Counter(name for name, _ in found).values()) >= 8
    assert all(text == text.strip() for _, text in found)


class Aligning:
    """Annotates with a plain alignment in ERRANT's stead."""

    def annotate(self, sources: list[list[str]], targets: list[list[str]]) -> list[M2Sentence]:
        pairs = zip(sources, targets, strict=True)
        return [M2Sentence(source, align(source, target)) for source, target in pairs]


def test_each_changed_line_is_listed_with_its_edits() -> None:
    lines = ["It is so.", "He go home.", "A  b."]
    found = quality.changes(Aligning(), lines, ["It is so.", "He goes home.", "A b."])
    assert [(each.source, each.output, each.edits) for each in found] == [
        ("He go home.", "He goes home.", ("go -> goes",)),
        ("A  b.", "A b.", ()),
    ]
    assert found[1].types == ("SPACE",)


@pytest.mark.shared
def test_scores_are_those_of_the_official_programs(shared_data: Path) -> None:
    """GLEU of JFLEG dev by compute_gleu, and the MaxMatch scorer's counts for CWEB, of the same outputs."""
    oracles = shared_data / "oracles"
    expected = json.loads((oracles / "m2scorer_cweb" / "expected.json").read_text())[
        "mix_i%4__both_annotators"
    ]
    learners = testsets.jfleg(shared_data / "gec" / "jfleg", "dev")
    mix = testsets.read(oracles / "gleu_jfleg" / "dev.mix")
    gold = testsets.m2(oracles / "m2scorer_cweb" / "gold_both.m2")
    outputs = testsets.read(oracles / "m2scorer_cweb" / "hyp_mix_imod4.txt")
    given = iter([mix, outputs, []])
    system = quality.System("mix", "", lambda lines, tokens: next(given))
    row = quality.measure(
        system, quality.Sets(learners, {"CWEB": gold}, {}, {}, []), lambda name, lines: None
    )
    assert f"{row['gleu']['score'] / 100:.6f}" == "0.491926"  # dev.mix of gleu_official_dev.txt
    precision, recall, f = expected["P,R,F0.5"]
    found = row["m2"]["CWEB"]
    assert [round(found[key] / 100, 4) for key in ("precision", "recall", "score")] == [precision, recall, f]
    assert row["gleu"]["low"] < row["gleu"]["score"] < row["gleu"]["high"]


@pytest.mark.shared
def test_parts_of_eracond_share_no_sentence_of_some_length(shared_data: Path) -> None:
    folder = shared_data / "gec" / "eracond"
    parts = [
        {tuple(each.source) for each in testsets.eracond(folder, part)} for part in ("train", "dev", "test")
    ]
    for i, one in enumerate(parts):
        assert not any(len(source) > 5 for other in parts[:i] for source in one & other)
    assert [len(testsets.eracond(folder, part)) for part in ("train", "test")] == [722, 631]


@pytest.mark.shared
def test_there_are_500_real_misspellings(shared_data: Path) -> None:
    folders = (shared_data / "gec" / name for name in ("jfleg", "cweb", "eracond"))
    texts = [*testsets.corrected_texts(*folders, shared_data / "ud_ewt")]
    found = spelling.real(texts, testsets.known_words())
    assert sum(len(each.wrong) for each in found) == 500
    half = {tuple(each.source) for each in testsets.cweb(shared_data / "gec" / "cweb", "test")}
    assert not any(tuple(each.text.tokens) in half for each in found)
