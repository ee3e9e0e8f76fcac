"""Scores passes with the engine: implements `PassScorer`, and of text `CopiesSource`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nartk.architectures.transformer import TransformerConfig
from nartk.engine.base import OnEngine
from nartk.engine.weights import Arrays
from nartk.protocols.passes import IntArray, Pass, Scores, Want
from nartk.vocab import Vocab


class PassEngine(OnEngine):
    """A model that scores passes on the engine.

    Args:
        start_token: What outputs begin after; None: eos, as in fairseq's models. The others are `OnEngine`'s.
    """

    def __init__(
        self,
        config: TransformerConfig,
        arrays: Arrays,
        vocab: Vocab,
        *,
        source_vocab: Vocab | None = None,
        start_token: int | None = None,
        type: str = "fp32",
        threads: int = 0,
    ) -> None:
        super().__init__(config, arrays, vocab, source_vocab=source_vocab, type=type, threads=threads)
        self.start_token = vocab.eos if start_token is None else start_token

    def open(self, count: int) -> IntArray:
        return self._engine.open(count)

    def fork(self, contexts: Sequence[int] | IntArray) -> IntArray:
        return self._engine.fork(contexts)

    def truncate(self, contexts: Sequence[int] | IntArray, lengths: Sequence[int] | IntArray) -> None:
        self._engine.truncate(contexts, lengths)

    def close(self, contexts: Sequence[int] | IntArray) -> None:
        self._engine.close(contexts)

    def run(self, work: Pass, want: Want) -> Scores:
        self._require_running()
        return self._engine.run(work.tokens, work.positions, work.memory, work.contexts, work.parents, want)

    def commit(self, scores: Scores, kept: Sequence[int] | IntArray) -> None:
        self._engine.commit(scores, kept)

    @property
    def cells_in_use(self) -> int:
        return self._engine.cells_in_use


class EngineScorer(PassEngine):
    """A Transformer on the engine."""

    def __init__(
        self,
        config: TransformerConfig,
        arrays: Arrays,
        vocab: Vocab,
        *,
        source_vocab: Vocab | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(config, arrays, vocab, source_vocab=source_vocab, **settings)
        mapped = range(len(vocab)) if source_vocab in (None, vocab) else source_vocab.map_to(vocab)
        self.source_to_target = np.array(mapped, np.int32)
