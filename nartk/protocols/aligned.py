"""A drafter whose rows of padding words are more or fewer than its verifier's.

Matrices are filled up to different sizes: of T5's checkpoints some have 32,128 rows for the 32,100 words of
the tokenizer, others 32,100. Symbols: n scored tokens of a pass, V words of the verifier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np

from nartk.protocols.passes import FloatArray, Pass, PassScorer, Replicable, Scores, Want
from nartk.protocols.reading import read
from nartk.protocols.wrapped import WrappedPasses, WrappedScores
from nartk.vocab import Vocab


class AlignedWords(WrappedPasses):
    """Implements `PassScorer`: a model's distribution over the words of another vocabulary.

    A word that the model has not has probability 0, and is read as an unknown one; those that it has beyond
    are left out of the softmax.

    Args:
        scorer: Scorer of the model, whose words are the vocabulary's but for rows of padding at the end.
    """

    def __init__(self, scorer: PassScorer, vocab: Vocab) -> None:
        super().__init__(scorer)
        self.vocab, self.limits = vocab, replace(scorer.limits, words=len(vocab))

    def run(self, work: Pass, want: Want) -> WrappedScores:
        own, words = self.scorer.limits.words, len(self.vocab)
        if own < words:
            work = replace(work, tokens=np.where(work.tokens < own, work.tokens, np.int32(self.vocab.unk)))
        return self._aligned(self.scorer.run(work, Want(only=want.only, hidden=want.hidden)), want)

    def words(self, features: FloatArray, want: Want) -> Scores:
        return self._aligned(self.scorer.words(features, Want(only=want.only, hidden=want.hidden)), want)

    def _aligned(self, inner: Scores, want: Want) -> WrappedScores:
        own, words = self.scorer.limits.words, len(self.vocab)
        logits = inner.rows(range(len(inner.best)))[:, :words]
        if own < words:
            padding = np.full((len(logits), words - own), -np.inf, np.float32)
            logits = np.concatenate([logits, padding], 1)
        return WrappedScores(inner, read(logits, want, inner.hidden), logits)

    def replica(self, stopped: Callable[[], bool]) -> AlignedWords:
        """Wraps a replica of the scorer (`nartk.protocols.passes.Replicable`)."""
        return AlignedWords(cast(Replicable, self.scorer).replica(stopped), self.vocab)
