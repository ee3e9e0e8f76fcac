"""Big little decoder (Kim et al. 2023, arXiv:2302.07863).

A small autoregressive model goes on as long as it is sure of itself (fallback), and the model takes back what
it finds too unlikely (rollback). Symbols: K drafted tokens, V words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from nartk.decoders.drafters.small_model import DRAFTER_HELP, PickBest, SmallModel, small_model
from nartk.decoders.loop.acceptance import Acceptance, DraftOutcome, StepwiseAcceptance, Verified
from nartk.decoders.loop.constraints import RowConstraints
from nartk.decoders.loop.loop import DraftAndVerify
from nartk.decoders.loop.rows import Row
from nartk.protocols.guarantee import Guarantee, Promise
from nartk.protocols.passes import FloatArray, PassScorer
from nartk.registry import option, register_decoder
from nartk.vocab import Vocab


def _cross_entropy(row: Row, verified: Verified) -> Sequence[float]:
    """Cross-entropy of the drafted words under the model, the paper's choice (section 3.4)."""
    return [-log_prob for log_prob in _drafted(row, verified)]


def _kl(row: Row, verified: Verified) -> Sequence[float]:
    """The divergence of the model's distribution p from the small model's q, sum of q log(q / p)."""
    count = len(row.draft.tokens)
    if not count:
        return []
    assert row.draft.logits is not None
    of_model = verified.scores.rows(range(row.node, row.node + count))
    return kl_divergence(row.draft.logits[:count], of_model).tolist()


def _margin(row: Row, verified: Verified) -> Sequence[float]:
    """Margin by which the drafted word's logit lies below the best."""
    best = verified.log_probs[row.node : row.node + len(row.draft.tokens)]
    return [a - b for a, b in zip(best, _drafted(row, verified), strict=True)]


def _drafted(row: Row, verified: Verified) -> list[float]:
    """The model's log-probability of each drafted token."""
    given = verified.scores.given_log_probs
    assert given is not None
    found: list[float] = given[row.node : row.node + len(row.draft.tokens)].tolist()
    return found


def kl_divergence(q_logits: FloatArray, p_logits: FloatArray) -> npt.NDArray[np.float64]:
    """Sum of q log(q / p) of distributions with these logits [n,V]: [n]."""
    q, p = (_log_softmax(logits) for logits in (q_logits, p_logits))
    with np.errstate(invalid="ignore"):  # minus infinity twice, where q is 0
        return np.where(q > -np.inf, np.exp(q) * (q - p), 0.0).sum(1)


def _log_softmax(logits: FloatArray) -> npt.NDArray[np.float64]:
    wide = logits - logits.max(1, keepdims=True).astype(np.float64)
    return np.asarray(wide - np.log(np.exp(wide).sum(1, keepdims=True)))


# Of a row's drafted tokens: each one's distance, nats.
DISTANCES: dict[str, Callable[[Row, Verified], Sequence[float]]] = {
    "cross-entropy": _cross_entropy,
    "kl": _kl,
    "margin": _margin,
}


@register_decoder("bild")
class BigLittle(DraftAndVerify):
    """Lets a small autoregressive model write where it is sure and the model does not object.

    The small model's best words are drafted while it gives them at least the probability `fallback`. The
    first whose distance is above `rollback` is replaced by the model's best word, and those after it are
    dropped; after a draft that is accepted comes the model's best word. Each row falls back on its own. An
    eos is a word like any other: it ends the output only once the model has accepted it.

    At `rollback` 0 a word must be the model's best, with `keep_best` off also certain to it (cross-entropy)
    or alike in both models up to rounding (kl): the output is greedy search's, but for near ties. At
    `rollback` inf all words are accepted. At `fallback` 0 the small model never stops before `max_draft`
    words or eos, at 1 it drafts only what it is certain of.

    The paper's algorithm 1 has `keep_best` off; the authors' program
    (https://github.com/kssteven418/BigLittleDecoder) keeps such a word, always. It differs further in this:
    what follows a word so kept is accepted unseen; an eos ends the output unseen; the first word, and the one
    behind a rollback, are the model's own; `rollback` is 5 where none is given; a batch is one row.
    """

    promise = Promise(
        Guarantee.APPROXIMATE, "words of the small model are accepted where the model nearly agrees"
    )

    drafter: str = option("", DRAFTER_HELP, model=True, smaller=True)
    fallback: float = option(
        0.6,
        "the small model writes on while its best word is at least so likely; 0: always",
        low=0.0,
        high=1.0,
    )
    rollback: float = option(2.0, "largest distance, in nats, of a word that is accepted; inf: any", low=0.0)
    max_draft: int = option(10, "longest draft, tokens", low=1)
    distance: str = option(
        "cross-entropy",
        "of the small model's word from the model: its negative log-probability there, the divergence of "
        "the two distributions, or how far it scores below the best word",
        choices=tuple(DISTANCES),
    )
    keep_best: bool = option(
        True, "accept a word that is the model's best whatever its distance, as the authors' program does"
    )

    def check_auxiliary(self) -> None:
        small_model(self.auxiliary, self.name)

    def make_drafter(self, scorer: PassScorer) -> SmallModel:
        pick = PickBest(self.fallback, keeps_logits=self.distance == "kl")
        return SmallModel(small_model(self.auxiliary, self.name), self.max_draft, pick)

    def acceptance(self) -> Acceptance:
        return Rollback(DISTANCES[self.distance], self.rollback, self.keep_best)

    def choice(self, vocab: Vocab) -> RowConstraints:
        return replace(super().choice(vocab), reads_drafts=True)


@dataclass(frozen=True)
class Rollback(StepwiseAcceptance):
    """Accepts a drafted word unless its distance is above `most`, with `keep_best` also the best word."""

    distances: Callable[[Row, Verified], Sequence[float]]
    most: float
    keep_best: bool

    def judge(self, row: Row, verified: Verified) -> Iterator[DraftOutcome]:
        scored = zip(self.distances(row, verified), _drafted(row, verified), strict=True)
        for i, (distance, log_prob) in enumerate(scored):
            token, best = row.draft.tokens[i], verified.words[row.node + i]
            if distance <= self.most or (self.keep_best and token == best):
                yield DraftOutcome(True, token, log_prob)
            else:
                yield DraftOutcome(False, best, verified.log_probs[row.node + i])
