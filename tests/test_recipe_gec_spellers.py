"""The spell checkers of the correction recipe: edits of letters, the noisy channel, what they change."""

from __future__ import annotations

import sys

import pytest
from support.recipe_scripts import RECIPES, imported

sys.path.insert(0, str(RECIPES / "gec"))

channel = imported("gec", "noisy_channel.py")
spellers = imported("gec", "spellers.py")


def test_the_channel_prefers_the_errors_that_people_make() -> None:
    """By codespell's list: `ie` for `ei` is common, `ih` is not; a letter is dropped where two are alike."""
    assert channel.log_probability("recieve", "receive") > channel.log_probability("reciive", "receive")
    assert channel.log_probability("adress", "address") > channel.log_probability("addess", "address")
    assert channel.log_probability("chief", "chief") == 0.0
    # One edit that no misspelling has, and one that is too long to be in the table.
    assert channel.log_probability("qhief", "chief") < -9
    assert channel.log_probability("a", "abcdefgh") == 3 * -12.0


def chooser(*lines: str, **settings: float) -> channel.InContext:
    return channel.InContext(channel.Counts(line.split() for line in lines), 1000, **settings)


@pytest.mark.parametrize(
    ("before", "after", "word"),
    [("a ", " man", "tall"), ("a ", " game", "ball"), ("so ", " a", "tall"), ("my ", " a", "ball")],
)
def test_neighbours_decide_between_equal_suggestions(
    before: str, after: str, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "log_probability", lambda wrong, right: 0.0)
    choose = chooser(*["so tall man"] * 50, *["my ball game"] * 50, unknown=-99.0)
    found = [channel.Suggestion("tall", 1, 500), channel.Suggestion("ball", 1, 500)]
    assert choose("zall", before, after, found).word == word
    assert choose.ranked("zall", before, after, found)[0].word == word


def test_words_stay_that_are_more_probable_as_unknown_words() -> None:
    found = [channel.Suggestion("which", 1, 500)]
    assert chooser("which is old", unknown=-99.0)("wich", "", " is", found) is not None
    assert chooser("which is old", unknown=0.0)("wich", "", " is", found) is None


KNOWN = frozenset(["the", "old", "house", "is", "here"])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("teh old hosue.", ["teh", "hosue"]),
        ("Teh (hosue) is here", ["Teh", "hosue"]),
        ("the old Zwiebel is here", []),  # a name
        ("is it http://teh.org/hosue or teh@hosue or teh_hosue(x) or hosue2", []),
        ("TEH HOSUE", []),
        ("the o1d hosue-here don't", []),
        ('"Hosue is here."', ["Hosue"]),
    ],
)
def test_misspellings_are_plain_words_that_are_in_no_list(line: str, words: list[str]) -> None:
    known = KNOWN | {"it", "or"}
    assert [line[begin:end] for begin, end in spellers.misspelt(line, known)] == words


def test_a_line_is_left_alone_but_for_its_misspellings() -> None:
    forms = {"teh": "the", "hosue": "house", "isnt": "is n't"}

    def suggest(word: str) -> list[channel.Suggestion]:
        return [channel.Suggestion(forms[word], 1, 1)] if word in forms else []

    def checked(line: str, *, tokens: bool) -> str:
        return str(spellers.checked(line, KNOWN, suggest, spellers.most_likely, tokens=tokens))

    line = "Teh  old “hosue” isnt  heer!"
    assert checked(line, tokens=False) == "The  old “house” isn't  heer!"
    assert checked("Teh hosue isnt heer !", tokens=True) == "The house is n't heer !"


def test_a_suggestion_is_chosen_between_what_is_done_and_what_is_not() -> None:
    given = []

    def choose(word: str, before: str, after: str, found: list[channel.Suggestion]) -> channel.Suggestion:
        given.append((word, before, after))
        return found[0]

    def suggest(word: str) -> list[channel.Suggestion]:
        return [channel.Suggestion({"teh": "the", "hosue": "house"}[word], 1, 1)]

    assert spellers.checked("teh old hosue.", KNOWN, suggest, choose, tokens=False) == "the old house."
    assert given == [("teh", "", " old hosue."), ("hosue", "the old ", ".")]


def test_contractions_need_text_that_has_them() -> None:
    counts = channel.Counts([["that", "'s", "it"]] * 3 + [["it", "'s", "so"]] * 2)
    assert [*spellers.contraction("thats", counts)] == [("that 's", 3)]
    assert [*spellers.contraction("its", counts)] == []  # counted twice
    assert [*spellers.contraction("that", counts)] == []
    assert "thats" not in {*spellers.seen_words({"thats": 9, "teh": 9, "so": 9}, counts)}
    assert {*spellers.seen_words({"thats": 9, "teh": 9, "so": 9}, counts)} == {"so", "'s", "it"}  # five times
