"""What all scorers on the engine share: a model in a type, its threads, and encoded sources."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, TypeVar

from nartk.architectures.transformer import TransformerConfig
from nartk.engine import FORCED_ISA, TYPES, _native
from nartk.engine.costs import HALVES, predicted
from nartk.engine.weights import Arrays, weights_of
from nartk.errors import PassError, UsageError
from nartk.protocols.passes import IntArray, Limits, Source, texts_of
from nartk.vocab import Vocab

E = TypeVar("E", bound="OnEngine")


class OnEngine:
    """Base of the scorers on the engine; a subclass adds the protocol of its decoders.

    Args:
        arrays: The model's weights, fp32, by name; or the tensors of an int8 folder for `type` int8.
        source_vocab: Where it differs from the target's `vocab`.
        type: Of weights and products: fp32, bf16 or int8.
        threads: Most threads of a pass; 0: as many as there are cores for this process.
    """

    def __init__(
        self,
        config: TransformerConfig,
        arrays: Arrays,
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
        self.limits = Limits(config.max_source_len, config.target_positions, len(vocab))
        self.type = type
        self.threads = threads if threads else _native.cores()
        self.isa = _native.isa(os.environ.get(FORCED_ISA, ""))
        self.numerics = f"engine:{self.isa}"  # what a signature says of how it computes
        self._stopped: Callable[[], bool] | None = None
        weights = weights_of(arrays, type, config)
        self._model = weights.model(config, parallel=self._beside(config, arrays))
        stored = HALVES if type == "fp32" and weights.are_halves else type
        self.costs = predicted(config, isa=self.isa, type=stored, threads=self.threads)
        self._engine = _native.Engine(self._model, self.isa, self.threads)

    def _beside(self, config: Any, arrays: Arrays) -> dict[str, Any] | None:
        """What a non-autoregressive model has beside the layers of a Transformer, as the engine reads it."""
        return None

    def replica(self: E, stopped: Callable[[], bool]) -> E:
        """Implements `nartk.protocols.passes.Replicable`."""
        other = copy.copy(self)
        other.threads, other._stopped = 1, stopped
        other._engine = _native.Engine(self._model, self.isa, 1)
        return other

    def _require_running(self) -> None:
        if self._stopped is not None and self._stopped():
            raise PassError("the replica was told to stop")

    def encode(self, sources: Sequence[Source]) -> IntArray:
        texts = texts_of(sources)
        lengths = [len(source) for source in texts]
        return self._engine.encode(list(chain.from_iterable(texts)), lengths)

    def free(self, memory: Sequence[int] | IntArray) -> None:
        self._engine.free(memory)
