"""Reads what was wanted of a pass from its logits, in NumPy.

It is the executable specification of `Want` and `Scores` (`protocols.passes`): an engine that reads them
elsewhere must give the same words, and the same numbers up to rounding.

Symbols: n scored tokens, K candidates, V words, D features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nartk.errors import PassError
from nartk.protocols.contexts import Contexts, PendingPass, check_array
from nartk.protocols.passes import Draw, FloatArray, IntArray, Ragged, Want

_WideArray = npt.NDArray[np.float64]
_BoolArray = npt.NDArray[np.bool_]
_UNWANTED: Any = None


@dataclass(eq=False)
class Reading:
    """Arrays of `Scores`, read of n scored tokens; None where one was not requested."""

    best: IntArray
    log_probs: FloatArray
    top: IntArray = _UNWANTED
    top_log_probs: FloatArray = _UNWANTED
    margins: FloatArray = _UNWANTED
    given_log_probs: FloatArray = _UNWANTED
    drawn: IntArray = _UNWANTED
    drawn_log_probs: FloatArray = _UNWANTED
    hidden: FloatArray = _UNWANTED


class NothingRead(Reading):
    """Implements `Scores` of no token.

    Args:
        count: V.
    """

    def __init__(self, count: int, want: Want) -> None:
        self._logits = np.zeros((0, count), np.float32)
        super().__init__(**vars(read(self._logits, want)))

    def rows(self, index: Sequence[int] | IntArray) -> FloatArray:
        """[0,V]."""
        return self._logits


class PassScores(Reading):
    """Implements `Scores` for scorers whose contexts are `Contexts`.

    Args:
        fetch: Gives the logits [m,V] fp32 of m scored tokens.
        words: `Want.words` of the pass.
    """

    def __init__(
        self,
        reading: Reading,
        contexts: Contexts,
        waiting: PendingPass,
        fetch: Callable[[Sequence[int] | IntArray], FloatArray],
        words: Ragged | None = None,
    ) -> None:
        super().__init__(**vars(reading))
        self.waiting = waiting
        self._contexts, self._fetch, self._words = contexts, fetch, words

    def rows(self, index: Sequence[int] | IntArray) -> FloatArray:
        """Logits [m,V] fp32 of m scored tokens, until the pass is committed.

        Raises:
            PassError: The pass has ended, or an index is not one of the n scored tokens'.
        """
        if not self._contexts.waits(self.waiting):
            raise PassError("the pass has ended", fix="read rows before `commit`")
        count = len(self.best)
        for i in index:
            if not 0 <= i < count:
                raise PassError(f"row {i} is read, not between 0 and {count - 1}")
        return only_listed(self._fetch(index), self._words, index)


def check_want(want: Want, tokens: int, words: int) -> int:
    """Counts the scored tokens of a pass of so many tokens over so many words.

    Raises:
        PassError: A value breaks a rule: an array of another type or size, a value out of its bounds, or
            all words forbidden after a token.
    """
    count = tokens
    if want.only is not None:
        count = len(want.only)
        check_array("only", want.only, np.int32, count)
        _check_range("only", want.only, 0, tokens)
        if (np.diff(want.only) <= 0).any():
            raise PassError("`only` is not ascending", fix="name each token once, in order")
    if want.banned is not None:
        _check_banned(want.banned, count, words)
    if want.words is not None:
        _check_words(want.words, count, words)
    if want.top < 0:
        raise PassError(f"`top` is {want.top}, below 0")
    if want.given is not None:
        check_array("given", want.given, np.int32, count)
        _check_range("given", want.given, -1, words)
    if want.draw is not None:
        draw = want.draw
        check_array("uniforms", draw.uniforms, np.float64, count)
        for value in draw.uniforms.tolist():
            if not 0 <= value < 1:
                raise PassError(f"`uniforms` holds {value}, not in [0, 1)")
        if not 0 < draw.temperature < math.inf:
            raise PassError(f"`temperature` is {draw.temperature}, not a number above 0")
        if draw.top_k < 0:
            raise PassError(f"`top_k` is {draw.top_k}, below 0")
        if not 0 < draw.top_p <= 1:
            raise PassError(f"`top_p` is {draw.top_p}, not in (0, 1]")
    return count


def read(logits: FloatArray, want: Want, hidden: FloatArray = _UNWANTED) -> Reading:
    """Reads what is wanted, and was checked, from logits [n,V] and features [n,D] of the n scored tokens.

    Words are ranked by their logits, of equal ones the lowest id first. Log-probabilities are of the softmax
    over all V words, computed in fp64 and rounded; minus infinity in a row that holds nothing else.

    Raises:
        PassError: A row holds NaN or infinity, or a word is to be drawn where none has a probability.
    """
    for i, bad in enumerate((np.isnan(logits) | (logits == np.inf)).any(1)):
        if bad:
            raise PassError(f"the logits of scored token {i} hold NaN or infinity")
    logits = only_listed(logits, want.words, range(len(logits)))
    allowed = _allowed(want.banned, logits.shape)
    if want.words is not None:
        allowed &= ~_unlisted(want.words, range(len(logits)), logits.shape[1])
    counts = allowed.sum(1)
    if (counts == 0).any():
        none = int(counts.argmin())
        raise PassError(f"all words are forbidden after scored token {none}", fix="leave one")
    order = np.lexsort((-logits, ~allowed), axis=-1)  # stable; those that are forbidden come last
    lprobs = log_softmax(logits)

    def log_probs_of(words: npt.NDArray[np.integer]) -> FloatArray:
        """Log-probabilities of words [n,k]."""
        return np.take_along_axis(lprobs, words.astype(np.int64), 1).astype(np.float32)

    reading = Reading(best=order[:, 0].astype(np.int32), log_probs=log_probs_of(order[:, :1])[:, 0])
    if want.top:
        # [n,V] -> [n,K]
        best = np.full((len(logits), want.top), -1, np.int32)
        best[:, : logits.shape[1]] = order[:, : want.top]
        best[np.arange(want.top) >= counts[:, None]] = -1
        reading.top = best
        reading.top_log_probs = np.where(best < 0, np.float32(-np.inf), log_probs_of(best.clip(0)))
    if want.margin:
        reading.margins = _margins(np.take_along_axis(logits, order[:, :2], 1), counts)
    if want.given is not None:
        found = log_probs_of(want.given.clip(0)[:, None])[:, 0]
        reading.given_log_probs = np.where(want.given < 0, np.float32(0), found)
    if want.draw is not None:
        drawn = draw_words(logits, allowed, want.draw)
        reading.drawn, reading.drawn_log_probs = drawn, log_probs_of(drawn[:, None])[:, 0]
    if want.hidden:
        reading.hidden = hidden
    return reading


def draw_words(logits: FloatArray, allowed: _BoolArray, draw: Draw) -> IntArray:
    """Draws a word [n] after each scored token by inversion, all in fp64.

    1. The probabilities are softmax(logits / temperature) over the allowed words.
    2. Top-k (Fan et al. 2018, https://arxiv.org/abs/1805.04833): the k likeliest words remain, of equal
       ones the lowest ids.
    3. Top-p (Holtzman et al. 2020, https://arxiv.org/abs/1904.09751): of these, renormalised, the fewest
       likeliest words remain whose probabilities reach top_p: a word does if the sum of those ranked before
       it is below top_p. The likeliest always remains.
    4. The word drawn is the first one, in the order of ids, at which the cumulative sum of what remains
       exceeds its uniform number times the whole sum.

    Args:
        logits: [n,V].
        allowed: [n,V] bool.

    Raises:
        PassError: All allowed words of a row have logits of minus infinity.
    """
    wide = np.where(allowed, logits, -np.inf)
    return by_inversion(draw_weights(wide, draw), draw.uniforms)


def draw_weights(logits: FloatArray, draw: Draw) -> _WideArray:
    """Probabilities [n,V] fp64 that remain after step 3 of `draw_words`, not normalised.

    Args:
        logits: [n,V], minus infinity for words that are forbidden.
    """
    wide = logits.astype(np.float64)
    highest = wide.max(1, keepdims=True)
    for i, value in enumerate(highest[:, 0]):
        if value == -np.inf:
            raise PassError(f"no word can be drawn after scored token {i}: all have probability 0")
    # Subtracted first: a quotient by a small temperature may be too large for fp64.
    weights: _WideArray = np.exp((wide - highest) / draw.temperature)
    if draw.top_k == 0 and draw.top_p == 1:
        return weights
    order = np.argsort(-logits, axis=1, kind="stable")
    ranked = np.take_along_axis(weights, order, 1)  # likeliest first
    if draw.top_k:
        ranked[:, draw.top_k :] = 0
    if draw.top_p < 1:
        sums = ranked.cumsum(1)
        ranked[:, 1:][sums[:, :-1] >= draw.top_p * sums[:, -1:]] = 0
    np.put_along_axis(weights, order, ranked, 1)
    return weights


def by_inversion(weights: _WideArray, uniforms: _WideArray) -> IntArray:
    """The first word [n] up to which weights [n,V] exceed a share [n] of their sum."""
    mass = weights.cumsum(1)
    found: IntArray = (mass > uniforms[:, None] * mass[:, -1:]).argmax(1).astype(np.int32)
    return found


def _allowed(banned: Ragged | None, shape: tuple[int, ...]) -> _BoolArray:
    """Mask [n,V] of the words that are not forbidden."""
    allowed = np.ones(shape, bool)
    if banned is not None:
        rows = np.repeat(np.arange(shape[0]), np.diff(banned.offsets))
        allowed[rows, banned.values] = False
    return allowed


def only_listed(
    logits: FloatArray, words: Ragged | None, index: Sequence[int] | IntArray | range
) -> FloatArray:
    """Logits [m,V] of scored tokens [m], minus infinity where a list has not the word."""
    if words is None:
        return logits
    return np.where(_unlisted(words, index, logits.shape[1]), np.float32(-np.inf), logits)


def _unlisted(words: Ragged, index: Sequence[int] | IntArray | range, count: int) -> _BoolArray:
    """Mask [m,V] of the words that the lists of scored tokens [m] have not."""
    found = np.zeros((len(index), count), bool)
    for row, i in zip(found, index, strict=True):
        begin, end = words.offsets[i : i + 2]
        if begin < end:
            row[:] = True
            row[words.values[begin:end]] = False
    return found


def log_softmax(logits: FloatArray) -> _WideArray:
    """The log-probabilities of logits, [n,V] -> fp64 [n,V]."""
    wide = logits.astype(np.float64)
    highest = wide.max(1, keepdims=True)
    highest[highest == -np.inf] = 0
    with np.errstate(divide="ignore"):  # a row of minus infinity alone
        sums = np.log(np.exp(wide - highest).sum(1, keepdims=True))
    return np.where(wide == -np.inf, -np.inf, wide - highest - np.where(sums == -np.inf, 0, sums))


def _margins(best: FloatArray, counts: npt.NDArray[np.integer]) -> FloatArray:
    """Differences [n] of two logits [n,2], first less second; infinity where counts [n] are below 2."""
    if best.shape[1] < 2:
        return np.full(len(best), np.inf, np.float32)
    first, second = best[:, 0], best[:, 1]
    with np.errstate(invalid="ignore", over="ignore"):  # minus infinity twice: equal
        margins = np.where(first == second, 0, first - second)
    return np.where(counts < 2, np.inf, margins).astype(np.float32)


def _check_ragged(name: str, lists: Ragged, count: int, words: int) -> None:
    check_array(f"{name}.offsets", lists.offsets, np.int32, count + 1)
    if lists.offsets[0] != 0 or (np.diff(lists.offsets) < 0).any():
        raise PassError(f"`{name}.offsets` are not ascending from 0", fix="make it with Ragged.of")
    check_array(f"{name}.values", lists.values, np.int32, int(lists.offsets[-1]))
    _check_range(f"{name}.values", lists.values, 0, words)


def _check_words(lists: Ragged, count: int, words: int) -> None:
    _check_ragged("words", lists, count, words)
    rises = np.diff(lists.values)
    begins = lists.offsets[1:-1]
    rises[begins[(begins > 0) & (begins < len(lists.values))] - 1] = 1
    if (rises <= 0).any():
        raise PassError("a list of `words` is not ascending", fix="name each word once, in order")


def _check_banned(banned: Ragged, count: int, words: int) -> None:
    _check_ragged("banned", banned, count, words)
    for i in np.flatnonzero(np.diff(banned.offsets) >= words):
        if len(np.unique(banned.values[banned.offsets[i] : banned.offsets[i + 1]])) == words:
            raise PassError(f"all {words} words are forbidden after scored token {i}", fix="leave one")


def _check_range(name: str, values: IntArray, low: int, high: int) -> None:
    for value in values.tolist():
        if not low <= value < high:
            raise PassError(f"`{name}` holds {value}, not between {low} and {high - 1}")
