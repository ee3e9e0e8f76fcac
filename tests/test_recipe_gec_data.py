"""The data of the correction recipe: text of repositories, real pairs, what is copied, training pairs."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from support.recipe_scripts import RECIPES, imported

from nartk.data.text import CORPORA, corpus_names, tokenize
from nartk.errors import InputFileError

build = imported("gec", "build_corpora.py")
gather = imported("gec", "gather.py")
real = imported("gec", "real_pairs.py")
copied = imported("gec", "copied.py")
prepare = imported("gec", "prepare.py")
treebank = imported("gec", "treebank.py")

TABLE = json.loads((RECIPES / "gec" / "gather.json").read_text(encoding="utf-8"))
MAY_SHIP = {"CC0-1.0", "CC-BY-2.0", "CC-BY-4.0", "CC-BY-SA-4.0", "public domain"}

CNXML = """<document xmlns="http://cnx.rice.edu/cnxml"><title>A title is no sentence here.</title><content>
<para>The <term>cell</term> is the unit of life.<footnote>See the author's notes.</footnote> It is small. Its
radius is <m:math xmlns:m="http://www.w3.org/1998/Math/MathML"><m:mi>r</m:mi></m:math> on average. As <link
target-id="f"/> shows, it has a wall.</para><list><item>Plants have cells with walls.</item></list>
<figure><media><image/></media><caption>The picture shows a cell.</caption></figure></content></document>"""
MARKDOWN = """---
title: We do not read this line.
---
# A heading has no place here.

We wrote [a guide](https://x.org/a) for *new* people.
It helped them `a lot` today.

- The list has one good sentence.

| a | table has no sentences . |
"""


@pytest.mark.parametrize(
    ("reader", "raw", "found"),
    [
        ("lines", "One line is here.\nAnother is there.\n", ["One line is here.", "Another is there."]),
        ("prose", "It is late. We went home.", ["It is late.", "We went home."]),
        ("prose", "It’s late.".encode("cp1252"), ["It’s late."]),
        (
            "textbook",
            CNXML,
            [
                "The cell is the unit of life.",
                "It is small.",
                "Its radius is \\ on average.",
                "As \\ shows, it has a wall. \\",
                "Plants have cells with walls.",
                "The picture shows a cell.",
            ],
        ),
        (
            "markdown",
            MARKDOWN,
            [
                "We wrote a guide for new people.",
                "It helped them `a lot` today.",
                "The list has one good sentence.",
            ],
        ),
    ],
)
def test_readers_by_hand(reader: str, raw: str | bytes, found: list[str]) -> None:
    sentences = list(gather.READERS[reader](raw if isinstance(raw, bytes) else raw.encode()))
    assert [line.rstrip(" \\") for line in sentences] == [line.rstrip(" \\") for line in found]


def test_zipped_pairs_give_their_english_side() -> None:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as files:
        files.writestr("fra.txt", "I am here now.\tJe suis ici.\nGo!\tVa !\n")
        files.writestr("_about.txt", "Not a sentence of it.\tx\n")
    assert list(gather.tatoeba(raw.getvalue())) == ["I am here now.", "Go!"]


@pytest.mark.parametrize(
    ("sentence", "sound"),
    [
        ("She went to the station early .", True),
        ("She recieved the letters today .", False),  # a known misspelling
        ("The History Of The Roman Empire .", False),  # a heading
        ("The name , ( ) is old and has changed .", False),  # a hole
        ("The tall old man in the street .", False),  # no verb
    ],
)
def test_unsound_sentences_are_left_out(sentence: str, *, sound: bool) -> None:
    assert gather.is_sound(sentence) == sound


def test_words_that_one_slip_makes_of_common_ones_are_doubtful() -> None:
    counts = Counter(
        {"people": 200, "poeple": 1, "peoples": 1, "purple": 1, "zebra": 1, "discrimination": 150}
    )
    assert gather.doubtful(counts) == {"poeple"}
    assert gather.is_parted(["discri", "mination"], counts)
    assert not gather.is_parted(["zebra", "people"], counts)


def test_text_is_read_at_its_commit_without_what_is_excluded(tmp_path: Path) -> None:
    clone = tmp_path / "thing"
    clone.mkdir()

    def git(*args: str) -> str:
        command = ["git", "-C", str(clone), "-c", "user.name=a", "-c", "user.email=a@example.org", *args]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "-q")
    first = (
        "He likes the old house.\nIt was a long day.\nHe likes the old house .\nThis is measured elsewhere.\n"
    )
    (clone / "a.txt").write_text(first, encoding="utf-8")
    git("add", ".")
    git("commit", "-qm", "one")
    commit = git("rev-parse", "HEAD")
    (clone / "a.txt").write_text("Later text was not licensed.\n", encoding="utf-8")
    git("commit", "-qam", "two")
    measured = tmp_path / "measured.txt"
    measured.write_text("This is measured elsewhere .\n", encoding="utf-8")
    part = {"repository": "some/thing", "commit": commit, "paths": r".*\.txt", "reader": "lines"}
    found = dict(gather.gather({"thing": [part]}, tmp_path, gather.excluded([measured])))
    assert found == {"thing": ["He likes the old house .", "It was a long day ."]}


def test_each_source_has_a_commit_a_licence_that_ships_and_a_row() -> None:
    licences = (CORPORA / "LICENSES.md").read_text(encoding="utf-8")
    assert set(build.GATHERED) == set(TABLE) <= set(corpus_names())
    for name, parts in TABLE.items():
        assert f"| {name}.txt.xz |" in licences
        for part in parts:
            assert re.fullmatch("[0-9a-f]{40}", part["commit"])
            assert part["licence"] in MAY_SHIP
            assert part["reader"] in gather.READERS
            assert name == "openstax" or part["commit"][:7] in licences


def rows(*lines: str) -> list[list[str]]:
    """Rows of a treebank from `number form relation notes`."""
    found = []
    for line in lines:
        number, form, relation, notes = line.split()
        found.append([number, form, "_", "_", "_", "_", "_", relation, "_", notes])
    return found


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (
            ["1 I nsubj _", "2 recieved root CorrectForm=received", "3 it obj SpaceAfter=No", "4 . punct _"],
            "I received it.",
        ),
        (["1 with root CorrectForm=without", "2 out goeswith _", "3 me x _"], "without me"),
        (["1 Over root _", "2 priced goeswith _", "3 shop x _"], "Overpriced shop"),
        (["1-2 dont _ _", "1 do aux _", "2 nt x CorrectForm=n't", "3 go x _"], "don't go"),
        (["1 into x CorrectSpaceAfter=Yes|SpaceAfter=No", "2 the x CorrectForm=_", "3 car x _"], "into car"),
    ],
)
def test_marked_typos_are_put_right(lines: list[str], text: str) -> None:
    written = " ".join(line.split()[1] for line in lines)
    assert treebank.Sentence(written, rows(*lines)).corrected == text


@pytest.mark.parametrize(
    ("source", "target", "found"),
    [
        # An article is left wrong; the change of a content word is made on both sides.
        ("He saw dog near the pound .", "He saw a dog near the laughter .", "He saw dog near the laughter ."),
        ("He saw the pound .", "He saw the laughter .", None),
        ("The dog of Franciscus sleeps .", "The dog of Francis sleeps .", None),
        ("He saw it .", "He saw it .", None),
    ],
)
def test_only_local_edits_of_translations_stay(source: str, target: str, found: str | None) -> None:
    made = real.local_edits(source.split(), target.split())
    assert (made and " ".join(made)) == found


@pytest.mark.shared
def test_real_pairs_hold_no_test_half(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ErAConD's parts 1 and 3 measure alone; the shipped table of letter edits is of the other pairs."""
    monkeypatch.setattr(sys, "argv", ["real_pairs.py", "--data", str(shared_data), "--output", str(tmp_path)])
    real.main()
    pairs = {part: prepare.real_pairs(tmp_path, part) for part in ("train", "dev")}
    assert len(pairs["train"]) > 7000
    used = {tuple(tokenize(source)) for part in pairs.values() for source, _ in part}
    for part in (1, 3):
        for line in build.read(shared_data / f"gec/eracond/part{part}.m2.xz"):
            assert not line.startswith("S ") or tuple(tokenize(build.plain(line[2:]))) not in used
    assert not {source for source, _ in pairs["train"]} & {source for source, _ in pairs["dev"]}
    right = [*build.read(tmp_path / "ewt_right.train.src")]
    assert right == [*build.read(tmp_path / "ewt_right.train.trg")]
    assert "Gary Buck" in right
    for part in ("dev", "test"):
        for each in build.treebank(shared_data, part):
            assert tuple(tokenize(build.plain(each.text))) not in used or len(each.text) < 40, each.text
    fit = imported("gec", "fit_spelling.py")
    made = fit.fit_spelling([*fit.listed(), *fit.real(tmp_path / "train.src", tmp_path / "train.trg")])
    shipped = fit.spelling_noise()
    assert [*made.lines()] == [*shipped.lines()]


def test_marks_are_tokens_of_the_tokeniser_and_change_the_sentence() -> None:
    tokens = tokenize("She went to Paris in 1990 with her brother.")
    seen: Counter[str] = Counter()
    for seed in range(400):
        marked = copied.with_mark(tokens, Random(seed))
        assert marked != tokens
        assert tokenize(" ".join(marked)) == marked
        assert copied.with_mark(tokens, Random(seed)) == marked
        text = " ".join(marked)
        for kind, sign in (("page", "http"), ("mail", r"\w@\w"), ("code", "[_`<]"), ("foreign", '"')):
            seen[kind] += re.search(sign, text) is not None
        seen["twice"] += re.search(r"\b(\d) \1\b", text) is not None
    assert min(seen[kind] for kind in ("page", "mail", "code", "foreign", "twice")) > 0


def run_prepare(folder: Path, monkeypatch: pytest.MonkeyPatch, *args: str) -> list[tuple[str, str]]:
    monkeypatch.setattr(
        sys, "argv", ["prepare.py", "--output", str(folder), "--quick", "--sentences", "400", *args]
    )
    prepare.main()
    return prepare.real_pairs(folder, "train")


def test_training_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in two processes; real pairs go in, and so many pairs stay unchanged as is wished."""
    monkeypatch.setattr(prepare, "VOCABULARY", 300)
    alone = run_prepare(tmp_path / "alone", monkeypatch, "--copies", "2")
    shared = run_prepare(tmp_path / "shared", monkeypatch, "--copies", "2", "--jobs", "2")
    assert alone == shared
    assert (tmp_path / "alone/dict.txt").read_bytes() == (tmp_path / "shared/dict.txt").read_bytes()
    assert run_prepare(tmp_path / "other", monkeypatch, "--copies", "2", "--seed", "2") != alone
    pairs = tmp_path / "real"
    pairs.mkdir()
    for part, source in (("train", "She go home ."), ("dev", "He go home .")):
        (pairs / f"{part}.src").write_text(f"{source}\n", encoding="utf-8")
        (pairs / f"{part}.trg").write_text(source.replace("go", "goes") + "\n", encoding="utf-8")
    mixed = run_prepare(
        *(tmp_path / "mixed", monkeypatch, "--copies", "1", "--real", str(pairs), "--real-times", "3"),
        *("--clean-share", "0.5", "--pieces", str(tmp_path / "alone")),
    )
    assert mixed.count(("She go home .", "She goes home .")) == 3
    assert prepare.real_pairs(tmp_path / "mixed", "valid") == [("He go home .", "He goes home .")]
    assert abs(sum(source == target for source, target in mixed) / len(mixed) - 0.5) < 0.01
    assert (tmp_path / "mixed/dict.txt").read_bytes() == (tmp_path / "alone/dict.txt").read_bytes()


def test_more_text_is_read_once(tmp_path: Path) -> None:
    text = tmp_path / "more.txt"
    text.write_text("A sentence of our own is here .\n\n", encoding="utf-8")
    before = prepare.clean_sentences([], quick=True)
    after = prepare.clean_sentences([text, text], quick=True)
    assert after == [*before, tokenize("A sentence of our own is here.")]
    with pytest.raises(InputFileError, match=r"none\.txt cannot be read"):
        prepare.clean_sentences([tmp_path / "none.txt"], quick=True)


def test_real_pairs_that_do_not_match_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="cannot be read"):
        prepare.real_pairs(tmp_path, "train")
    (tmp_path / "train.src").write_text("a\nb\n", encoding="utf-8")
    (tmp_path / "train.trg").write_text("a\n", encoding="utf-8")
    with pytest.raises(InputFileError, match=r"has 2 lines and \.trg 1"):
        prepare.real_pairs(tmp_path, "train")
