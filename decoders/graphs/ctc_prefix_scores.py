"""CTC's probability of outputs that begin with given words, for searches that grow hypotheses word by word.

Symbols: T frames, K prefixes, C words that may follow each, V words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nartk.protocols.passes import FloatArray, IntArray

IMPOSSIBLE = -1e10  # nats, of what no labelling of the frames gives: any that one gives is likelier
_LEAST = -1e3  # nats, of a label in a frame: sums of smaller ones over all frames would lose digits

_Ints = npt.NDArray[np.int64]
_Wide = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, slots=True)
class Prefixes:
    """K prefixes, and how likely it is that the first frames say them.

    Attributes:
        last: [K] the last word; -1 of the empty prefix.
        word, blank: [K,T+1] natural log-probability that the first t frames say the prefix, and end with its
            last word, or with a blank.
        totals: [K] natural log-probability of all outputs that begin with it, `IMPOSSIBLE` at least: behind
            the frame in which its last word begins, any labels may follow.
    """

    last: _Ints
    word: _Wide
    blank: _Wide
    totals: _Wide


class PrefixScores:
    """Scores prefixes by the frames of one source.

    The recursion is that of Watanabe et al. 2017, "Hybrid CTC/attention architecture for end-to-end speech
    recognition", algorithm 2, as ESPnet's `CTCPrefixScore` has it. Two things differ, for speed. How likely a
    prefix with a word more is takes no recursion, only a sum over the frame in which the word begins; so the
    recursion runs for the prefixes that a search keeps, instead of all that it considers. And it is no loop
    over frames, but a cumulative sum of what enters each frame, over the probability to stay until then.

    Args:
        log_probs: [T,V] fp32, of the labels of each frame.
        blank: The label that is no word.
        eos: Ends an output; what it adds is that the frames say nothing more.
        silent: Further words that no frame says, such as pad.
    """

    def __init__(self, log_probs: FloatArray, blank: int, eos: int, silent: Sequence[int]) -> None:
        labels = np.ascontiguousarray(log_probs.T)  # [T,V] -> [V,T]
        self.labels = np.maximum(labels, np.float32(_LEAST))
        self.eos, self.silent = eos, np.array([blank, eos, *silent])
        self.staying = _cumulated(self.labels[[blank]])[0]  # [T+1] that all frames before are blank

    def empty(self) -> Prefixes:
        """The empty prefix alone."""
        word = np.full((1, len(self.staying)), -np.inf)
        return Prefixes(np.array([-1]), word, self.staying[None].copy(), np.zeros(1))

    def grown(self, prefixes: Prefixes, index: Sequence[int] | _Ints, words: Sequence[int]) -> Prefixes:
        """Some of the prefixes [n], each with a word [n] more."""
        at, last = np.asarray(index), np.array(words, np.int64)
        before = _entering(prefixes, at, last)[:, :-1]
        labels = self.labels[last].astype(np.float64)
        staying = _cumulated(labels)
        word = _recursion(before, staying)
        blank = _recursion(word[:, :-1], self.staying[None])
        totals = _log_sum_exp(before + labels)
        is_silent = np.isin(last, self.silent)
        word[is_silent], blank[is_silent], totals[is_silent] = -np.inf, -np.inf, -np.inf
        return Prefixes(last, word, blank, totals.clip(IMPOSSIBLE))

    def scores(self, prefixes: Prefixes, words: IntArray | _Ints) -> _Wide:
        """Scores [K,C] that words [K,C] add to the `totals` of the prefixes before them; -1 is any word."""
        found = np.empty(words.shape)
        either = np.logaddexp(prefixes.word, prefixes.blank)
        for k, own in enumerate(words):
            sums = either[k, :-1] + self.labels[own]  # [C,T]
            again = own == prefixes.last[k]  # a blank must lie between
            sums[again] = prefixes.blank[k, :-1] + self.labels[own[again]]
            found[k] = _log_sum_exp(sums)
        found[np.isin(words, self.silent)] = -np.inf
        ends = np.broadcast_to(either[:, -1:], words.shape)
        found = np.where(words == self.eos, ends, found)
        return found.clip(IMPOSSIBLE) - prefixes.totals[:, None]


def _entering(prefixes: Prefixes, index: _Ints, words: _Ints) -> _Wide:
    """[n,T+1] that the first t frames say prefixes [n] and a word [n] may begin; a blank parts equal ones."""
    word, blank = prefixes.word[index], prefixes.blank[index]
    return np.where((prefixes.last[index] == words)[:, None], blank, np.logaddexp(word, blank))


def _recursion(entering: _Wide, staying: _Wide) -> _Wide:
    """[n,T+1] r(t) = (r(t-1) + entering(t-1)) x(t), r(0) = 0, in logarithms.

    Args:
        entering: [n,T].
        staying: [n,T+1] the cumulated logarithms of x.
    """
    found = np.full((len(entering), staying.shape[1]), -np.inf)
    found[:, 1:] = np.logaddexp.accumulate(entering - staying[:, :-1], axis=1) + staying[:, 1:]
    return found


def _cumulated(log_probs: npt.NDArray[np.floating]) -> _Wide:
    """Log-probabilities [n,T] of frames as those of all frames before each, [n,T+1]."""
    found = np.zeros((len(log_probs), log_probs.shape[1] + 1))
    np.cumsum(log_probs, axis=1, dtype=np.float64, out=found[:, 1:])
    return found


def _log_sum_exp(values: _Wide) -> _Wide:
    """The logarithm of the sum of exp of values [n,T] over T."""
    most = values.max(1, initial=IMPOSSIBLE)
    with np.errstate(divide="ignore"):  # where nothing is possible
        found: _Wide = most + np.log(np.exp(values - most[:, None]).sum(1))
    return found
