"""n-gram language models with back-off, read from ARPA files, for decoders that weigh in their scores.

An ARPA file lists n-grams with the base-10 logarithm of the probability of their last word after the others,
and of what a context costs after which the next word was never seen (the back-off weight). A word is scored
by the longest listed n-gram that it ends, and by the back-off weights of the contexts that had to be
shortened for it (Katz 1987; http://www.speech.sri.com/projects/srilm/manpages/ngram-format.5.html).
Symbols: C contexts, G n-grams.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nartk.errors import InputFileError, InputFormatError
from nartk.vocab import Vocab

_UNKNOWN = -100.0  # base-10 logarithm, of <unk> where the file lists none: as KenLM has it
_ZERO = -99.0  # what stands for the base-10 logarithm of 0, as SRILM writes it
_MOST_ORDER = 20  # words of an n-gram; a header that says more is corrupt

_Gram = tuple[int, ...]
_Ints = npt.NDArray[np.int64]
_Wide = npt.NDArray[np.float64]


@dataclass(frozen=True)
class NGram:
    """A language model over a vocabulary: tables that whole batches look up.

    A state is the longest listed context that the words so far end with; 0 is the empty one.

    Attributes:
        order: The longest n-gram, words.
        size: Words that the model tells apart.
        start: The state at the beginning of a sentence: that of ``<s>`` where the file lists it.
        words: [vocabulary] int64, the model's number of each word; 0 is ``<unk>``.
        keys: [G] int64, rising: state * size + word of each listed n-gram.
        scores: [G] float64, natural logarithm of the probability of the last word.
        following: [G] int64, the state after the n-gram.
        back_off: [C] float64, natural logarithm of the weight; 0 for state 0.
        shorter: [C] int64, the state of the longest listed end of the context.
    """

    order: int
    size: int
    start: int
    words: _Ints
    keys: _Ints
    scores: _Wide
    following: _Ints
    back_off: _Wide
    shorter: _Ints

    def advance(self, states: _Ints, words: _Ints) -> tuple[_Wide, _Ints]:
        """Reads words [...], ids of the vocabulary, in states [...], which may broadcast.

        Returns:
            The words' log-probabilities [...], natural logarithm, and the states after them.
        """
        word, state = np.broadcast_arrays(self.words[words], states)
        total = np.zeros(word.shape)
        for _ in range(self.order - 1):
            missing = self.keys[self._find(state, word)] != state * self.size + word
            total += np.where(missing, self.back_off[state], 0.0)
            state = np.where(missing, self.shorter[state], state)
        at = self._find(state, word)  # listed: so many steps shorten any context to 0, which knows all words
        return total + self.scores[at], self.following[at]

    def score(self, context: Sequence[int], word: int) -> float:
        """Natural log-probability of a word after a context, ids of the vocabulary; bos begins a sentence."""
        state = np.array(0)
        for each in context:
            _, state = self.advance(state, np.array(each))
        return float(self.advance(state, np.array(word))[0])

    def _find(self, state: _Ints, word: _Ints) -> _Ints:
        """Index of an n-gram in the tables, if it is listed."""
        return np.searchsorted(self.keys, state * self.size + word).clip(max=len(self.keys) - 1)


def load_ngram(path: str, vocab: Vocab) -> NGram:
    """The model in an ARPA file; raises as `read_arpa` does. The last one is kept."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError) as error:  # the latter of NUL in a name
        raise _unreadable(path, error) from error
    return _load(path, found.st_mtime_ns, found.st_size, vocab)


@lru_cache(maxsize=1)
def _load(path: str, changed: int, size: int, vocab: Vocab) -> NGram:
    return read_arpa(Path(path), vocab)


def read_arpa(path: Path, vocab: Vocab) -> NGram:
    """Reads an ARPA file for the words of a vocabulary.

    Words of the vocabulary that the file does not list count as ``<unk>``, and n-grams with words that the
    vocabulary does not have are left out, since no output says them. Where the file lists no ``<unk>``, it
    has a base-10 log-probability of -100.

    Raises:
        InputFileError: The file cannot be read.
        InputFormatError: A line does not follow the format, with its number.
    """
    try:
        with path.open("rb") as file:
            return _Reader(str(path), vocab).read(file.read().split(b"\n"))
    except OSError as error:
        raise _unreadable(str(path), error) from error


def _unreadable(path: str, error: OSError | ValueError) -> InputFileError:
    why = getattr(error, "strerror", error)
    return InputFileError(f"cannot read the language model: {why}", fix="give a readable file", where=path)


class _Reader:
    """Reads the lines of one file."""

    def __init__(self, name: str, vocab: Vocab) -> None:
        self.name, self.number, self.vocab = name, 0, vocab
        unknown = vocab.words[vocab.unk]
        self.ids = dict.fromkeys(vocab.words, -1)  # the model's number, -1 where it is not listed yet
        self.ids[unknown] = 0
        self.unknown = {unknown, unknown.upper()}
        self.states: dict[_Gram, int] = {(): 0}
        self.grams: list[tuple[int, int, float, int]] = []  # state, word, score, the state after it
        self.back_off, self.shorter = [0.0], [0]
        self.size = 1

    def read(self, lines: Sequence[bytes]) -> NGram:
        counts: dict[int, int] = {}
        order, found, seen = -1, 0, set[_Gram]()  # order -1: before \data\, 0: in it
        for self.number, raw in enumerate(lines, 1):
            line = self._text(raw)
            if not line or (order < 0 and line != "\\data\\"):
                continue
            if line == "\\data\\":
                if order >= 0:
                    raise self._error("a second \\data\\")
                order = 0
            elif line.startswith("\\") and (line == "\\end\\" or line.endswith("-grams:")):
                if order > 0 and found != counts[order]:
                    raise self._error(f"{found} {order}-grams, but the header says {counts[order]}")
                if line == "\\end\\":
                    return self._finish(order, counts)
                if line != f"\\{order + 1}-grams:" or order + 1 not in counts:
                    raise self._error(
                        f"expected \\{order + 1}-grams: of {len(counts)} orders, found {line[:40]!r}"
                    )
                order, found, seen = order + 1, 0, set()
            elif order == 0:
                self._count(line, counts)
            else:
                self._gram(line, order, len(counts), seen)
                found += 1
        raise self._error("no \\data\\" if order < 0 else "the file ends without \\end\\")

    def _text(self, raw: bytes) -> str:
        try:
            return raw.decode("utf-8").strip(" \t\r")
        except UnicodeDecodeError as error:
            raise self._error("not UTF-8") from error

    def _error(self, message: str) -> InputFormatError:
        return InputFormatError(
            message, where=f"{self.name}:{self.number}", fix="give a model in ARPA format"
        )

    def _count(self, line: str, counts: dict[int, int]) -> None:
        """A line of the header, such as ``ngram 2=1034``."""
        field, _, rest = line.partition(" ")
        order, _, count = (part.strip() for part in rest.partition("="))
        wanted = len(counts) + 1
        if f"{field} {order}" != f"ngram {wanted}" or not _is_number(count) or wanted > _MOST_ORDER:
            raise self._error(f"expected 'ngram {wanted}=COUNT', found {line[:40]!r}")
        counts[wanted] = int(count)

    def _gram(self, line: str, order: int, highest: int, seen: set[_Gram]) -> None:
        """A line of a section: score, words, and, but in the last section, a back-off weight."""
        parts = [part for part in line.replace("\t", " ").split(" ") if part]
        if len(parts) != order + 1 and (len(parts) != order + 2 or order == highest):
            raise self._error(f"expected a score and {order} words, found {line[:40]!r}")
        score = self._logarithm(parts[0])
        if score > 0.0:
            raise self._error(f"the probability of {line[:40]!r} is above 1")
        weight = self._logarithm(parts[-1]) if len(parts) == order + 2 else 0.0
        words = parts[1 : order + 1]
        if order == 1:
            self._word(words[0])
        gram = tuple(0 if word in self.unknown else self.ids.get(word, -2) for word in words)
        if -2 in gram:
            return  # a word that the vocabulary does not have
        if -1 in gram:
            raise self._error(f"{words[gram.index(-1)]!r} is not among the 1-grams")
        if gram in seen:
            raise self._error(f"{' '.join(words)!r} is listed twice")
        seen.add(gram)
        if gram[:-1] not in self.states:
            raise self._error(f"{' '.join(words[:-1])!r} is not among the {order - 1}-grams")
        following = self._ending(gram[1:]) if order > 1 else 0
        if order < highest:
            self.shorter.append(following)
            self.back_off.append(weight)
            following = self.states[gram] = len(self.states)
        self.grams.append((self.states[gram[:-1]], gram[-1], score, following))

    def _word(self, word: str) -> None:
        """Numbers a word of the vocabulary as the file lists it."""
        if self.ids.get(word) == -1 and word not in self.unknown:
            self.ids[word] = self.size
            self.size += 1

    def _ending(self, gram: _Gram) -> int:
        """The state of the longest listed end of an n-gram."""
        while gram not in self.states:
            gram = gram[1:]
        return self.states[gram]

    def _logarithm(self, text: str) -> float:
        """A base-10 logarithm as a natural one."""
        if text == "-inf":
            return _ZERO * math.log(10.0)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise self._error(f"{text[:40]!r} is no number")
        return value * math.log(10.0)

    def _finish(self, order: int, counts: dict[int, int]) -> NGram:
        if order < 1 or order != len(counts):
            raise self._error(f"the file ends after {max(order, 0)} of {len(counts)} orders")
        if not any(state == word == 0 for state, word, _, _ in self.grams):
            self.grams.append((0, 0, _UNKNOWN * math.log(10.0), 0))
        # Words that the vocabulary has and the file has not are <unk>.
        words = np.array([max(self.ids[word], 0) for word in self.vocab.words])
        states, last, scores, following = zip(*self.grams, strict=True)
        keys = np.array(states) * self.size + np.array(last)
        sort = np.argsort(keys, kind="stable")
        begin = (self.ids[self.vocab.words[self.vocab.bos]],)
        return NGram(
            order=order,
            size=self.size,
            start=self.states.get(begin, 0),
            words=words,
            keys=keys[sort],
            scores=np.array(scores, np.float64)[sort],
            following=np.array(following)[sort],
            back_off=np.array(self.back_off, np.float64),
            shorter=np.array(self.shorter),
        )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19
