"""What the strategies share that fill canvases: lengths, places, and the choice among candidates.

A candidate is a sentence's canvas of one of its k likeliest lengths. Symbols: B sentences, k candidates of
each, R candidates in all, T places, N lengths, V words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nartk.decoders.native import Asked, Found, Native
from nartk.decoders.tensor_loop import log_probs
from nartk.decoders.tensor_rerank import mean_of, require_reranker, teacher_forced
from nartk.errors import UsageError
from nartk.hypothesis import Request, Result
from nartk.registry import option
from nartk.scorer import CanvasScorer
from nartk.sums import tree_sum

_ELEMENTS = 1 << 26  # logits at a time, at most


@dataclass(frozen=True)
class Filled:
    """R canvases, filled so far. A canvas has its words, then eos, then padding.

    Attributes:
        tokens: [R,T] int64.
        scores: [R,T] fp32, log-probability of each word when it was filled in; 0 at eos and behind.
        margins: [R,T] fp32, nats between the best and the second best word; infinite at eos and behind.
        passes_at: [R,T] int64, the pass that filled each place in, from 1; 0 at eos and behind.
    """

    tokens: Tensor
    scores: Tensor
    margins: Tensor
    passes_at: Tensor


@dataclass(frozen=True, kw_only=True)
class CanvasStrategy(Native):
    """Base of the strategies that fill canvases of the likeliest lengths and choose the best of them.

    A word's log-probability is the model's when it was filled in, eos's that of the length. A candidate's
    score is their mean; with `rerank` it is the mean log-probability of its tokens under the autoregressive
    model. Words that `merge_repeats` takes out still count in the former, not in the latter.
    """

    needs = CanvasScorer

    length_beam: int = option(1, "lengths that are tried, the likeliest", low=1)
    rerank: str = option(
        "", "name or folder of an autoregressive model that chooses among the lengths", model=True
    )
    merge_repeats: bool = option(False, "say a word once where it stands several times in a row")
    nbest: int = option(1, "outputs given back, at most as many as lengths", low=1)

    def __post_init__(self) -> None:
        if self.nbest > self.length_beam:
            raise UsageError(
                f"--nbest is {self.nbest}, above --length-beam {self.length_beam}", fix="raise --length-beam"
            )

    def write(self, scorer: CanvasScorer, state: Any, lengths: Tensor) -> Filled:
        """Fills canvases of lengths [R], one for each row of the state."""
        raise NotImplementedError

    def decode(
        self, scorer: Any, requests: list[Request], batch_size: int, *, trace: bool
    ) -> Iterator[Result]:
        if "rerank" in self.helpers:
            require_reranker(self.helpers["rerank"], "--rerank")
        yield from super().decode(scorer, requests, batch_size, trace=trace)

    def search(self, scorer: CanvasScorer, source: Asked, limits: Tensor) -> Found:
        """The best `nbest` candidates of each sentence."""
        state = scorer.read(source)
        tried, chances = likeliest_lengths(scorer.predict_lengths(state), limits, self.length_beam)  # [B,k]
        rows, columns = (chances > float("-inf")).nonzero().unbind(1)  # [R]
        lengths = tried[rows, columns]
        filled = self.write(scorer, scorer.select(state, rows), lengths)
        tokens = filled.tokens
        scores = filled.scores.scatter(1, lengths[:, None] - 1, chances[rows, columns][:, None])
        ranks = mean_of(scores, lengths)
        details = [scores, filled.margins, filled.passes_at]
        if self.merge_repeats:
            tokens, lengths, details = _merge(tokens, lengths, details, scorer.vocab.pad)
        if "rerank" in self.helpers:
            other = self.helpers["rerank"].mode(exact=self.exact)
            ranks = mean_of(teacher_forced(other, source, rows, tokens, lengths), lengths)

        def grid(values: Tensor, empty: float) -> Tensor:  # [R,...] -> [B,k,...]
            out = values.new_full((*tried.shape, *values.shape[1:]), empty)
            out[rows, columns] = values
            return out

        words, ranked = grid(tokens, scorer.vocab.pad), grid(ranks, float("-inf"))
        best = ranked.argsort(dim=1, descending=True, stable=True)
        counts = grid(lengths, -1)
        if self.merge_repeats:
            best, counts = _leave_out_twins(words, best, counts)
        best = best[:, : self.nbest]

        def take(values: Tensor) -> Tensor:  # [B,k,...] -> [B,nbest,...]
            return values[torch.arange(len(best), device=best.device)[:, None], best]

        positional, margins, passes_at = (take(grid(values, 0)) for values in details)
        passes = torch.ones_like(limits).scatter_reduce(0, rows, filled.passes_at.amax(1), "amax")
        return Found(
            tokens=take(words),
            lengths=take(counts),
            scores=take(ranked),
            positional=positional,
            passes=passes,
            passes_at=passes_at,
            margins=margins,
        )


def likeliest_lengths(chances: Tensor, limits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k likeliest lengths, best first, of equal ones the shorter, and their log-probabilities: [B,k].

    Args:
        chances: [B,N] fp32, log-probability of each length.
        limits: [B], the longest that is wanted, to which what is likelier to be longer is counted.
    """
    length = torch.arange(chances.shape[1], device=chances.device)
    last = limits.clamp(max=chances.shape[1] - 1)[:, None]
    at_last = tree_sum(chances.exp() * (length >= last)).log()[:, None]
    possible = torch.where(length == last, at_last, chances.masked_fill(length > last, float("-inf")))
    order = possible.argsort(dim=1, descending=True, stable=True)[:, :k]
    return order, possible.gather(1, order)


def blank(scorer: CanvasScorer, lengths: Tensor) -> Filled:
    """Canvases of lengths [R] without a word."""
    places = torch.arange(int(lengths.max()), device=lengths.device)
    tokens = torch.full((len(lengths), len(places)), scorer.vocab.pad, device=lengths.device)
    tokens[places < lengths[:, None] - 1] = scorer.mask
    tokens[places == lengths[:, None] - 1] = scorer.vocab.eos
    zeros = torch.zeros(tokens.shape, dtype=torch.float32, device=lengths.device)
    return Filled(tokens, zeros, torch.full_like(zeros, float("inf")), torch.zeros_like(tokens))


def refill(
    scorer: CanvasScorer, state: Any, lengths: Tensor, filled: Filled, places: Tensor, number: int
) -> Filled:
    """Forgets the words at places [R,T] bool, and fills in the best ones instead, all at once.

    Neither the mask, nor padding, nor eos is a word here: the length says where eos is.

    Args:
        number: Of this pass, from 1.
    """
    never = torch.tensor([scorer.mask, scorer.vocab.pad, scorer.vocab.eos], device=places.device)
    most = max(1, _ELEMENTS // (places.shape[1] * scorer.vocab.size))  # rows
    some = places.any(1).nonzero().squeeze(1)
    if not len(some):
        return filled
    found = []
    for rows in some.split(most):
        every = len(rows) == len(places)
        count, masked = lengths[rows], places[rows]
        width = int(count.max())
        canvas = filled.tokens[rows].masked_fill(masked, scorer.mask)[:, :width]
        logits = scorer.fill(canvas, count, state if every else scorer.select(state, rows))
        logits = logits[masked[:, :width]].float()  # [n,V]
        allowed = logits.index_fill(1, never, float("-inf"))
        best, words = allowed.max(1)  # the first of equals
        second = allowed.scatter_(1, words[:, None], float("-inf")).amax(1)
        found.append((words, log_probs(logits, words), best - second))
    words, scores, margins = (torch.cat(parts) for parts in zip(*found, strict=True))

    def put(old: Tensor, new: Tensor) -> Tensor:
        return old.masked_scatter(places, new)

    return Filled(
        put(filled.tokens, words),
        put(filled.scores, scores),
        put(filled.margins, margins),
        filled.passes_at.masked_fill(places, number),
    )


def _merge(
    tokens: Tensor, lengths: Tensor, details: list[Tensor], pad: int
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Leaves the first of equal words in a row: tokens [R,T] and details [R,T] of which lengths [R] count."""
    places = torch.arange(tokens.shape[1], device=tokens.device)
    kept = (tokens != tokens.roll(1, 1)) | (places == 0)
    kept &= places < lengths[:, None]
    count = kept.sum(1)
    left = places < count[:, None]

    def close(values: Tensor, empty: float) -> Tensor:
        return torch.full_like(values, empty).masked_scatter(left, values[kept])

    return close(tokens, pad), count, [close(values, 0) for values in details]


def _leave_out_twins(words: Tensor, best: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Puts candidates behind the others whose words [B,k,T] a better one has; their count becomes -1.

    Args:
        best: [B,k], the candidates in their order.
    """
    rows = torch.arange(len(best), device=best.device)[:, None]
    ordered = words[rows, best]
    twin = (ordered[:, :, None] == ordered[:, None]).all(3).tril(-1).any(2)
    counts = counts.scatter(1, best, torch.where(twin, -1, counts.gather(1, best)))
    return best.gather(1, twin.long().argsort(dim=1, stable=True)), counts
