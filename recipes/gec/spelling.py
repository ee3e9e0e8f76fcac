"""Misspellings in sentences, and counts of those that a correction gets right.

A misspelling is a word of three letters or more that is in no word list and that is written otherwise in each
annotator's text, in at least half of them as one or two listed words that resemble it. So names, words that
are other words and disputed ones are none. A correction gets one right if it writes what an annotator has
there. A spelling change is what a correction has in place of an unlisted word, or an unlisted word that it
brings in; it is right if an annotator has that too. Case does not count.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from testsets import Corrected

from nartk.data.gec.lexicon import held_out_misspellings
from nartk.data.text import detokenize, tokenize
from nartk.protocols.paragraph import edits

REAL = 500  # misspellings in sentences
SHORTEST = 3  # letters
ALIKE = 0.5  # share of letters that a misspelling and its correction have in common
SEED = 1
_IS_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*").fullmatch


def lower(tokens: Iterable[str]) -> list[str]:
    return [token.lower().replace("’", "'") for token in tokens]


def is_listed(word: str, known: Container[str]) -> bool:
    """True if a token is in a list of words, or if it is no word; parts of a compound count by themselves."""
    return _IS_WORD(word) is None or word in known or all(part in known for part in word.split("-"))


def resemblance(one: str, other: str) -> float:
    """Share of the letters of two texts that they have in common, in their order, 0 to 1."""
    return SequenceMatcher(None, one, other.replace(" ", ""), autojunk=False).ratio()


def written_for(source: Sequence[str], other: Sequence[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Tokens of a source beside those that another text has in their place, where these differ."""
    for i, stop, j, last in edits(source, other):
        if source[i:stop] != other[j:last]:
            yield [*source[i:stop]], [*other[j:last]]


def spelt(word: str, block: Sequence[str]) -> str | None:
    """The one or two neighbouring tokens that most resemble a word; None: none do."""
    choices = [" ".join(block[i : i + n]) for n in (1, 2) for i in range(len(block) + 1 - n)]
    best = max(choices, key=lambda choice: resemblance(word, choice), default="")
    return best if resemblance(word, best) > ALIKE else None


@dataclass(frozen=True)
class Spellings:
    """A text with misspellings.

    Attributes:
        wrong: Misspellings in small letters, each with what annotators write for it.
        others: Further words that are in no list, in the same form.
    """

    text: Corrected
    wrong: dict[str, frozenset[str]]
    others: dict[str, frozenset[str]]


def spellings(text: Corrected, known: Container[str]) -> Spellings:
    """Finds the misspellings of a text."""
    source = lower(text.tokens)
    unlisted = {word for word in source if len(word) >= SHORTEST and not is_listed(word, known)}
    forms: dict[str, set[str]] = defaultdict(set)
    votes: dict[str, list[bool]] = defaultdict(list)  # True: an annotator writes words of the list
    for gold in text.corrections:
        for mine, theirs in written_for(source, lower(gold)):
            for word in unlisted.intersection(mine).difference(theirs):
                found = spelt(word, theirs)
                if found is not None:
                    forms[word].add(found)
                listed = found is not None and all(is_listed(each, known) for each in found.split())
                votes[word].append(listed)
    wrong = {
        word
        for word, listed in votes.items()
        if len(listed) == len(text.golds) * source.count(word) and 2 * sum(listed) >= len(listed)
    }
    return Spellings(
        text,
        {word: frozenset(forms[word]) for word in sorted(wrong)},
        {word: frozenset(forms[word]) for word in sorted({*forms} - wrong)},
    )


def real(texts: Iterable[Corrected], known: Container[str], most: int = REAL) -> list[Spellings]:
    """Texts with so many misspellings together; of the last data set, those that are drawn."""
    found = [each for each in (spellings(text, known) for text in texts) if each.wrong]
    last = found[-1].text.name
    drawn = [each for each in found if each.text.name == last]
    random.Random(SEED).shuffle(drawn)
    kept: list[Spellings] = []
    count = 0
    for each in [*(each for each in found if each.text.name != last), *drawn]:
        if count + len(each.wrong) <= most:
            kept.append(each)
            count += len(each.wrong)
    return kept


def inserted(sentences: Sequence[str], known: Container[str]) -> list[Spellings]:
    """Clean sentences with a held-out misspelling of codespell's list each."""
    at: dict[str, list[int]] = defaultdict(list)
    for number, sentence in enumerate(sentences):
        for token in {*lower(tokenize(sentence))}:
            at[token].append(number)
    rng = random.Random(SEED)
    found = []
    for right, wrongs in sorted(held_out_misspellings().items()):
        right = right.lower()
        for wrong in sorted(wrongs):
            if right not in at or len(wrong) < SHORTEST or is_listed(wrong.lower(), known):
                continue
            text = sentences[rng.choice(at[right])]
            tokens = tokenize(text)
            changed = [_cased(wrong, token) if token.lower() == right else token for token in tokens]
            made = Corrected("codespell, held out", detokenize(changed), (detokenize(tokens),))
            found.append(Spellings(made, {wrong.lower(): frozenset([right])}, {}))
    return found


def _cased(word: str, like: str) -> str:
    if like.isupper() and len(like) > 1:
        return word.upper()
    return word.capitalize() if like[:1].isupper() else word


@dataclass(frozen=True)
class SpellingCounts:
    """Counts over texts with misspellings.

    Attributes:
        wrong: Misspellings.
        recovered: Misspellings that came out right.
        changes: Spelling changes.
        right: Spelling changes that an annotator has too.
    """

    wrong: int = 0
    recovered: int = 0
    changes: int = 0
    right: int = 0

    @property
    def recall(self) -> float:
        return self.recovered / max(1, self.wrong)

    @property
    def precision(self) -> float:
        """Share of the changes that are right; 1 where there is none."""
        return self.right / self.changes if self.changes else 1.0


def changes(each: Spellings, output: str, known: Container[str]) -> Iterator[tuple[str, str, bool]]:
    """Yields an output's spelling changes: words, what it has in their place, True if that is right."""
    source = lower(each.text.tokens)
    mine_all = {*source}
    forms = {**each.others, **each.wrong}
    for mine, theirs in written_for(source, lower(tokenize(output))):
        block = f" {' '.join(theirs)} "
        lost = [word for word in mine if not is_listed(word, known) and word not in theirs]
        made = [word for word in theirs if not is_listed(word, known) and word not in mine_all]
        for word in lost:
            right = any(f" {form} " in block for form in forms.get(word, ()))
            yield word, block.strip(), right
        if made and not lost:
            golds = [lower(gold) for gold in each.text.corrections]
            yield " ".join(mine), block.strip(), any({*made} <= {*gold} for gold in golds)


def count(texts: Sequence[Spellings], outputs: Sequence[str], known: Container[str]) -> SpellingCounts:
    """Counts misspellings that outputs get right, and the changes that they make for it."""
    wrong = recovered = total = right = 0
    for each, output in zip(texts, outputs, strict=True):
        found = [*changes(each, output, known)]
        total += len(found)
        right += sum(ok for _, _, ok in found)
        done = {word for word, _, ok in found if ok}
        wrong += len(each.wrong)
        recovered += len(done & {*each.wrong})
    return SpellingCounts(wrong, recovered, total, right)
