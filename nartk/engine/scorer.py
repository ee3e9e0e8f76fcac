"""Scores passes with the engine: mixins of `OnEngine` for `PassScorer` and `CopiesSource`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate, chain

import numpy as np

from nartk.engine import _native
from nartk.engine.base import OnEngine
from nartk.engine.costs import weights_left_out
from nartk.protocols.attending import Heads
from nartk.protocols.chains import Chain, ChainRule, Chains
from nartk.protocols.passes import FloatArray, IntArray, Pass, Scores, Source, Want, features_of
from nartk.protocols.views import SUBLAYERS, Computed, computed_of, narrowed


class PassesOnEngine(OnEngine):
    """Implements `PassScorer`, `AttendingScorer`, `DraftsChains` and `GivesViews` of `nartk.protocols`."""

    _view: Computed | None = None  # the sublayers that it computes; None: all

    def open(self, count: int) -> IntArray:
        return self._engine.open(count)

    def fork(self, contexts: Sequence[int] | IntArray) -> IntArray:
        return self._engine.fork(contexts)

    def truncate(self, contexts: Sequence[int] | IntArray, lengths: Sequence[int] | IntArray) -> None:
        self._engine.truncate(contexts, lengths)

    def close(self, contexts: Sequence[int] | IntArray) -> None:
        self._engine.close(contexts)

    def run(self, work: Pass, want: Want) -> Scores:
        return self._read(self._engine.run, *_arrays(work), want=want)

    def run_attending(self, work: Pass, want: Want, heads: Heads) -> tuple[Scores, FloatArray]:
        self._check_stopped()
        return self._engine.run_attending(*_arrays(work), want, heads)

    def draft_chains(self, chains: Chains, rule: ChainRule) -> list[Chain]:
        self._check_stopped()
        offsets = [0, *accumulate(map(len, chains.unread))]
        sizes, tokens, log_probs, passes = self._engine.draft(
            chains.memory,
            chains.contexts,
            chains.most,
            offsets,
            [*chain.from_iterable(chains.unread)],
            rule.ends,
            rule.least,
            rule.least_likely,
            rule.words,
        )
        found, begin = [], 0
        for size, taken in zip(sizes, passes, strict=True):
            found.append(Chain(tokens[begin : begin + size], log_probs[begin : begin + size], taken))
            begin += size
        return found

    def view(self, layers: int | None = None, skip: Sequence[str] = ()) -> PassesOnEngine:
        own = computed_of(self.config.decoder_layers) if self._view is None else self._view
        computed = narrowed(own, layers, skip)
        other = copy.copy(self)
        other._predicted = partial(
            self._predicted, left_out=weights_left_out(computed, self.config.decoder_layers)
        )
        other.costs = replace(self._in_proportion(other._predicted()), encoding=0.0)
        other._view = computed
        other._model = self._model.view([tuple(each in names for each in SUBLAYERS) for names in computed])
        other._engine = _native.Engine(other._model, self.isa, self.threads, self._encoder)
        return other

    def commit(self, scores: Scores, kept: Sequence[int] | IntArray) -> None:
        self._engine.commit(scores, kept)

    @property
    def cells_in_use(self) -> int:
        return self._engine.cells_in_use


class VectorsOnEngine(OnEngine):
    """Implements `nartk.protocols.encoded.ReadsEncoded`."""

    @property
    def encoded_features(self) -> int:
        features: int = self.config.d_model
        return features

    def encode(self, sources: Sequence[Source]) -> IntArray:
        found = features_of(sources, self.encoded_features)
        vectors = np.concatenate([np.empty((0, self.encoded_features), np.float32), *found])
        return self._encoder.encode_vectors(vectors, [*map(len, found)])


def _arrays(work: Pass) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray]:
    return work.tokens, work.positions, work.memory, work.contexts, work.parents


class CopiesOnEngine(OnEngine):
    """Implements `CopiesSource`."""

    @cached_property
    def source_to_target(self) -> IntArray:
        source = self.source_vocab
        mapped = range(len(self.vocab)) if source in (None, self.vocab) else source.map_to(self.vocab)
        return np.array(mapped, np.int32)
