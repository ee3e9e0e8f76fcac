"""A drafter that picks among some words alone (VocabTrim, Goel et al. 2025, arXiv:2506.22694).

Without training, the drafter's output layer is cut to the words that the verifier writes most often, counted
in its own outputs, as in the paper. Different: the drafter's folder stays whole, and how many words it picks
among is chosen when it is used.

Symbols: n scored tokens of a pass, V words, L listed ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np

from nartk.protocols.chains import Chain, ChainRule, Chains, DraftsChains
from nartk.protocols.passes import FloatArray, IntArray, Pass, PassScorer, Ragged, Replicable, Scores, Want
from nartk.protocols.prompts import Prompted
from nartk.protocols.wrapped import WrappedPasses


class TrimmedWords(WrappedPasses):
    """Implements `PassScorer`: a model's distribution over some of its words, all others forbidden.

    Logits of the listed words are the model's, bit for bit; those of the others are minus infinity. So
    log-probabilities and draws are of the softmax over the listed words. A draft is drawn from that
    distribution, so rejection sampling must compare with it, and a draft that has become unlikely ends by it.
    `DraftsChains` where the other scorer does.

    Args:
        scorer: Scorer of the model.
        words: Ids [L] of the words, ascending. The languages that a prompt may name are listed too, since
            they are found by what follows the start token.
    """

    def __init__(self, scorer: PassScorer, words: IntArray) -> None:
        super().__init__(scorer)
        languages = [*scorer.prompts.languages.values()] if isinstance(scorer, Prompted) else []
        self.listed = np.union1d(words, np.array(languages, np.int32)).astype(np.int32)
        costs = getattr(scorer, "costs_of_words", None)  # an attribute of no protocol, as `costs`
        if costs is not None:
            self.costs = costs(len(self.listed))
        if isinstance(scorer, DraftsChains):
            self.draft_chains = self._draft_chains

    def run(self, work: Pass, want: Want) -> Any:
        count = len(work.tokens) if want.only is None else len(want.only)
        return self.scorer.run(work, replace(want, words=self._lists(count)))

    def words(self, features: FloatArray, want: Want) -> Scores:
        count = len(features) if want.only is None else len(want.only)
        return self.scorer.words(features, replace(want, words=self._lists(count)))

    def commit(self, scores: Any, kept: Any) -> None:
        self.scorer.commit(scores, kept)

    def _draft_chains(self, chains: Chains, rule: ChainRule) -> list[Chain]:
        return cast(DraftsChains, self.scorer).draft_chains(chains, replace(rule, words=self.listed))

    def _lists(self, count: int) -> Ragged:
        """The list, once for each of n scored tokens."""
        offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(self.listed))
        return Ragged(offsets, np.tile(self.listed, count))

    def replica(self, stopped: Callable[[], bool]) -> TrimmedWords:
        """Wraps a replica of the scorer (`nartk.protocols.passes.Replicable`)."""
        return TrimmedWords(cast(Replicable, self.scorer).replica(stopped), self.listed)
