"""Beam search: the k best hypotheses of a sentence grow side by side.

Symbols: B sentences, k hypotheses of each, R = B*k rows of the scorer, C candidates, T output positions,
V words.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nartk.decoders.beam_drafts import Answers, BeamDrafter, ask, make_beam_drafter
from nartk.decoders.tensor_loop import Autoregressive, encode, join_rows, pad_rows, select_rows
from nartk.decoders.tensor_strategy import TensorStrategy
from nartk.errors import UsageError
from nartk.hypothesis import Hypothesis, Request, Result, TokenTrace
from nartk.registry import option, register_decoder
from nartk.scorer import Seq2SeqScorer

_CHUNK = 64  # words whose best is found first; any size gives the same result
_MAX_DRAFT = 3


@register_decoder("beam")
class Beam(Autoregressive):
    """Keeps the best hypotheses and extends them all by a word a pass.

    A hypothesis ends with eos where eos is among the best `beam_size` candidates; a sentence is done when
    `beam_size` hypotheses have ended or `max_len` is reached, where the candidates at hand stand as they
    are. With one hypothesis this is greedy search. These are the rules of fairseq's SequenceGenerator, but
    for `max_len`, where fairseq adds an eos.

    With --draft a pass also looks at what the hypotheses may go on with. As long as all that are kept are
    among this, the next words are chosen without a pass, by the same rules: the hypotheses are the same.
    """

    promise = "the best of k hypotheses; the same in any batch"

    beam_size: int = option(5, "hypotheses of a sentence that are kept", low=1)
    length_penalty: float = option(1.0, "scores are divided by length ** this; more favours long outputs")
    nbest: int = option(1, "hypotheses given back, at most the beam size", low=1)
    no_repeat_ngram: int = option(0, "no n tokens recur in an output; 0: they may", low=0)
    draft: str = option(
        "none",
        "what a hypothesis may go on with: the source, the words that were best after the same word before, "
        "or both",
        choices=("none", "source", "recycling", "both"),
    )
    max_draft: int = option(_MAX_DRAFT, "longest draft of a hypothesis, tokens", low=1)
    drafter: BeamDrafter | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.nbest > self.beam_size:
            raise UsageError(
                f"--nbest is {self.nbest}, above --beam-size {self.beam_size}", fix="raise --beam-size"
            )
        if self.draft == "none" and self.max_draft != _MAX_DRAFT:
            raise UsageError(
                f"--max-draft is {self.max_draft}, but nothing is drafted",
                fix="choose what with --draft: source, recycling or both",
            )

    def for_run(self, scorer: Seq2SeqScorer) -> TensorStrategy:
        made = make_beam_drafter(scorer, self.draft, self.max_draft)
        return replace(self, drafter=made)  # type: ignore[call-arg]  # registering makes the dataclass

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
        settled: [B,T] int64, the pass that chose the tokens at each place.
        passes, drafted, accepted: [B] int64.
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
    settled: Tensor
    passes: Tensor
    drafted: Tensor
    accepted: Tensor


class _Batch:
    """Runs requests of one bucket through a batch whose sentences come and go."""

    def __init__(self, scorer: Seq2SeqScorer, options: Beam, *, trace: bool) -> None:
        self.scorer, self.options, self.trace = scorer, options, trace
        self.device = torch.device(scorer.device)
        self.requests: list[Request] = []
        self.started: list[float] = []
        self.beams: Any = None
        self.state: Any = None
        self.draft_state: Any = None

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
        source, state = encode(self.scorer, new, room)
        drafter = self.options.drafter
        draft_state = None if drafter is None else drafter.start(source, new, k)
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
            settled=torch.zeros(count, room, dtype=torch.int64, device=self.device),
            passes=zeros,
            drafted=zeros,
            accepted=zeros,
        )
        if self.requests:
            beams, state = join_rows(self.beams, beams), self.scorer.join(self.state, state)
            if drafter is not None:
                draft_state = drafter.join(self.draft_state, draft_state)
        self.beams, self.state, self.draft_state = beams, state, draft_state
        self.requests += new

    def _advance(self) -> Iterator[Result]:
        """One pass: extend every hypothesis, and keep the best."""
        if self.options.drafter is not None:
            yield from self._advance_drafted(self.options.drafter)
            return
        k = self.options.beam_size
        logits, self.state = self.scorer.step(self._last(self.beams), self.state)  # [R,V]
        beams = replace(self.beams, passes=self.beams.passes + 1)
        self.beams, parents, done = self._choose(beams, *self._candidates(beams, logits))
        moved = (parents != torch.arange(k, device=self.device)).any(1)
        gone, moves = torch.stack([done, moved]).tolist()  # the pass's one wait for the device
        index = yield from self._leave(gone)
        if index is not None and (any(gone) or any(moves)):
            rows = index[:, None] * k + parents[index]
            self.state = self.scorer.select(self.state, rows.flatten())

    def _advance_drafted(self, drafter: BeamDrafter) -> Iterator[Result]:
        """One pass over all hypotheses and their drafts, and all the words that it settles."""
        beams, k = self.beams, self.options.beam_size
        last, live = self._last(beams), (beams.totals > float("-inf")).flatten()
        # One place stays free for the word after the draft.
        budget = (beams.limits - beams.lengths - 1).clamp(min=0).repeat_interleave(k) * live
        lengths = beams.lengths.repeat_interleave(k)
        outputs = beams.outputs.flatten(0, 1)
        draft, self.draft_state = drafter.draft(self.draft_state, outputs, lengths, last, budget)
        answers, drafted = ask(self.scorer, self.state, last, draft, budget)
        drafted = beams.drafted + drafted.view(-1, k).sum(1)
        self.beams = replace(beams, passes=beams.passes + 1, drafted=drafted)
        gone, rows, columns = self._replay(answers, drafter)
        index = yield from self._leave(gone)
        if index is not None:
            rows, columns = rows[index].flatten(), columns[index].flatten()
            lengths = self.beams.lengths.repeat_interleave(k)
            self.state = answers.keep(self.scorer, rows, columns, lengths)
            self.draft_state = drafter.select(self.draft_state, rows)

    def _replay(self, answers: Answers, drafter: BeamDrafter) -> tuple[list[bool], Tensor, Tensor]:
        """Chooses words as long as what follows every hypothesis of a sentence is known.

        Returns:
            Which sentences are done; the nodes that the hypotheses end with, rows and columns [B,k].
        """
        k, count = self.options.beam_size, len(self.requests)
        rows = torch.arange(count * k, device=self.device).view(count, k)
        columns = torch.zeros_like(rows)
        gone, going = [False] * count, list(range(count))
        index = torch.tensor(going, device=self.device)
        beams, at_rows, at_columns = self.beams, rows, columns  # the nodes to ask of
        while going:
            logits = answers.after(at_rows.flatten(), at_columns.flatten())
            words, lprobs = self._candidates(beams, logits)
            drafter.learn(self._last(beams), words.flatten(0, 1))
            beams, parents, done = self._choose(beams, words, lprobs)
            live = beams.totals > float("-inf")
            # The best hypothesis stands for the parent of what is none; its node is known.
            parents = torch.where(live, parents, 0)
            at_rows, end_columns = (x.gather(1, parents) for x in (at_rows, at_columns))
            at_columns, known = answers.child(at_rows, end_columns, self._last(beams).view(-1, k))
            known = (known | ~live).all(1) & ~done
            beams = replace(beams, accepted=beams.accepted + live.sum(1) * known)
            if len(going) == count:
                self.beams, rows, columns = beams, at_rows, end_columns
            else:
                self.beams = put_rows(self.beams, index, beams)
                rows, columns = rows.index_copy(0, index, at_rows), columns.index_copy(0, index, end_columns)
            ended, goes_on = torch.stack([done, known]).tolist()
            for place, end in zip(going, ended, strict=True):
                gone[place] = end
            if not all(goes_on):
                left = [i for i, goes in enumerate(goes_on) if goes]
                going = [going[i] for i in left]
                places = torch.tensor(left, dtype=torch.int64, device=self.device)
                beams = select_rows(beams, places)
                index, at_rows, at_columns = index[places], at_rows[places], at_columns[places]
        return gone, rows, columns

    def _choose(self, beams: _Beams, words: Tensor, lprobs: Tensor) -> tuple[_Beams, Tensor, Tensor]:
        """Ends the hypotheses that reach eos, and keeps the best of the others.

        Args:
            words, lprobs: [B,k,C], the best words after each hypothesis and their log-probabilities.

        Returns:
            The new beams, which of the old hypotheses each new one extends [B,k], and who is done [B].
        """
        k, eos = self.options.beam_size, self.scorer.vocab.eos
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
        rows = torch.arange(len(words), device=self.device)[:, None]
        parents, totals = parents[rows, kept], totals.masked_fill(ends, float("-inf"))[rows, kept]
        ended = (beams.ended + ending.sum(1)).clamp(max=k)
        grown = replace(
            beams,
            outputs=outputs[rows, kept],
            scores=scores[rows, kept],
            totals=totals,
            lengths=lengths,
            ended=ended,
            ended_outputs=ended_outputs,
            ended_scores=ended_scores,
            ended_lengths=ended_lengths,
            settled=beams.settled.scatter(1, beams.lengths[:, None], beams.passes[:, None]),
        )
        done = (ended == k) | (lengths >= beams.limits) | (totals == float("-inf")).all(1)
        return grown, parents, done

    def _last(self, beams: _Beams) -> Tensor:
        """The newest token of each hypothesis [R]."""
        k = self.options.beam_size
        newest = (beams.lengths - 1).clamp(min=0)[:, None, None].expand(-1, k, 1)
        last = beams.outputs.gather(2, newest).flatten()
        # Models begin with eos.
        return torch.where(beams.lengths.repeat_interleave(k) == 0, self.scorer.vocab.eos, last)

    def _candidates(self, beams: _Beams, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The best words after each hypothesis, best first, and their log-probabilities: [B,k,C].

        Args:
            logits: [R,V].
        """
        k = self.options.beam_size
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
            words, chances = self._force(beams, words, chances, lprobs)
        shape = (-1, k, words.shape[1])
        return words.view(shape), chances.view(shape)

    def _force(self, beams: _Beams, words: Tensor, chances: Tensor, lprobs: Tensor) -> tuple[Tensor, Tensor]:
        """Leaves one candidate to the hypotheses that are inside their sentence's prefix."""
        place = beams.lengths.clamp(max=beams.forced.shape[1] - 1)[:, None]
        inside = (beams.lengths < beams.forced_lengths)[:, None]
        k = self.options.beam_size
        wanted = torch.where(inside, beams.forced.gather(1, place), 0).repeat_interleave(k, 0)  # [R,1]
        inside = inside.repeat_interleave(k, 0)
        alone = F.pad(lprobs.gather(1, wanted), (0, words.shape[1] - 1), value=float("-inf"))
        return torch.where(inside, wanted, words), torch.where(inside, alone, chances)

    def _leave(self, gone: Sequence[bool]) -> Generator[Result, None, Tensor | None]:
        """Takes out the sentences that are done; returns the places [B] of the others, if there are any."""
        leaving = [i for i, done in enumerate(gone) if done]
        staying = [i for i, done in enumerate(gone) if not done]
        if leaving:
            yield from self._results(leaving)
        if not staying:
            self.requests, self.started = [], []
            self.beams = self.state = self.draft_state = None
            return None
        index = torch.tensor(staying, device=self.device)
        if leaving:
            self.beams = select_rows(self.beams, index)
            self.requests = [self.requests[i] for i in staying]
            self.started = [self.started[i] for i in staying]
        return index

    def _results(self, places: list[int]) -> Iterator[Result]:
        now = time.perf_counter()
        beams = select_rows(self.beams, torch.tensor(places, device=self.device))
        outputs, scores, lengths = (
            x.tolist() for x in (beams.ended_outputs, beams.ended_scores, beams.ended_lengths)
        )
        counts = torch.stack([beams.ended, beams.passes, beams.drafted, beams.accepted], 1).tolist()
        settled = beams.settled.tolist() if self.trace else [[]] * len(places)
        for i, place in enumerate(places):
            ended, passes, drafted, accepted = counts[i]
            prefix = len(self.requests[place].prefix)
            found = [
                self._hypothesis(outputs[i][j][:length], scores[i][j][:length], prefix, settled[i])
                for j, length in enumerate(lengths[i][:ended])
            ]
            found.sort(key=attrgetter("score"), reverse=True)
            yield Result(
                index=self.requests[place].index,
                hypotheses=tuple(found[: self.options.nbest]),
                seconds=now - self.started[place],
                passes=passes,
                drafted=drafted,
                accepted=accepted,
            )

    def _hypothesis(
        self, tokens: list[int], scores: list[float], prefix: int, settled: list[int]
    ) -> Hypothesis:
        trace = None
        if self.trace:
            # A token was drafted if the pass that chose it also chose what follows it.
            follows = [*settled[1 : len(tokens)], 0]
            trace = tuple(
                TokenTrace("prefix", 0, None)
                if j < prefix
                else TokenTrace("draft" if settled[j] == after else "verifier", settled[j], None)
                for j, after in enumerate(follows)
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


def put_rows(state: Any, rows: Tensor, new: Any) -> Any:
    """A dataclass of tensors in which the given rows are new."""
    values = ((item.name, getattr(state, item.name), getattr(new, item.name)) for item in fields(state))
    return replace(state, **{name: old.index_copy(0, rows, value) for name, old, value in values})
