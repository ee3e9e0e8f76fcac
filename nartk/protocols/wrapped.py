"""A scorer of passes around another one, which changes some of what it does.

Symbols: n scored tokens of a pass, V words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import cast

import numpy as np

from nartk.protocols.encoded import GivesEncoded, ReadsEncoded
from nartk.protocols.passes import (
    FloatArray,
    IntArray,
    PassScorer,
    ReadsWords,
    Scores,
    Source,
    Want,
    costs_of,
)
from nartk.protocols.prompts import Prompted
from nartk.protocols.reading import Reading
from nartk.protocols.views import view_of


class WrappedScores(Reading):
    """Scores of a pass some of which have been changed. Implements `nartk.protocols.passes.Scores`.

    Args:
        inner: Scores that the pass gave.
        reading: Reading that replaces them; None: none does.
        logits: [n,V] that `rows` gives; None: those of the pass.
    """

    def __init__(
        self, inner: Scores, reading: Reading | None = None, logits: FloatArray | None = None
    ) -> None:
        found = inner if reading is None else reading
        super().__init__(**{item.name: getattr(found, item.name) for item in fields(Reading)})
        self.inner, self._logits = inner, logits

    def rows(self, index: Sequence[int] | IntArray) -> FloatArray:
        """Logits [m,V] of m scored tokens."""
        return self.inner.rows(index) if self._logits is None else self._logits[np.asarray(index, np.int64)]

    def put(self, index: Sequence[int], reading: Reading) -> None:
        """Puts what was read again of some scored tokens in its place."""
        for name, values in vars(reading).items():
            if values is not None:
                changed = np.array(getattr(self, name))
                changed[index] = values
                setattr(self, name, changed)

    def raise_log_probs(self, raised: FloatArray) -> None:
        """Adds to the log-probabilities after each scored token [n] what they are higher by."""
        for name, values in vars(self).items():
            if name.endswith("log_probs") and values is not None:
                setattr(self, name, values + (raised if values.ndim == 1 else raised[:, None]))


class WrappedPasses:
    """Base of those that implement `PassScorer` so: a subclass adds `run`, which gives `WrappedScores`.

    Args:
        scorer: The other one.
    """

    def __init__(self, scorer: PassScorer) -> None:
        self.scorer, self.start_token = scorer, scorer.start_token
        self.vocab, self.limits = scorer.vocab, scorer.limits
        self.costs = costs_of(scorer)
        if isinstance(scorer, Prompted):
            self.prompts = scorer.prompts
        if isinstance(scorer, ReadsWords):
            self.source_vocab = scorer.source_vocab
        if isinstance(scorer, ReadsEncoded):
            self.encoded_features = scorer.encoded_features

    def encode(self, sources: Sequence[Source]) -> IntArray:
        return self.scorer.encode(sources)

    def encodings(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        """Implements `nartk.protocols.encoded.GivesEncoded` where the other one does."""
        return cast(GivesEncoded, self.scorer).encodings(memory)

    def view(self, layers: int | None = None, skip: Sequence[str] = ()) -> PassScorer:
        """Implements `nartk.protocols.views.GivesViews` where the other one does."""
        return view_of(self.scorer, layers, skip)

    def free(self, memory: Sequence[int] | IntArray) -> None:
        self.scorer.free(memory)

    def open(self, count: int) -> IntArray:
        return self.scorer.open(count)

    def fork(self, contexts: Sequence[int] | IntArray) -> IntArray:
        return self.scorer.fork(contexts)

    def truncate(self, contexts: Sequence[int] | IntArray, lengths: Sequence[int] | IntArray) -> None:
        self.scorer.truncate(contexts, lengths)

    def close(self, contexts: Sequence[int] | IntArray) -> None:
        self.scorer.close(contexts)

    def words(self, features: FloatArray, want: Want) -> Scores:
        return self.scorer.words(features, want)

    def commit(self, scores: WrappedScores, kept: Sequence[int] | IntArray) -> None:
        self.scorer.commit(scores.inner, kept)

    @property
    def cells_in_use(self) -> int:
        return self.scorer.cells_in_use
