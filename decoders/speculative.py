"""Speculative decoding (Leviathan, Kalman and Matias 2023, arXiv:2211.17192).

A small autoregressive model drafts a block of tokens, which the model verifies in one pass. Symbols: V words;
p the model's distribution and q the drafter's, as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from nartk.decoders.drafters.small_model import Pick, PickBest, SmallModel, SmallModelDrafts, small_model
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
from nartk.protocols.guarantee import Promise
from nartk.protocols.passes import FloatArray, PassScorer, Scores, Want
from nartk.protocols.reading import by_inversion
from nartk.registry import HEAVIEST, option, register_decoder
from nartk.vocab import Vocab

_Probs = npt.NDArray[np.float64]
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
            pick: Pick = PickBest()
        else:
            pick = PickDrawn(self._draws(_DRAFTS))
        return SmallModel(small, self.block_size, pick, scorer, stop_below=self.stop_below)

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

    keeps_logits: ClassVar[bool] = True

    draws: RowDraws

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
        accepts, replaces: Give the random numbers of both decisions.
    """

    accepts: RowDraws
    replaces: RowDraws

    def judge_all(self, rows: Sequence[Row], verified: Verified) -> list[list[DraftOutcome]]:
        """All rows at once, of each the first token that is left, then the next."""
        outcomes: list[list[DraftOutcome]] = [[] for _ in rows]
        going = [k for k, row in enumerate(rows) if row.draft.tokens]
        while going:
            at = [len(outcomes[k]) for k in going]
            found = self._judge([rows[k] for k in going], at, verified.scores)
            for k, outcome in zip(going, found, strict=True):
                outcomes[k].append(outcome)
            going = [
                k
                for k, i, outcome in zip(going, at, found, strict=True)
                if outcome.is_accepted
                and outcome.word not in verified.ends
                and i + 1 < len(rows[k].draft.tokens)
            ]
        return outcomes

    def _judge(self, rows: Sequence[Row], at: Sequence[int], scores: Scores) -> list[DraftOutcome]:
        """Outcomes of drafted tokens, one of each row at this index."""
        each = list(zip(rows, at, strict=True))
        index = np.array([row.request.index for row in rows])
        positions = np.array([len(row.tokens) + i for row, i in each])
        nodes = [row.node + i for row, i in each]
        tokens = [row.draft.tokens[i] for row, i in each]
        numbers = self.accepts.uniforms(index, positions).tolist()
        log_probs = scores.given_log_probs[nodes].tolist()

        def distributions(chosen: Sequence[int]) -> tuple[FloatArray, _Probs, _Probs]:
            """The model's logits, p and q of some of the rows, each [n,V]."""
            logits = scores.rows([nodes[k] for k in chosen])
            drafted = np.stack([_drafter_logits(*each[k]) for k in chosen])
            return logits, self.accepts.probs(logits), self.accepts.probs(drafted)

        # Where nothing is filtered, p(x) and q(x) are known: logits are read where x is rejected alone.
        if self.accepts.is_plain:
            p_of_tokens = [math.exp(score) for score in log_probs]
            q_of_tokens = [math.exp(_drafter_log_prob(row, i)) for row, i in each]
        else:
            logits, p, q = distributions(range(len(rows)))
            p_of_tokens, q_of_tokens = (x[range(len(rows)), tokens].tolist() for x in (p, q))
        decided = enumerate(zip(numbers, p_of_tokens, q_of_tokens, strict=True))
        rejected = [k for k, (number, p_of_token, q_of_token) in decided if number * q_of_token >= p_of_token]
        outcomes = [DraftOutcome(True, *token) for token in zip(tokens, log_probs, strict=True)]
        if rejected:
            if self.accepts.is_plain:
                logits, p, q = distributions(rejected)
            else:
                logits, p, q = logits[rejected], p[rejected], q[rejected]
            drawn = self.replaces.uniforms(index[rejected], positions[rejected])
            words = by_inversion(self.rest(p, q), drawn).tolist()
            for k, after, word in zip(rejected, logits, words, strict=True):
                outcomes[k] = DraftOutcome(False, word, log_prob(after, word))
        return outcomes

    @staticmethod
    def rest(p: _Probs, q: _Probs) -> _Probs:
        """The weights [n,V] of words in the place of rejected tokens."""
        rest = np.maximum(p - q, 0)
        # Where p equals q, up to rounding, words are drawn from p.
        return np.where(rest.any(1, keepdims=True), rest, p)


def _drafter_logits(row: Row, i: int) -> FloatArray:
    """Logits [V] that the drafter chose a token from."""
    assert row.draft.logits is not None
    logits: FloatArray = row.draft.logits[i]
    return logits


def _drafter_log_prob(row: Row, i: int) -> float:
    """The log-probability of a drafted token under the drafter."""
    assert row.draft.log_probs is not None
    return row.draft.log_probs[i]
