"""Draws over tensors, for strategies whose scorers are; `nartk.decoders.sample` draws over passes.

Temperature as usual; top-k after Fan et al. 2018 (arXiv:1805.04833), top-p after Holtzman et al. 2020
(arXiv:1904.09751). Symbols: N tokens judged in a pass, V words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import torch
from torch import Tensor

from nartk.decoders.tensor_loop import DraftAndVerify
from nartk.hypothesis import Request, Result
from nartk.registry import option
from nartk.scorer import Seq2SeqScorer

_SIGNED = 2**64
# splitmix64's increment and multipliers (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
# generators", section 7 and its reference implementation), as signed 64-bit integers.
_GAMMA, _FIRST, _SECOND = (x - _SIGNED for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_BITS = 48  # of a uniform number: so much below 1 that no rounding takes it there


@dataclass(frozen=True, kw_only=True)
class Sampling(DraftAndVerify):
    """Base of the strategies that draw words at random.

    Filters work in the order temperature, top-k, top-p, each on what the one before left. Words as likely
    as the last that a filter keeps stay too. Scores are log-probabilities under the model itself, without
    temperature and filters.
    """

    promise = "drawn from the model's distribution; the same in any batch"

    temperature: float = option(1.0, "divides the logits: below 1 sharper, above 1 flatter", low=1e-3)
    top_k: int = option(0, "draw from the k likeliest words; 0: from all", low=0)
    top_p: float = option(
        1.0, "draw from the likeliest words that together have this probability", low=0, high=1
    )
    seed: int = option(1, "another seed draws other words", low=0)
    nbest: int = option(1, "outputs drawn for a sentence, given back likeliest first", low=1)

    def chances(self, logits: Tensor) -> Tensor:
        """The probabilities [N,V] fp32 with which words are drawn after logits [N,V]."""
        kept = keep_likeliest(logits.float() / self.temperature, top_k=self.top_k, top_p=self.top_p)
        return kept.softmax(-1)

    def numbers(self, requests: Tensor, positions: Tensor, *stream: int) -> Tensor:
        """A random number [N] fp64 for each position [N] of requests [N], another one in each stream."""
        sentence, sample = requests // self.nbest, requests % self.nbest
        streams = (torch.full_like(positions, part) for part in stream)
        return uniform(self.seed, sentence, sample, positions, *streams)

    def run(
        self,
        scorer: Seq2SeqScorer,
        requests: Sequence[Request],
        *,
        batch_size: int,
        max_tokens: int | None = None,
        trace: bool = False,
    ) -> Iterator[Result]:
        """As the base's `run`; each sample of a sentence is a row of the batch."""
        rows = [
            replace(request, index=request.index * self.nbest + sample)
            for request in requests
            for sample in range(self.nbest)
        ]
        found: dict[int, list[Result]] = {}
        for result in super().run(scorer, rows, batch_size=batch_size, max_tokens=max_tokens, trace=trace):
            index = result.index // self.nbest
            drawn = found.setdefault(index, [])
            drawn.append(result)
            if len(drawn) == self.nbest:
                yield _together(index, found.pop(index))


def _together(index: int, drawn: Sequence[Result]) -> Result:
    """The result of a sentence whose samples were decoded apart."""
    drawn = sorted(drawn, key=attrgetter("index"))
    hypotheses = [result.hypotheses[0] for result in drawn]
    return Result(
        index=index,
        hypotheses=tuple(sorted(hypotheses, key=attrgetter("score"), reverse=True)),
        seconds=max(result.seconds for result in drawn),
        passes=sum(result.passes for result in drawn),
        drafted=sum(result.drafted for result in drawn),
        accepted=sum(result.accepted for result in drawn),
    )


def draw(weights: Tensor, at: Tensor) -> Tensor:
    """Draws by inversion: the first word [N] up to which weights [N,V] exceed a share `at` [N] of all."""
    mass = weights.cumsum(-1, dtype=torch.float64)
    tokens = torch.searchsorted(mass, at[:, None] * mass[:, -1:], right=True).squeeze(1)
    return tokens.clamp(max=weights.shape[1] - 1)  # past the end where weights are NaN


def keep_likeliest(logits: Tensor, *, top_k: int, top_p: float) -> Tensor:
    """Logits [N,V] with minus infinity for the words that the filters leave out; top_k 0 leaves out none.

    Only values are compared, never places in a sorted order, which is not settled where words are equal.
    """
    if 0 < top_k < logits.shape[1]:
        least = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
    if top_p < 1.0:
        ordered = logits.sort(-1, descending=True).values
        before = ordered.softmax(-1).cumsum(-1, dtype=torch.float64).roll(1, -1)
        before[:, 0] = -1.0  # the likeliest word always stays
        least = ordered.masked_fill(before >= top_p, float("inf")).amin(-1, keepdim=True)
        logits = logits.masked_fill(logits < least, float("-inf"))
    return logits


def uniform(seed: int, *parts: Tensor) -> Tensor:
    """Numbers [N] fp64 in [0, 1), independent for each combination of seed and parts [N] int64.

    A hash, not a generator with a state, so that a number does not depend on which were drawn before.
    """
    state = torch.full_like(parts[0], (seed + 2**63) % _SIGNED - 2**63)
    for part in parts:
        state = _mix(state + part * _GAMMA + _GAMMA)
    return (state & (2**_BITS - 1)).double() / 2**_BITS


def _mix(x: Tensor) -> Tensor:
    """The finaliser of splitmix64 on int64: every bit of the result depends on every bit of x."""
    x = (x ^ _shift(x, 30)) * _FIRST
    x = (x ^ _shift(x, 27)) * _SECOND
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """x >> bits without its sign."""
    return (x >> bits) & (2 ** (64 - bits) - 1)
