"""Word lists of the noise generator: words that learners mix up, drop, add and join.

They are in confusions.json, where an underscore is a space within a word, and ``|`` or a line's end parts
groups of words.
"""

from __future__ import annotations

import json
from collections import defaultdict
from functools import lru_cache
from pathlib import Path

_TABLES = json.loads((Path(__file__).parent / "confusions.json").read_text(encoding="utf-8"))


def _split(text: str) -> tuple[str, ...]:
    return tuple(word.replace("_", " ") for word in text.split())


def _words(name: str) -> tuple[str, ...]:
    return _split(" ".join(_TABLES[name]))


def _written_for(name: str) -> dict[str, tuple[str, ...]]:
    return {word: _split(others) for word, others in _TABLES[name].items()}


def _groups(name: str) -> list[tuple[str, ...]]:
    return [_split(group) for group in "|".join(_TABLES[name]).split("|")]


ARTICLES = _words("articles")
# The words that are written in place of each preposition and pronoun, and of each verb that agrees.
PREPOSITIONS, PRONOUNS, AGREEMENT = map(_written_for, ("prepositions", "pronouns", "agreement"))
INSERTED_AFTER_VERB = _words("inserted_after_verb")  # prepositions before its object: "discuss about it"
DROPPED = frozenset(_words("dropped"))  # function words that go missing
EXTRAS = _words("extras")  # function words that are added
# Words that may be left out where they do not belong: dropping another one changes what a sentence tells.
FUNCTION_WORDS = frozenset([*ARTICLES, *PREPOSITIONS, *PRONOUNS, *AGREEMENT, *DROPPED, *EXTRAS])
JOINED = frozenset(_words("joined"))  # pairs of words that are written as one
PARTS = frozenset(_words("parts"))  # of compounds that are written as two words


@lru_cache(maxsize=1)
def confusions() -> dict[str, tuple[str, ...]]:
    """Maps a lower-cased word to the words that learners write in its place."""
    table: dict[str, dict[str, None]] = defaultdict(dict)
    for group in _groups("confused"):  # of words that are confused with each other
        for word in group:
            table[word].update(dict.fromkeys(other for other in group if other != word))
    for word, *others in _groups("written_for"):  # one way only
        table[word].update(dict.fromkeys(others))
    return {word: tuple(others) for word, others in table.items()}
