"""Scores the outputs of one model with another: noisy parallel decoding (Gu et al. 2018, section 4).

Symbols: B sources, R outputs, T tokens of an output, N tokens of a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nartk.decoders.loop.packing import Unread, pack
from nartk.decoders.loop.prompting import prompts_of
from nartk.errors import PassError, StrategyMismatchError, named
from nartk.protocols.passes import FloatArray, PassScorer, Source, Want

_MOST = 1024  # tokens of a pass, unless one output has more


def require_reranker(scorer: object, option: str) -> None:
    """Refuses a model that cannot score a given output, before anything is decoded."""
    if not isinstance(scorer, PassScorer):
        raise StrategyMismatchError(
            f"{named(option)} needs a PassScorer, the model it names is none",
            fix="name an autoregressive model",
        )


def teacher_forced(
    scorer: PassScorer,
    sources: Sequence[Source],
    owners: Sequence[int],
    outputs: Sequence[Sequence[int]],
) -> list[FloatArray]:
    """The log-probability that an autoregressive model gives to each token of given outputs.

    Args:
        sources: B.
        owners: [R], the source of each output.
        outputs: R, each of at least one token, eos included where it has one.

    Returns:
        R arrays [T] fp32.

    Raises:
        PassError: A source or an output is empty or longer than the model holds, or has a word that the model
            has not.
    """
    if not all(outputs):
        raise PassError("an output without tokens is to be scored", fix="give it eos")
    memory = scorer.encode(sources)
    try:
        prompts = prompts_of(scorer, memory, [None] * len(sources))
        found: list[FloatArray] = []
        while len(found) < len(outputs):
            begin = end = len(found)
            count = 0
            while end < len(outputs) and (end == begin or count + len(outputs[end]) <= _MOST):
                count += len(outputs[end])
                end += 1
            chosen = owners[begin:end]
            own = [prompts[owner].tokens for owner in chosen]
            found += _scored(scorer, [memory[owner] for owner in chosen], own, outputs[begin:end])
        return found
    finally:
        scorer.free(memory)


def _scored(
    scorer: PassScorer,
    memory: Sequence[int],
    prompts: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
) -> list[FloatArray]:
    """The same in one pass, for outputs with a handle of a source and a prompt each."""
    contexts = scorer.open(len(outputs))
    try:
        rows = [
            Target([*prompt, *output[:-1]], memory=source, context=context, pending=len(output) - 1)
            for prompt, source, context, output in zip(
                prompts, memory, contexts.tolist(), outputs, strict=True
            )
        ]
        given = np.array([word for output in outputs for word in output], np.int32)
        packed = pack(rows)
        scores = scorer.run(packed.work, Want(only=packed.only, given=given))
        return np.split(scores.given_log_probs, np.cumsum([len(output) for output in outputs])[:-1])
    finally:
        scorer.close(contexts)


@dataclass(slots=True, eq=False)
class Target(Unread):
    """An output that is scored as a whole."""

    unread: list[int]
