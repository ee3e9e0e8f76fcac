"""The search of CTC models: from frames that have a word or nothing to outputs (Graves et al. 2006).

An output is what remains of the frames' labels when runs of a label are merged and blanks are left out.
Symbols: B rows, N frames of all of them, K prefixes kept of each row, C candidate words of a frame, V words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from nartk.decoders.graphs.best import best_of
from nartk.decoders.graphs.hotwords import Hotwords
from nartk.decoders.graphs.ngram_lm import NGram
from nartk.protocols.passes import FloatArray, IntArray

_Ints = npt.NDArray[np.int64]
_Wide = npt.NDArray[np.float64]
_DEAD, _NONE = -1, -2  # the number of a prefix that is none, and of the parent of one that has none


@dataclass(frozen=True)
class Frames:
    """The frames of B rows, row after row.

    Attributes:
        counts: [B] frames of each.
        log_probs: [N,V] fp32.
        words: [N,C], the likeliest words of each frame; where there are fewer, any with minus infinity.
        candidates: [N,C] fp32, log-probabilities of `words`.
        blank: The label that is no word.
    """

    counts: IntArray
    log_probs: FloatArray
    words: IntArray
    candidates: FloatArray
    blank: int


@dataclass
class _PrefixBeams:
    """K prefixes of each of B rows, best first. What is none has minus infinity in both scores.

    Attributes:
        numbers: [B,K], which prefix each is.
        parents: [B,K], which prefix each is without its last word.
        last: [B,K] the last word; -1 of the empty prefix.
        blank, word: [B,K], natural log-probability of the labellings that end with a blank, or not.
        extra: [B,K], what the language model and the bonus give.
        states: [B,K], of the language model.
        hot: [B,K], of the hotwords' automaton.
    """

    numbers: _Ints
    parents: _Ints
    last: _Ints
    blank: _Wide
    word: _Wide
    extra: _Wide
    states: _Ints
    hot: _Ints

    @classmethod
    def empty(cls, rows: int, size: int, start: int) -> _PrefixBeams:
        """The empty prefix of each row, which has the row's number, and K - 1 that are none."""
        numbers = np.full((rows, size), _DEAD, np.int64)
        numbers[:, 0] = np.arange(rows)
        dead = np.full((rows, size), -np.inf)
        alive = dead.copy()
        alive[:, 0] = 0.0
        last, states, hot = (np.full_like(numbers, value) for value in (-1, start, 0))
        none = np.full_like(numbers, _NONE)
        return cls(numbers, none, last, alive, dead, np.zeros((rows, size)), states, hot)

    def rows(self, which: slice) -> _PrefixBeams:
        return _PrefixBeams(*(getattr(self, each.name)[which] for each in fields(self)))


@dataclass(frozen=True)
class PrefixSearch:
    """Sums up all labellings of each prefix while it goes from frame to frame.

    A prefix stays what it is with a blank or with its last word again, and is extended by one of the
    candidate words of a frame, or by any word that makes it another prefix of the beam: both are then one.
    The `size` best prefixes are kept, of equals the one that ranked first before. With a beam and candidates
    large enough, the scores are the exact log-probabilities.

    Source: Graves 2012, "Supervised sequence labelling with recurrent neural networks", section 7.5;
    Hannun et al. 2014, https://arxiv.org/abs/1408.2873, algorithm 1, whose language model weighs words.

    Attributes:
        size: K.
        eos: Token that the language model scores in the end.
        lm: Scores each token after those before it, times `lm_weight`; None: there is none.
        word_bonus: Added for each token, nats.
        hotwords: Give their bonus where they end; one that has begun gives that of its tokens so far until it
            is seen not to go on, so that the search keeps it.
    """

    size: int
    eos: int
    lm: NGram | None = None
    lm_weight: float = 0.0
    word_bonus: float = 0.0
    hotwords: Hotwords | None = None

    def run(self, frames: Frames) -> list[list[tuple[list[int], float]]]:
        """The at most K best outputs of each row, best first: their tokens, without eos, and scores.

        A score is the natural logarithm of the sum over all labellings that were kept, plus what the language
        model gives.
        """
        order = np.argsort(-frames.counts, kind="stable")  # rows end from the last on
        counts, begins = frames.counts[order], (np.cumsum(frames.counts) - frames.counts)[order]
        known = _PrefixTrie(len(counts))
        beam = _PrefixBeams.empty(len(counts), self.size, 0 if self.lm is None else self.lm.start)
        found: list[list[tuple[list[int], float]]] = [[] for _ in counts]
        for t in range(int(counts[0]) + 1):
            active = int((counts > t).sum())
            ended = order[active : len(beam.last)]
            for row, outputs in zip(ended, self._ended(beam.rows(slice(active, None)), known), strict=True):
                found[row] = outputs
            beam = beam.rows(slice(active))
            if active:
                beam = self._advanced(beam, frames, begins[:active] + t, known)
        return found

    def _ended(self, beam: _PrefixBeams, known: _PrefixTrie) -> list[list[tuple[list[int], float]]]:
        """The outputs of rows whose frames have ended."""
        totals = np.logaddexp(beam.blank, beam.word) + beam.extra
        if self.lm is not None:
            totals = totals + self.lm_weight * self.lm.advance(beam.states, np.array(self.eos))[0]
        if self.hotwords is not None:
            totals = totals - self.hotwords.begun[beam.hot]
        best = best_of(totals, self.size)
        return [
            [(known.tokens(numbers[i]), float(row[i])) for i in own if row[i] > -np.inf]
            for numbers, row, own in zip(beam.numbers.tolist(), totals, best.tolist(), strict=True)
        ]

    def _advanced(
        self, beam: _PrefixBeams, frames: Frames, at: npt.NDArray[np.integer], known: _PrefixTrie
    ) -> _PrefixBeams:
        """The beam after the frames `at` [B], one of each row."""
        every = at[:, None]
        total = np.logaddexp(beam.blank, beam.word)
        again = frames.log_probs[every, beam.last].astype(np.float64)  # [B,K] the last word's
        again[beam.last < 0] = -np.inf
        # To prefixes that stay: their last word goes on, or extends the prefix that lacks only it.
        row, parent, child = (beam.numbers[:, :, None] == beam.parents[:, None]).nonzero()
        last = beam.last[row, child]
        entered = np.full_like(total, -np.inf)
        doubled = beam.last[row, parent] == last  # a blank must lie between
        entered[row, child] = np.where(doubled, beam.blank[row, parent], total[row, parent])
        stays_blank = total + frames.log_probs[every, frames.blank]
        stays_word = np.logaddexp(beam.word + again, entered + again)

        # To prefixes that are extended by a word, but for extensions that are prefixes of the beam already.
        words = frames.words[at].astype(np.int64)  # [B,C]
        doubled = words[:, None] == beam.last[:, :, None]  # [B,K,C]
        grown = np.where(doubled, beam.blank[:, :, None], total[:, :, None]) + frames.candidates[at][:, None]
        pair, column = (words[row] == last[:, None]).nonzero()
        grown[row[pair], parent[pair], column] = -np.inf
        extra, states = beam.extra[:, :, None] + self.word_bonus, beam.states[:, :, None]
        if self.lm is not None:
            gained, states = self.lm.advance(states, words[:, None])
            extra = extra + self.lm_weight * gained
        hot = beam.hot[:, :, None]
        if self.hotwords is not None:
            own, hot = self.hotwords, self.hotwords.next(hot, words[:, None])
            extra = extra + own.completed[hot] + own.begun[hot] - own.begun[beam.hot][:, :, None]
        extra, states = np.broadcast_to(extra, grown.shape), np.broadcast_to(states, grown.shape)
        hot = np.broadcast_to(hot, grown.shape)

        # The best of K prefixes that stay and K * C extensions. What is none and stays is as likely as an
        # extension that is none, and comes first: none of these is ever taken.
        rows, size = np.arange(len(at))[:, None], self.size
        ranks = np.logaddexp(stays_blank, stays_word) + beam.extra, (grown + extra).reshape(len(at), -1)
        best = best_of(np.concatenate(ranks, 1), size)  # [B,K]
        extended = best >= size
        origin, column = np.divmod(np.where(extended, best - size, best * words.shape[1]), words.shape[1])
        chosen = rows, origin, column
        last = np.where(extended, words[rows, column], beam.last[rows, origin])
        numbers, parents = beam.numbers[rows, origin], beam.parents[rows, origin]
        parents = np.where(extended, numbers, parents)
        numbers[extended] = known.extended(parents[extended].tolist(), last[extended].tolist())
        return _PrefixBeams(
            numbers,
            parents,
            last,
            np.where(extended, -np.inf, stays_blank[rows, origin]),
            np.where(extended, grown[chosen], stays_word[rows, origin]),
            np.where(extended, extra[chosen], beam.extra[rows, origin]),
            np.where(extended, states[chosen], beam.states[rows, origin]),
            np.where(extended, hot[chosen], beam.hot[rows, origin]),
        )


class _PrefixTrie:
    """Trie of all prefixes that were ever in a beam, numbered; the first are the empty ones of the rows."""

    def __init__(self, rows: int) -> None:
        self._made = [(_NONE, -1)] * rows  # of each prefix its parent and its last word
        self._numbers: dict[tuple[int, int], int] = {}

    def extended(self, parents: Sequence[int], words: Sequence[int]) -> list[int]:
        """The numbers of prefixes with a word more."""
        found = []
        for key in zip(parents, words, strict=True):
            number = self._numbers.setdefault(key, len(self._made))
            if number == len(self._made):
                self._made.append(key)
            found.append(number)
        return found

    def tokens(self, number: int) -> list[int]:
        """The words of a prefix."""
        parent, word = self._made[number]
        tokens = []
        while parent != _NONE:
            tokens.append(word)
            parent, word = self._made[parent]
        return tokens[::-1]
