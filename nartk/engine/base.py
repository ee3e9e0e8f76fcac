"""Base of all scorers on the engine: a model in a type, its threads, and encoded sources.

A model's scorer is this base with a mixin for each protocol that its architecture speaks (`Speaks`).
"""

from __future__ import annotations

import copy
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import mul
from typing import Any, TypeVar

import numpy as np

from nartk.engine import FORCED_ISA, TYPES, _native
from nartk.engine.costs import HALVES, predicted
from nartk.engine.weights import Arrays, weights_of
from nartk.errors import PassError, UsageError
from nartk.protocols.passes import (
    FloatArray,
    IntArray,
    Limits,
    PassCosts,
    Scores,
    Source,
    Want,
    features_of,
    texts_of,
)
from nartk.vocab import MASK, Vocab

COPIED = -1  # to the engine, a position at which it copies from the source

E = TypeVar("E", bound="OnEngine")


class _Texts:
    """Encoded texts of an engine, of which the last ones may stay when they are freed, to be found again.

    An encoding depends on its text alone, so that one that is found has the bits of a new one.
    """

    def __init__(self, encoder: _native.Engine) -> None:
        self._encoder = encoder
        self.most = 0
        self._texts: dict[int, tuple[int, ...]] = {}  # by their handles, of what is encoded
        self.kept: OrderedDict[tuple[int, ...], int] = OrderedDict()  # handles, of what was freed

    def keep(self, most: int) -> None:
        self.most = most
        if not most:
            self._texts.clear()
        self._encoder.free(self._beyond())

    def encode(self, texts: Sequence[Sequence[int]]) -> IntArray:
        if not self.most:
            return self._encode(texts)
        keys = [tuple(text) for text in texts]
        found = [self.kept.pop(key, -1) for key in keys]
        try:
            made = self._encode([key for key, handle in zip(keys, found, strict=True) if handle < 0])
        except PassError:
            self._encoder.free([handle for handle in found if handle >= 0])
            raise
        handles = np.array(found, np.int32)
        handles[handles < 0] = made
        self._texts.update(zip(handles.tolist(), keys, strict=True))
        return handles

    def _encode(self, texts: Sequence[Sequence[int]]) -> IntArray:
        return self._encoder.encode(list(chain.from_iterable(texts)), [*map(len, texts)])

    def free(self, memory: Sequence[int] | IntArray) -> None:
        if not self._texts:
            self._encoder.free(memory)
            return
        lost = []
        for handle in map(int, memory):
            text = self._texts.pop(handle, None)
            if text is None or text in self.kept:
                lost.append(handle)
            else:
                self.kept[text] = handle
        self._encoder.free([*lost, *self._beyond()])

    def _beyond(self) -> list[int]:
        """Takes those out that are too many, the oldest first."""
        return [self.kept.popitem(last=False)[1] for _ in range(len(self.kept) - self.most)]


class OnEngine:
    """Base of the scorers on the engine.

    Args:
        config: A `nartk.architectures.settings.Config`.
        arrays: The model's weights, fp32, by name; or the tensors of an int8 folder for `type` int8.
        source_vocab: Dictionary of the source, if it differs from the target's `vocab`.
        start_token: Start token of an autoregressive model; None: eos, as in fairseq's models.
        type: Type of weights and products: fp32, bf16 or int8.
        threads: Most threads of a pass; 0: as many as there are cores for this process.
    """

    def __init__(
        self,
        config: Any,
        arrays: Arrays,
        vocab: Vocab,
        *,
        source_vocab: Vocab | None = None,
        start_token: int | None = None,
        type: str = "fp32",
        threads: int = 0,
    ) -> None:
        if type not in TYPES:
            raise UsageError(f"the engine has no type {type!r}", fix=f"choose from {', '.join(TYPES)}")
        if threads < 0:
            raise UsageError(f"`threads` is {threads}, below 0", fix="0 takes as many as there are cores")
        self.config, self.vocab, self.source_vocab = config, vocab, source_vocab
        self.start_token = vocab.eos if start_token is None else start_token
        self.limits = Limits(config.max_source_len, config.target_positions, len(vocab))
        self.type = type
        self.threads = threads if threads else _native.cores()
        self.isa = _native.isa(os.environ.get(FORCED_ISA, ""))
        self.numerics = f"engine:{self.isa}"  # what a signature says of how it computes
        self._stopped: Callable[[], bool] | None = None
        weights = weights_of(arrays, type, config)
        self._model = weights.model(config)
        stored = HALVES if type == "fp32" and weights.are_halves else type
        self._predicted = partial(predicted, config, isa=self.isa, type=stored, threads=self.threads)
        self.costs = self._predicted()
        # The engine that encodes sources; a view has another one for its passes.
        self._encoder = self._engine = _native.Engine(self._model, self.isa, self.threads)
        self._texts = _Texts(self._encoder)

    def replica(self: E, stopped: Callable[[], bool]) -> E:
        """Implements `nartk.protocols.passes.Replicable`."""
        other = copy.copy(self)
        other.threads, other._stopped = 1, stopped
        other._encoder = other._engine = _native.Engine(self._model, self.isa, 1)
        other._texts = _Texts(other._encoder)
        other._texts.most = self._texts.most
        return other

    def costs_of_words(self, words: int) -> PassCosts:
        """The costs of passes that score so many words alone: less, in proportion to what is predicted."""
        return self._in_proportion(self._predicted(words=words))

    def _in_proportion(self, part: PassCosts) -> PassCosts:
        """The costs of passes that compute a part of the model alone, whose predicted costs are given."""
        whole, costs = self._predicted(), self.costs
        shares = [part.run(size) / whole.run(size) for size in costs.tokens]
        return replace(costs, times=tuple(map(mul, costs.times, shares)))

    @property
    def memories_in_use(self) -> int:
        """Encoded sources that were not freed."""
        return self._encoder.memories_in_use - len(self._texts.kept)

    def keep_encoded(self, most: int) -> None:
        """Implements `nartk.protocols.encoded.KeepsEncoded`."""
        self._texts.keep(most)

    def encode(self, sources: Sequence[Source]) -> IntArray:
        if self.config.reads_text:
            return self._texts.encode(texts_of(sources))
        frames = features_of(sources, self.config.input_features)
        beside = [self.config.words_beside(i, source) for i, source in enumerate(sources)]
        return self._encoder.encode_speech(
            frames, [words for words, _ in beside], [prompt for _, prompt in beside]
        )

    def encodings(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        """Implements `nartk.protocols.encoded.GivesEncoded`."""
        return [self._encoder.output(int(handle)) for handle in memory]

    def free(self, memory: Sequence[int] | IntArray) -> None:
        self._texts.free(memory)

    def words(self, features: FloatArray, want: Want) -> Scores:
        """Reads what is wanted of the words that the output layer predicts of features [N,D]."""
        return self._read(self._engine.words, features, want=want)

    @property
    def _unfilled(self) -> int:
        """The id that the engine reads at positions where nothing is filled in."""
        return MASK if self.config.engine_settings()["copied"] == "none" else COPIED

    def _read(self, function: Callable[..., Scores], *arguments: Any, want: Want) -> Scores:
        """Calls the engine for what is wanted, unless the replica was told to stop."""
        self._check_stopped()
        return function(*arguments, want)

    def _check_stopped(self) -> None:
        """Raises PassError if the replica was told to stop."""
        if self._stopped is not None and self._stopped():
            raise PassError("the replica was told to stop")
