"""Scores passes with the engine: implements `nartk.passes.PassScorer` and `CopiesSource`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from nartk.engine import FORCED_ISA, TYPES, _native
from nartk.engine.weights import Config, Weights
from nartk.errors import PassError, UsageError
from nartk.passes import IntArray, Limits, Pass, Scores, Want
from nartk.vocab import Vocab


class EngineScorer:
    """A Transformer on the engine.

    Args:
        arrays: Its weights, fp32, by name.
        source_vocab: Where it differs from the target's `vocab`.
        type: Of weights and products: fp32, bf16 or int8.
        threads: Most threads of a pass; 0: as many as there are cores for this process.
    """

    def __init__(
        self,
        config: Config,
        arrays: Mapping[str, npt.NDArray[np.float32]],
        vocab: Vocab,
        *,
        source_vocab: Vocab | None = None,
        type: str = "fp32",
        threads: int = 0,
    ) -> None:
        if type not in TYPES:
            raise UsageError(f"the engine has no type {type!r}", fix=f"choose from {', '.join(TYPES)}")
        self.vocab = vocab
        self.type = type
        self.threads = threads if threads else _native.cores()
        self.limits = Limits(config.max_source_len, config.max_target_len, len(vocab))
        self.start_token = vocab.eos  # fairseq's models begin with eos
        mapped = range(len(vocab)) if source_vocab in (None, vocab) else source_vocab.map_to(vocab)
        self.source_to_target = np.array(mapped, np.int32)
        self.isa = _native.isa(os.environ.get(FORCED_ISA, ""))
        self._engine = _native.Engine(Weights(arrays, type).model(config), self.isa, self.threads)

    def encode(self, sources: Sequence[Sequence[int]]) -> IntArray:
        lengths = [len(source) for source in sources]
        return self._call(self._engine.encode, list(chain.from_iterable(sources)), lengths)

    def free(self, memory: Sequence[int] | IntArray) -> None:
        self._call(self._engine.free, memory)

    def open(self, count: int) -> IntArray:
        return self._call(self._engine.open, count)

    def fork(self, contexts: Sequence[int] | IntArray) -> IntArray:
        return self._call(self._engine.fork, contexts)

    def truncate(self, contexts: Sequence[int] | IntArray, lengths: Sequence[int] | IntArray) -> None:
        self._call(self._engine.truncate, contexts, lengths)

    def close(self, contexts: Sequence[int] | IntArray) -> None:
        self._call(self._engine.close, contexts)

    def run(self, work: Pass, want: Want) -> Scores:
        try:
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
        except _native.PassFault as error:
            raise PassError(str(error)) from error

    def run_with_logits(self, work: Pass) -> Any:
        """As `run`, with the logits [N,V] of all tokens as ``logits``."""
        arrays = work.tokens, work.positions, work.memory, work.contexts, work.parents
        return self._call(partial(self._engine.run, logits=True), *arrays)

    def commit(self, scores: Scores, kept: Sequence[int] | IntArray) -> None:
        self._call(self._engine.commit, scores, kept)

    @property
    def cells_in_use(self) -> int:
        return self._engine.cells_in_use

    @staticmethod
    def _call(function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except _native.PassFault as error:
            raise PassError(str(error)) from error


def _drawing(want: Want) -> tuple[npt.NDArray[np.float64], float, int, float]:
    assert want.draw is not None
    return want.draw.uniforms, want.draw.temperature, want.draw.top_k, want.draw.top_p
