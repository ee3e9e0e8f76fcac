"""Speculative decoding (Leviathan, Kalman and Matias 2023, arXiv:2211.17192).

A small autoregressive model drafts a block of tokens, which the model verifies in one pass. Symbols: V words;
p the model's distribution and q the drafter's, as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nartk.decoders.drafters.small_model import PickBest, SmallModel, SmallModelDrafts, small_model
from nartk.decoders.loop.acceptance import (
    Acceptance,
    ArgmaxAcceptance,
    DraftOutcome,
    StepwiseAcceptance,
    Verified,
)
from nartk.decoders.loop.constraints import Constraints, RowConstraints, log_prob
from nartk.decoders.loop.draws import RowDraws
from nartk.decoders.loop.loop import AdaptiveDrafts, DraftAndVerify
from nartk.decoders.loop.rows import Row
from nartk.decoders.sample import Sampling
from nartk.errors import UsageError, named
from nartk.guarantee import Promise
from nartk.passes import FloatArray, PassScorer, Scores, Want
from nartk.reading import by_inversion
from nartk.registry import HEAVIEST, option, register_decoder
from nartk.vocab import Vocab

_LEAST = 1e-3  # temperature above 0, as in `sample`
# Of random numbers; each decision has one that no other decision has, or the draws would not be independent.
_DRAFTS, _ACCEPTS, _REPLACES = 1, 2, 3


@register_decoder("speculative")
class Speculative(SmallModelDrafts, AdaptiveDrafts, Sampling):
    """Drafts with a small autoregressive model; equal to greedy search token for token.

    At a temperature above 0, words are drawn as `sample` draws them: the outputs have its distribution, but
    are other ones than its draws. The small model draws with the same temperature and filters. What is drawn
    depends on the seed, the sentence, the sample, the options and both models alone.
    """

    temperature: float = option(
        0.0, "0: greedy search; above: divides the logits of the draws", low=0.0, high=HEAVIEST
    )

    def __post_init__(self) -> None:
        if 0 < self.temperature < _LEAST:
            raise UsageError(
                f"{named('temperature')} of {self.name!r} is {self.temperature}",
                fix=f"give 0 for greedy search, or at least {_LEAST}",
            )
        if self.temperature == 0:
            for key, nothing in (("top_k", 0), ("top_p", 1.0), ("nbest", 1)):
                value = getattr(self, key)
                if value != nothing:
                    raise UsageError(
                        f"{named(key)} is {value}, but at {named('temperature', 0)} nothing is drawn",
                        fix=f"give a {named('temperature')} above 0, or leave it out",
                    )
        else:
            self.refuse_constraints(
                f"at {named('temperature', self.temperature)} drafts are accepted by chance"
            )

    @property
    def promised(self) -> Promise:
        return self.promise if self.temperature == 0 else Sampling.promise

    def check_auxiliary(self) -> None:
        small_model(self.auxiliary, self.name)

    def make_drafter(self, scorer: PassScorer) -> SmallModel:
        small = small_model(self.auxiliary, self.name)
        if self.temperature == 0:
            return SmallModel(small, self.block_size, PickBest())
        return SmallModel(small, self.block_size, PickDrawn(self._draws(_DRAFTS)))

    def acceptance(self) -> Acceptance:
        if self.temperature == 0:
            return ArgmaxAcceptance()
        return RejectionSampling(self._draws(_ACCEPTS), self._draws(_REPLACES))

    def choice(self, vocab: Vocab) -> RowConstraints:
        if self.temperature == 0:
            return DraftAndVerify.choice(self, vocab)
        draws = self.draws(Constraints(), vocab.eos)
        return replace(draws, stream=(_REPLACES,), reads_drafts=True)

    def _draws(self, stream: int) -> RowDraws:
        return replace(self.draws(Constraints(), 0), stream=(stream,))


@dataclass(frozen=True)
class PickDrawn:
    """A Pick: a word drawn from the small model's distribution."""

    draws: RowDraws
    keeps_logits: bool = True

    def want(self, index: Sequence[int], positions: Sequence[int]) -> Want:
        return Want(draw=self.draws.draw(np.array(index), np.array(positions)))

    def __call__(self, scores: Scores) -> tuple[list[int], list[float]]:
        return scores.drawn.tolist(), scores.drawn_log_probs.tolist()


@dataclass(frozen=True)
class RejectionSampling(StepwiseAcceptance):
    """Accepts a drafted word x with probability min(1, p(x) / q(x)).

    Where it is rejected, the word is drawn from norm(max(0, p - q)); where nothing is drafted, from p, which
    the pass does (section 2.3 and algorithm 1 of the paper; theorem in its appendix A.1).

    Args:
        accepts, replaces: What gives the random numbers of both decisions.
    """

    accepts: RowDraws
    replaces: RowDraws

    def judge(self, row: Row, first: int, verified: Verified) -> Iterator[DraftOutcome]:
        draft, count, scores = row.draft, len(row.draft.tokens), verified.scores
        if first == count:
            return
        assert draft.log_probs is not None
        assert draft.logits is not None
        nodes = range(row.begin + first, row.begin + count)
        log_probs = scores.given_log_probs[nodes.start : nodes.stop].tolist()
        positions = len(row.tokens) + np.arange(first, count)
        numbers = self.accepts.uniforms(np.full_like(positions, row.request.index), positions).tolist()
        # Where nothing is filtered, p(x) and q(x) are known: logits are read where x is rejected alone.
        logits = None if self.accepts.is_plain else scores.rows(nodes)
        for i, number, token_log_prob in zip(range(first, count), numbers, log_probs, strict=True):
            token = draft.tokens[i]
            if logits is None:
                p_of_token, q_of_token = math.exp(token_log_prob), math.exp(draft.log_probs[i])
            else:
                p_of_token = self.accepts.probs(logits[i - first])[token]
                q_of_token = self.accepts.probs(draft.logits[i])[token]
            if number * q_of_token < p_of_token:
                yield DraftOutcome(True, token, token_log_prob)
                continue
            after = scores.rows([row.begin + i])[0] if logits is None else logits[i - first]
            word = self._replacement(row, i, after)
            yield DraftOutcome(False, word, log_prob(after, word))

    def _replacement(self, row: Row, i: int, logits: FloatArray) -> int:
        """The word in the place of a rejected token, after which the model's logits are [V]."""
        assert row.draft.logits is not None
        p, q = self.replaces.probs(logits), self.replaces.probs(row.draft.logits[i])
        rest = np.maximum(p - q, 0)
        if not rest.any():  # where p equals q, up to rounding
            rest = p
        index, position = np.array([row.request.index]), np.array([len(row.tokens) + i])
        return int(by_inversion(rest[None], self.replaces.uniforms(index, position))[0])
