"""The one loop of all accelerated decoders: draft, verify, accept.

Every row of the batch advances at its own pace; finished rows leave, waiting sentences take their place.
Symbols: B rows, K tokens fed at once, N tokens fed in all, T output positions, V words.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from nartk.decoders.tensor_strategy import TensorStrategy
from nartk.decoders.tree import Draft, Fork, chained, feedable, fork, nothing
from nartk.hypothesis import Hypothesis, Request, Result, TokenTrace
from nartk.passes import texts_of
from nartk.rows import Packing, cat_rows, pad_rows, steps, told
from nartk.scorer import Seq2SeqScorer, Source, TreeScorer


class Drafter:
    """Proposes what may follow, never decides. Its state is its own; the loop hands it back as it got it.

    `select` and `join` fit states that are dataclasses of tensors with a row each, or None.
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
        return None if state is None else select_rows(state, rows)

    def join(self, first: Any, second: Any) -> Any:
        """The rows of `first`, then those of `second`."""
        return None if first is None else join_rows(first, second)


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

    def rest(self, state: Any) -> int:
        """For how many passes it is to be left alone, as if there were no drafter; 0: for none.

        Args:
            state: Nothing has been drafted from it; None where no row is there.
        """

    def rested(self, left: int) -> None:
        """A rest is over, or the run it was in, with so many of its passes left."""

    def resume(self, requests: Sequence[Request], following: Sequence[int]) -> Any:
        """The state of the rows that are there after a rest.

        Args:
            following: As for `passed`.
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
    """The sentences in the batch as the device knows them. All tensors have a row each.

    Attributes:
        requests: [B] index of the Request.
        last: [B,1] the token that is output but not yet fed.
        outputs: [B,T+1] int64; the last column takes what belongs nowhere.
        scores: [B,T+1] fp32.
        lengths: [B] int64, tokens that are output.
        drafts: [B] int64, tokens that might be drafted at the start: one place is the verifier's own.
        passes_at: [B,T+1] int64, the pass that settled each token.
        origins: [B,T+1] int64, where in `_ORIGINS` each token came from.
        margins: [B,T+1] fp32; like passes_at and origins, None unless a trace is wanted.
    """

    requests: Tensor
    last: Tensor
    outputs: Tensor
    scores: Tensor
    lengths: Tensor
    drafts: Tensor
    passes_at: Tensor | None = None
    origins: Tensor | None = None
    margins: Tensor | None = None


class _PassFed(Fed):
    """What a pass of the loop has fed; each part is made when it is first asked for.

    Args:
        batch: The rows before the pass.
        nodes: [B,K], the fed tokens.
        tree: Their tree, if they are one.
    """

    batch: _Rows
    draft: Draft
    nodes: Tensor
    packing: Packing
    tree: Fork | None

    def __init__(
        self, batch: _Rows, draft: Draft, nodes: Tensor, packing: Packing, tree: Fork | None
    ) -> None:
        vars(self).update(batch=batch, draft=draft, nodes=nodes, packing=packing, tree=tree)

    @cached_property
    def rows(self) -> Tensor:
        return self.packing.rows

    @cached_property
    def positions(self) -> Tensor:
        depths = self.packing.columns if self.tree is None else self.packing.pack(self.tree.tree.depths)
        return self.batch.lengths[self.rows] + depths

    @cached_property
    def drafted(self) -> Tensor:
        if self.tree is None:
            after = F.pad(self.tokens[1:], (0, 1), value=-1)
            # Nothing follows a row's last.
            return after if len(self.packing.counts) == 1 else after.index_fill_(0, self.packing.last, -1)
        first, columns = self.tree.first, steps(self.packing.width, self.nodes.device)
        return self.packing.pack(torch.where(first == columns, -1, self.nodes.gather(1, first)))

    @cached_property
    def requests(self) -> Tensor:
        return self.batch.requests[self.rows]

    @cached_property
    def lprobs(self) -> Tensor | None:
        if self.draft.lprobs is None:
            return None
        place = self.packing.columns
        if self.tree is not None:
            place = (self.packing.pack(self.tree.first) - 1).clamp(min=0)
        # Where nothing is drafted, such as at a row's last position, any will do.
        return F.pad(self.draft.lprobs, (0, 0, 0, 1))[self.rows, place]

    @cached_property
    def tokens(self) -> Tensor:
        return self.packing.pack(self.nodes)

    @cached_property
    def parents(self) -> Tensor | None:
        if self.tree is None:
            return None
        parents = self.tree.parents
        return self.packing.pack(torch.where(parents < 0, -1, parents + self.packing.begins[:, None]))


@dataclass
class _Sentence:
    """A row as the host knows it.

    Attributes:
        feeds: Tokens that it feeds next: 1 and its draft, or 0 where it has ended.
        shape: Leaves and levels of its draft; a chain has 1 leaf.
        length: Tokens that are output.
    """

    request: Request
    started: float
    feeds: int = 1
    shape: tuple[int, int] = (1, 0)
    length: int = 0
    passes: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def is_forced(self) -> bool:
        """Whether the next token is the prefix's."""
        return self.feeds > 0 and self.length < len(self.request.prefix)

    def take(self, emitted: int, stood: int, *, is_eos: bool) -> None:
        """Takes in how much a pass has put out, and how much of it was drafted; whether eos ends it."""
        if self.feeds:
            self.passes += 1
            self.drafted += self.feeds - 1
            self.accepted += stood
            self.length += emitted
            self.feeds = int(not is_eos and self.length < self.request.max_len)

    def plan(self, drafted: int = 0, leaves: int = 1, levels: int | None = None) -> None:
        """Takes in how many tokens are drafted next, of a tree also its leaves and levels."""
        if self.feeds:
            self.feeds = 1 + drafted
        self.shape = leaves, drafted if levels is None else levels


def select_rows(state: Any, rows: Tensor) -> Any:
    """The given rows of a dataclass of tensors; what is None stays so."""
    values = ((item.name, getattr(state, item.name)) for item in fields(state))
    return replace(state, **{name: value[rows] for name, value in values if value is not None})


def join_rows(first: Any, second: Any, *, fill: int = -1) -> Any:
    """The rows of both; where other dimensions differ, the smaller one is filled up at its end.

    What is None stays so.
    """
    pairs = ((item.name, getattr(first, item.name), getattr(second, item.name)) for item in fields(first))
    return replace(first, **{name: cat_rows(one, two, fill) for name, one, two in pairs if one is not None})


def target_words(source: Source, source_to_target: Tensor) -> tuple[Tensor, Tensor]:
    """The words of a source as target ids [B,S], -1 where there is none and for padding; how many [B].

    Args:
        source_to_target: [source words], as Seq2SeqScorer has it. The eos is no word.
    """
    words = source.lengths - 1
    inside = steps(source.tokens.shape[1], words.device) < words[:, None]
    mapped = F.pad(source_to_target, (0, 1), value=-1)  # for padding, which may be no source word at all
    return torch.where(inside, mapped[source.tokens], -1), words


def encode(scorer: Seq2SeqScorer, requests: Sequence[Request], room: int) -> tuple[Source, Any]:
    """The sources of requests, and the scorer's state that has read them, with room for so many tokens."""
    source = sources(scorer, requests)
    return source, scorer.encode(source, room)


def sources(scorer: Seq2SeqScorer, requests: Sequence[Request]) -> Source:
    """The sources of requests, on the scorer's device."""
    tokens = pad_rows(texts_of([request.source for request in requests]), scorer.vocab.pad).to(scorer.device)
    lengths = torch.tensor([len(request.source) for request in requests], device=scorer.device)
    return Source(tokens, lengths)


@dataclass(frozen=True, kw_only=True)
class Autoregressive(TensorStrategy):
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
        self.scorer, self.accept, self.trace = scorer, accept, trace
        self.drafter = drafter  # None while it rests
        self.watcher = drafter if isinstance(drafter, Watcher) else None
        self.awake = drafter
        self.rest = 0  # passes until it is needed again
        self.trees = scorer if isinstance(scorer, TreeScorer) else None
        self.device = torch.device(scorer.device)
        self.sentences: list[_Sentence] = []
        self.rows: Any = None
        self.state: Any = None
        self.draft_state: Any = None
        self.draft = nothing(0, self.device)  # stays so where there is no drafter

    def run(self, waiting: list[Request], batch_size: int) -> Iterator[Result]:
        room = max(request.max_len for request in waiting)
        taken = 0
        self._rest()
        while taken < len(waiting) or self.sentences:
            done = sum(not sentence.feeds for sentence in self.sentences)
            # Moving rows copies their cache, so they move when a quarter of them is done.
            if done and 4 * done >= len(self.sentences):
                yield from self._leave()
            free = batch_size - len(self.sentences)
            if free and taken < len(waiting):
                self._enter(waiting[taken : taken + free], room)
                taken += free
            if self.sentences:
                self._advance()
                if self.rest:
                    self.rest -= 1
                    if not self.rest:
                        self._resume()
                elif self.watcher is not None:
                    self._rest()
        if self.watcher is not None and self.rest:
            self.watcher.rested(self.rest)

    def _rest(self) -> None:
        """Leaves the drafter alone while nothing pays: what follows is greedy search and no more."""
        if self.watcher is not None and not self.draft.tokens.shape[1]:
            self.rest = self.watcher.rest(self.draft_state)
            if self.rest:
                self.drafter, self.draft_state, self.draft = None, None, nothing(0, self.device)

    def _resume(self) -> None:
        assert self.watcher is not None
        self.watcher.rested(0)
        sentences = self.sentences
        self.drafter, self.draft = self.awake, nothing(len(sentences), self.device)
        self.draft_state = self.watcher.resume(
            [sentence.request for sentence in sentences], [sentence.feeds for sentence in sentences]
        )

    def _leave(self) -> Iterator[Result]:
        kept = [i for i, sentence in enumerate(self.sentences) if sentence.feeds]
        yield from self._results([i for i, sentence in enumerate(self.sentences) if not sentence.feeds])
        self.sentences = [self.sentences[i] for i in kept]
        if not kept:
            self.rows = self.state = self.draft_state = None
            return
        index = torch.tensor(kept, device=self.device)
        self.rows = select_rows(self.rows, index)
        self.state = self.scorer.select(self.state, index)
        if self.drafter is not None:
            self.draft = select_rows(self.draft, index)
            self.draft_state = self.drafter.select(self.draft_state, index)

    def _enter(self, new: list[Request], room: int) -> None:
        now = time.perf_counter()
        sentences = [_Sentence(request, now) for request in new]
        source, state = encode(self.scorer, new, room)
        rows = self._start(new, room + 1)
        draft, draft_state = self.draft, None
        if self.drafter is not None:
            draft_state = self.drafter.start(source, new)
            draft, sizes, draft_state = self._propose(draft_state, rows)
            if sizes:
                for sentence, size in zip(sentences, _read(*sizes), strict=True):
                    sentence.plan(*size)
        if self.sentences:
            rows, state = join_rows(self.rows, rows), self.scorer.join(self.state, state)
            if self.drafter is not None:
                draft = _join_drafts(self.draft, draft)
                draft_state = self.drafter.join(self.draft_state, draft_state)
        self.rows, self.state, self.draft, self.draft_state = rows, state, draft, draft_state
        self.sentences += sentences

    def _start(self, new: list[Request], width: int) -> _Rows:
        """New rows, with so many columns."""
        device, vocab, shape = self.device, self.scorer.vocab, (len(new), width)
        return _Rows(
            requests=torch.tensor([request.index for request in new], device=device),
            last=torch.full((len(new), 1), vocab.eos, device=device),  # fairseq's models begin with eos
            outputs=torch.full(shape, vocab.pad, device=device),
            scores=torch.zeros(shape, device=device),
            lengths=torch.zeros(len(new), dtype=torch.int64, device=device),
            drafts=torch.tensor([request.max_len - 1 for request in new], device=device),
            passes_at=torch.zeros(shape, dtype=torch.int64, device=device) if self.trace else None,
            origins=torch.zeros(shape, dtype=torch.int64, device=device) if self.trace else None,
            margins=torch.zeros(shape, device=device) if self.trace else None,
        )

    def _propose(self, draft_state: Any, rows: _Rows) -> tuple[Draft, tuple[Tensor, ...], Any]:
        """The next draft, what `_Sentence.plan` is to hear of it [B,1 to 3], and the drafter's new state."""
        assert self.drafter is not None
        budget = (rows.drafts - rows.lengths).clamp(min=0)
        draft, draft_state = self.drafter.draft(draft_state, rows.outputs, rows.lengths, budget)
        if not draft.tokens.shape[1]:
            return draft, (), draft_state
        branching = self.trees is not None
        draft, shapes = feedable(draft, len(self.scorer.vocab), budget, branching=branching)
        sizes = draft.lengths[:, None]
        return draft, (sizes,) if shapes is None else (sizes, shapes), draft_state

    def _fork(self, packing: Packing) -> Fork | None:
        """The tree that is fed, or None if every row's is a single path."""
        if self.draft.parents is None:
            return None
        shapes = [sentence.shape for sentence in self.sentences if sentence.feeds]
        leaves, levels = zip(*shapes, strict=True)
        if max(leaves) < 2:
            return None
        parents = F.pad(self.draft.parents[:, : packing.width - 1] + 1, (1, 0), value=-1)
        # Where nothing is drafted, the last token itself is a leaf.
        paths = sum(max(count, 1) for count in leaves)
        return fork(parents, None if packing.even else packing.sizes, paths, max(levels))

    def _advance(self) -> None:
        """One pass: feed each row's last token and draft, judge, append what stands and one token more."""
        if self.watcher is not None and not self.rest:
            self.watcher.begun(self.draft_state)
        packing = Packing([sentence.feeds for sentence in self.sentences], self.device)
        fed_tokens, tree = self.rows.last, None  # [B,1]
        if packing.width > 1:
            fed_tokens = torch.cat([fed_tokens, self.draft.tokens[:, : packing.width - 1]], 1)  # [B,K]
            tree = self._fork(packing)
        if tree is None or self.trees is None:
            logits, self.state = self.scorer.verify(fed_tokens, self.state, packing.counts)  # [N,V]
        else:
            logits, self.state = self.trees.verify_tree(fed_tokens, self.state, packing.counts, tree.tree)

        fed = _PassFed(self.rows, self.draft, fed_tokens, packing, tree)
        judged = self.accept(logits, fed)
        if any(sentence.is_forced for sentence in self.sentences):
            prefixes = pad_rows([sentence.request.prefix for sentence in self.sentences], -1)
            judged = _force(prefixes.to(self.device, non_blocking=True), logits, fed, judged)
        news, way = self._append(logits, fed, judged)
        if way is None or self.trees is None:
            self.state = self.scorer.truncate(self.state, self.rows.lengths)
        else:
            self.state = self.trees.keep(self.state, way, self.rows.lengths)

        sizes: tuple[Tensor, ...] = ()
        if self.drafter is not None:
            self.draft_state = self.drafter.observe(self.draft_state, logits, fed)
            self.draft, sizes, self.draft_state = self._propose(self.draft_state, self.rows)
        self._take(_read(*news, *sizes), len(news))  # the pass's one wait for the device

    def _append(
        self, logits: Tensor, fed: _PassFed, judged: Judged
    ) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """Puts out what stands and one token more.

        Returns:
            Of each row [B,1] the last token, how many drafted tokens stand before it, and whether it is one;
            where all rows were fed one token, that token alone. And the way that was taken through a tree.
        """
        rows, packing, way = self.rows, fed.packing, None
        if packing.width == 1 and packing.even and not self.trace:
            last, place = judged.tokens[:, None], rows.lengths[:, None]
            rows.outputs.scatter_(1, place, last)
            rows.scores.scatter_(1, place, judged.scores[:, None])
            self.rows = replace(rows, last=last, lengths=rows.lengths + 1)
            return (last,), None

        tokens, eos = judged.tokens, self.scorer.vocab.eos
        if judged.stands is not None:
            tokens = torch.where(judged.stands, fed.drafted, tokens)
        said, scores = packing.unpack(tokens), packing.unpack(judged.scores)  # [B,K]
        if fed.tree is None:
            stands = packing.unpack(tokens == fed.drafted if judged.stands is None else judged.stands)
        else:
            given = None if judged.stands is None else packing.unpack(judged.stands)
            way, stands = fed.tree.follow(fed.nodes, said, given, eos)
            nodes = way.clamp(min=0)  # what is gathered behind the way's end is not output
            said, scores, stands = (x.gather(1, nodes) for x in (said, scores, stands))  # [B,D]
        end = (stands & (said != eos)).min(1, keepdim=True).indices  # the first after which none stands
        emitted = end + 1
        if not all(packing.counts):
            emitted = emitted * (packing.sizes > 0)[:, None]
        columns = steps(said.shape[1], self.device)
        place = torch.where(columns < emitted, rows.lengths[:, None] + columns, rows.outputs.shape[1] - 1)
        rows.outputs.scatter_(1, place, said)
        rows.scores.scatter_(1, place, scores)
        if self.trace:
            self._note(logits, fed, place, stands, way)
        last = said.gather(1, end)
        self.rows = replace(rows, last=last, lengths=rows.lengths + emitted.squeeze(1))
        return (last, end, stands.gather(1, end)), way

    def _note(self, logits: Tensor, fed: _PassFed, place: Tensor, stands: Tensor, way: Tensor | None) -> None:
        """Fills in the trace of the tokens at place [B,K]; stands [B,K] says which of them were drafted."""
        best = logits.float().topk(2, -1).values
        margins, drafted = (fed.packing.unpack(x) for x in (best[:, 0] - best[:, 1], fed.drafted))
        if way is not None:
            margins, drafted = (x.gather(1, way.clamp(min=0)) for x in (margins, drafted))
        # Behind what stands there is one token: the verifier's, in the place of a draft or of nothing.
        origins = torch.where(stands, _DRAFT, torch.where(drafted >= 0, _ROLLBACK, _OWN))
        passes = told([sentence.passes + 1 for sentence in self.sentences], self.device)
        self.rows.passes_at.scatter_(1, place, passes[:, None].expand_as(place))
        self.rows.origins.scatter_(1, place, origins)
        self.rows.margins.scatter_(1, place, margins)

    def _take(self, read: list[list[int]], own: int) -> None:
        """Takes in on the host what was read of each row: so many numbers of this pass, then its draft's.

        Where all rows were fed one token, the pass's only number is the token that each has put out.
        """
        counts = [sentence.feeds for sentence in self.sentences]
        shapes = [sentence.shape for sentence in self.sentences]
        stood, emitted = [], []
        for sentence, numbers in zip(self.sentences, read, strict=True):
            last, end, stands = [*numbers[:own], 0, 0][:3]
            emitted.append(end + 1 if sentence.feeds else 0)
            stood.append(end + stands)
            sentence.take(emitted[-1], stood[-1], is_eos=last == self.scorer.vocab.eos)
            sentence.plan(*numbers[own:])
        if self.watcher is not None and not self.rest:
            following = [sentence.feeds for sentence in self.sentences]
            self.watcher.passed(counts, shapes, stood, emitted, following)

    def _results(self, places: list[int]) -> Iterator[Result]:
        now = time.perf_counter()
        rows, index = self.rows, torch.tensor(places, device=self.device)
        outputs, scores = rows.outputs[index].tolist(), rows.scores[index].tolist()
        traced = (
            [each[index].tolist() for each in (rows.origins, rows.passes_at, rows.margins)]
            if self.trace
            else []
        )
        for i, place in enumerate(places):
            sentence = self.sentences[place]
            request, length = sentence.request, sentence.length
            trace = None
            if self.trace:
                forced = len(request.prefix)
                trace = tuple(
                    TokenTrace("prefix" if j < forced else _ORIGINS[origin], at, margin)
                    for j, (origin, at, margin) in enumerate(
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
                index=request.index,
                hypotheses=(hypothesis,),
                seconds=now - sentence.started,
                passes=sentence.passes,
                drafted=sentence.drafted,
                accepted=sentence.accepted,
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


def _read(*columns: Tensor) -> list[list[int]]:
    """Brings columns [B,...] to the host at once, row by row."""
    return (torch.cat(columns, 1) if len(columns) > 1 else columns[0]).tolist()


def _force(prefixes: Tensor, logits: Tensor, fed: Fed, judged: Judged) -> Judged:
    """Puts the wanted token wherever a position [N] lies inside its row's prefix [B,P], -1 behind its end."""
    place = fed.positions.clamp(max=prefixes.shape[1])
    wanted = F.pad(prefixes, (0, 1), value=-1)[fed.rows, place]
    inside = wanted >= 0
    scores = torch.where(inside, log_probs(logits, wanted.clamp(min=0)), judged.scores)
    stands = judged.stands
    if stands is not None:
        stands = torch.where(inside, wanted == fed.drafted, stands)
    return Judged(torch.where(inside, wanted, judged.tokens), scores, stands)
