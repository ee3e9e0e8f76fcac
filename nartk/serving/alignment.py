"""Aligns tokens with the sound by the cross-attention of an autoregressive model.

Written after OpenAI's program (whisper/timing.py, 20250625; Radford et al. 2023, arXiv:2212.04356): weights
of the heads that follow the sound are normalised over tokens, smoothed over time and averaged; dynamic time
warping finds the path through them. Differences: where a head's weights at a position are equal for all
tokens it says nothing there (0), in place of NaN; paths are found along antidiagonals, with the same numbers;
and tokens of a character that is cut off at a text's end are words, which OpenAI's program loses.

Symbols: H heads, N tokens, S positions of the encoder, V words.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nartk.protocols.attending import Heads
from nartk.protocols.passes import ROOT, FloatArray, IntArray, Pass, Source, Want

MEDIAN = 7  # positions of the median filter
WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})  # languages that write no spaces
_REPLACEMENT = "\ufffd"  # for bytes that are a part of a character
_DIAGONAL, _TOKEN, _TIME = range(3)  # steps of a path
Spell: TypeAlias = Callable[[Sequence[int]], str]
_Path: TypeAlias = npt.NDArray[np.int64]


def median_filter(x: FloatArray, width: int = MEDIAN) -> FloatArray:
    """The medians of `width` neighbours along the last axis, which is reflected at its ends.

    An axis that is no longer than half the width stays as it is.
    """
    side = width // 2
    if x.shape[-1] <= side:
        return x
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(side, side)], mode="reflect")
    found: FloatArray = np.sort(np.lib.stride_tricks.sliding_window_view(padded, width, -1), -1)[..., side]
    return found


def warp(costs: npt.NDArray[np.float64]) -> tuple[_Path, _Path]:
    """The cheapest path through costs [N,S] by dynamic time warping: the tokens and positions it goes along.

    Of steps that cost the same, one in time goes before one to the next token, and both before the diagonal.
    """
    n, s = costs.shape
    infinite = np.full(n + 1, np.inf, np.float32)
    before, last = infinite.copy(), infinite  # costs by token of the two antidiagonals before
    before[0] = 0.0
    trace = np.full((n + 1, s + 1), -1, np.int8)
    for diagonal in range(2, n + s + 1):
        token = np.arange(max(1, diagonal - s), min(n, diagonal - 1) + 1)
        both, down, along = before[token - 1], last[token - 1], last[token]
        step = np.where(
            (both < down) & (both < along),
            _DIAGONAL,
            np.where((down < both) & (down < along), _TOKEN, _TIME),
        )
        least = np.choose(step, [both, down, along])
        here = infinite.copy()
        here[token] = costs[token - 1, diagonal - token - 1] + least.astype(np.float64)
        trace[token, diagonal - token] = step
        before, last = last, here
    trace[0], trace[:, 0] = _TIME, _TOKEN
    path = []
    while n > 0 or s > 0:
        path.append((n - 1, s - 1))
        last_step = int(trace[n, s])
        n, s = n - (last_step != _TIME), s - (last_step != _TOKEN)
    tokens, positions = np.array(path[::-1]).T
    return tokens, positions


def jumps(weights: FloatArray) -> _Path:
    """The position [N] at which each token begins, by weights [H,N,S] that are `normalized`."""
    matrix = weights.mean(0, dtype=np.float32)
    tokens, positions = warp(-matrix.astype(np.float64))
    first = np.diff(tokens, prepend=-1) > 0
    return positions[first]


def normalized(weights: FloatArray) -> FloatArray:
    """Weights [H,N,S] less their mean over tokens, by their deviation, smoothed over time."""
    mean, deviation = weights.mean(1, keepdims=True), weights.std(1, keepdims=True)
    return median_filter((weights - mean) / np.where(deviation > 0.0, deviation, np.float32(1.0)))


def default_heads(layers: int, heads: int) -> Heads:
    """The heads of a model that names none: all of the upper half of its layers."""
    return [(layer, head) for layer in range(layers // 2, layers) for head in range(heads)]


def aligned(
    scorer: object,
    source: Source,
    prompt: Sequence[int],
    text: Sequence[int],
    *,
    heads: Heads,
    positions: int,
) -> tuple[_Path, npt.NDArray[np.float64]]:
    """The position at which each token of a text begins, and the last one ends; and probabilities of tokens.

    All tokens take one pass. Nothing that is decoded at the same time changes them.

    Args:
        scorer: A `PassScorer` and `AttendingScorer`, whose limits hold prompt, text and eos.
        prompt: Tokens before the text, the start token first, the word for no timestamps last.
        text: N tokens, none of them special.
        positions: Positions of the source that hold sound.

    Returns:
        [N+1] positions; [N] probabilities among the words of text, those with lower ids than eos.
    """
    eos = scorer.vocab.eos  # type: ignore[attr-defined]
    tokens = [*prompt, *text, eos]
    first, count = len(prompt) - 1, len(tokens)
    (memory,), contexts = scorer.encode([source]), scorer.open(1)  # type: ignore[attr-defined]
    try:
        work = Pass(
            np.array(tokens, np.int32),
            np.arange(count, dtype=np.int32),
            np.full(count, memory, np.int32),
            np.full(count, contexts[0], np.int32),
            np.arange(ROOT, count - 1, dtype=np.int32),
        )
        only: IntArray = np.arange(first, first + len(text), dtype=np.int32)
        scores, weights = scorer.run_attending(work, Want(only=only), heads)  # type: ignore[attr-defined]
        probs = np.array([_probability(scores.rows([i])[0, :eos], text[i]) for i in range(len(text))])
    finally:
        scorer.close(contexts)  # type: ignore[attr-defined]
        scorer.free([memory])  # type: ignore[attr-defined]
    return jumps(normalized(inside(weights, positions))[:, first:-1]), probs


def inside(weights: FloatArray, positions: int) -> FloatArray:
    """Weights [H,N,S] as if a source had ended after so many positions: each token's add up to 1 there."""
    weights = weights[:, :, :positions]
    sums = weights.sum(2, keepdims=True)
    shares: FloatArray = np.divide(weights, sums, where=sums > 0.0, out=np.zeros_like(weights))
    return shares


def _probability(logits: FloatArray, word: int) -> float:
    wide = logits.astype(np.float64)
    return float(np.exp(wide[word] - np.logaddexp.reduce(wide)))


def split_words(tokens: Sequence[int], spell: Spell, language: str) -> list[tuple[str, list[int]]]:
    """The words of a text with their tokens, as OpenAI's tokenizer splits them.

    A word begins with a space, or is punctuation alone; in a language without spaces each character is one.

    Args:
        spell: Makes text of tokens; a character of which some bytes are missing becomes U+FFFD.
    """
    parts = _characters(tokens, spell)
    if language in WITHOUT_SPACES:
        return parts
    found: list[tuple[str, list[int]]] = []
    for text, ids in parts:
        if text.startswith(" ") or text.strip() in string.punctuation or not found:
            found.append((text, ids))
        else:
            found[-1] = found[-1][0] + text, [*found[-1][1], *ids]
    return found


def _characters(tokens: Sequence[int], spell: Spell) -> list[tuple[str, list[int]]]:
    """The shortest parts of a text that hold whole characters."""
    whole, at = spell(tokens), 0
    found: list[tuple[str, list[int]]] = []
    part: list[int] = []
    for token in tokens:
        part.append(token)
        text = spell(part)
        broken = text.find(_REPLACEMENT)
        if broken < 0 or whole[at + broken : at + broken + 1] == _REPLACEMENT:
            found.append((text, part))
            at, part = at + len(text), []
    if part:
        found.append((spell(part), part))
    return found
