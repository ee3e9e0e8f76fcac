"""Scores the outputs of one model with another: noisy parallel decoding (Gu et al. 2018, section 4).

Symbols: B sources, T tokens of an output, N tokens of a pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from nartk.errors import StrategyMismatchError
from nartk.passes import ROOT, Pass, PassScorer, Want

_ELEMENTS = 1 << 26  # logits of a pass, at most


def require_reranker(scorer: Any, flag: str) -> None:
    """Refuses a model that cannot score a given output, before anything is decoded."""
    if not isinstance(scorer, PassScorer):
        raise StrategyMismatchError(
            f"{flag} needs a PassScorer, the model it names is none", fix="name an autoregressive model"
        )


def teacher_forced(
    scorer: PassScorer, sources: Sequence[Sequence[int]], outputs: Sequence[Sequence[Sequence[int]]]
) -> list[list[list[float]]]:
    """The log-probability that an autoregressive model gives to each token of given outputs.

    Args:
        sources: B, each ending with eos.
        outputs: Of each source any number, of [T] tokens with eos.
    """
    found: list[list[list[float]]] = [[] for _ in sources]
    memory = scorer.encode(sources)
    try:
        given = [(row, output) for row, each in enumerate(outputs) for output in each]
        for some in _parts(given, _ELEMENTS // scorer.limits.words):
            owners = [row for row, _ in some]
            for row, log_probs in zip(
                owners, _forced(scorer, memory[owners].tolist(), [output for _, output in some]), strict=True
            ):
                found[row].append(log_probs)
    finally:
        scorer.free(memory)
    return found


def _forced(
    scorer: PassScorer, memory: Sequence[int], outputs: Sequence[Sequence[int]]
) -> Iterator[list[float]]:
    """The log-probabilities of each output's tokens, in one pass."""
    lengths = [len(output) for output in outputs]
    words = np.array([word for output in outputs for word in output], np.int32)
    positions = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
    tokens = np.where(positions == 0, np.int32(scorer.start_token), np.roll(words, 1))
    parents = np.where(positions == 0, np.int32(ROOT), np.arange(len(words), dtype=np.int32) - 1)
    contexts = scorer.open(len(outputs))
    try:
        work = Pass(
            tokens.astype(np.int32),
            positions,
            np.repeat(np.array(memory, np.int32), lengths),
            np.repeat(contexts, lengths),
            parents.astype(np.int32),
        )
        scores = scorer.run(work, Want(given=words))
        scorer.commit(scores, [])
    finally:
        scorer.close(contexts)
    assert scores.given_log_probs is not None
    return (each.tolist() for each in np.split(scores.given_log_probs, np.cumsum(lengths)[:-1]))


def _parts(
    given: Sequence[tuple[int, Sequence[int]]], most: int
) -> Iterator[list[tuple[int, Sequence[int]]]]:
    """The outputs in parts of so many tokens, or of a single output."""
    part: list[tuple[int, Sequence[int]]] = []
    tokens = 0
    for row, output in given:
        if part and tokens + len(output) > most:
            yield part
            part, tokens = [], 0
        part.append((row, output))
        tokens += len(output)
    if part:
        yield part
