"""Turns clean English into learners' English, to train grammatical error correction on synthetic pairs.

Every edit belongs to one of `nartk.data.gec.rates.ERROR_TYPES`; how often each occurs comes from a table of
rates, such as one fitted to a corpus of real errors. The same seed, line and copy give the same noise on
every machine, in any order of the lines.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from nartk.data.gec.confusions import (
    AGREEMENT,
    ARTICLES,
    DROPPED,
    EXTRAS,
    INSERTED_AFTER_VERB,
    JOINED,
    PARTS,
    PREPOSITIONS,
    PRONOUNS,
    confusions,
)
from nartk.data.gec.lexicon import NOUNS, VERBS, lexicon, misspellings, regular_form
from nartk.data.gec.rates import LISTED, NoiseRates, load_rates
from nartk.data.gec.spelling import spelling_noise


def _like(word: str, model: str) -> str:
    """Gives `word` the capitals of `model`."""
    if model[:1].isupper():
        return word.upper() if len(model) > 1 and model.isupper() else word[:1].upper() + word[1:]
    return word


def misspell(word: str, rng: Random, listed: float = LISTED) -> str:
    """A plausible misspelling of a word of at least two letters, in its case; differs from the word.

    Args:
        listed: Probability of a misspelling from the list of known ones, for a word that it has.
    """
    lower = word.lower()
    known = misspellings().get(lower)
    if known is not None and rng.random() < listed:
        return _like(rng.choice(known), word)
    for _ in range(8):
        wrong = spelling_noise().misspell(lower, rng)
        if wrong != lower:
            return _like(wrong, word)
    return _like(lower[0] + lower, word)


@dataclass(frozen=True)
class Annotated:
    """A clean sentence, tagged, with the places for each kind of error; serves any number of copies.

    Attributes:
        tokens: The clean tokens.
        tags: Their guessed Penn tags.
        spots: For each kind that the sentence can have, the indices where it may be tried.
    """

    tokens: list[str]
    tags: list[str]
    spots: dict[str, list[int]]


_NOUN_PHRASE = frozenset(["NN", "NNS", "JJ", "JJS"])
_PARTICLES = frozenset(["IN", "TO", "RP"])
_OBJECT_STARTS = frozenset(["DT", "PRP", "PRP$"])
_BEFORE_COMMA = frozenset(["and", "but", "because", "that", "so", "if", "when", "or"])
_MARKS = frozenset([*".?!;:", '"', "-", "--"])
_BEFORE_NOUN = frozenset(
    "DT PRP$ JJ NN NNS NNP NNPS POS CD WP$ JJR JJS WDT PDT HYPH VBG VBN RBS".split(" ")  # noqa: SIM905
)


def annotate(tokens: Sequence[str]) -> Annotated:
    """Tags a clean sentence, tokens neither empty nor with white space, and finds where it can go wrong."""
    words = list(tokens)
    tags = lexicon().tag(words)
    spots: dict[str, list[int]] = defaultdict(list)
    last = len(words) - 1
    previous_tag, previous = "^", ""
    for i, (word, tag) in enumerate(zip(words, tags, strict=True)):
        lower, is_word, alone = _alone(word, tag, i == 0)
        for error_type, times in alone:
            spots[error_type] += [i] * times
        if is_word:
            size = len(word)
            following = words[i + 1] if i < last else ""
            if size in (2, 3) and i % 3 == 0 and tag[:3] != "NNP":
                spots["spelling"].append(i)
            if tag in _NOUN_PHRASE and previous_tag not in _BEFORE_NOUN and lower not in ARTICLES:
                spots["article"].append(i)
            if tag in _PARTICLES and lower in PREPOSITIONS:
                next_tag = tags[i + 1] if i < last else "."
                if not (lower == "to" and next_tag == "VB"):
                    spots["preposition"] += [i] * 2
            elif tag in _OBJECT_STARTS and previous_tag in VERBS and previous not in AGREEMENT:
                spots["preposition"].append(i)
            if i % 4 == 0 and tag in NOUNS and not (word[0].isupper() and i == 0):
                spots["casing"].append(i)
            if 0 < i < last:
                spots["extra"].append(i)
                if following.isalpha():
                    spots["order"].append(i)
            if following:
                if f"{lower} {following.lower()}" in JOINED:
                    spots["spacing"] += [i] * 4
                elif i % 6 == 1 and following.isalpha():
                    spots["spacing"].append(i)
                if lower in _BEFORE_COMMA:
                    spots["punctuation"].append(i)
        elif word in _MARKS:
            spots["punctuation"] += [i] * (1 if i < last else 2)
        previous_tag, previous = tag, lower
    if last > 6 and words[0].isalpha():
        spots["punctuation"].append(0)
    return Annotated(words, tags, dict(spots))


@lru_cache(maxsize=200_000)
def _alone(word: str, tag: str, is_first: bool) -> tuple[str, bool, tuple[tuple[str, int], ...]]:
    """The lower case of a word, whether it is all letters, and how often its index is a spot of each kind, as
    far as that does not depend on its neighbours.
    """
    lower, is_word = word.lower(), word.isalpha()
    found: list[tuple[str, int]] = []
    if not is_word:
        if "'" in word and len(word) > 1 and not is_first:
            found.append(("punctuation", 2))
        elif word == ",":
            found.append(("punctuation", 4))
        if word in ("'m", "'re", "n't", "'ll", "'ve"):
            found.append(("missing", 1))
        return lower, False, tuple(found)
    size = len(word)
    if size > 3 and (tag[:3] != "NNP" or is_first) and not (word.isupper() and not is_first):
        # Long words and rare ones go wrong more often.
        rare = size > 4 and not lexicon().is_known(word)
        found.append(("spelling", (1 if size < 5 else 2 if size < 7 else 4 if size < 9 else 5) + rare))
    if lower in ARTICLES:
        found.append(("article", 3))
    if tag in NOUNS and size > 2:
        found.append(("noun_number", 3 if tag == "NNS" else 1))
    if tag in ("VBZ", "VBP") or lower in ("was", "were"):
        found.append(("agreement", 1))
    if tag in VERBS and lower not in AGREEMENT:
        found.append(("verb_form", 1))
    tables = {"pronoun": PRONOUNS, "confusion": confusions(), "missing": DROPPED}
    found += ((error_type, 1) for error_type, table in tables.items() if lower in table)
    if lexicon().family(lower) or (tag == "RB" and lower.endswith("ly")):
        found.append(("derivation", 1))
    if word[0].isupper() and (is_first or tag[:3] == "NNP" or word == "I"):
        found.append(("casing", 4 if is_first else 2 if word == "I" else 1))
    if size > 4 and _compound(lower) is not None:
        found.append(("spacing", 2))
    return lower, True, tuple(found)


def _compound(word: str) -> tuple[str, str] | None:
    """The two words that a compound joins, or None."""
    cuts = ((word[:at], word[at:]) for at in range(2, len(word) - 1))
    return next((parts for parts in cuts if PARTS.issuperset(parts)), None)


class _NoisedSentence:
    """A sentence under edit: one cell of text for each clean token, and which cells an edit has used."""

    __slots__ = ("cells", "listed", "rng", "tags", "used", "words")

    def __init__(self, sentence: Annotated, rng: Random, listed: float) -> None:
        self.words = sentence.tokens
        self.tags = sentence.tags
        self.cells = list(sentence.tokens)
        self.used = bytearray(len(self.cells))
        self.rng = rng
        self.listed = listed

    def put(self, i: int, text: str | None) -> bool:
        """Writes a cell; False where there is nothing to write or it would change nothing."""
        if text is None or text == self.cells[i]:
            return False
        self.write(i, text)
        return True

    def write(self, i: int, text: str) -> None:
        self.cells[i], self.used[i] = text, 1

    def free(self, i: int) -> bool:
        return 0 <= i < len(self.cells) and not self.used[i]

    def tag(self, i: int) -> str:
        return self.tags[i] if 0 <= i < len(self.tags) else "."

    def word(self, i: int) -> str:
        return self.words[i].lower() if 0 <= i < len(self.words) else ""

    def drop(self, i: int) -> bool:
        """Deletes a token; the next one keeps or takes the capital of a sentence's start."""
        if i == 0 and self.free(1) and self.rng.random() < 0.7:
            self.write(1, self.cells[1][:1].upper() + self.cells[1][1:])
        return self.put(i, "")

    def insert_before(self, i: int, word: str) -> bool:
        """Puts a word before a token, with the capital of a sentence's start where it falls there."""
        here = self.words[i]
        if i == 0:
            starts = here if self.tag(0)[:3] == "NNP" or here == "I" else here[:1].lower() + here[1:]
            return self.put(0, f"{word[:1].upper()}{word[1:]} {starts}")
        return self.put(i, f"{word} {here}")


def _spelling(draft: _NoisedSentence, i: int) -> bool:
    return draft.put(i, misspell(draft.words[i], draft.rng, draft.listed))


def _casing(draft: _NoisedSentence, i: int) -> bool:
    word = draft.words[i]
    return draft.put(i, word.lower() if word[0].isupper() else word.capitalize())


def _punctuation(draft: _NoisedSentence, i: int) -> bool:
    word, rng = draft.words[i], draft.rng
    roll = rng.random()
    if word.isalpha():
        if i == 0:
            # A comma where none belongs.
            choices = [
                k for k in range(2, len(draft.cells) - 1) if draft.words[k].isalpha() and draft.free(k)
            ]
            if not choices:
                return False
            at = rng.choice(choices)
            return draft.put(at, f", {draft.words[at]}")
        return draft.words[i - 1].isalpha() and draft.insert_before(i, ",")
    if "'" in word:
        if not draft.free(i - 1):
            return False
        before, bare = draft.words[i - 1], word.replace("'", "")
        if roll < 0.45:
            draft.write(i - 1, before + bare)
            return draft.put(i, "")
        if roll < 0.6:
            return draft.put(i, bare if word != "n't" else rng.choice(["nt", "not"]))
        if roll < 0.75 and word != "'s":
            draft.write(i - 1, before + word)
            return draft.put(i, "")
        return word == "'s" and draft.put(i, "")
    if word == ",":
        return draft.put(i, "" if roll < 0.85 else rng.choice([".", ";"]))
    if i == len(draft.words) - 1:
        if roll < 0.6:
            return draft.put(i, "")
        other = rng.choice(["..", ",", "!", "?"])
        return draft.put(i, "." if word in ("?", "!") else other)
    if word in (".", ";", ":"):
        return draft.put(i, "," if roll < 0.6 else "")
    return draft.put(i, "")


_OTHER_ARTICLES = {"a": ("the", "an", "the", "one"), "an": ("a", "the", "a"), "the": ("a", "a", "this", "an")}


def _article(draft: _NoisedSentence, i: int) -> bool:
    word, rng = draft.words[i], draft.rng
    lower = word.lower()
    if lower in ARTICLES:
        if rng.random() < 0.68:
            return draft.drop(i)
        return draft.put(i, _like(rng.choice(_OTHER_ARTICLES[lower]), word))
    if rng.random() < 0.85:
        return draft.insert_before(i, "the")
    return draft.insert_before(i, "an" if lower[0] in "aeiou" else "a")


def _preposition(draft: _NoisedSentence, i: int) -> bool:
    word, rng = draft.words[i], draft.rng
    others = PREPOSITIONS.get(word.lower())
    if others is None:
        return draft.insert_before(i, rng.choice(INSERTED_AFTER_VERB))
    if rng.random() < 0.35:
        return draft.drop(i)
    return draft.put(i, _like(rng.choice(others), word))


def _noun_number(draft: _NoisedSentence, i: int) -> bool:
    word, tag = draft.words[i], draft.tags[i]
    form = lexicon().reinflect(word.lower(), tag, "NN" if tag == "NNS" else "NNS")
    if tag == "NNS" and form is not None and draft.rng.random() < 0.06:
        form = regular_form(form, "NNS")  # "childs"
    return draft.put(i, None if form is None else _like(form, word))


def _agreement(draft: _NoisedSentence, i: int) -> bool:
    word, tag = draft.words[i], draft.tags[i]
    lower = word.lower()
    if lower in AGREEMENT:
        return draft.put(i, _like(draft.rng.choice(AGREEMENT[lower]), word))
    form = lexicon().reinflect(lower, tag, "VBP" if tag == "VBZ" else "VBZ")
    return draft.put(i, None if form is None else _like(form, word))


_NEW_TAGS = {
    "VB": ("VBG", "VBD", "VBZ", "VBN", "to"),
    "VBP": ("VBD", "VBG", "VBN", "be", "VBD"),
    "VBZ": ("VBD", "VBG", "VB", "be"),
    "VBD": ("VB", "VBZ", "VBN", "VB", "regular", "have"),
    "VBN": ("VB", "VBD", "VBG", "VB", "regular"),
    "VBG": ("VB", "to", "VBN", "VB", "VBZ"),
}


def _verb_form(draft: _NoisedSentence, i: int) -> bool:
    word, tag, rng = draft.words[i], draft.tags[i], draft.rng
    lower, book = word.lower(), lexicon()
    before = draft.word(i - 1)
    if tag == "VB" and before == "to" and draft.free(i - 1) and rng.random() < 0.35:
        return draft.drop(i - 1)
    new = rng.choice(_NEW_TAGS[tag])
    lemma = book.lemma(lower, tag)
    if lemma is None or not lemma.isalpha():
        return False
    if new == "to":
        return before != "to" and draft.put(i, _like(f"to {lemma}", word))
    if new == "be":
        main = book.inflect(lemma, "VBG") if rng.random() < 0.5 else lower
        return draft.put(i, f"{'is' if tag == 'VBZ' else 'are'} {main}")
    if new == "have":
        auxiliary = rng.choice(("has", "have", "had", "was", "did"))
        return draft.put(i, f"{auxiliary} {lower if rng.random() < 0.5 else lemma}")
    form = regular_form(lemma, "VBD") if new == "regular" else book.inflect(lemma, new)
    return draft.put(i, None if form == lower else _like(form, word))


def _pronoun(draft: _NoisedSentence, i: int) -> bool:
    word = draft.words[i]
    new = draft.rng.choice(PRONOUNS[word.lower()])
    # "I" has its capital anywhere, so it says nothing about the word in its place.
    return draft.put(i, new if new == "I" or (word == "I" and i > 0) else _like(new, word))


def _confusion(draft: _NoisedSentence, i: int) -> bool:
    word = draft.words[i]
    return draft.put(i, _like(draft.rng.choice(confusions()[word.lower()]), word))


def _derivation(draft: _NoisedSentence, i: int) -> bool:
    word, rng = draft.words[i], draft.rng
    lower = word.lower()
    others = list(lexicon().family(lower))
    if lower.endswith("ly") and draft.tags[i] == "RB":
        others += [lower[:-2]] * (1 + len(others))
    return bool(others) and draft.put(i, _like(rng.choice(others), word))


def _spacing(draft: _NoisedSentence, i: int) -> bool:
    word, rng = draft.words[i], draft.rng
    parts = _compound(word.lower())
    if parts is not None and rng.random() < 0.8:
        return draft.put(i, _like(" ".join(parts), word))
    if not draft.free(i + 1) or not draft.words[i + 1].isalpha():
        return False
    draft.write(i + 1, "")
    return draft.put(i, word + draft.words[i + 1])


def _order(draft: _NoisedSentence, i: int) -> bool:
    if not draft.free(i + 1) or not draft.words[i + 1].isalpha() or draft.word(i) == draft.word(i + 1):
        return False
    # Adverbs, pronouns and auxiliaries move about; articles stay before their nouns.
    if draft.tags[i] in ("DT", "PRP$", "IN", "TO", "CC") or draft.tags[i + 1] in ("DT", "IN", "TO", "CC"):
        return False
    if "NNP" in (draft.tags[i], draft.tags[i + 1]):
        return False
    draft.write(i + 1, draft.words[i])
    return draft.put(i, draft.words[i + 1])


def _missing(draft: _NoisedSentence, i: int) -> bool:
    return len(draft.words) > 3 and draft.drop(i)


def _extra(draft: _NoisedSentence, i: int) -> bool:
    rng = draft.rng
    if rng.random() < 0.35:
        return draft.put(i, f"{draft.words[i]} {draft.words[i]}")
    word = rng.choice(EXTRAS)
    return word not in (draft.word(i), draft.word(i - 1)) and draft.insert_before(i, word)


_EDITS: dict[str, Callable[[_NoisedSentence, int], bool]] = {
    "spelling": _spelling,
    "casing": _casing,
    "punctuation": _punctuation,
    "article": _article,
    "preposition": _preposition,
    "noun_number": _noun_number,
    "agreement": _agreement,
    "verb_form": _verb_form,
    "pronoun": _pronoun,
    "confusion": _confusion,
    "derivation": _derivation,
    "spacing": _spacing,
    "order": _order,
    "missing": _missing,
    "extra": _extra,
}
_TRIES = 4  # places of one kind that an edit tries before it gives up


class Noiser:
    """Makes learners' errors at given rates.

    Args:
        rates: Rates of errors by type; those of the shipped model unless given.
        seed: Seed of `noise_line`, together with the line and the copy.
    """

    def __init__(self, rates: NoiseRates | None = None, seed: int = 1) -> None:
        self.rates = load_rates() if rates is None else rates
        self.seed = seed
        weights = [(error_type, weight) for error_type, weight in self.rates.weights if weight > 0]
        self._error_types = [error_type for error_type, _ in weights]
        self._cumulative = list(itertools.accumulate(weight for _, weight in weights))

    def noise(self, tokens: Sequence[str] | Annotated, rng: Random) -> list[str]:
        """A noised copy of the tokens; never empty unless they are."""
        return self.noise_with_types(tokens, rng)[0]

    def noise_line(self, tokens: Sequence[str] | Annotated, line: int, copy: int = 0) -> list[str]:
        """Copy number `copy` of line number `line`: the same for one seed, whatever came before."""
        return self.noise(tokens, Random((self.seed << 80) ^ (line << 32) ^ copy))

    def noise_with_types(self, tokens: Sequence[str] | Annotated, rng: Random) -> tuple[list[str], list[str]]:
        """A noised copy, and the kinds of the edits made in the order of their making."""
        sentence = tokens if isinstance(tokens, Annotated) else annotate(tokens)
        rates = self.rates
        size = len(sentence.tokens)
        if size == 0 or rng.random() < rates.unchanged:
            return list(sentence.tokens), []
        mean = rates.edits_per_token * size * rng.gammavariate(rates.dispersion, 1 / rates.dispersion)
        count = max(1, _poisson(min(mean, size * 0.6), rng))
        draft = _NoisedSentence(sentence, rng, rates.listed)
        made = []
        for _ in range(count):
            (error_type,) = rng.choices(self._error_types, cum_weights=self._cumulative)
            spots = sentence.spots.get(error_type, ())
            for _try in range(_TRIES if spots else 0):
                i = spots[int(rng.random() * len(spots))]
                if not draft.used[i] and _EDITS[error_type](draft, i):
                    made.append(error_type)
                    break
        noised = " ".join(draft.cells).split()
        return (noised, made) if noised else (list(sentence.tokens), [])


def _poisson(mean: float, rng: Random) -> int:
    """A draw from a Poisson distribution, by Knuth's product of uniforms; a mean above 700 counts as that."""
    bound, product, count = math.exp(-mean), rng.random(), 0
    while product > bound:
        product *= rng.random()
        count += 1
    return count
