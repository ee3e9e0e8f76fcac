"""Speculative decoding (Leviathan, Kalman and Matias 2023, arXiv:2211.17192).

A small autoregressive model drafts a block of tokens, which the model verifies in one pass. Symbols: N tokens
judged in a pass, V words; p the model's distribution and q the drafter's, as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nartk.decoders.pace import Pace
from nartk.decoders.paced import Adaptive
from nartk.decoders.small_model import DRAFTER_HELP, Picked, SmallModel, pick_best, small_model
from nartk.decoders.tensor_draws import Sampling, draw
from nartk.decoders.tensor_loop import Acceptance, Drafter, Fed, Judged, argmax_acceptance, log_probs
from nartk.errors import UsageError
from nartk.registry import option, register_decoder
from nartk.scorer import Seq2SeqScorer

_LEAST = 1e-3  # temperature above 0, as in `sample`
# Of random numbers; each decision has one that no other decision has, or the draws would not be independent.
_DRAFTS, _ACCEPTS, _REPLACES = 1, 2, 3


@register_decoder("speculative")
class Speculative(Adaptive, Sampling):
    """Drafts with a small autoregressive model; equal to greedy search token for token.

    At a temperature above 0, words are drawn as `sample` draws them: the outputs have its distribution, but
    are other ones than its draws. The small model draws with the same temperature and filters. What is drawn
    depends on the seed, the sentence, the sample, the options and both models alone.
    """

    promise = "identical to greedy"

    temperature: float = option(0.0, "0: greedy search; above: divides the logits of the draws", low=0.0)
    drafter: str = option("", DRAFTER_HELP, model=True, smaller=True)
    block_size: int = option(5, "longest draft, tokens", low=1)

    def __post_init__(self) -> None:
        if 0 < self.temperature < _LEAST:
            raise UsageError(
                f"--temperature of {self.name!r} is {self.temperature}",
                fix=f"give 0 for greedy search, or at least {_LEAST}",
            )
        if self.temperature == 0:
            for key, nothing in (("top_k", 0), ("top_p", 1.0), ("nbest", 1)):
                value = getattr(self, key)
                if value != nothing:
                    raise UsageError(
                        f"--{key.replace('_', '-')} is {value}, but at --temperature 0 nothing is drawn",
                        fix="give a --temperature above 0, or leave it out",
                    )

    @property
    def promised(self) -> str:
        return self.promise if self.temperature == 0 else Sampling.promise

    def check_helpers(self) -> None:
        small_model(self.helpers, self.name)

    def make_drafter(self, scorer: Seq2SeqScorer) -> Drafter:
        # Where nothing is drawn, the draft does not change the output: it may come from what is fastest.
        small = small_model(self.helpers, self.name).mode(exact=self.exact and self.temperature > 0)
        if self.temperature == 0:
            return SmallModel(small, self.block_size, pick_best)
        return SmallModel(small, self.block_size, _Draw(self), with_lprobs=True)

    def make_pace(self, scorer: Seq2SeqScorer) -> Pace | None:
        return super().make_pace(scorer) if self.temperature == 0 else None

    def acceptance(self) -> Acceptance:
        return argmax_acceptance if self.temperature == 0 else _Reject(self)


@dataclass(frozen=True)
class _Draw:
    """A Pick: a word drawn from the small model's distribution."""

    options: Speculative

    def __call__(self, logits: Tensor, requests: Tensor, positions: Tensor) -> Picked:
        chances = self.options.chances(logits)
        tokens = draw(chances, self.options.numbers(requests, positions, _DRAFTS))
        return Picked(tokens, lprobs=chances.log())


@dataclass(frozen=True)
class _Reject:
    """An Acceptance: the draft's word x stands with probability min(1, p(x) / q(x)).

    Where it falls, the word comes from norm(max(0, p - q)); where nothing is drafted, from p (section 2.3 and
    algorithm 1 of the paper; theorem in its appendix A.1).
    """

    options: Speculative

    def __call__(self, logits: Tensor, fed: Fed) -> Judged:
        options, word = self.options, fed.drafted.clamp(min=0)[:, None]
        assert fed.lprobs is not None
        drafted = fed.drafted >= 0
        p, q = options.chances(logits), fed.lprobs.exp() * drafted[:, None]
        at = options.numbers(fed.requests, fed.positions, _ACCEPTS)
        stands = drafted & (at * q.gather(1, word).squeeze(1) < p.gather(1, word).squeeze(1))
        rest = (p - q).clamp(min=0)
        # Nothing is left of p where it equals q, up to rounding; what is left is NaN where q is.
        some = rest.amax(1, keepdim=True) > 0
        tokens = draw(torch.where(some, rest, p), options.numbers(fed.requests, fed.positions, _REPLACES))
        said = torch.where(stands, fed.drafted, tokens)
        return Judged(tokens, log_probs(logits, said), stands)
