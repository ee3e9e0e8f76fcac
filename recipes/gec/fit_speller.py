"""Makes the speller of a correction model, and writes it into the model's folder.

    python recipes/gec/fit_speller.py MODEL --frequencies FILE --text FILE ...

Its words are those of a list of frequencies (a word and its count a line, such as SymSpell's
frequency_dictionary_en_82_765.txt), those that the text has five times, and what codespell corrects to,
without codespell's misspellings and without contractions that lack their apostrophe. Pairs of words are
counted in the shipped corpora and in files of sentences in tokens, such as gather.py writes. Codespell's
misspellings are listed, but for those held out, and some words of chat.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from build_corpora import read
from fit_guard import declare

from nartk.data.gec.lexicon import misspellings
from nartk.data.gec.speller import CLITICS, Speller, make_speller
from nartk.data.gec.spelling import spelling_noise
from nartk.data.text import corpus_names, read_corpus
from nartk.processors.guard import SPELLER

FILE = "speller.npz.xz"
SEEN = 5  # times that text has a word or a pair of words
LISTED = 0.5  # weight of a word's frequency in the list beside that in text
APART = 0.01  # times that a word is written for each time that it is one with an apostrophe, "thats" say

# Words of chat, which codespell has not, and what they stand for; written by hand.
CHAT = """
    pls please, plz please, ppl people, tonite tonight, nite night, thx thanks, thanx thanks, thnx thanks,
    cuz because, bcuz because, bcoz because, wud would, shud should, frnd friend, frnds friends, thr there,
    abt about, wht what, prolly probably, lil little, nuthin nothing, alrite all right, bday birthday,
    tmrw tomorrow, tmr tomorrow
"""


class Counts:
    """Counts of tokens and of pairs of them, in small letters; "" stands before a sentence."""

    def __init__(self, lines: Iterable[Sequence[str]]) -> None:
        self.singles, self.pairs = Counter[str](), Counter[tuple[str, str]]()
        for tokens in lines:
            lower = ["", *(token.lower() for token in tokens)]
            self.singles.update(lower)
            self.pairs.update(pairwise(lower))


def sentences(files: Iterable[Path]) -> Iterator[list[str]]:
    """Sentences in tokens: those of the shipped corpora and of files, each once."""
    seen: set[str] = set()
    lines = (" ".join(tokens) for name in corpus_names() for tokens in read_corpus(name))
    for source in (lines, *map(read, files)):
        for line in source:
            if line not in seen:
                seen.add(line)
                yield line.split(" ")


def frequencies(path: Path) -> dict[str, int]:
    """The words of a list in small letters and their counts."""
    found = Counter[str]()
    for line in read(path):
        word, times = line.lstrip("\ufeff").split()
        if word.isalpha():
            found[word.lower()] += int(times)
    return dict(found)


def words_of(counts: Counts, listed: Mapping[str, int]) -> set[str]:
    """Words that are no misspellings."""
    wrong = {word.lower() for words in misspellings().values() for word in words}
    right = {word for each in misspellings() for word in each.lower().split() if word.isalpha()}
    often = {word for word, times in counts.singles.items() if times >= SEEN and word.isalpha()}
    return {word for word in {*listed, *often} - wrong if not is_contraction(word, counts)} | right


def is_contraction(word: str, counts: Counts) -> bool:
    """Tells whether a word hardly is one without an apostrophe."""
    stems = ((word.removesuffix(end), each) for end, each in CLITICS.items() if word.endswith(end))
    return counts.singles[word] < APART * max((counts.pairs[pair] for pair in stems), default=0)


def fit_speller(counts: Counts, listed: Mapping[str, int]) -> Speller:
    words, total, most = words_of(counts, listed), counts.singles.total(), max(1, sum(listed.values()))
    probabilities = {
        word: (1 - LISTED) * (counts.singles[word] + 0.01) / total + LISTED * listed.get(word, 0) / most
        for word in words
    }
    tokens = {token: times for token, times in counts.singles.items() if times >= SEEN or token in words}
    often = {pair: times for pair, times in counts.pairs.items() if times >= SEEN}
    pairs = {pair: times for pair, times in often.items() if tokens.keys() >= {*pair}}
    return make_speller(tokens, pairs, probabilities, spelling_noise().lines(), known(words))


def known(words: Container[str]) -> Iterator[str]:
    """Lists misspellings that are no words, of codespell and of chat, and behind tabs what they stand for."""
    right: dict[str, set[str]] = {}
    pairs = [(wrong.lower(), word.lower()) for word, each in misspellings().items() for wrong in each]
    for wrong, word in [*pairs, *(entry.split(maxsplit=1) for entry in CHAT.split(","))]:
        if wrong.isalpha() and wrong.isascii() and wrong not in words:
            right.setdefault(wrong, set()).add(word.strip())
    return ("\t".join([wrong, *sorted(right[wrong])]) for wrong in sorted(right))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder of a model with a guard")
    parser.add_argument("--frequencies", type=Path, required=True, metavar="FILE", help="words and counts")
    parser.add_argument("--text", type=Path, nargs="*", default=[], metavar="FILE", help="of gather.py")
    args = parser.parse_args()
    found = fit_speller(Counts(sentences(args.text)), frequencies(args.frequencies))
    found.write(args.model / FILE)
    declare(args.model, SPELLER, FILE)
    size = (args.model / FILE).stat().st_size
    print(
        f"{(found.probabilities > 0).sum()} words, {len(found.followers)} pairs, {size} bytes",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
