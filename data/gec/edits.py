"""Reasons against an edit of English text, however probable a model finds it: words that have to stay.

The rules are by hand, of what a model that has seen few rare words does to text unlike its own: it writes a
word that it knows better ("moderate" becomes "mode"), and letters of names and codes go missing ("GWAS").
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import takewhile

from nartk.data.gec.confusions import FUNCTION_WORDS, confusions
from nartk.protocols.paragraph import bare

_ALIKE = 0.4  # least likeness of a word that another one may be replaced by, from 0 to 1, by their letters
_LONG = 6  # letters of a word of the list from which on only a related one may be in its place
# Of two related words: last letters of the shorter one that may differ, letters with which both begin, at
# least; letters of the shorter one, at least, or how many more the longer one has, at most.
_ENDING, _STEM, _WHOLE, _SUFFIX = 3, 3, 5, 3
# Forms of a word that are nothing like each other.
_FORMS = """
    go went gone, see saw seen, good better best, bad worse worst, buy bought, bring brought, teach taught,
    catch caught, think thought, seek sought, fight fought, choose chose chosen, break broke broken,
    speak spoke spoken, steal stole stolen, freeze froze frozen, person people
"""
_GROUPS = tuple(frozenset(forms.split()) for forms in _FORMS.split(","))


def lost_word(
    old: Sequence[str], new: Sequence[str], *, twice: Container[str], knows: Callable[[str], bool]
) -> str:
    """Tells how an edit loses a word that is no function word; "": there is none.

    Args:
        old, new: Tokens that the edit replaces, and those in their place.
        twice: Words that are there twice, one of which may go.
        knows: Tells whether a word in small letters exists.
    """
    mine, theirs = bare(old), bare(new)
    lost = [word for word in mine if word not in FUNCTION_WORDS and word not in twice and word.isalpha()]
    made = [word for word in theirs if word not in FUNCTION_WORDS and word.isalpha()]
    if any("".join(one) == "".join(other) for one, other in ((mine, theirs), (lost, made))):
        return ""
    if len(mine) > len(theirs) and len(lost) > len(made):
        return f"{lost[0]!r} is dropped"
    others = [word for word in made if word not in lost]
    for word in lost:
        if others and word not in made and not any(_may_replace(other, word, knows) for other in others):
            return f"{word!r} is replaced by another word"
    return ""


def _may_replace(other: str, word: str, knows: Callable[[str], bool]) -> bool:
    """Tells whether a word may be another one misspelt, a form of it, or be confused with it."""
    if other in confusions().get(word, ()) or any({word, other} <= group for group in _GROUPS):
        return True
    if len(word) >= _LONG and knows(word):
        begin = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(word, other, strict=False)))
        shorter, longer = sorted((len(word), len(other)))
        is_form = shorter >= _WHOLE or longer - shorter <= _SUFFIX
        return is_form and begin >= max(_STEM, shorter - _ENDING)
    return SequenceMatcher(None, word, other, autojunk=False).ratio() >= _ALIKE


def altered(
    source: Sequence[str], start: int, stop: int, new: Sequence[str], is_misspelt: Callable[[str], bool]
) -> Iterator[str]:
    """The names and codes among a source's tokens from `start` to `stop` whose letters the tokens in their
    place lack: words with a digit, with a hyphen or all in capitals, and with a capital inside a sentence.

    Args:
        is_misspelt: Tells whether a word in small letters is a known misspelling, and no name.
    """
    letters = "".join(bare(new))
    if " ".join(source).isupper():
        return
    for i in range(start, stop):
        token, (word,) = source[i], bare(source[i : i + 1]) or ("",)
        is_inside = i > 0 and source[i - 1].isalnum()
        is_name = is_inside and token[:1].isupper() and word.isalpha() and word not in FUNCTION_WORDS
        is_code = not (word.isalpha() or word.isdigit()) or (token.isupper() and len(word) > 1)
        is_compound = token.partition("-")[0].isalnum() and token.rpartition("-")[2].isalnum()
        if (
            is_compound
            and (is_name or is_code or "-" in token)
            and word not in letters
            and not is_misspelt(word)
        ):
            yield token
