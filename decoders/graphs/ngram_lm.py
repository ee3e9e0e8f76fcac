"""n-gram language models with back-off, read from ARPA files, for decoders that weigh in their scores.

An ARPA file lists n-grams with the base-10 logarithm of the probability of their last word after the others,
and of what a context costs after which the next word was never seen (the back-off weight). A word is scored
by the longest listed n-gram that it ends, and by the back-off weights of the contexts that had to be
shortened for it (Katz 1987; http://www.speech.sri.com/projects/srilm/manpages/ngram-format.5.html).
Symbols: C contexts, G n-grams.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nartk.errors import InputFileError, InputFormatError, VocabMismatchError
from nartk.vocab import Vocab

_UNKNOWN = -100.0  # base-10 logarithm, of <unk> where the file lists none: as KenLM has it
_ZERO = -99.0  # what stands for the base-10 logarithm of 0, as SRILM writes it
_MOST_ORDER = 20  # words of an n-gram; a header that says more is corrupt
# Share of the words that both know, of a model's or its language model's, whichever are fewer. Of the pieces
# of gec-en 5 to 10 % are words of ordinary text.
_LEAST_KNOWN = 0.25
_LINES = 500  # that are read at once: of so many Python does not look for cycles
# A line that begins a part of the file.
_MARK = re.compile(rb"^[ \t\r]*(\\(?:data\\|end\\|.*-grams:))[ \t\r]*$", re.MULTILINE)

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
        VocabMismatchError: It has next to none of the vocabulary's words: it is a model of other units.
    """
    try:
        with path.open("rb") as file:
            return _Reader(str(path), vocab, file.read()).read()
    except OSError as error:
        raise _unreadable(str(path), error) from error


def _unreadable(path: str, error: OSError | ValueError) -> InputFileError:
    why = getattr(error, "strerror", error)
    return InputFileError(f"cannot read the language model: {why}", fix="give a readable file", where=path)


class _Reader:
    """Reads the n-grams of a file, all of an order at once, into the tables of `NGram`.

    The first entry of the tables is no n-gram, unless it becomes a ``<unk>`` that the file does not list.
    """

    def __init__(self, name: str, vocab: Vocab, data: bytes) -> None:
        self.name, self.vocab, self.data, self.fault = name, vocab, data, ""
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as error:  # a line before that one may be at fault too
            self.data, self.fault = data[: data.rfind(b"\n", 0, error.start) + 1], "not UTF-8"
        self.ids = {_bytes(word): -1 for word in vocab.words}  # the model's number, -1: not listed yet
        unknown = vocab.words[vocab.unk]
        self.ids |= {_bytes(unknown): 0, _bytes(unknown.upper()): 0}
        self.size = 1
        self.keys, self.scores = np.array([-1]), np.array([_UNKNOWN * math.log(10.0)])
        self.following, self.shorter = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self.back_off = np.zeros(1)

    def read(self) -> NGram:
        counts: dict[int, int] = {}
        order, begin = -1, 0  # order -1: before \data\, 0: in it
        for mark in _MARK.finditer(self.data):
            line = mark[1].decode()
            if order < 0 and line != "\\data\\":
                continue
            found, number = self._lines(order, counts, begin, mark.start()), self._number(mark.start())
            if line == "\\data\\" and order >= 0:
                raise self._error(number, "a second \\data\\")
            if order > 0 and found != counts[order]:
                raise self._error(number, f"{found} {order}-grams, but the header says {counts[order]}")
            if line == "\\end\\":
                if order < 1 or order != len(counts):
                    raise self._error(number, f"the file ends after {order} of {len(counts)} orders")
                return self._model(counts)
            if order >= 0 and (line != f"\\{order + 1}-grams:" or order + 1 not in counts):
                expected = f"expected \\{order + 1}-grams: of {len(counts)} orders"
                raise self._error(number, f"{expected}, found {line[:40]!r}")
            order, begin = order + 1, mark.end()
        self._lines(order, counts, begin, len(self.data))
        fault = "no \\data\\" if order < 0 else "the file ends without \\end\\"
        raise self._error(self._number(len(self.data)), self.fault or fault)

    def _number(self, at: int) -> int:
        """The number of the line with a byte of the file."""
        return self.data.count(b"\n", 0, at) + 1

    def _error(self, number: int, message: str) -> InputFormatError:
        return InputFormatError(message, where=f"{self.name}:{number}", fix="give a model in ARPA format")

    def _lines(self, order: int, counts: dict[int, int], begin: int, end: int) -> int:
        """Reads what stands between two bytes, the header or a section; returns its number of n-grams."""
        first, lines = self._number(begin), self.data[begin:end].split(b"\n")
        if order > 0:
            return self._section(order, len(counts), first, lines)
        for number, line in enumerate(lines, first):
            if order == 0 and line.split():
                self._count(number, line.decode().strip(" \t\r"), counts)
        return 0

    def _count(self, number: int, line: str, counts: dict[int, int]) -> None:
        """A line of the header, such as ``ngram 2=1034``."""
        field, _, rest = line.partition(" ")
        order, _, count = (part.strip() for part in rest.partition("="))
        wanted = len(counts) + 1
        if f"{field} {order}" != f"ngram {wanted}" or not _is_number(count) or wanted > _MOST_ORDER:
            raise self._error(number, f"expected 'ngram {wanted}=COUNT', found {line[:40]!r}")
        counts[wanted] = int(count)

    def _section(self, order: int, highest: int, first: int, lines: list[bytes]) -> int:
        """Adds the n-grams of lines to the tables; returns how many there are.

        Args:
            first: Number of the first line.
        """
        numbers, logs = self._columns(order, highest, lines)
        kept = (numbers != -2).all(0)
        state, wrong = np.zeros(kept.sum(), np.int64), (numbers[:, kept] == -1).any(0)
        *context, last = numbers[:, kept]
        for word in context:
            state, listed = self._after(state, word)
            wrong |= ~listed
        keys = state * self.size + last
        sort = np.argsort(keys, kind="stable")
        again = np.zeros(len(keys), bool)
        again[sort[1:]] = np.diff(keys[sort]) == 0
        bad = np.isnan(logs[0]) | np.isnan(logs[1])
        bad[kept] |= wrong | again
        if bad.any():
            at = int(bad.argmax())
            twice = at in np.flatnonzero(kept)[again & ~wrong]
            raise self._fault(order, highest, at, first, lines, twice=twice)
        ending = self.shorter[state]
        following, listed = self._after(ending, last)
        for _ in range(order - 2):
            ending = np.where(listed, ending, self.shorter[ending])
            following, listed = self._after(ending, last)
        following = np.where(listed, following, 0)
        if order < highest:
            self.shorter = np.concatenate([self.shorter, following])
            following = len(self.back_off) + np.arange(len(keys))
            self.back_off = np.concatenate([self.back_off, logs[1, kept]])
        # States are numbered in the order of sections, so that keys of a section are above those before.
        self.keys = np.concatenate([self.keys, keys[sort]])
        self.scores = np.concatenate([self.scores, logs[0, kept][sort]])
        self.following = np.concatenate([self.following, following[sort]])
        return len(bad)

    def _columns(self, order: int, highest: int, lines: list[bytes]) -> tuple[_Ints, _Wide]:
        """Reads lines of a score, words, and, but in the last section, a back-off weight.

        Returns:
            The words [order,N] as the model's numbers, -1 for those that are not listed and -2 for those that
            the vocabulary does not have; scores and weights [2,N], natural logarithms, NaN for what is none,
            is above a probability of 1, or stands in a line that is too short or too long.
        """
        words: list[list[int]] = [[] for _ in range(order)]
        logs: tuple[list[float], list[float]] = [], []
        for at in range(0, len(lines), _LINES):
            rows = [row for line in lines[at : at + _LINES] if (row := line.split())]
            for i, row in enumerate(rows):
                if len(row) == order + 1:
                    row.append(b"0")
                elif len(row) != order + 2 or order == highest:
                    rows[i] = [b""] * (order + 2)
            if rows:
                scores, *texts, weights = zip(*rows, strict=True)
                if order == 1:
                    self._number_words(texts[0])
                for column, each in zip(words, texts, strict=True):
                    column.extend(map(self.ids.get, each, repeat(-2)))
                logs[0].extend(map(_base_10, scores))
                logs[1].extend(map(_base_10, weights))
        found = np.array(logs)
        found[~np.isfinite(found)] = np.nan
        found[0, found[0] > 0.0] = np.nan
        with np.errstate(over="ignore"):
            found *= math.log(10.0)
        return np.array(words, np.int64), found

    def _fault(
        self, order: int, highest: int, at: int, first: int, lines: list[bytes], *, twice: bool
    ) -> InputFormatError:
        """The error of the n-gram `at` of a section; `twice`: the section has it before."""
        number, raw = [(i, line) for i, line in enumerate(lines, first) if line.split()][at]
        line, parts = raw.decode().strip(" \t\r")[:40], [part.decode() for part in raw.split()]
        words = parts[1 : order + 1]
        if len(parts) != order + 1 and (len(parts) != order + 2 or order == highest):
            return self._error(number, f"expected a score and {order} words, found {line!r}")
        for i in (0, *range(order + 1, len(parts))):
            if not math.isfinite(_base_10(parts[i].encode())):
                return self._error(number, f"{parts[i][:40]!r} is no number")
            if i == 0 and _base_10(parts[0].encode()) > 0.0:
                return self._error(number, f"the probability of {line!r} is above 1")
        for word in words:
            if self.ids[_bytes(word)] == -1:
                return self._error(number, f"{word!r} is not among the 1-grams")
        if twice:
            return self._error(number, f"{' '.join(words)!r} is listed twice")
        return self._error(number, f"{' '.join(words[:-1])!r} is not among the {order - 1}-grams")

    def _number_words(self, words: Sequence[bytes]) -> None:
        """Numbers words of the vocabulary as the file lists them."""
        for word in words:
            if self.ids.get(word) == -1:
                self.ids[word] = self.size
                self.size += 1

    def _after(self, state: _Ints, word: _Ints) -> tuple[_Ints, npt.NDArray[np.bool_]]:
        """The states after words, and which of these n-grams are listed."""
        wanted = state * self.size + word
        at, sort = np.empty_like(wanted), np.argsort(wanted)  # looking up in order is many times faster
        at[sort] = np.searchsorted(self.keys, wanted[sort])
        at = at.clip(max=len(self.keys) - 1)
        return self.following[at], self.keys[at] == wanted

    def _model(self, counts: dict[int, int]) -> NGram:
        vocab, special = self.vocab, {self.vocab.bos, self.vocab.pad, self.vocab.eos, self.vocab.unk}
        ids = [self.ids[_bytes(word)] for word in vocab.words]
        known = sum(id > 0 for i, id in enumerate(ids) if i not in special)
        if known < _LEAST_KNOWN * min(len(vocab) - len(special), counts[1]):
            raise VocabMismatchError(
                f"{known} of the model's {len(vocab)} words or pieces are among its {counts[1]} words",
                fix="train it on text in the model's own words or pieces, such as spm_encode writes",
                where=self.name,
            )
        (start,), _ = self._after(np.zeros(1, np.int64), np.array(ids)[[vocab.bos]])
        rows = slice(1, None)
        if 0 not in self.keys[1:2]:
            self.keys[0], rows = 0, slice(None)
        return NGram(
            order=len(counts),
            size=self.size,
            start=int(start),
            words=np.array(ids).clip(min=0),  # those that the file does not list are <unk>
            keys=self.keys[rows],
            scores=self.scores[rows],
            following=self.following[rows],
            back_off=self.back_off,
            shorter=self.shorter,
        )


def _base_10(text: bytes) -> float:
    """A base-10 logarithm; NaN or infinite where it is none."""
    try:
        return _ZERO if text == b"-inf" else float(text)
    except ValueError:
        return math.nan


def _bytes(word: str) -> bytes:
    return word.encode("utf-8", "surrogatepass")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19
