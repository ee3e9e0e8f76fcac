"""The speller of a guard: what it suggests, what it chooses, and what the model reads and says for it."""

from __future__ import annotations

import io
import lzma
import pickle
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nartk.data.clauses import Clause
from nartk.data.gec import speller as module
from nartk.data.gec.lexicon import misspellings
from nartk.data.gec.speller import Offer, Speller, make_speller, read_speller
from nartk.data.gec.spelling import spelling_noise
from nartk.errors import CheckpointError
from nartk.processors.guard import Guard, Thresholds
from nartk.processors.text import AsGiven
from nartk.serving.lines import Line

TEXT = """
the old house is here
the old house is there
a tall man lives in the house
they play a ball game in the old house
it is n't here
it is n't there
it is n't old
there are a lot of houses in the world
i 've the old house
"""
RIGHT = sorted({word for each in misspellings() for word in each.lower().split() if word.isalpha()})


def made(words: Sequence[str] = (), times: int = 50) -> Speller:
    counts, pairs = Counter[str](), Counter[tuple[str, str]]()
    for line in TEXT.strip().split("\n") * times:
        tokens = ["", *line.split()]
        counts.update(tokens)
        pairs.update(pairwise(tokens))
    known = {token for token in counts if token.isalpha()} | {*words}
    probabilities = {word: (counts[word] + 0.01) / counts.total() for word in known}
    return make_speller(counts, pairs, probabilities, spelling_noise().lines())


@pytest.fixture(scope="module")
def speller() -> Speller:
    return made()


def alignment_distance(one: str, other: str) -> int:
    """Optimal string alignment by its textbook recurrence, a cell at a time."""
    table = {(i, 0): i for i in range(len(one) + 1)} | {(0, j): j for j in range(len(other) + 1)}
    for i in range(1, len(one) + 1):
        for j in range(1, len(other) + 1):
            table[i, j] = min(
                table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + (one[i - 1] != other[j - 1])
            )
            if i > 1 and j > 1 and one[i - 1] == other[j - 2] and one[i - 2] == other[j - 1]:
                table[i, j] = min(table[i, j], table[i - 2, j - 2] + 1)
    return table[len(one), len(other)]


def test_suggestions_are_all_words_that_are_near() -> None:
    """Every word of codespell's within two edits, of misspellings with one to three random edits."""
    draw = random.Random(1)
    words = [*draw.sample(RIGHT, 600), "a", "ab", "abc", "abcd", "abcdefghijklmnopqrstuvwxyz"]
    found = made(words)
    known = sorted({word for word in words if len(word) <= 26} | {w for w in TEXT.split() if w.isalpha()})
    letters = "abcdefghijklmnopqrstuvwxyz"
    for word in draw.sample(words, 150):
        wrong = word
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(len(wrong))
            wrong = draw.choice(
                [
                    wrong[:at] + draw.choice(letters) + wrong[at + 1 :],
                    wrong[:at] + wrong[at + 1 :] or wrong,
                    wrong[:at] + draw.choice(letters) + wrong[at:],
                    wrong[:at] + wrong[at : at + 2][::-1] + wrong[at + 2 :],
                ]
            )
        if len(wrong) > module.LONGEST:
            continue
        distances = {each: alignment_distance(wrong, each) for each in known}
        most = 2 if len(wrong) > 4 else 1
        wanted = {each: distance for each, distance in distances.items() if distance <= most}
        assert dict(found._near(wrong)) == wanted, wrong
    assert found._near("a" * 25) == found._near("schöner") == []


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("teh old hosue is here", "the old house is here"),
        ("Teh hosue is here", "The house is here"),
        ("the old Hosue is here", "the old Hosue is here"),  # a name
        ('" Hosue is here', '" House is here'),
        ("TEH old house", "TEH old house"),
        ("it isnt here", "it is n't here"),
        ("there are alot of houses", "there are a lot of houses"),
        ("a zall man", "a tall man"),
        ("a tallll man", "a tall man"),  # a letter three times in a row is there once or twice
        ("the olddddd house", "the old house"),
        ("the hooosue", "the house"),
        ("so Ive the old house", "so I 've the old house"),
        ("the Ills old house", "the Ills old house"),
        ("they play a zall game", "they play a ball game"),
        ("the qqqqqqqq house", "the qqqqqqqq house"),
        ("teh old hosue-here h0use http://teh.org", "the old hosue-here h0use http://teh.org"),
        ("das alte haus steht hier", "das alte haus steht hier"),  # next to no word is in the list
        ("haus hosue", "haus hosue"),  # two words, and none of English
        ("hosue", "house"),
        ("the olld hosue is in the worrld", "the old house is in the world"),  # half of it is misspelt
        ("the olld hosue tahll worrld gamme", "the olld hosue tahll worrld gamme"),
        ("", ""),
    ],
)
def test_misspelt_words_are_spelled_by_the_words_beside(speller: Speller, text: str, spelled: str) -> None:
    found = speller.spell(text.split())
    assert len(found) == len(text.split())
    assert " ".join(found) == spelled


def test_offers_are_the_best_suggestions_and_the_word_itself() -> None:
    """By the log-probabilities of all suggestions, computed apart; nothing is far below the best."""
    found = made()
    counts = Counter[int]()
    for word in (
        "hosue",
        "ther",
        "thee",
        "thre",
        "hre",
        "tehre",
        "all",
        "bll",
        "tthe",
        "thet",
        "teer",
        "xxhouse",
    ):
        tokens = ["the", "old", word, "is", "here"]
        (offers,) = found.offers(tokens).values()
        scores = {each: found._score(word, each, "old", "is") for each in found.suggest(word)}
        best = sorted(scores, key=lambda each: -scores[each])[:2]
        wanted = {each: scores[each] for each in best} | {word: -11 - 1.25 * len(word)}
        top = max(wanted.values())
        wanted = {each: score for each, score in wanted.items() if score >= top - 3}
        assert {each.text: each.score for each in offers} == wanted
        assert [each.score for each in offers] == sorted(wanted.values(), reverse=True)
        assert found.spell(tokens)[2] == offers[0].text
        counts[len(offers)] += 1
    assert len(counts) > 1


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("the hawss is here", "the house is here"),  # too far for a suggestion
        ("the old Hawss is here", "the old House is here"),
        ("the old HAWSS is here", "the old HOUSE is here"),
        ("the old HWS is here", "the old HWS is here"),
        ("hawss is a hwz man hawss hwzz", "house is a tall man house hwzz"),  # not of another language
        ("there are alods of houses", "there are a lot of houses"),
    ],
)
def test_known_misspellings_are_what_the_list_tells(text: str, spelled: str) -> None:
    found = replace(made(), misspellings=("alods\ta lot", "hawss\thouse", "hws\thouse", "hwz\tball\ttall"))
    assert " ".join(found.spell(text.split())) == spelled


def test_people_make_some_errors_more_often(speller: Speller) -> None:
    """By codespell's list: `ie` for `ei` is common, `ih` is not; a letter is dropped where two are alike."""
    found = made(["receive", "address", "chief"])

    def score(wrong: str, right: str) -> float:
        return found._score(wrong, right, "the", "is")

    assert score("recieve", "receive") > score("reciive", "receive")
    assert score("adress", "address") > score("addess", "address")
    assert score("cheif", "chief") > score("qhief", "chief")


def test_a_word_stays_that_is_more_probable_as_an_unknown_one(
    speller: Speller, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert speller.spell(["hosue"]) == ["house"]
    monkeypatch.setattr(module, "_UNKNOWN", 99.0)
    assert speller.spell(["hosue"]) == ["hosue"]


def test_what_is_written_is_read(speller: Speller, tmp_path: Path) -> None:
    speller.write(tmp_path / "speller.npz.xz")
    found = read_speller(tmp_path / "speller.npz.xz")
    assert found.words == speller.words
    assert found.edits == speller.edits
    known = replace(speller, misspellings=("hosue\thouse", "tihs\tthis\tties"))
    known.write(tmp_path / "speller.npz.xz")
    assert read_speller(tmp_path / "speller.npz.xz").known == {"hosue": ["house"], "tihs": ["this", "ties"]}
    assert found.known == {}
    for name in ("counts", "probabilities", "starts", "followers", "together"):
        assert np.array_equal(getattr(found, name), getattr(speller, name))
    assert "house" in found
    assert "hosue" not in found


def test_a_speller_goes_to_other_processes(speller: Speller) -> None:
    assert speller.spell(["hosue"]) == ["house"]
    found = pickle.loads(pickle.dumps(speller))
    assert found.words == speller.words
    assert found.spell(["hosue"]) == ["house"]


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: arrays.pop("edits"),
        lambda arrays: arrays.pop("misspellings"),
        lambda arrays: arrays.update(counts=arrays["counts"][:-1]),
        lambda arrays: arrays.update(starts=arrays["starts"][::-1]),
        lambda arrays: arrays.update(together=arrays["together"][1:]),
        lambda arrays: arrays.update(words=np.frombuffer(b"no\nempty\nword", dtype=np.uint8)),
        lambda arrays: arrays.update(words=np.array([{}], dtype=object)),
    ],
)
def test_what_is_no_speller_is_refused(change: object, speller: Speller, tmp_path: Path) -> None:
    path = tmp_path / "speller.npz.xz"
    speller.write(path)
    with lzma.open(path) as file, np.load(io.BytesIO(file.read())) as found:
        arrays = dict(found)
    change(arrays)  # type: ignore[operator]
    changed = io.BytesIO()
    np.savez(changed, **arrays)
    path.write_bytes(lzma.compress(changed.getvalue()))
    with pytest.raises(CheckpointError):
        read_speller(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError):
        read_speller(path)


def guard(folder: Path, speller: Speller | None) -> Guard:
    path, spelling = folder / "words.txt", folder / "speller.npz.xz"
    path.write_text("the\nold\nis\nhere\n")
    if speller is not None:
        speller.write(spelling)
    loose = Thresholds(-99, -99, 0, 99, 99, 0, 0, 1, 0)
    return Guard(loose, path, None if speller is None else spelling)


def test_the_model_reads_what_is_spelled(speller: Speller, tmp_path: Path) -> None:
    text = "teh old house is here , and the tall man is n't in the hosue ."
    (clause,) = guard(tmp_path, speller).clauses(text, text)
    assert clause.text == "the old house is here , and the tall man is n't in the house ."
    assert " ".join(clause.spelled) == " ".join(clause.read) == text
    first, second = clause.halves()
    assert first.text == "the old house is here ."
    assert second.text == "And the tall man is n't in the house ."
    (whole,) = guard(tmp_path, speller).clauses(text, text, whole=True)
    assert whole.text == text
    (clause,) = guard(tmp_path, None).clauses(text, text)
    assert clause.text == text
    capitals = "TEH OLD HOSUE ."
    (clause,) = guard(tmp_path, speller).clauses(capitals, capitals)
    assert clause.corrected == ()


def test_texts_of_which_the_most_probable_is_chosen(tmp_path: Path) -> None:
    """With each other offer the text that the model reads, and by weights of 1 and 0.3 which one it is."""
    text = "teh hosue here is old ,"
    mine = guard(tmp_path, made())
    offers = {0: [Offer("the", -1.0), Offer("teh", -2.0)], 1: [Offer("house", -3.0), Offer("hose", -4.5)]}
    tokens = tuple(text.split())
    clause = Clause(tokens, tokens, mine.words, corrected=("the", "house", *tokens[2:]), offers=offers)
    plain, *texts = mine.spellings(replace(clause, begins=False, ends=False))
    assert plain == "Teh hosue here is old ."
    rest = "here is old ."
    assert texts == [f"The house {rest}", f"Teh house {rest}", f"The hose {rest}"]
    for scores, wanted in (
        ((-9.0, -9.0, -9.0), "the house"),
        ((-9.0, -5.7, -4.1), "the house"),  # 0.3 of a gain of 3.3 and of 4.9 nats
        ((-9.0, -5.6, -3.9), "teh hose"),
        ((-9.0, -5.6, -9.0), "teh house"),
    ):
        found = mine.spell(clause, scores)
        assert found.text == f"{wanted} here is old ,"
        assert mine.spellings(found) == ()
    assert {each.offers == {} for each in clause.halves()} <= {True}
    assert mine.spellings(replace(clause, offers={})) == ()


def test_a_model_that_gives_no_probabilities_has_the_first_offers(speller: Speller, tmp_path: Path) -> None:
    text = "the old house is thet"
    mine = guard(tmp_path, speller)
    (clause,) = mine.clauses(text, text)
    plain, *texts = mine.spellings(clause)
    assert (plain, texts[0], len(texts)) == (text, clause.text, 2)
    output: Any = None  # nothing is written yet
    for can_score, waiting in ((True, [(0, plain, tuple(texts))]), (False, [(0, clause.text, ())])):
        line = Line(0, AsGiven().paragraph(text), output, replace(mine, can_score=can_score))
        assert line.waiting() == waiting


def test_a_word_of_the_speller_exists(speller: Speller, tmp_path: Path) -> None:
    source, words = ["the", "hosue"], ["the", "house"]
    assert guard(tmp_path, speller).mend(source, words) == (["the", "house"], [])
    found, undone = guard(tmp_path, None).mend(source, words)
    assert found == source
    assert len(undone) == 1


def test_what_was_spelled_needs_not_be_probable(speller: Speller, tmp_path: Path) -> None:
    strict = guard(tmp_path, speller)
    strict = replace(strict, thresholds=replace(strict.thresholds, edit=0.5))
    source, given = ["teh", "hosue", "is"], ["the", "house", "is"]
    tokens, undone = strict.mend(source, ["The", "house", "was"], [-9.0], given)
    assert tokens == ["The", "house", "is"]
    assert [each.text for each in undone] == ["is"]
    assert strict.mend(source, ["The", "house", "was"], [-9.0, -9.0, -9.0])[0] == source
    clause = Clause(tuple(source), tuple(source), strict.words, corrected=tuple(given))
    assert strict.variants(clause, "The houses is") == ("The house is",)
    # What an improbable edit leaves is what the model read.
    assert strict.mend(source, ["the", "houses", "is"], [-9.0], given)[0] == given


def test_pieces_without_a_word_that_is_in_no_list_need_no_speller(tmp_path: Path) -> None:
    without = guard(tmp_path, made())
    (tmp_path / "speller.npz.xz").unlink()
    (clause,) = without.clauses("The old is here .", "The old is here .")
    assert clause == Clause(
        ("The", "old", "is", "here", "."), ("The", "old", "is", "here", "."), without.words
    )
