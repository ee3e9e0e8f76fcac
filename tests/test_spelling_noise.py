"""Misspellings from a fitted table: its edits, its probabilities, and real misspellings that it never saw."""

from __future__ import annotations

import string
from functools import cache
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nartk.data.gec.lexicon import held_out_misspellings, misspellings
from nartk.data.gec.spelling import (
    LetterEdit,
    _spans,
    contexts,
    fit_spelling,
    letter_edits,
    read_spelling,
    spelling_noise,
)
from nartk.errors import InputFormatError

WORDS = st.text("abcd", min_size=1, max_size=7)


@pytest.mark.parametrize(
    ("right", "wrong", "edits"),
    [
        ("receive", "recieve", [LetterEdit("c", "ei", "ie", "v")]),
        ("address", "adress", [LetterEdit("a", "dd", "d", "r")]),
        ("until", "untill", [LetterEdit("i", "l", "ll", "$")]),
        ("photo", "foto", [LetterEdit("^", "ph", "f", "o")]),
        ("definitely", "definately", [LetterEdit("n", "i", "a", "t")]),
        ("wich", "which", [LetterEdit("w", "", "h", "i")]),
        ("separately", "seperatly", [LetterEdit("p", "a", "e", "r"), LetterEdit("t", "e", "", "l")]),
        ("cat", "elephants", None),
    ],
)
def test_edits_by_hand(right: str, wrong: str, edits: list[LetterEdit] | None) -> None:
    assert letter_edits(right, wrong) == edits


def distance(left: str, right: str) -> int:
    """Number of edits of one letter, or swaps of neighbours, that turn a word into another: by recursion."""

    @cache
    def cost(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        found = [cost(i - 1, j) + 1, cost(i, j - 1) + 1, cost(i - 1, j - 1) + (left[i - 1] != right[j - 1])]
        if i > 1 and j > 1 and left[i - 2 : i] == right[j - 1] + right[j - 2]:
            found.append(cost(i - 2, j - 2) + 1)
        return min(found)

    return cost(len(left), len(right))


@given(WORDS, WORDS)
def test_edits_make_the_other_word_and_are_no_longer_than_needed(right: str, wrong: str) -> None:
    written, done = "", 0
    for start, stop, begin, end in _spans(right, wrong):
        written += right[done:start] + wrong[begin:end]
        done = stop
    assert written + right[done:] == wrong
    assert sum(max(stop - start, end - begin) for start, stop, begin, end in _spans(right, wrong)) <= (
        2 * distance(right, wrong)
    )


def test_probabilities_by_hand() -> None:
    """Twice of three times "ei" is swapped between c and v; 'ei' stands once between r and n, unharmed."""
    pairs = [("ceiv", "ciev", 2.0), ("ceiv", "cev", 1.0), ("rein", "rien", 1.0)]
    noise = fit_spelling(pairs, least=0.0, context=0.0)
    anywhere = 3.0 / 4.0  # three swaps of four times that the letters stood together
    edit = LetterEdit("c", "ei", "ie", "v")
    assert noise.probability(edit) == pytest.approx((2.0 + 12.0 * anywhere) / (3.0 + 12.0))
    assert noise.probability(LetterEdit("s", "ei", "ie", "z")) == pytest.approx(anywhere)
    assert noise.probability(LetterEdit("c", "ei", "xx", "v")) == 0.0
    assert noise.edits == (4.0, 0.0, 0.0)


def test_samples_follow_the_probabilities() -> None:
    """Of a word with one edit by three and another by one, the draws are three to one."""
    noise = fit_spelling([("cat", "kat", 3.0), ("cat", "cet", 1.0)], least=0.0, context=0.0)
    drawn = [noise.misspell("cat", Random(seed)) for seed in range(4000)]
    assert set(drawn) == {"kat", "cet"}
    assert drawn.count("kat") / len(drawn) == pytest.approx(0.75, abs=0.03)


def test_a_word_without_known_edits_stays() -> None:
    assert fit_spelling([("cat", "kat", 1.0)]).misspell("xxx", Random(1)) == "xxx"


def test_contexts_are_all_stretches() -> None:
    assert list(contexts("ab")) == [
        ("^", "", "a"),
        ("^", "a", "b"),
        ("^", "ab", "$"),
        ("a", "", "b"),
        ("a", "b", "$"),
        ("b", "", "$"),
    ]


def test_a_table_reads_back() -> None:
    noise = fit_spelling([("receive", "recieve", 2.0), ("until", "untill", 1.0)])
    again = read_spelling(noise.lines())
    assert (again.counts, again.seen, again.edits) == (noise.counts, noise.seen, noise.edits)


@pytest.mark.parametrize("lines", [[], ["{"], ["[1]", "a\tb"], ["[1]", "a\tb\tc\t1\tde"], ["3"]])
def test_other_files_are_no_tables(lines: list[str]) -> None:
    with pytest.raises(InputFormatError, match="this is no table of misspellings"):
        read_spelling(lines)


def test_real_misspellings_are_drawn_that_no_table_saw() -> None:
    """Within 100 draws the shipped table writes 64 % of codespell's held-out misspellings; edits drawn evenly
    over places, operations and letters 41 %.
    """

    def evenly(word: str, rng: Random) -> str:
        at, letter = rng.randrange(len(word)), rng.choice(string.ascii_lowercase)
        left, right = word[:at], word[at:]
        return left + rng.choice([letter + right, right[1:], letter + right[1:], right[1::-1] + right[2:]])

    pairs = [
        (right, wrong)
        for right, wrongs in held_out_misspellings().items()
        for wrong in wrongs
        if right.isalpha() and right.islower() and wrong.isalpha()
    ]
    assert len(pairs) > 700
    reached = []
    for draw in (spelling_noise().misspell, evenly):
        rng = Random(1)
        reached.append(sum(any(draw(right, rng) == wrong for _ in range(100)) for right, wrong in pairs[::3]))
    assert reached[0] > 0.58 * len(pairs[::3])
    assert reached[0] > 1.3 * reached[1]


def test_held_out_misspellings_are_trained_on_nowhere() -> None:
    """One in a hundred, by a hash of the misspelling alone, so that other programs can leave out the same."""
    held_out = {wrong for wrongs in held_out_misspellings().values() for wrong in wrongs}
    trained = {wrong for wrongs in misspellings().values() for wrong in wrongs}
    assert "recieve" in held_out
    assert held_out.isdisjoint(trained)
    assert 0.01 < len(held_out) / (len(held_out) + len(trained)) < 0.014
