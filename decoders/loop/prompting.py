"""Prompts of outputs: the start token, or Whisper's prompt, whose language the model may have to find.

Symbols: B sources, V words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nartk.protocols.passes import ROOT, FloatArray, IntArray, Pass, PassScorer, Want
from nartk.protocols.prompts import DETECTED, Prompts


@dataclass(frozen=True, slots=True)
class Prompt:
    """The tokens before an output, the start token first.

    Attributes:
        no_speech: Probability that nobody speaks in the source; None: it was not computed.
    """

    tokens: tuple[int, ...]
    no_speech: float | None = None


def prompts_of(
    scorer: PassScorer,
    memory: Sequence[int] | IntArray,
    asked: Sequence[tuple[int, ...] | None],
    listening: Sequence[bool] = (),
) -> list[Prompt]:
    """Makes the prompts of encoded sources. All that the model is to find takes one pass over start tokens.

    Args:
        memory: [B] handles.
        asked: [B], words behind the start token, with `DETECTED` for a language; None: the model's own.
        listening: [B], whether the probability is computed that nobody speaks; empty: of none.
    """
    start = scorer.start_token
    prompts: Prompts | None = getattr(scorer, "prompts", None)  # `isinstance` takes 20 times as long
    if prompts is None:
        return [Prompt((start,))] * len(memory)
    listening = listening or [False] * len(memory)
    found = [Prompt((start, *(prompts.words() if words is None else words))) for words in asked]
    open_ = [i for i, each in enumerate(found) if listening[i] or DETECTED in each.tokens]
    if not open_:
        return found
    logits = _after_start(scorer, [memory[i] for i in open_])
    languages = np.array(sorted(prompts.languages.values()), np.int64)
    for i, row in zip(open_, logits, strict=True):
        tokens, no_speech = found[i].tokens, None
        if DETECTED in tokens:
            language = int(languages[row[languages].argmax()])  # of equal ones the lowest id
            tokens = tuple(language if token == DETECTED else token for token in tokens)
        if listening[i]:
            wide = row.astype(np.float64)
            no_speech = float(np.exp(wide[prompts.no_speech] - np.logaddexp.reduce(wide)))
        found[i] = Prompt(tokens, no_speech)
    return found


def _after_start(scorer: PassScorer, memory: Sequence[int]) -> FloatArray:
    """Logits [B,V] of the word after the start token."""
    count = len(memory)
    contexts = scorer.open(count)
    try:
        starts, zeros, roots = (np.full(count, each, np.int32) for each in (scorer.start_token, 0, ROOT))
        scores = scorer.run(Pass(starts, zeros, np.array(memory, np.int32), contexts, roots), Want())
        return scores.rows(range(count)).copy()
    finally:
        scorer.close(contexts)
