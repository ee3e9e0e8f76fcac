"""Big little decoder (Kim et al. 2023, arXiv:2302.07863).

A small autoregressive model goes on as long as it is sure of itself (fallback), and the model takes back what
it finds too unlikely (rollback). Symbols: N tokens judged in a pass, V words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nartk.decoders.small_model import DRAFTER_HELP, Picked, SmallModel, small_model
from nartk.decoders.tensor_loop import Acceptance, DraftAndVerify, Drafter, Fed, Judged
from nartk.registry import option, register_decoder
from nartk.scorer import Seq2SeqScorer
from nartk.sums import tree_sum


def _cross_entropy(logits: Tensor, lprobs: Tensor, fed: Fed) -> Tensor:
    """How unlikely the model finds the drafted word, the paper's choice (section 3.4)."""
    return -_of(lprobs, fed.drafted)


def _kl(logits: Tensor, lprobs: Tensor, fed: Fed) -> Tensor:
    """The divergence of the model's distribution p from the small model's q, sum of q log(q / p)."""
    assert fed.lprobs is not None
    q = fed.lprobs.exp()
    return tree_sum(torch.where(q > 0, q * (fed.lprobs - lprobs), 0.0))


def _margin(logits: Tensor, lprobs: Tensor, fed: Fed) -> Tensor:
    """How far the drafted word's logit lies below the best."""
    return logits.amax(1) - _of(logits, fed.drafted)


def _of(values: Tensor, words: Tensor) -> Tensor:
    """The value [N] that each word [N] has in values [N,V]; any where the word is none."""
    return values.gather(1, words.clamp(min=0)[:, None]).squeeze(1)


# Of logits [N,V] and their log-probabilities, both fp32.
_DISTANCES: dict[str, Callable[[Tensor, Tensor, Fed], Tensor]] = {
    "cross-entropy": _cross_entropy,
    "kl": _kl,
    "margin": _margin,
}


@register_decoder("bild")
class BigLittle(DraftAndVerify):
    """Lets a small autoregressive model write where it is sure and the model does not object.

    The small model's best words are drafted while it gives them at least the probability `fallback`. The
    first whose distance is above `rollback` is replaced by the model's best word, and those after it are
    dropped; after a draft that stands comes the model's best word. Each row falls back on its own. An eos is
    a word like any other: it ends the output only once the model has let it stand.

    At `rollback` 0 a word must be certain to the model (cross-entropy), or score as its best (margin), or
    the two models must agree up to rounding (kl): the output is greedy search's, but for near ties. At
    `rollback` inf all words stand. At `fallback` 0 the small model never stops before `max_draft` words or
    eos, at 1 it drafts only what it is certain of.
    """

    promise = "approximate: words of the small model stand where the model nearly agrees"

    drafter: str = option("", DRAFTER_HELP, model=True, smaller=True)
    fallback: float = option(
        0.6,
        "the small model writes on while its best word is at least so likely; 0: always",
        low=0.0,
        high=1.0,
    )
    rollback: float = option(2.0, "largest distance, in nats, of a word that stands; inf: any", low=0.0)
    max_draft: int = option(10, "longest draft, tokens", low=1)
    distance: str = option(
        "cross-entropy",
        "of the small model's word from the model: its negative log-probability there, the divergence of "
        "the two distributions, or how far it scores below the best word",
        choices=tuple(_DISTANCES),
    )

    def check_helpers(self) -> None:
        small_model(self.helpers, self.name)

    def make_drafter(self, scorer: Seq2SeqScorer) -> Drafter:
        small = small_model(self.helpers, self.name).mode(exact=self.exact)
        compares = self.distance == "kl"
        return SmallModel(small, self.max_draft, _Sure(self.fallback, compares), with_lprobs=compares)

    def acceptance(self) -> Acceptance:
        return _Rollback(_DISTANCES[self.distance], self.rollback)


@dataclass(frozen=True)
class _Sure:
    """A Pick: the best word, as long as it is likely enough."""

    fallback: float
    with_lprobs: bool

    def __call__(self, logits: Tensor, requests: Tensor, positions: Tensor) -> Picked:
        lprobs = logits.float().log_softmax(-1)
        best, tokens = lprobs.max(-1)
        return Picked(tokens, best.exp() >= self.fallback, lprobs if self.with_lprobs else None)


@dataclass(frozen=True)
class _Rollback:
    """An Acceptance: a drafted word stands unless its distance is above `most`."""

    distance: Callable[[Tensor, Tensor, Fed], Tensor]
    most: float

    def __call__(self, logits: Tensor, fed: Fed) -> Judged:
        logits = logits.float()
        lprobs = logits.log_softmax(-1)
        tokens = logits.max(-1).indices
        stands = (fed.drafted >= 0) & (self.distance(logits, lprobs, fed) <= self.most)
        return Judged(tokens, _of(lprobs, torch.where(stands, fed.drafted, tokens)), stands)
