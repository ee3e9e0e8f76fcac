"""Beam search: the k best hypotheses of a sentence grow side by side.

Symbols: B sentences, k hypotheses of each, R = B*k rows of the scorer, C candidates, T output positions,
V words.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nartk.decoders.loop import Autoregressive, encode, join_rows, pad_rows, select_rows
from nartk.errors import UsageError
from nartk.hypothesis import Hypothesis, Request, Result, TokenTrace
from nartk.registry import option, register_decoder
from nartk.scorer import Seq2SeqScorer

_CHUNK = 64  # words whose best is found first; any size gives the same result


@register_decoder("beam")
class Beam(Autoregressive):
    """Keeps the best hypotheses and extends them all by a word a pass.

    A hypothesis ends with eos where eos is among the best `beam_size` candidates; a sentence is done when
    `beam_size` hypotheses have ended or `max_len` is reached, where the candidates at hand stand as they
    are. With one hypothesis this is greedy search. These are the rules of fairseq's SequenceGenerator, but
    for `max_len`, where fairseq adds an eos.
    """

    promise = "the best of k hypotheses; the same in any batch"

    beam_size: int = option(5, "hypotheses of a sentence that are kept", low=1)
    length_penalty: float = option(1.0, "scores are divided by length ** this; more favours long outputs")
    nbest: int = option(1, "hypotheses given back, at most the beam size", low=1)
    no_repeat_ngram: int = option(0, "no n tokens recur in an output; 0: they may", low=0)

    def __post_init__(self) -> None:
        if self.nbest > self.beam_size:
            raise UsageError(
                f"--nbest is {self.nbest}, above --beam-size {self.beam_size}", fix="raise --beam-size"
            )

    def decode(
        self, scorer: Seq2SeqScorer, requests: list[Request], batch_size: int, *, trace: bool
    ) -> Iterator[Result]:
        """Decodes requests of one bucket. `batch_size` counts sentences; each has `beam_size` rows."""
        yield from _Batch(scorer, self, trace=trace).run(requests, batch_size)


def best_of(x: Tensor, k: int) -> Tensor:
    """The places [N,k] of the k largest of each row of x [N,V] fp32, best first; of equals the first.

    Unlike `topk`, which takes any of equals, so that a row's result depends on the row alone. With a
    pass over the maxima of chunks it is also the faster of the two.
    """
    rows, size = x.shape
    if size <= 2 * k * _CHUNK:
        return _keys(x).topk(k).indices
    x = F.pad(x, (0, -size % _CHUNK), value=float("-inf")) if size % _CHUNK else x
    chunks = x.view(rows, -1, _CHUNK)
    # The k best lie in the k chunks with the best maxima. Sorted, so that the first of equals stays first.
    chosen = _keys(chunks.amax(2)).topk(k).indices.sort(1).values
    inside = chunks.gather(1, chosen[:, :, None].expand(-1, -1, _CHUNK)).flatten(1)
    best = _keys(inside).topk(k).indices
    return chosen.gather(1, best // _CHUNK) * _CHUNK + best % _CHUNK


def _keys(x: Tensor) -> Tensor:
    """int64 [N,V] in the order of x [N,V] fp32, equals in falling order of their places."""
    bits = (x + 0.0).view(torch.int32).long()  # + 0.0 makes -0.0 the same as 0.0
    order = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # IEEE 754: negative numbers fall as bits rise
    return (order << 32) + torch.arange(x.shape[1] - 1, -1, -1, device=x.device)


def repeats(outputs: Tensor, lengths: Tensor, n: int, words: int) -> Tensor:
    """Which words would make the last n tokens of a row recur: [R,V] bool.

    Args:
        outputs: [R,T] int64, of which lengths [R] count.
        n: Tokens of the n-gram, at least 1.
        words: V.
    """
    banned = torch.zeros(outputs.shape[0], words + 1, dtype=torch.bool, device=outputs.device)
    if n <= outputs.shape[1]:
        windows = outputs.unfold(1, n, 1)  # [R,T-n+1,n]
        ends = torch.arange(n, outputs.shape[1] + 1, device=outputs.device)
        back = lengths[:, None] + torch.arange(1 - n, 0, device=outputs.device)  # [R,n-1]
        context = outputs.gather(1, back.clamp(min=0))
        seen = (windows[:, :, :-1] == context[:, None]).all(2) & (ends <= lengths[:, None])
        banned.scatter_(1, torch.where(seen, windows[:, :, -1], words), True)
    return banned[:, :words]


@dataclass(frozen=True)
class _Beams:
    """The sentences in the batch. All tensors have a row each.

    Attributes:
        outputs: [B,k,T] int64.
        scores: [B,k,T] fp32, the log-probability of each token.
        totals: [B,k] fp32, their sums; minus infinity where there is no hypothesis.
        lengths, limits: [B] int64; the hypotheses of a sentence are equally long.
        forced, forced_lengths: [B,P] and [B], tokens that the output must begin with.
        ended: [B] int64, hypotheses that have ended.
        ended_outputs, ended_scores, ended_lengths: theirs, [B,k+1,T] twice and [B,k+1]; the last takes what
            has not ended.
    """

    outputs: Tensor
    scores: Tensor
    totals: Tensor
    lengths: Tensor
    limits: Tensor
    forced: Tensor
    forced_lengths: Tensor
    ended: Tensor
    ended_outputs: Tensor
    ended_scores: Tensor
    ended_lengths: Tensor


class _Batch:
    """Runs requests of one bucket through a batch whose sentences come and go."""

    def __init__(self, scorer: Seq2SeqScorer, options: Beam, *, trace: bool) -> None:
        self.scorer, self.options, self.trace = scorer, options, trace
        self.device = torch.device(scorer.device)
        self.requests: list[Request] = []
        self.started: list[float] = []
        self.beams: Any = None
        self.state: Any = None

    def run(self, waiting: list[Request], batch_size: int) -> Iterator[Result]:
        room = max(request.max_len for request in waiting)
        taken = 0
        while taken < len(waiting) or self.requests:
            free = batch_size - len(self.requests)
            # Reading sources one by one is slow, so they enter when a quarter of the batch is free.
            if taken < len(waiting) and 4 * free >= batch_size:
                self._enter(waiting[taken : taken + free], room)
                taken += free
            yield from self._advance()

    def _enter(self, new: list[Request], room: int) -> None:
        self.started += [time.perf_counter()] * len(new)
        count, k = len(new), self.options.beam_size
        _, state = encode(self.scorer, new, room)
        state = self.scorer.select(state, torch.arange(count, device=self.device).repeat_interleave(k))
        totals = torch.full((count, k), float("-inf"), device=self.device)
        totals[:, 0] = 0.0  # all hypotheses are alike at first, so one stands for them
        zeros = torch.zeros(count, dtype=torch.int64, device=self.device)
        outputs = torch.full((count, k + 1, room), self.scorer.vocab.pad, device=self.device)
        scores = torch.zeros(count, k + 1, room, device=self.device)
        beams = _Beams(
            outputs=outputs[:, :k],
            scores=scores[:, :k],
            totals=totals,
            lengths=zeros,
            limits=torch.tensor([request.max_len for request in new], device=self.device),
            forced=pad_rows([request.prefix for request in new], self.scorer.vocab.pad).to(self.device),
            forced_lengths=torch.tensor([len(request.prefix) for request in new], device=self.device),
            ended=zeros,
            ended_outputs=outputs,
            ended_scores=scores,
            ended_lengths=torch.zeros(count, k + 1, dtype=torch.int64, device=self.device),
        )
        if self.requests:
            beams, state = join_rows(self.beams, beams), self.scorer.join(self.state, state)
        self.beams, self.state = beams, state
        self.requests += new

    def _advance(self) -> Iterator[Result]:
        """One pass: extend every hypothesis, end those that reach eos, keep the best of the others."""
        beams, k, eos = self.beams, self.options.beam_size, self.scorer.vocab.eos
        words, lprobs = self._extend()  # [B,k,C]
        choices = words.shape[2]
        totals = (beams.totals[:, :, None] + lprobs).flatten(1)  # [B,k*C]
        best = best_of(totals, 2 * k)  # [B,2k]: k of them are no eos, since each hypothesis has one eos
        parents = best // choices
        words, lprobs, totals = (x.flatten(1).gather(1, best) for x in (words, lprobs, totals))
        outputs, scores = (
            _append(old, parents, beams.lengths, new)
            for old, new in ((beams.outputs, words), (beams.scores, lprobs))
        )
        lengths = beams.lengths + 1
        ends = words == eos

        ending = (ends | (lengths >= beams.limits)[:, None])[:, :k] & (totals[:, :k] != float("-inf"))
        place = beams.ended[:, None] + ending.cumsum(1) - 1
        place = torch.where(ending, place, k).clamp(max=k)[:, :, None]
        ended_outputs, ended_scores = (
            old.scatter(1, place.expand(-1, -1, old.shape[2]), new[:, :k])
            for old, new in ((beams.ended_outputs, outputs), (beams.ended_scores, scores))
        )
        ended_lengths = beams.ended_lengths.scatter(1, place[:, :, 0], lengths[:, None].expand(-1, k))

        kept = ends.long().argsort(dim=1, stable=True)[:, :k]  # the best without eos
        rows = torch.arange(len(self.requests), device=self.device)[:, None]
        parents, totals = parents[rows, kept], totals.masked_fill(ends, float("-inf"))[rows, kept]
        ended = (beams.ended + ending.sum(1)).clamp(max=k)
        self.beams = replace(
            beams,
            outputs=outputs[rows, kept],
            scores=scores[rows, kept],
            totals=totals,
            lengths=lengths,
            ended=ended,
            ended_outputs=ended_outputs,
            ended_scores=ended_scores,
            ended_lengths=ended_lengths,
        )
        done = (ended == k) | (lengths >= beams.limits) | (totals == float("-inf")).all(1)
        moved = (parents != torch.arange(k, device=self.device)).any(1)
        gone, moves = torch.stack([done, moved]).tolist()  # the pass's one wait for the device
        yield from self._reorder(gone, parents, any(moves))

    def _extend(self) -> tuple[Tensor, Tensor]:
        """The best words after each hypothesis, best first, and their log-probabilities: [B,k,C]."""
        beams, k, vocab = self.beams, self.options.beam_size, self.scorer.vocab
        newest = (beams.lengths - 1).clamp(min=0)[:, None, None].expand(-1, k, 1)
        last = beams.outputs.gather(2, newest).flatten()  # [R]
        last = torch.where(beams.lengths.repeat_interleave(k) == 0, vocab.eos, last)  # models begin with eos
        logits, self.state = self.scorer.step(last, self.state)  # [R,V]
        logits = logits.float()
        lprobs = logits.log_softmax(1)
        size = logits.shape[1]
        allowed, chances = logits, lprobs
        if self.options.no_repeat_ngram:
            lengths = beams.lengths.repeat_interleave(k)
            banned = repeats(beams.outputs.flatten(0, 1), lengths, self.options.no_repeat_ngram, size)
            allowed, chances = (x.masked_fill(banned, float("-inf")) for x in (logits, lprobs))
        # More than k + 1 of one hypothesis cannot count: k that go on, and eos.
        words = best_of(allowed, min(k + 1, size))  # [R,C]
        chances = chances.gather(1, words)
        if beams.forced.shape[1]:
            words, chances = self._force(words, chances, lprobs)
        shape = (-1, k, words.shape[1])
        return words.view(shape), chances.view(shape)

    def _force(self, words: Tensor, chances: Tensor, lprobs: Tensor) -> tuple[Tensor, Tensor]:
        """Leaves one candidate to the hypotheses that are inside their sentence's prefix."""
        beams = self.beams
        place = beams.lengths.clamp(max=beams.forced.shape[1] - 1)[:, None]
        inside = (beams.lengths < beams.forced_lengths)[:, None]
        k = self.options.beam_size
        wanted = torch.where(inside, beams.forced.gather(1, place), 0).repeat_interleave(k, 0)  # [R,1]
        inside = inside.repeat_interleave(k, 0)
        alone = F.pad(lprobs.gather(1, wanted), (0, words.shape[1] - 1), value=float("-inf"))
        return torch.where(inside, wanted, words), torch.where(inside, alone, chances)

    def _reorder(self, gone: Sequence[bool], parents: Tensor, moved: bool) -> Iterator[Result]:
        """Takes out the sentences that are done, and gives each hypothesis its parent's cache."""
        leaving = [i for i, done in enumerate(gone) if done]
        staying = [i for i, done in enumerate(gone) if not done]
        if leaving:
            yield from self._results(leaving)
        if not staying:
            self.requests, self.started, self.beams, self.state = [], [], None, None
            return
        if leaving or moved:
            index = torch.tensor(staying, device=self.device)
            rows = index[:, None] * self.options.beam_size + parents[index]
            self.state = self.scorer.select(self.state, rows.flatten())
        if leaving:
            self.beams = select_rows(self.beams, index)
            self.requests = [self.requests[i] for i in staying]
            self.started = [self.started[i] for i in staying]

    def _results(self, places: list[int]) -> Iterator[Result]:
        now = time.perf_counter()
        beams = select_rows(self.beams, torch.tensor(places, device=self.device))
        outputs, scores, lengths = (
            x.tolist() for x in (beams.ended_outputs, beams.ended_scores, beams.ended_lengths)
        )
        counts = torch.stack([beams.ended, beams.lengths], 1).tolist()
        for i, place in enumerate(places):
            ended, passes = counts[i]
            prefix = len(self.requests[place].prefix)
            found = [
                self._hypothesis(outputs[i][j][:length], scores[i][j][:length], prefix)
                for j, length in enumerate(lengths[i][:ended])
            ]
            found.sort(key=attrgetter("score"), reverse=True)
            yield Result(
                index=self.requests[place].index,
                hypotheses=tuple(found[: self.options.nbest]),
                seconds=now - self.started[place],
                passes=passes,
            )

    def _hypothesis(self, tokens: list[int], scores: list[float], prefix: int) -> Hypothesis:
        trace = None
        if self.trace:
            trace = tuple(
                TokenTrace("prefix", 0, None) if j < prefix else TokenTrace("verifier", j + 1, None)
                for j in range(len(tokens))
            )
        return Hypothesis(
            tokens=tuple(tokens),
            score=math.fsum(scores) / len(tokens) ** self.options.length_penalty,
            positional_scores=tuple(scores),
            trace=trace,
        )


def _append(old: Tensor, parents: Tensor, lengths: Tensor, new: Tensor) -> Tensor:
    """Rows parents [B,C] of old [B,k,T] with new [B,C] at place lengths [B]: [B,C,T]."""
    width = old.shape[2]
    grown = old.gather(1, parents[:, :, None].expand(-1, -1, width))
    at = lengths[:, None, None].expand(-1, new.shape[1], 1)
    return grown.scatter_(2, at, new[:, :, None])
