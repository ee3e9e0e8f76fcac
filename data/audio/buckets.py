"""Batches of sources and targets that are alike in both lengths, so that little of them is padding.

Żelasko et al. 2025, "Training and Inference Efficiency of Encoder-Decoder Speech Models"
(https://arxiv.org/abs/2503.05931), find that more than half of the computation may go into padding, and sort
speech into buckets by the lengths of its input and its output, with bounds that are taken from a sample of a
stream. Here the lengths of the whole corpus are known, so that the padding itself can be bounded: sources are
cut into groups of alike lengths, groups are sorted by target, and of several ways to cut them the one with
the fewest batches is taken whose padding is below the bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nartk.errors import InputTooLongError, LengthMismatchError, UsageError, named


@dataclass(frozen=True)
class Padding:
    """Shares of padding among the positions of batches, 0 to 1.

    Attributes:
        source: Share of frames.
        target: Share of tokens.
    """

    source: float
    target: float

    def __str__(self) -> str:
        return f"padding: {self.source:.1%} of source frames, {self.target:.1%} of target tokens"


def padding(batches: Sequence[Sequence[int]], sources: Sequence[int], targets: Sequence[int]) -> Padding:
    """Shares of padding in batches of items, each as long as its longest source and target."""

    def share(lengths: Sequence[int]) -> float:
        positions = sum(len(batch) * max(lengths[i] for i in batch) for batch in batches)
        return (positions - sum(lengths[i] for batch in batches for i in batch)) / max(positions, 1)

    return Padding(share(sources), share(targets))


def make_batches(
    sources: Sequence[int],
    targets: Sequence[int],
    *,
    max_frames: int,
    max_tokens: int | None = None,
    max_sentences: int | None = None,
    most_padding: float = 0.1,
) -> list[list[int]]:
    """Parts items into batches of at most so much padding on either side.

    Args:
        sources: Frames of each item.
        targets: Tokens of each item, 1 or more.
        max_frames: Most frames of a batch, padding included.
        max_tokens: Most tokens of a batch, padding included.
        max_sentences: Most items of a batch.
        most_padding: Share of frames, and of tokens, in (0, 1).

    Returns:
        Indices of the items of each batch, shortest sources first.

    Raises:
        InputTooLongError: An item alone has more frames or tokens.
        LengthMismatchError: There are targets for more or fewer sources.
        UsageError: A limit is out of its bounds.
    """
    if len(sources) != len(targets):
        raise LengthMismatchError(
            f"lengths of {len(targets)} targets, but of {len(sources)} sources", fix="give one of each"
        )
    if not 0 < most_padding < 1:
        raise UsageError(f"{named('most_padding')} is {most_padding}", fix="give a share above 0, below 1")
    for name, most, lengths in (("max_frames", max_frames, sources), ("max_tokens", max_tokens, targets)):
        if most is not None and max(lengths, default=0) > most:
            raise InputTooLongError(
                f"an item of {max(lengths)} > {most}", fix=f"leave it out, or raise {named(name)}"
            )
    if max_sentences is not None and max_sentences < 1:
        raise UsageError(f"{named('max_sentences')} is {max_sentences}", fix="give at least 1")
    if not sources:
        return []
    limits = (
        max_frames,
        max(targets) * len(targets) if max_tokens is None else max_tokens,
        len(sources) if max_sentences is None else max_sentences,
    )
    # The longest of a batch is at most 1 + spread times the shortest, and so the padding below this share.
    bound = most_padding / (1 - most_padding)
    found: list[list[list[int]]] = []
    for spread in (2 * bound, 1.5 * bound, bound):
        for filled in (1.0, 0.5, 0.25, 0.0):
            made = _cut(sources, targets, limits, spread, filled)
            share = padding(made, sources, targets)
            if max(share.source, share.target) <= most_padding:
                found.append(made)
    return min(found, key=len)


def _cut(
    sources: Sequence[int], targets: Sequence[int], limits: tuple[int, int, int], spread: float, filled: float
) -> list[list[int]]:
    """Batches of sources, and of targets once a batch is so much filled, that differ by at most `spread`."""
    batches: list[list[int]] = []
    ordered = np.argsort(np.asarray(sources), kind="stable").tolist()
    for group in _alike(ordered, sources, spread):
        batch: list[int] = []
        longest = 0
        for i in sorted(group, key=lambda i: (targets[i], sources[i])):
            longest, count = max(longest, sources[i]), len(batch) + 1
            # Of the three limits' shares; targets ascend, so that the last is the longest.
            used = max(
                count * size / most for size, most in zip((longest, targets[i], 1), limits, strict=True)
            )
            differs = bool(batch) and targets[i] > targets[batch[0]] * (1 + spread)
            if used > 1 or (differs and used > filled):
                batches.append(batch)
                batch, longest = [], sources[i]
            batch.append(i)
        batches.append(batch)
    return batches


def _alike(ordered: Sequence[int], lengths: Sequence[int], spread: float) -> list[list[int]]:
    """Items in the order of their lengths, cut where one is more than 1 + spread times a group's first."""
    groups: list[list[int]] = []
    for i in ordered:
        if not groups or lengths[i] > lengths[groups[-1][0]] * (1 + spread):
            groups.append([])
        groups[-1].append(i)
    return groups
