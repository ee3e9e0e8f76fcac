"""Lexicon of English: tags, inflections, families of derived words and common misspellings."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha256

from nartk.data.text import read_shipped


def regular_form(lemma: str, tag: str) -> str:
    """The regular inflection of a lemma: ``("study", "VBZ")`` gives ``studies``."""
    if tag in ("VB", "VBP", "NN"):
        return lemma
    after_consonant_y = lemma[-1] == "y" and lemma[-2:-1] not in "aeiou"
    if tag in ("VBZ", "NNS"):
        if after_consonant_y:
            return lemma[:-1] + "ies"
        return lemma + ("es" if re.search(r"(s|x|z|ch|sh)$", lemma) else "s")
    doubles = re.fullmatch(r"[^aeiou]*[aeiou][^aeiouwxy]", lemma) is not None
    if tag == "VBG":
        if re.search(r"[^eoy]e$", lemma):
            return lemma[:-1] + "ing"
        return lemma + (lemma[-1] if doubles else "") + "ing"
    if lemma[-1] == "e":
        return lemma + "d"
    if after_consonant_y:
        return lemma[:-1] + "ied"
    return lemma + (lemma[-1] if doubles else "") + "ed"


NOUNS = ("NN", "NNS")
VERBS = ("VB", "VBP", "VBZ", "VBD", "VBN", "VBG")
_SUFFIXES = """
    s ment tion ation ition ance ence ancy ency ant ent ful less ly ness ity ive ative al able ible
    ous er or ist y ic ical ing ed e en th ure ize ise iness ily ably
"""


class Lexicon:
    """Tags and inflected forms of English words.

    Attributes:
        tags: Counts of the Penn tags of each form; proper nouns keep their case, all else is lower case.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self.tags: dict[str, dict[str, int]] = {}
        self._lemmas: dict[tuple[str, str], str] = {}
        forms: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        pairs: Counter[tuple[str, str]] = Counter()
        for line in lines:
            first, second, third, count = line.split(" ")
            if first == "#":
                pairs[second, third] = int(count)
                continue
            self.tags.setdefault(first, {})[third] = int(count)
            self._lemmas[first, third] = second
            forms[second, third][first] += int(count)
        self._forms = {key: counts.most_common(1)[0][0] for key, counts in forms.items()}
        totals: Counter[str] = Counter()
        for (left, _), number in pairs.items():
            totals[left] += number
        self._follows = {pair: math.log(number / totals[pair[0]]) for pair, number in pairs.items()}
        self._families = self._build_families()
        self._next_tag = lru_cache(maxsize=400_000)(self._find_tag)

    def _build_families(self) -> dict[str, tuple[str, ...]]:
        """Words of one stem and different suffixes: ``develop``, ``development``, ``developer``."""
        suffixes = _SUFFIXES.split()
        stems: dict[str, set[str]] = defaultdict(set)
        for form, tags in self.tags.items():
            if len(form) < 4 or not form.isalpha() or not form.islower() or sum(tags.values()) < 2:
                continue
            tag = max(tags, key=lambda tag: tags[tag])
            if tag in ("NN", "JJ", "VB", "RB", "VBP"):
                for suffix in ("", *suffixes):
                    if form.endswith(suffix) and len(form) - len(suffix) >= 4:
                        stems[form[: len(form) - len(suffix)]].add(form)
        families: dict[str, set[str]] = defaultdict(set)
        for members in stems.values():
            if 2 <= len(members) <= 6:
                for member in members:
                    families[member] |= members - {member}
        return {word: tuple(sorted(others)) for word, others in families.items()}

    def family(self, word: str) -> tuple[str, ...]:
        """Other words derived from the stem of a lower-cased word."""
        return self._families.get(word, ())

    def lemma(self, word: str, tag: str) -> str | None:
        """Lemma of a lower-cased word under a tag, or None where it is unknown."""
        return self._lemmas.get((word, tag))

    def inflect(self, lemma: str, tag: str) -> str:
        """Form of a lemma under a Penn tag of nouns or verbs, regular where the treebank lacks it."""
        form = self._forms.get((lemma, tag))
        return regular_form(lemma, tag) if form is None else form

    def reinflect(self, word: str, tag: str, new_tag: str) -> str | None:
        """Another form of the word, or None where its lemma is unknown or the form is the same."""
        lemma = self.lemma(word, tag)
        if lemma is None and tag == "NNS" and re.search(r"[^su]s$", word):
            lemma = word[:-3] + "y" if word.endswith("ies") else word[:-1]
        elif lemma is None and tag == "NN":
            lemma = word
        if not lemma or lemma == "_":
            return None
        form = self.inflect(lemma, new_tag)
        return None if form == word else form

    def is_known(self, word: str) -> bool:
        return word in self.tags or word.lower() in self.tags

    def tag(self, tokens: Sequence[str]) -> list[str]:
        """Guesses a Penn tag for each token, left to right from the word and the tag before."""
        tags: list[str] = []
        last = "^"
        for token in tokens:
            last = self._next_tag(token, last)
            tags.append(last)
        return tags

    def _find_tag(self, token: str, last: str) -> str:
        """Tag of a token behind another tag."""
        counts = self.tags.get(token)
        lower = self.tags.get(token.lower())
        if counts is None or (lower is not None and last in ("^", ".", "``", "''")):
            counts = lower
        if counts is None:
            return _guess_tag(token, last)
        follows = self._follows
        return max(counts, key=lambda tag: math.log(counts[tag]) + follows.get((last, tag), -9.0))


def _guess_tag(token: str, last: str) -> str:
    """Tag of a word that the treebank lacks, from its shape."""
    if token[0].isdigit():
        return "CD"
    if not token[0].isalpha():
        return "SYM"
    if token[0].isupper() and last != "^":
        return "NNP"
    for suffix, tag in (
        ("ly", "RB"),
        ("ing", "VBG"),
        ("ed", "VBN"),
        ("ous", "JJ"),
        ("ive", "JJ"),
        ("al", "JJ"),
    ):
        if token.endswith(suffix):
            return tag
    return "NNS" if re.search(r"[^sui]s$", token) else "NN"


@lru_cache(maxsize=1)
def lexicon() -> Lexicon:
    """The shipped lexicon, read once."""
    return Lexicon(read_shipped("lexicon.tsv.xz"))


@lru_cache(maxsize=1)
def wrong_words() -> frozenset[str]:
    """Every known misspelling of one word, in lower case."""
    return frozenset(line.partition("->")[0].lower() for line in read_shipped("misspellings.tsv.xz"))


def is_held_out(wrong: str) -> bool:
    """True for some 1.2 % of the listed misspellings, which no model is trained on: they measure all."""
    return sha256(wrong.lower().encode()).digest()[0] < 3


@lru_cache(maxsize=1)
def _listed() -> dict[str, tuple[str, ...]]:
    """Maps each correct word (or words) of the codespell list to its misspellings.

    A misspelling with more than two possible corrections is left out.
    """
    wrong: dict[str, list[str]] = defaultdict(list)
    for line in read_shipped("misspellings.tsv.xz"):
        word, _, answer = line.partition("->")
        choices = [choice.strip() for choice in answer.split(",") if choice.strip()]
        # Without a comma at the end, what follows the first correction is a remark.
        if not answer.endswith(","):
            choices = choices[:1]
        if len(choices) > 2 or not re.fullmatch(r"[A-Za-z' -]+", word):
            continue
        for choice in choices:
            if re.fullmatch(r"[A-Za-z -]+", choice) and choice != word:
                wrong[choice].append(word)
    return {right: tuple(words) for right, words in wrong.items()}


def _misspellings(*, held_out: bool) -> dict[str, tuple[str, ...]]:
    parted = (
        (right, tuple(word for word in words if is_held_out(word) == held_out))
        for right, words in _listed().items()
    )
    return {right: words for right, words in parted if words}


@lru_cache(maxsize=1)
def misspellings() -> dict[str, tuple[str, ...]]:
    """Maps each correct word (or words) to its known misspellings that may be trained on."""
    return _misspellings(held_out=False)


@lru_cache(maxsize=1)
def held_out_misspellings() -> dict[str, tuple[str, ...]]:
    """The known misspellings that are not in `misspellings`."""
    return _misspellings(held_out=True)
