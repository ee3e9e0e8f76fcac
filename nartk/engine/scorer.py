"""Scores passes with the engine: implements `nartk.passes.PassScorer` and `CopiesSource`."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from nartk.architectures.transformer import TransformerConfig
from nartk.engine import FORCED_ISA, TYPES, _native
from nartk.engine.weights import weights_of
from nartk.errors import PassError, UsageError
from nartk.passes import IntArray, Limits, Pass, Scores, Want
from nartk.vocab import Vocab


class EngineScorer:
    """A Transformer on the engine.

    Args:
        arrays: Its weights, fp32, by name; or the tensors of an int8 folder for `type` int8.
        source_vocab: Where it differs from the target's `vocab`.
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
        type: str = "fp32",
        threads: int = 0,
    ) -> None:
        if type not in TYPES:
            raise UsageError(f"the engine has no type {type!r}", fix=f"choose from {', '.join(TYPES)}")
        if threads < 0:
            raise UsageError(f"`threads` is {threads}, below 0", fix="0 takes as many as there are cores")
        self.vocab = vocab
        self.type = type
        self.threads = threads if threads else _native.cores()
        self.limits = Limits(config.max_source_len, config.max_target_len, len(vocab))
        self.start_token = vocab.eos  # fairseq's models begin with eos
        mapped = range(len(vocab)) if source_vocab in (None, vocab) else source_vocab.map_to(vocab)
        self.source_to_target = np.array(mapped, np.int32)
        self.isa = _native.isa(os.environ.get(FORCED_ISA, ""))
        self.numerics = f"engine:{self.isa}"  # what a signature says of how it computes
        self._model = weights_of(arrays, type, config).model(config)
        self._engine = _native.Engine(self._model, self.isa, self.threads)
        self._stopped: Callable[[], bool] | None = None

    def replica(self, stopped: Callable[[], bool]) -> EngineScorer:
        """Implements `nartk.passes.Replicable`."""
        other = copy.copy(self)
        other.threads, other._stopped = 1, stopped
        other._engine = _native.Engine(self._model, self.isa, 1)
        return other

    def encode(self, sources: Sequence[Sequence[int]]) -> IntArray:
        lengths = [len(source) for source in sources]
        return self._engine.encode(list(chain.from_iterable(sources)), lengths)

    def free(self, memory: Sequence[int] | IntArray) -> None:
        self._engine.free(memory)

    def open(self, count: int) -> IntArray:
        return self._engine.open(count)

    def fork(self, contexts: Sequence[int] | IntArray) -> IntArray:
        return self._engine.fork(contexts)

    def truncate(self, contexts: Sequence[int] | IntArray, lengths: Sequence[int] | IntArray) -> None:
        self._engine.truncate(contexts, lengths)

    def close(self, contexts: Sequence[int] | IntArray) -> None:
        self._engine.close(contexts)

    def run(self, work: Pass, want: Want) -> Scores:
        if self._stopped is not None and self._stopped():
            raise PassError("the replica was told to stop")
        return self._engine.run(
            work.tokens,
            work.positions,
            work.memory,
            work.contexts,
            work.parents,
            want.only,
            None if want.banned is None else want.banned.offsets,
            None if want.banned is None else want.banned.values,
            want.top,
            want.margin,
            want.hidden,
            want.given,
            *(() if want.draw is None else _drawing(want)),
        )

    def run_with_logits(self, work: Pass) -> Any:
        """As `run`, with the logits [N,V] of all tokens as ``logits``."""
        arrays = work.tokens, work.positions, work.memory, work.contexts, work.parents
        return self._engine.run(*arrays, logits=True)

    def commit(self, scores: Scores, kept: Sequence[int] | IntArray) -> None:
        self._engine.commit(scores, kept)

    @property
    def cells_in_use(self) -> int:
        return self._engine.cells_in_use


def _drawing(want: Want) -> tuple[npt.NDArray[np.float64], float, int, float]:
    assert want.draw is not None
    return want.draw.uniforms, want.draw.temperature, want.draw.top_k, want.draw.top_p
