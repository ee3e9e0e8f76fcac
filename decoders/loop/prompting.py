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
    """The tokens before an output: the start token and a prompt, in front of it what was said before.

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
    before: Sequence[tuple[int, ...]] = (),
) -> list[Prompt]:
    """Makes the prompts of encoded sources. All that the model is to find takes one pass to start tokens.

    A language is found behind the start token alone, the probability that nobody speaks behind all up to it,
    as in OpenAI's program.

    Args:
        memory: [B] handles.
        asked: [B], words behind the start token, with `DETECTED` for a language; None: the model's own.
        listening: [B], whether the probability is computed that nobody speaks; empty: of none.
        before: [B], words in front of the start token; empty: there are none.
    """
    start = scorer.start_token
    prompts: Prompts | None = getattr(scorer, "prompts", None)  # `isinstance` takes 20 times as long
    if prompts is None:
        return [Prompt((start,))] * len(memory)
    listening = listening or [False] * len(memory)
    before = before or [()] * len(memory)
    words = [prompts.words() if each is None else each for each in asked]
    # A row of the pass is a source, and what stands in front of its start token.
    finding: list[tuple[int, tuple[int, ...]]] = [(i, ()) for i, each in enumerate(words) if DETECTED in each]
    hearing = [(i, before[i]) for i in range(len(memory)) if listening[i]]
    rows = [*dict.fromkeys([*finding, *hearing])]
    if rows:
        logits = _after_start(scorer, [memory[i] for i, _ in rows], [each for _, each in rows])
        after = dict(zip(rows, logits, strict=True))
    languages = np.array(sorted(prompts.languages.values()), np.int64)
    for row in finding:
        found = int(languages[after[row][languages].argmax()])  # of equal ones the lowest id
        words[row[0]] = tuple(found if word == DETECTED else word for word in words[row[0]])
    no_speech: dict[int, float] = {}
    for row in hearing:
        wide = after[row].astype(np.float64)
        no_speech[row[0]] = float(np.exp(wide[prompts.no_speech] - np.logaddexp.reduce(wide)))
    return [Prompt((*before[i], start, *each), no_speech.get(i)) for i, each in enumerate(words)]


def _after_start(scorer: PassScorer, memory: Sequence[int], before: Sequence[tuple[int, ...]]) -> FloatArray:
    """Logits [B,V] of the word after the start token, in front of which other words stand."""
    count = len(memory)
    contexts = scorer.open(count)
    try:
        chains = [(*each, scorer.start_token) for each in before]
        sizes = [*map(len, chains)]
        ends = np.cumsum(sizes, dtype=np.int32) - 1
        positions = np.concatenate([np.arange(size, dtype=np.int32) for size in sizes])
        parents = np.arange(len(positions), dtype=np.int32) - 1
        parents[positions == 0] = ROOT
        tokens = np.array([token for chain in chains for token in chain], np.int32)
        owners = np.repeat(np.array(memory, np.int32), sizes), np.repeat(contexts, sizes)
        scores = scorer.run(Pass(tokens, positions, *owners, parents), Want(only=ends))
        return scores.rows(range(count)).copy()
    finally:
        scorer.close(contexts)
