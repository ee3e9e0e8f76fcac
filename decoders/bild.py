"""Big little decoder (Kim et al. 2023, arXiv:2302.07863).

A small autoregressive model goes on as long as it is sure of itself (fallback), and the model takes back what
it finds too unlikely (rollback).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from nartk.decoders.drafters.small_model import (
    DRAFTER_HELP,
    WITHIN,
    WORDS_HELP,
    PickBest,
    SmallModel,
    small_model,
)
from nartk.decoders.loop.acceptance import Acceptance, DraftOutcome, StepwiseAcceptance, Verified
from nartk.decoders.loop.constraints import RowConstraints
from nartk.decoders.loop.loop import DraftAndVerify
from nartk.decoders.loop.rows import Row
from nartk.protocols.guarantee import Guarantee, Promise
from nartk.protocols.passes import PassScorer
from nartk.registry import option, register_decoder
from nartk.vocab import Vocab


@register_decoder("bild")
class BigLittle(DraftAndVerify):
    """Lets a small autoregressive model write where it is sure and the model does not object.

    The small model's best words are drafted while it gives them at least the probability `fallback`. The
    first whose negative log-probability under the model (cross-entropy, the distance of the paper's section
    3.4) is above `rollback` is replaced by the model's best word, and those after it are dropped; after a
    draft that is accepted comes the model's best word. Each row falls back on its own. An eos is a word like
    any other: it ends the output only once the model has accepted it.

    At `rollback` 0 a word must be the model's best, with `keep_best` off also certain to it: the output is
    greedy search's. At `rollback` inf all words are accepted. At `fallback` 0 the small model never stops
    before `max_draft` words or eos, at 1 it drafts only what it is certain of.

    The paper's algorithm 1 has `keep_best` off; the authors' program
    (https://github.com/kssteven418/BigLittleDecoder) keeps such a word, always. It differs further in this:
    what follows a word so kept is accepted unseen; an eos ends the output unseen; the first word, and the one
    behind a rollback, are the model's own; `rollback` is 5 where none is given; a batch is one row.
    """

    promise = Promise(
        Guarantee.APPROXIMATE, "words of the small model are accepted where the model nearly agrees"
    )

    drafter: str = option("", DRAFTER_HELP, model=True, smaller=True, itself=True, within=WITHIN)
    fallback: float = option(
        0.6,
        "the small model writes on while its best word is at least so likely; 0: always",
        low=0.0,
        high=1.0,
    )
    rollback: float = option(
        2.0, "largest negative log-probability, in nats, of a word that is accepted; inf: any", low=0.0
    )
    max_draft: int = option(10, "longest draft, tokens", low=1)
    drafter_words: int = option(0, WORDS_HELP, low=0, does_nothing=True)
    keep_best: bool = option(
        True, "accept a word that is the model's best however unlikely, as the authors' program does"
    )

    def check_auxiliary(self) -> None:
        small_model(self.auxiliary, self.name)

    def make_drafter(self, scorer: PassScorer) -> SmallModel:
        small = small_model(self.auxiliary, self.name)
        return SmallModel(small, self.max_draft, PickBest(self.fallback), scorer)

    def acceptance(self) -> Acceptance:
        return Rollback(self.rollback, self.keep_best)

    def choice(self, vocab: Vocab) -> RowConstraints:
        return replace(super().choice(vocab), reads_drafts=True)


@dataclass(frozen=True)
class Rollback(StepwiseAcceptance):
    """Accepts a drafted word as likely as exp(-`most`), and with `keep_best` the model's best word."""

    most: float
    keep_best: bool

    def judge(self, row: Row, verified: Verified) -> Iterator[DraftOutcome]:
        for i, token in enumerate(row.draft.tokens, row.node):
            log_prob, best = float(verified.scores.given_log_probs[i]), verified.words[i]
            if -log_prob <= self.most or (self.keep_best and token == best):
                yield DraftOutcome(True, token, log_prob)
            else:
                yield DraftOutcome(False, best, verified.log_probs[i])
