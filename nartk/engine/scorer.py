"""Scores passes with the engine: implements `nartk.passes.PassScorer` and `CopiesSource`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from nartk.architectures.transformer import TransformerConfig
from nartk.engine.base import OnEngine
from nartk.engine.weights import weights_of
from nartk.passes import IntArray, Limits, Pass, Scores, Want
from nartk.vocab import Vocab


class EngineScorer(OnEngine):
    """A Transformer on the engine.

    Args:
        arrays: Its weights, fp32, by name; or the tensors of an int8 folder for `type` int8.
        source_vocab: Where it differs from the target's `vocab`.
        start_token: What outputs begin after; None: eos, as in fairseq's models.
        type: Of weights and products: fp32, bf16 or int8.
        threads: Most threads of a pass; 0: as many as there are cores for this process.
    """

    def __init__(
        self,
        config: TransformerConfig,
        arrays: Mapping[str, npt.NDArray[np.float32]],
        vocab: Vocab,
        *,
        source_vocab: Vocab | None = None,
        start_token: int | None = None,
        type: str = "fp32",
        threads: int = 0,
    ) -> None:
        limits = Limits(config.max_source_len, config.max_target_len, len(vocab))
        super().__init__(vocab, limits, type=type, threads=threads)
        self.start_token = vocab.eos if start_token is None else start_token
        mapped = range(len(vocab)) if source_vocab in (None, vocab) else source_vocab.map_to(vocab)
        self.source_to_target = np.array(mapped, np.int32)
        self._serve(weights_of(arrays, type, config).model(config))

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
