"""Edits of English text that lose a word, or change a name or a code, by hand."""

from __future__ import annotations

import pytest

from nartk.data.gec.edits import altered, lost_word

KNOWN = {"moderate", "mode", "catalysis", "categories", "simulation", "simulations", "writing"}


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("moderate", "mode", "'moderate' is replaced by another word"),  # both exist
        ("moderrate", "mode", ""),  # it does not, and they are alike
        ("catalysis", "categories", "'catalysis' is replaced by another word"),
        ("simulation", "simulations", ""),
        ("simulations", "is", ""),  # no word is in its place, nor is one dropped from two
        ("the simulations", "is", "'simulations' is dropped"),
        ("writing", "written", ""),
        ("park", "school", "'park' is replaced by another word"),
        ("person", "people", ""),
        ("broke", "broken", ""),
        ("big", "great", ""),  # the two are confused
        ("every where", "everywhere", ""),
        ("big", "big dog", ""),
        ("the", "a", ""),  # function words
    ],
)
def test_words_that_are_lost(old: str, new: str, wanted: str) -> None:
    assert lost_word(old.split(), new.split(), twice=(), knows=KNOWN.__contains__) == wanted


def test_a_word_that_is_there_twice_may_go() -> None:
    assert lost_word(["big", "dog"], ["dog"], twice=(), knows=KNOWN.__contains__) == "'big' is dropped"
    assert lost_word(["big", "dog"], ["dog"], twice={"big"}, knows=KNOWN.__contains__) == ""


@pytest.mark.parametrize(
    ("source", "at", "new", "wanted"),
    [
        ("the GWAS is", 1, "GAS", ["GWAS"]),
        ("the GWAS is", 1, "GWAS 's", []),
        ("the GWAS is", 1, "gwas", []),
        ("i DONT know", 1, "DO N'T", []),
        ("I DONT KNOW", 1, "DO NO", []),  # all of it is in capitals
        ("the A122 is", 1, "A12", ["A122"]),
        ("the 5-HTP is", 1, "5CA", ["5-HTP"]),
        ("the top-level is", 1, "top-", ["top-level"]),
        ("the well-know is", 1, "well-known", []),
        ("the e-mail- is", 1, "e", []),
        ("the 122 is", 1, "12", []),  # what is a number is none of these
        ("I saw Kathy", 2, "May", ["Kathy"]),
        ("I saw Enviornment", 2, "Environment", []),  # a known misspelling
        ("Kathy is", 0, "May", []),  # any word has a capital there
        ('" Kathy is', 1, "May", []),
        ("and He is", 1, "they", []),  # a function word
        ("the e.g. is", 1, "eg", []),
    ],
)
def test_names_and_codes_that_are_altered(source: str, at: int, new: str, wanted: list[str]) -> None:
    found = altered(source.split(), at, at + 1, new.split(), {"enviornment"}.__contains__)
    assert [*found] == wanted
