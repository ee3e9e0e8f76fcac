"""Oracles of random outputs: distributions by enumeration, and the chance of counts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from nartk.protocols.hypothesis import Request
from support.scripted_passes import EOS

CHANCE = 1e-4  # of a right sampler to fail one of these tests; seeds are fixed, so it fails always or never


def chi_square_p(counts: Sequence[float], expected: Sequence[float]) -> float:
    """The chance of counts at least so far from those expected; rare outcomes are pooled."""
    pairs = sorted(zip(expected, counts, strict=True))
    pooled, rest = [], [0.0, 0.0]
    for wanted, found in pairs:
        if rest[0] < 10:
            rest = [rest[0] + wanted, rest[1] + found]
            if rest[0] >= 10:
                pooled.append(rest)
        else:
            pooled.append([wanted, found])
    if len(pooled) < 2:
        return 1.0
    statistic = sum((found - wanted) ** 2 / wanted for wanted, found in pooled)
    half = torch.tensor([(len(pooled) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def filtered(lprobs: Sequence[float], temperature: float, top_k: int, top_p: float) -> list[float]:
    """Probabilities after temperature, top-k and top-p, word by word in plain Python."""
    probs = [math.exp(lprob / temperature) for lprob in lprobs]
    order = sorted(range(len(probs)), key=lambda word: -probs[word])
    if top_k:
        order = order[:top_k]
    total, mass, kept = sum(probs[word] for word in order), 0.0, []
    for word in order:
        if kept and mass >= top_p:
            break
        kept.append(word)
        mass += probs[word] / total
    total = sum(probs[word] for word in kept)
    return [probs[word] / total if word in kept else 0.0 for word in range(len(probs))]


def every_output(
    log_probs: Callable[[Sequence[int], Sequence[int]], Sequence[float]], request: Request, options: Any
) -> dict[tuple[int, ...], float]:
    """All outputs that can be drawn after the prefix, with their probabilities.

    Args:
        log_probs: Of each word, for a source and the output before it.
    """
    found = {}

    def grow(prefix: tuple[int, ...], probability: float) -> None:
        if prefix and (prefix[-1] == EOS or len(prefix) == request.max_len):
            found[prefix] = probability
            return
        lprobs = log_probs(request.source, prefix)
        for word, p in enumerate(filtered(lprobs, options.temperature, options.top_k, options.top_p)):
            if p > 0:
                grow((*prefix, word), probability * p)

    grow(tuple(request.prefix), 1.0)
    return found


def fit(drawn: Iterable[tuple[int, ...]], wanted: dict[tuple[int, ...], float]) -> float:
    """The chance of these draws under the distribution that is wanted."""
    counts = Counter(drawn)
    assert counts.keys() <= wanted.keys(), "a word that the filters leave out"
    total = sum(counts.values())
    return chi_square_p([counts[output] for output in wanted], [total * p for p in wanted.values()])
