"""Generalized aggressive decoding (Xia et al. 2022, "Speculative Decoding", arXiv:2203.16487).

A non-autoregressive model drafts a block at once, and the autoregressive model verifies it.
Symbols: N positions, V words.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from nartk.decoders.pace import Pace
from nartk.decoders.paced import Adaptive
from nartk.decoders.parallel_drafts import can_draft, parallel_drafter
from nartk.decoders.tensor_loop import (
    Acceptance,
    Drafter,
    Fed,
    Judged,
    argmax_acceptance,
    log_probs,
)
from nartk.errors import StrategyMismatchError, UsageError
from nartk.registry import option, register_decoder
from nartk.scorer import Seq2SeqScorer

_TAU = 3.0


@register_decoder("gad")
class GeneralizedAggressive(Adaptive):
    """Drafts with a non-autoregressive model; equal to greedy search, unless --beta is above 1.

    With --beta above 1 (GAD++, section 3.2 of the paper, whose top-beta and tau these are), a drafted token
    stands that is nearly the verifier's best. The output is then approximate, and depends on the drafter.
    """

    promise = "identical to greedy"

    drafter: str = option("", "name or folder of a non-autoregressive model, which drafts", model=True)
    block_size: int = option(25, "longest draft, tokens; no more than a blockwise model has learnt", low=1)
    beta: int = option(1, "a drafted token stands among so many of the verifier's best words", low=1)
    tau: float = option(
        _TAU, "how far it may lie below the very best, nats of log-probability, if --beta is above 1", low=0
    )

    tree: int = option(
        0, "tokens that are drafted beside the best draft, where it may go on otherwise; 0: none", low=0
    )

    def __post_init__(self) -> None:
        if self.beta == 1 and self.tau != _TAU:
            raise UsageError(
                f"--tau is {self.tau}, but with --beta 1 only the best word stands", fix="raise --beta"
            )
        if self.beta > 1 and self.tree:
            raise UsageError(
                f"--tree is {self.tree}, but with --beta {self.beta} only the best draft may stand",
                fix="leave one of them out",
            )

    @property
    def promised(self) -> str:
        return self.promise if self.beta == 1 else "approximate: drafted words stand that are nearly the best"

    def check_helpers(self) -> None:
        if "drafter" not in self.helpers:
            raise UsageError(
                f"strategy {self.name!r} has no model to draft with",
                fix="name one with --drafter: blockwise, nat, ctc or dag",
            )
        scorer = self.helpers["drafter"]
        if isinstance(scorer, Seq2SeqScorer):
            raise StrategyMismatchError(
                "--drafter names an autoregressive model, which drafts one token at a time",
                fix="use --strategy speculative, or name a non-autoregressive model",
            )
        if not can_draft(scorer):
            raise StrategyMismatchError(
                "--drafter names a model that cannot draft",
                fix="name a non-autoregressive model: blockwise, nat, ctc or dag",
            )

    def make_drafter(self, scorer: Seq2SeqScorer) -> Drafter:
        # A draft changes the output with --beta above 1 alone; else it may come from whatever is fastest.
        helper = self.helpers["drafter"].mode(exact=self.exact and self.beta > 1)
        return parallel_drafter(helper, scorer, self.block_size, tree=self.tree)

    def make_pace(self, scorer: Seq2SeqScorer) -> Pace | None:
        return super().make_pace(scorer) if self.beta == 1 else None

    def acceptance(self) -> Acceptance:
        return argmax_acceptance if self.beta == 1 else NearlyBest(self.beta, self.tau)


@dataclass(frozen=True)
class NearlyBest:
    """A drafted token stands if fewer than `beta` words score above it, the best by at most `tau` nats."""

    beta: int
    tau: float

    def __call__(self, logits: Tensor, fed: Fed) -> Judged:
        logits = logits.float()
        best, tokens = logits.max(-1)
        drafted = fed.drafted.clamp(min=0)
        scores = logits.gather(1, drafted[:, None])
        stands = (fed.drafted >= 0) & ((logits > scores).sum(1) < self.beta)
        stands &= best - scores.squeeze(1) <= self.tau
        return Judged(tokens, log_probs(logits, drafted.where(stands, tokens)), stands)
