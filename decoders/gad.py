"""Generalized aggressive decoding (Xia et al. 2022, "Speculative Decoding", arXiv:2203.16487).

A non-autoregressive model drafts a block at once, and the autoregressive model verifies it. Symbols: K
drafted tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

from nartk.decoders.drafters.parallel import BranchingDrafts, declared_for, drafting
from nartk.decoders.loop.acceptance import (
    Acceptance,
    ArgmaxAcceptance,
    DraftOutcome,
    StepwiseAcceptance,
    Verified,
)
from nartk.decoders.loop.drafter import Drafter
from nartk.decoders.loop.loop import AdaptiveDrafts
from nartk.decoders.loop.rows import Row
from nartk.errors import StrategyMismatchError, UsageError, named
from nartk.protocols.guarantee import Guarantee, Promise
from nartk.protocols.passes import PassScorer, Want
from nartk.registry import option, register_decoder

_TAU = 3.0
_NEARLY = Promise(Guarantee.APPROXIMATE, "drafted words are accepted that are nearly the best")


@register_decoder("gad")
class GeneralizedAggressive(BranchingDrafts, AdaptiveDrafts):
    """Drafts with a non-autoregressive model; equal to greedy search, unless --beta is above 1.

    With --beta above 1 (GAD++, section 3.2 of the paper, whose top-beta and tau these are), a drafted token
    is accepted that is nearly the verifier's best. The output is then approximate and depends on the drafter.
    """

    drafter: str = option("", "name or folder of a non-autoregressive model, which drafts", model=True)
    beta: int = option(
        1, "a drafted token is accepted if it is among so many of the verifier's best words", low=1
    )
    tau: float = option(
        _TAU, "how far it may lie below the very best, nats of log-probability, if --beta is above 1", low=0
    )

    def __post_init__(self) -> None:
        if self.beta == 1 and self.tau != _TAU:
            raise UsageError(
                f"{named('tau')} is {self.tau}, but with {named('beta', 1)} only the best word is accepted",
                fix=f"raise {named('beta')}",
            )
        if self.beta > 1 and self.tree:
            raise UsageError(
                f"{named('tree')} is {self.tree}, but with {named('beta', self.beta)} only the best draft "
                "may be accepted",
                fix="leave one of them out",
            )
        if self.beta > 1:
            self.refuse_constraints(f"with {named('beta', self.beta)} other words than the best are accepted")

    @property
    def promised(self) -> Promise:
        return self.promise if self.beta == 1 else _NEARLY

    def check_auxiliary(self) -> None:
        if "drafter" not in self.auxiliary:
            raise UsageError(
                f"strategy {self.name!r} has no model to draft with",
                fix=f"name one with {named('drafter')}, of one of these architectures: {drafting()}",
            )
        scorer = self.auxiliary["drafter"]
        if isinstance(scorer, PassScorer):
            raise StrategyMismatchError(
                f"{named('drafter')} names an autoregressive model, which drafts one token at a time",
                fix=f"use {named('strategy', 'speculative')}, or name a non-autoregressive model",
            )
        declared = declared_for(scorer)
        if self.tree and not issubclass(declared, BranchingDrafts):
            raise StrategyMismatchError(
                f"{named('tree')} is {self.tree}, but {named('drafter')} names a model whose drafts do not "
                "branch",
                fix="leave it out, or name a DA-Transformer",
            )

    def make_drafter(self, scorer: PassScorer) -> Drafter:
        small = self.auxiliary["drafter"]
        own: dict[str, int] = {"tree": self.tree} if self.tree else {}
        return declared_for(small)(block_size=self.block_size, **own).make_drafter(small)

    def acceptance(self) -> Acceptance:
        return ArgmaxAcceptance() if self.beta == 1 else NearlyBest(self.beta, self.tau)


class NearlyBest(StepwiseAcceptance):
    """Accepts a drafted token among the `beta` best words that lies at most `tau` nats below the best.

    Of equal words the lowest ids are the better ones.
    """

    def __init__(self, beta: int, tau: float) -> None:
        self.beta, self.tau, self.want = beta, tau, Want(top=beta)

    def judge(self, row: Row, verified: Verified) -> Iterator[DraftOutcome]:
        for at, token in enumerate(row.draft.tokens, row.node):
            best = verified.words[at]
            nearly = None if token == best else self._log_prob(token, at, verified)
            if nearly is None:
                yield DraftOutcome(token == best, best, verified.log_probs[at])
            else:
                yield DraftOutcome(True, token, nearly)

    def _log_prob(self, token: int, at: int, verified: Verified) -> float | None:
        """The log-probability of a drafted token if it is nearly the best word after a verified one."""
        top, log_probs = verified.scores.top, verified.scores.top_log_probs
        ranked, scores = top[at, : self.beta].tolist(), log_probs[at, : self.beta].tolist()
        if token not in ranked:
            return None
        log_prob: float = scores[ranked.index(token)]
        return log_prob if scores[0] - log_prob <= self.tau else None
