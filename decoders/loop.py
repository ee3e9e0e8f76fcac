"""The one loop of all accelerated decoders: draft, verify, accept.

Every row of the batch advances at its own pace; finished rows leave, waiting sentences take their place.
Symbols: B rows, K tokens fed at once, N tokens fed in all, T output positions, V words.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from nartk.decoders.strategy import Strategy
from nartk.decoders.tree import Draft, Fork, along, chained, feedable, fork, nothing
from nartk.hypothesis import Hypothesis, Request, Result, TokenTrace
from nartk.rows import cat_rows
from nartk.scorer import Seq2SeqScorer, Source, TreeScorer


class Drafter:
    """Proposes what may follow, never decides. Its state is its own; the loop hands it back as it got it.

    `select` and `join` fit states that are dataclasses of tensors with a row each.
    """

    def start(self, source: Source, requests: Sequence[Request]) -> Any:
        """The state of new rows, whose sources and requests these are."""
        raise NotImplementedError

    def draft(self, state: Any, outputs: Tensor, lengths: Tensor, budget: Tensor) -> tuple[Draft, Any]:
        """Proposes after outputs [B,T], of which lengths [B] tokens count.

        What stood of the last draft is known from these: all tokens but the newest, which is the verifier's,
        are the draft's first, unless it has paused. The tokens of a row that has ended are proposed for
        nothing.

        Args:
            budget: [B], most tokens of each row that will be looked at, 0 and more.
        """
        raise NotImplementedError

    def observe(self, state: Any, logits: Tensor, fed: Fed) -> Any:
        """Sees the verifier's logits [N,V] of the pass that it drafted for, before it drafts again."""
        return state

    def pause(self, state: Any, lengths: Tensor) -> Any:
        """Sees the lengths [B] of the outputs after a pass that it drafted for, if it is not to draft then.

        When it is asked again, the verifier may have put out several tokens.
        """
        return state

    def select(self, state: Any, rows: Tensor) -> Any:
        """The state of rows [N]."""
        return select_rows(state, rows)

    def join(self, first: Any, second: Any) -> Any:
        """The rows of `first`, then those of `second`."""
        return join_rows(first, second)


@runtime_checkable
class Watcher(Protocol):
    """A drafter that is told how its drafts fared, on the host."""

    def begun(self, state: Any) -> None:
        """A pass begins, with what was drafted last."""

    def passed(
        self,
        counts: Sequence[int],
        shapes: Sequence[tuple[int, int]],
        stood: Sequence[int],
        emitted: Sequence[int],
        following: Sequence[int],
    ) -> None:
        """A pass has ended, and the host has waited for it.

        Args:
            counts: Tokens that each row was fed: 1 and its draft, or 0 where it has ended.
            shapes: Leaves and levels of each row's draft.
            stood: Drafted tokens of each row that stand.
            emitted: Tokens that each row has put out.
            following: What `counts` will be in the next pass.
        """


@dataclass(frozen=True)
class Fed:
    """Which output positions N logits belong to.

    Attributes:
        rows: [N], in the batch.
        positions: [N], in the output.
        drafted: [N], the draft there, or -1; of a tree the first that follows.
        requests: [N], the index of each row's Request, which unlike its row does not depend on the batch.
        lprobs: [N,V], the draft's own distribution there, any where nothing is drafted; None: it has none.
        tokens: [N], what was fed, after which the logits stand.
        parents: [N], which of the N each fed token follows, -1 for a row's first; None: each row is a chain.
    """

    rows: Tensor
    positions: Tensor
    drafted: Tensor
    requests: Tensor
    lprobs: Tensor | None = None
    tokens: Tensor | None = None
    parents: Tensor | None = None


@dataclass(frozen=True)
class Judged:
    """The verdict on N positions.

    Attributes:
        tokens: [N] the verifier's token, which follows where the draft falls.
        stands: [N] whether the drafted token is accepted; None: where it equals the verifier's.
        scores: [N] fp32 log-probability of the token that is output there.
    """

    tokens: Tensor
    scores: Tensor
    stands: Tensor | None = None


class Acceptance(Protocol):
    """Decides which drafted tokens stand and which token follows."""

    def __call__(self, logits: Tensor, fed: Fed) -> Judged:
        """Judges logits [N,V]."""


def argmax_acceptance(logits: Tensor, fed: Fed) -> Judged:
    """A drafted token stands if it is the verifier's best word: the output is greedy search's."""
    logits = logits.float()
    tokens = logits.max(-1).indices  # three times faster than argmax on a CPU; the first of equals as well
    return Judged(tokens, log_probs(logits, tokens))


def log_probs(logits: Tensor, tokens: Tensor) -> Tensor:
    """The log-probability [N] of each token [N] under its logits [N,V], fp32.

    Not by `logsumexp`: a lone long row is then summed in pieces, and gets other bits than in a batch.
    """
    return logits.float().log_softmax(-1).gather(1, tokens[:, None]).squeeze(1)


_ORIGINS = ("draft", "verifier", "rollback")  # of a TokenTrace
_DRAFT, _OWN, _ROLLBACK = range(3)


@dataclass(frozen=True)
class _Rows:
    """The sentences in the batch. All tensors have a row each.

    Attributes:
        requests: [B] index of the Request.
        last: [B] the token that is output but not yet fed.
        outputs: [B,T+1] int64; the last column takes what belongs nowhere.
        scores: [B,T+1] fp32.
        passes_at: [B,T+1] int64, the pass that settled each token.
        origins: [B,T+1] int64, where in `_ORIGINS` each token came from.
        margins: [B,T+1] fp32; like passes_at and origins, filled only when a trace is wanted.
        lengths, limits, passes, drafted, accepted: [B] int64.
        forced, forced_lengths: [B,P] and [B], tokens that the output must begin with.
    """

    requests: Tensor
    last: Tensor
    outputs: Tensor
    scores: Tensor
    passes_at: Tensor
    origins: Tensor
    margins: Tensor
    lengths: Tensor
    limits: Tensor
    passes: Tensor
    drafted: Tensor
    accepted: Tensor
    forced: Tensor
    forced_lengths: Tensor


def select_rows(state: Any, rows: Tensor) -> Any:
    """The given rows of a dataclass of tensors; what is None stays so."""
    values = ((item.name, getattr(state, item.name)) for item in fields(state))
    return replace(state, **{name: value[rows] for name, value in values if value is not None})


def join_rows(first: Any, second: Any, *, fill: int = -1) -> Any:
    """The rows of both; where other dimensions differ, the smaller one is filled up at its end."""
    pairs = ((item.name, getattr(first, item.name), getattr(second, item.name)) for item in fields(first))
    return replace(first, **{name: cat_rows(one, two, fill) for name, one, two in pairs})


def pad_rows(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    """[B,S] of rows of different lengths, filled up on the right."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows], dtype=torch.int64)


def target_words(source: Source, source_to_target: Tensor) -> tuple[Tensor, Tensor]:
    """The words of a source as target ids [B,S], -1 where there is none and for padding; how many [B].

    Args:
        source_to_target: [source words], as Seq2SeqScorer has it. The eos is no word.
    """
    words = source.lengths - 1
    inside = torch.arange(source.tokens.shape[1], device=words.device) < words[:, None]
    mapped = F.pad(source_to_target, (0, 1), value=-1)  # for padding, which may be no source word at all
    return torch.where(inside, mapped[source.tokens], -1), words


def encode(scorer: Seq2SeqScorer, requests: Sequence[Request], room: int) -> tuple[Source, Any]:
    """The sources of requests, and the scorer's state that has read them, with room for so many tokens."""
    source = sources(scorer, requests)
    return source, scorer.encode(source, room)


def sources(scorer: Seq2SeqScorer, requests: Sequence[Request]) -> Source:
    """The sources of requests, on the scorer's device."""
    tokens = pad_rows([request.source for request in requests], scorer.vocab.pad).to(scorer.device)
    lengths = torch.tensor([len(request.source) for request in requests], device=scorer.device)
    return Source(tokens, lengths)


@dataclass(frozen=True, kw_only=True)
class Autoregressive(Strategy):
    """Base of the strategies that ask an autoregressive model for the next word."""

    needs: ClassVar[type] = Seq2SeqScorer


@dataclass(frozen=True, kw_only=True)
class DraftAndVerify(Autoregressive):
    """Base of the strategies that verify drafts. Subclasses say how to draft and what to accept."""

    def make_drafter(self, scorer: Seq2SeqScorer) -> Drafter | None:
        """What proposes tokens to this verifier; None: nothing does, one token a pass."""
        return None

    def acceptance(self) -> Acceptance:
        """What judges them."""
        return argmax_acceptance

    def served_drafter(self, scorer: Seq2SeqScorer) -> Drafter | None:
        """What proposes tokens in the end, where something stands between the drafter and the loop."""
        return self.make_drafter(scorer)

    def decode(
        self, scorer: Seq2SeqScorer, requests: list[Request], batch_size: int, *, trace: bool
    ) -> Iterator[Result]:
        batch = _Batch(scorer, self.served_drafter(scorer), self.acceptance(), trace=trace)
        yield from batch.run(requests, batch_size)


class _Batch:
    """Runs requests of one bucket through a batch whose rows come and go."""

    def __init__(
        self, scorer: Seq2SeqScorer, drafter: Drafter | None, accept: Acceptance, *, trace: bool
    ) -> None:
        self.scorer, self.drafter, self.accept, self.trace = scorer, drafter, accept, trace
        self.watcher = drafter if isinstance(drafter, Watcher) else None
        self.device = torch.device(scorer.device)
        self.requests: list[Request] = []
        self.started: list[float] = []
        self.trees = scorer if isinstance(scorer, TreeScorer) else None
        self.counts: list[int] = []  # tokens each row feeds next: 1 + its draft; 0: the row is done
        self.shapes: list[tuple[int, int]] = []  # leaves and levels of each row's draft; a chain has 1 leaf
        self.rows: Any = None
        self.state: Any = None
        self.draft_state: Any = None
        self.draft = nothing(0, self.device)

    def run(self, waiting: list[Request], batch_size: int) -> Iterator[Result]:
        room = max(request.max_len for request in waiting)
        taken = 0
        while taken < len(waiting) or self.requests:
            done = self.counts.count(0)
            # Moving rows copies their cache, so they move when a quarter of them is done.
            if done and 4 * done >= len(self.requests):
                yield from self._leave()
            free = batch_size - len(self.requests)
            if free and taken < len(waiting):
                self._enter(waiting[taken : taken + free], room)
                taken += free
            if self.requests:
                self._advance()

    def _leave(self) -> Iterator[Result]:
        gone = [i for i, count in enumerate(self.counts) if count == 0]
        kept = [i for i, count in enumerate(self.counts) if count > 0]
        index = torch.tensor(gone, device=self.device)
        yield from self._results(select_rows(self.rows, index), gone)
        self.requests = [self.requests[i] for i in kept]
        self.started = [self.started[i] for i in kept]
        self.counts = [self.counts[i] for i in kept]
        self.shapes = [self.shapes[i] for i in kept]
        if not kept:
            self.rows = self.state = self.draft_state = None
            return
        index = torch.tensor(kept, device=self.device)
        self.rows = select_rows(self.rows, index)
        self.state = self.scorer.select(self.state, index)
        self.draft = select_rows(self.draft, index)
        if self.drafter is not None:
            self.draft_state = self.drafter.select(self.draft_state, index)

    def _enter(self, new: list[Request], room: int) -> None:
        now = time.perf_counter()
        vocab = self.scorer.vocab
        source, state = encode(self.scorer, new, room)
        count = len(new)
        zeros = torch.zeros(count, dtype=torch.int64, device=self.device)
        width = room + 1
        rows = _Rows(
            requests=torch.tensor([request.index for request in new], device=self.device),
            last=torch.full_like(zeros, vocab.eos),  # fairseq's models begin with eos
            outputs=torch.full((count, width), vocab.pad, device=self.device),
            scores=torch.zeros(count, width, device=self.device),
            passes_at=torch.zeros(count, width, dtype=torch.int64, device=self.device),
            origins=torch.zeros(count, width, dtype=torch.int64, device=self.device),
            margins=torch.zeros(count, width, device=self.device),
            lengths=zeros,
            limits=torch.tensor([request.max_len for request in new], device=self.device),
            passes=zeros,
            drafted=zeros,
            accepted=zeros,
            forced=pad_rows([request.prefix for request in new], vocab.pad).to(self.device),
            forced_lengths=torch.tensor([len(request.prefix) for request in new], device=self.device),
        )
        draft_state, draft, feeds, shapes = None, nothing(count, self.device), torch.ones_like(zeros), None
        if self.drafter is not None:
            draft_state = self.drafter.start(source, new)
            draft, feeds, shapes, draft_state = self._propose(draft_state, rows)
        if not self.requests:
            self.rows, self.state, self.draft_state, self.draft = rows, state, draft_state, draft
        else:
            self.rows, self.state = join_rows(self.rows, rows), self.scorer.join(self.state, state)
            self.draft = _join_drafts(self.draft, draft)
            if self.drafter is not None:
                self.draft_state = self.drafter.join(self.draft_state, draft_state)
        self.requests += new
        self.started += [now] * count
        counts, read, _ = _read(feeds, shapes)
        self.counts += counts
        self.shapes += read

    def _propose(self, draft_state: Any, rows: _Rows) -> tuple[Draft, Tensor, Tensor | None, Any]:
        """The next draft, how many tokens each row feeds with it [B], and the drafter's new state.

        In the third place leaves and levels [B,2], where the draft is a tree.
        """
        assert self.drafter is not None
        # One place stays free for the verifier's own token.
        budget = (rows.limits - rows.lengths - 1).clamp(min=0)
        draft, draft_state = self.drafter.draft(draft_state, rows.outputs, rows.lengths, budget)
        if not draft.tokens.shape[1]:
            return draft, torch.ones_like(budget), None, draft_state
        branching = self.trees is not None
        draft, shapes = feedable(draft, len(self.scorer.vocab), budget, branching=branching)
        return draft, 1 + draft.lengths, shapes, draft_state

    def _fork(self, count: Tensor) -> Fork | None:
        """The tree that is fed, or None if every row's is a single path."""
        shapes = [shape for shape, fed in zip(self.shapes, self.counts, strict=True) if fed]
        paths, depth = (max(sizes) for sizes in zip(*shapes, strict=True))
        if self.draft.parents is None or paths < 2:
            return None
        parents = F.pad(self.draft.parents[:, : max(self.counts) - 1] + 1, (1, 0), value=-1)
        return fork(parents, count, paths, depth)

    def _fed(self, tokens: Tensor, count: Tensor, pack: Callable[[Tensor], Tensor], tree: Fork | None) -> Fed:
        """What tokens [B,K], of which count [B] are fed, stand for."""
        rows, (batch, width) = self.rows, tokens.shape
        columns = torch.arange(width, device=self.device)
        parents = None
        if tree is None:
            depths, after = columns, columns + 1
            drafted = torch.where(columns < (count - 1)[:, None], tokens.roll(-1, 1), -1)
        else:
            depths, after = tree.tree.depths, tree.first
            drafted = torch.where(after == columns, -1, tokens.gather(1, after))
            begins = (count.cumsum(0) - count)[:, None]
            parents = pack(torch.where(tree.parents < 0, -1, tree.parents + begins))
        owner = pack(torch.arange(batch, device=self.device)[:, None].expand(-1, width))
        lprobs = self.draft.lprobs
        if lprobs is not None:
            # Where nothing is drafted, such as at a row's last position, any will do.
            place = (after - 1).clamp(min=0).expand(batch, -1)
            lprobs = F.pad(lprobs, (0, 0, 0, 1))[owner, pack(place)]
        positions = pack(rows.lengths[:, None] + depths)
        return Fed(owner, positions, pack(drafted), rows.requests[owner], lprobs, pack(tokens), parents)

    def _advance(self) -> None:
        """One pass: feed each row's last token and draft, judge, append what stands and one token more."""
        rows, counts = self.rows, self.counts
        width = max(counts)
        if self.watcher is not None:
            self.watcher.begun(self.draft_state)
        fed_tokens = torch.cat([rows.last[:, None], self.draft.tokens[:, : width - 1]], 1)  # [B,K]
        count = torch.tensor(counts, device=self.device)
        tree = self._fork(count)
        if tree is None or self.trees is None:
            logits, self.state = self.scorer.verify(fed_tokens, self.state, counts)  # [N,V]
        else:
            logits, self.state = self.trees.verify_tree(fed_tokens, self.state, counts, tree.tree)
        pack, unpack = _packing(counts, self.device)
        at = self._fed(fed_tokens, count, pack, tree)
        judged = self.accept(logits, at)
        stands = judged.stands if judged.stands is not None else judged.tokens == at.drafted
        tokens = torch.where(stands, at.drafted, judged.tokens)
        scores = judged.scores
        if rows.forced.shape[1]:
            tokens, scores, stands = _force(rows, logits, at, tokens, scores, stands)

        tokens, scores, stands, way = unpack(tokens), unpack(scores), unpack(stands), None
        if tree is not None:
            way, stands = tree.follow(fed_tokens, tokens, stands, self.scorer.vocab.eos)
            tokens, scores, stands = (along(way, x) for x in (tokens, scores, stands))
        goes_on = stands & (tokens != self.scorer.vocab.eos)
        live = count > 0
        columns = torch.arange(tokens.shape[1], device=self.device)
        positions = rows.lengths[:, None] + columns
        accepted = stands.cumprod(1).sum(1)
        emitted = (goes_on.cumprod(1).sum(1) + 1).minimum(rows.limits - rows.lengths) * live
        kept = columns < emitted[:, None]
        target = torch.where(kept, positions, rows.outputs.shape[1] - 1)
        rows.outputs.scatter_(1, target, tokens)
        rows.scores.scatter_(1, target, scores)
        if self.trace:
            best = logits.float().topk(2, -1).values
            margins, drafted = unpack(best[:, 0] - best[:, 1]), unpack(at.drafted)
            if way is not None:
                margins, drafted = along(way, margins), along(way, drafted)
            # Behind what stands there is one token: the verifier's, in the place of a draft or of nothing.
            origins = torch.where(
                columns < accepted[:, None], _DRAFT, torch.where(drafted >= 0, _ROLLBACK, _OWN)
            )
            rows.passes_at.scatter_(1, target, (rows.passes + 1)[:, None].expand_as(target))
            rows.origins.scatter_(1, target, origins)
            rows.margins.scatter_(1, target, margins)
        last = tokens.gather(1, (emitted - 1).clamp(min=0)[:, None]).squeeze(1)
        last = torch.where(live, last, rows.last)
        lengths = rows.lengths + emitted
        self.rows = rows = replace(
            rows,
            last=last,
            lengths=lengths,
            passes=rows.passes + live,
            drafted=rows.drafted + (count - 1).clamp(min=0),
            accepted=rows.accepted + accepted.minimum(emitted),
        )
        if way is None or self.trees is None:
            self.state = self.scorer.truncate(self.state, lengths)
        else:
            self.state = self.trees.keep(self.state, way, lengths)
        done = (last == self.scorer.vocab.eos) | (lengths >= rows.limits) | ~live
        feeds, shapes = torch.ones_like(count), None
        if self.drafter is not None:
            self.draft_state = self.drafter.observe(self.draft_state, logits, at)
            self.draft, feeds, shapes, self.draft_state = self._propose(self.draft_state, rows)
        feeds = torch.where(done, 0, feeds)
        watched = () if self.watcher is None or width == 1 else (accepted.minimum(emitted), emitted)
        fed_shapes = self.shapes
        self.counts, self.shapes, told = _read(feeds, shapes, *watched)  # the pass's one wait for the device
        if self.watcher is not None:
            stood, put_out = told if told else ([0] * len(counts), [min(each, 1) for each in counts])
            self.watcher.passed(counts, fed_shapes, stood, put_out, self.counts)

    def _results(self, rows: _Rows, places: list[int]) -> Iterator[Result]:
        now = time.perf_counter()
        outputs, scores = rows.outputs.tolist(), rows.scores.tolist()
        numbers = torch.stack([rows.lengths, rows.passes, rows.drafted, rows.accepted], 1).tolist()
        traced = (
            [each.tolist() for each in (rows.passes_at, rows.origins, rows.margins)] if self.trace else []
        )
        for i, place in enumerate(places):
            length, passes, drafted, accepted = numbers[i]
            trace = None
            if self.trace:
                forced = len(self.requests[place].prefix)
                trace = tuple(
                    TokenTrace("prefix" if j < forced else _ORIGINS[origin], at, margin)
                    for j, (at, origin, margin) in enumerate(
                        zip(*(each[i][:length] for each in traced), strict=True)
                    )
                )
            hypothesis = Hypothesis(
                tokens=tuple(outputs[i][:length]),
                score=math.fsum(scores[i][:length]),
                positional_scores=tuple(scores[i][:length]),
                trace=trace,
            )
            yield Result(
                index=self.requests[place].index,
                hypotheses=(hypothesis,),
                seconds=now - self.started[place],
                passes=passes,
                drafted=drafted,
                accepted=accepted,
            )


def _join_drafts(first: Draft, second: Draft) -> Draft:
    """The rows of both."""
    lprobs = parents = None
    if first.lprobs is not None and second.lprobs is not None:
        lprobs = cat_rows(first.lprobs, second.lprobs)
    if first.parents is not None or second.parents is not None:
        parents = cat_rows(chained(first), chained(second), -1)
    lengths = torch.cat([first.lengths, second.lengths])
    return Draft(cat_rows(first.tokens, second.tokens), lengths, lprobs, parents)


def _read(
    feeds: Tensor, shapes: Tensor | None, *more: Tensor
) -> tuple[list[int], list[tuple[int, int]], list[list[int]]]:
    """Brings feeds [B], the shapes [B,2] of trees and more of [B] to the host, at once."""
    columns = [feeds, *([] if shapes is None else shapes.unbind(1)), *more]
    counts, *rest = torch.stack(columns).tolist() if len(columns) > 1 else [feeds.tolist()]
    if shapes is None:
        return counts, [(1, max(count - 1, 0)) for count in counts], rest
    leaves, levels, *rest = rest
    return counts, list(zip(leaves, levels, strict=True)), rest


def _packing(
    counts: Sequence[int], device: torch.device
) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """What brings the first `counts` columns of each row of [B,K] into one row [N], and the way back.

    The host knows the counts, so that nothing here waits for the device.
    """
    batch, width = len(counts), max(counts)
    if min(counts) == width:
        return torch.flatten, lambda values: values.view(batch, width)
    inside = torch.arange(width) < torch.tensor(counts)[:, None]
    places = inside.flatten().nonzero().squeeze(1).to(device)  # [N]

    def unpack(values: Tensor) -> Tensor:
        return values.new_zeros(batch * width).index_copy_(0, places, values).view(batch, width)

    return lambda values: values.flatten()[places], unpack


def _force(
    rows: _Rows, logits: Tensor, at: Fed, tokens: Tensor, scores: Tensor, stands: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Puts the wanted token wherever a position [N] lies inside its row's prefix."""
    inside = at.positions < rows.forced_lengths[at.rows]
    place = at.positions.clamp(max=rows.forced.shape[1] - 1)
    wanted = torch.where(inside, rows.forced[at.rows, place], 0)
    return (
        torch.where(inside, wanted, tokens),
        torch.where(inside, log_probs(logits, wanted), scores),
        torch.where(inside, wanted == at.drafted, stands),
    )
