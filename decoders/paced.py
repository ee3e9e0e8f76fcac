"""Drafting as far as it pays: stands between a drafter and the loop, and lets `Pace` set the budgets.

Symbols: B rows, T output positions, N rows that the drafter knows, V words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

from nartk.decoders.pace import DEEPEST, Judgement, Pace, Row, pace_of
from nartk.decoders.tensor_loop import Draft, DraftAndVerify, Drafter, Fed, sources
from nartk.decoders.tree import nothing, prune
from nartk.hypothesis import Request
from nartk.registry import option
from nartk.rows import told
from nartk.scorer import Seq2SeqScorer, Source

_UNBOUNDED = 1 << 30  # tokens

ADAPTIVE_HELP = (
    "draft as many tokens as pay, by the passes' own times, and none where none do: the output stays the "
    "same, what is drafted and the number of passes may differ from run to run"
)


@dataclass(frozen=True, kw_only=True)
class Adaptive(DraftAndVerify):
    """Base of strategies whose output is greedy search's whatever is drafted, so that drafts may be paced."""

    adaptive: bool = option(False, ADAPTIVE_HELP)

    def make_pace(self, scorer: Seq2SeqScorer) -> Pace | None:
        """What sets the drafts' lengths; None: the drafter itself, as where the output depends on them."""
        return pace_of(self, scorer) if self.adaptive else None

    def served_drafter(self, scorer: Seq2SeqScorer) -> Drafter | None:
        drafter, pace = self.make_drafter(scorer), self.make_pace(scorer)
        return drafter if drafter is None or pace is None else Paced(drafter, pace, scorer)


_P = ParamSpec("_P")
_R = TypeVar("_R")


def _charged(method: Callable[Concatenate[Paced, _P], _R]) -> Callable[Concatenate[Paced, _P], _R]:
    """Lets the account pay for the time that a method takes."""

    @wraps(method)
    def timed(self: Paced, /, *arguments: _P.args, **options: _P.kwargs) -> _R:
        clock, in_pass = self.pace.clock, self._in_pass
        first = clock.tick()
        found = method(self, *arguments, **options)
        self.pace.spent(first, clock.tick(), in_pass=in_pass)
        return found

    return timed


@dataclass(frozen=True)
class _State:
    """B rows. All lists are in the order of the batch.

    Attributes:
        asked: Tokens that each row's present draft might have.
        inner: The drafter's state of some of the rows, or None if it knows none.
        places: Which these are, in its order.
    """

    requests: list[Request]
    rows: list[Row]
    asked: list[int]
    inner: Any
    places: list[int]


class Paced(Drafter):
    """Asks a drafter for as many tokens as pay, and not at all where none do; a loop.Watcher.

    Rows whose sources the drafter has not read cost nothing, and may be read later. All that is done here is
    timed and charged; in a rest nothing is done.

    Args:
        scorer: The verifier.
    """

    def __init__(self, drafter: Drafter, pace: Pace, scorer: Seq2SeqScorer) -> None:
        self.drafter, self.pace, self.scorer = drafter, pace, scorer
        self.device = torch.device(scorer.device)
        self.live = 0  # rows that have not ended
        self._flight: _State | None = None  # what the pass in progress was drafted from
        self._none: dict[int, Draft] = {}  # drafts of no tokens, by rows
        self._began: Any = None
        self._in_pass = False
        self._before: _State | None = None  # the rows before the last rest
        self._resting, self._rested = 0, None  # passes of the rest, and when it began

    @_charged
    def start(self, source: Source, requests: Sequence[Request]) -> _State:
        self.live += len(requests)
        count = len(requests)
        state = _State(list(requests), [Row() for _ in requests], [0] * count, None, [])
        return self._admit(state, list(range(count)), source)

    def _admit(self, state: _State, places: list[int], source: Source | None = None) -> _State:
        """Lets the drafter read the sources of some of these rows, which it does not know yet."""
        lengths = [len(state.requests[place].source) for place in places]
        places = places[: self.pace.admit(lengths, self.live)]
        if not places:
            return state
        first = self.pace.clock.tick()
        requests = [state.requests[place] for place in places]
        if source is None:
            source = sources(self.scorer, requests)
        read = Source(source.tokens[: len(places)], source.lengths[: len(places)])
        inner = self.drafter.start(read, requests)
        if state.inner is not None:
            inner = self.drafter.join(state.inner, inner)
        self.pace.started(len(places), first, self.pace.clock.tick())
        return replace(state, inner=inner, places=[*state.places, *places])

    def observe(self, state: _State, logits: Tensor, fed: Fed) -> _State:
        if not any(state.asked):
            return state
        if len(state.places) < len(state.rows):
            logits, fed = self._known(state, logits, fed)
        return replace(state, inner=self.drafter.observe(state.inner, logits, fed))

    def _known(self, state: _State, logits: Tensor, fed: Fed) -> tuple[Tensor, Fed]:
        """What of a pass belongs to rows that the drafter knows, as if there were no others."""
        place = torch.full((len(state.rows),), -1, device=self.device)
        place[told(state.places, self.device)] = torch.arange(len(state.places), device=self.device)
        rows = place[fed.rows]
        kept = (rows >= 0).nonzero().squeeze(1)
        parents = fed.parents
        if parents is not None:
            moved = (rows >= 0).cumsum(0) - 1
            parents = torch.where(parents < 0, -1, moved[parents.clamp(min=0)])[kept]
        return logits[kept], Fed(
            rows=rows[kept],
            positions=fed.positions[kept],
            drafted=fed.drafted[kept],
            requests=fed.requests[kept],
            lprobs=None if fed.lprobs is None else fed.lprobs[kept],
            tokens=None if fed.tokens is None else fed.tokens[kept],
            parents=parents,
        )

    @_charged
    def draft(self, state: _State, outputs: Tensor, lengths: Tensor, budget: Tensor) -> tuple[Draft, _State]:
        if len(state.places) < len(state.rows) and self.pace.looks_again:
            known = set(state.places)
            unknown = [i for i, row in enumerate(state.rows) if i not in known and not row.ended]
            state = self._admit(state, unknown)
        asked = self._asked(state)
        if not any(asked):
            if len(asked) not in self._none:
                self._none[len(asked)] = nothing(len(lengths), lengths.device)
            if any(state.asked):
                index = self._index(state)
                inner = self.drafter.pause(state.inner, lengths if index is None else lengths[index])
                state = replace(state, inner=inner, asked=asked)
            return self._none[len(asked)], state
        index = self._index(state)
        first = self.pace.clock.tick()
        most = [_UNBOUNDED if count == DEEPEST else count for count in asked]
        budget = budget.minimum(torch.tensor(most, device=self.device))
        if index is None:
            draft, inner = self.drafter.draft(state.inner, outputs, lengths, budget)
        else:
            draft, inner = self.drafter.draft(state.inner, outputs[index], lengths[index], budget[index])
            draft = _spread(draft, index, len(lengths))
        draft = self._within(draft, budget)
        self.pace.drafted(sum(map(bool, asked)), max(asked), first, self.pace.clock.tick())
        return draft, replace(state, inner=inner, asked=asked)

    def _index(self, state: _State) -> Tensor | None:
        """The places [N] of the rows that the drafter knows; None: it knows all, in their order."""
        if len(state.places) == len(state.rows) and state.places == sorted(state.places):
            return None
        return told(state.places, self.device)

    def _within(self, draft: Draft, budget: Tensor) -> Draft:
        """What of a draft lies within the budget [B]: drafters may propose more."""
        if draft.parents is None:
            return replace(draft, lengths=draft.lengths.minimum(budget))
        return prune(draft, len(self.scorer.vocab), budget, branching=True)[0]

    def _asked(self, state: _State) -> list[int]:
        """The tokens that each row may draft now."""
        asked = [0] * len(state.rows)
        places = self._known_live(state)
        budgets = self.pace.budgets([state.rows[place] for place in places], self.live)
        for place, most in zip(places, budgets, strict=True):
            asked[place] = most
        return asked

    @staticmethod
    def _known_live(state: _State) -> list[int]:
        """The places of the rows that the drafter knows and that have not ended."""
        return [place for place in state.places if not state.rows[place].ended]

    def begun(self, state: _State) -> None:
        self._flight, self._began, self._in_pass = state, self.pace.clock.tick(), True

    def passed(
        self,
        counts: Sequence[int],
        shapes: Sequence[tuple[int, int]],
        stood: Sequence[int],
        emitted: Sequence[int],
        following: Sequence[int],
    ) -> None:
        ended, self._in_pass = self.pace.clock.tick(), False
        assert self._flight is not None
        rows, asked = self._flight.rows, self._flight.asked
        judged = [
            Judgement(row, most, count - 1, levels, stands)
            for row, most, count, (_, levels), stands in zip(rows, asked, counts, shapes, stood, strict=True)
            if most and count
        ]
        live = len(counts) - counts.count(0)
        self.pace.passed(live, judged, sum(emitted), self._began, ended)
        self._tell(rows, following)
        self.pace.spent(ended, self.pace.clock.tick(), in_pass=False)

    def _tell(self, rows: Sequence[Row], following: Sequence[int]) -> None:
        """Takes in which rows have ended."""
        for row, count in zip(rows, following, strict=True):
            row.ended = count == 0
        self.live = len(following) - following.count(0)

    def rest(self, state: _State | None) -> int:
        if state is not None and any(state.asked):
            return 0
        known = 0 if state is None else len(self._known_live(state))
        self._resting = self.pace.rest(known, self.live)
        if self._resting:
            self._before, self._rested = state, self.pace.clock.tick()
        return self._resting

    def rested(self, left: int) -> None:
        self.pace.rested(self._resting - left, self._rested, self.pace.clock.tick())

    @_charged
    def resume(self, requests: Sequence[Request], following: Sequence[int]) -> _State:
        before, places = self._before, {}
        if before is not None:
            places = {request.index: place for place, request in enumerate(before.requests)}
        there = [i for i, request in enumerate(requests) if request.index in places]
        new = [Row() for _ in requests]
        if before is None or not there:
            state = _State(list(requests), new, [0] * len(new), None, [])
        else:
            state = self._selected(before, [places[requests[i].index] for i in there])
            for i, row in zip(there, state.rows, strict=True):
                new[i] = row
            state = _State(
                list(requests), new, [0] * len(new), state.inner, [there[place] for place in state.places]
            )
        self._before = None
        self._tell(new, following)
        return state

    @_charged
    def select(self, state: _State, rows: Tensor) -> _State:
        return self._selected(state, rows.tolist())

    def _selected(self, state: _State, chosen: list[int]) -> _State:
        to = {place: i for i, place in enumerate(chosen)}
        kept = [i for i, place in enumerate(state.places) if place in to]
        inner = None
        if kept:
            whole = kept == list(range(len(state.places)))
            inner = state.inner
            if not whole:
                inner = self.drafter.select(inner, told(kept, self.device))
        return _State(
            requests=[state.requests[place] for place in chosen],
            rows=[state.rows[place] for place in chosen],
            asked=[state.asked[place] for place in chosen],
            inner=inner,
            places=[to[state.places[i]] for i in kept],
        )

    @_charged
    def join(self, first: _State, second: _State) -> _State:
        inner = first.inner if second.inner is None else second.inner
        if first.inner is not None and second.inner is not None:
            inner = self.drafter.join(first.inner, second.inner)
        after = len(first.rows)
        return _State(
            requests=first.requests + second.requests,
            rows=first.rows + second.rows,
            asked=first.asked + second.asked,
            inner=inner,
            places=[*first.places, *(after + place for place in second.places)],
        )


def _spread(draft: Draft, index: Tensor, rows: int) -> Draft:
    """The draft of rows [N] of a batch as one of all its rows; the others have none."""

    def filled(values: Tensor, fill: int) -> Tensor:
        return values.new_full((rows, *values.shape[1:]), fill).index_copy_(0, index, values)

    return Draft(
        filled(draft.tokens, -1),
        filled(draft.lengths, 0),
        None if draft.lprobs is None else filled(draft.lprobs, 0),
        None if draft.parents is None else filled(draft.parents, -1),
    )
