"""Drafting as far as it pays: stands between a drafter and the loop, and lets `Pace` set the budgets.

Symbols: B rows, T output positions, N rows that the drafter knows, V words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nartk.decoders.loop import Draft, DraftAndVerify, Drafter, Fed, sources
from nartk.decoders.pace import DEEPEST, Judgement, Pace, Row, pace_of
from nartk.decoders.tree import nothing, prune
from nartk.hypothesis import Request
from nartk.registry import option
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

    Rows whose sources the drafter has not read cost nothing, and may be read later.

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
        self._judged: Any = None

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
        self._judged = self.pace.clock.tick()
        if not any(state.asked):
            return state
        if len(state.places) < len(state.rows):
            logits, fed = self._known(state, logits, fed)
        return replace(state, inner=self.drafter.observe(state.inner, logits, fed))

    def _known(self, state: _State, logits: Tensor, fed: Fed) -> tuple[Tensor, Fed]:
        """What of a pass belongs to rows that the drafter knows, as if there were no others."""
        place = torch.full((len(state.rows),), -1, device=self.device)
        place[torch.tensor(state.places, device=self.device)] = torch.arange(
            len(state.places), device=self.device
        )
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

    def draft(self, state: _State, outputs: Tensor, lengths: Tensor, budget: Tensor) -> tuple[Draft, _State]:
        if len(state.places) < len(state.rows) and self.pace.looks_again:
            known = set(state.places)
            unknown = [i for i, row in enumerate(state.rows) if i not in known and not row.ended]
            state = self._admit(state, unknown)
        asked = self._asked(state)
        whole = len(state.places) == len(state.rows) and state.places == sorted(state.places)
        index = None if whole else torch.tensor(state.places, dtype=torch.int64, device=self.device)
        if not any(asked):
            inner = state.inner
            if any(state.asked):
                inner = self.drafter.pause(inner, lengths if index is None else lengths[index])
            if len(asked) not in self._none:
                self._none[len(asked)] = nothing(len(lengths), lengths.device)
            if asked == state.asked:
                return self._none[len(asked)], state
            return self._none[len(asked)], replace(state, inner=inner, asked=asked)
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

    def _within(self, draft: Draft, budget: Tensor) -> Draft:
        """What of a draft lies within the budget [B]: drafters may propose more."""
        if draft.parents is None:
            return replace(draft, lengths=draft.lengths.minimum(budget))
        return prune(draft, len(self.scorer.vocab), budget, branching=True)[0]

    def _asked(self, state: _State) -> list[int]:
        """The tokens that each row may draft now."""
        asked = [0] * len(state.rows)
        if not state.places or self.pace.is_quiet(len(state.places), self.live):
            return asked
        places = [place for place in state.places if not state.rows[place].ended]
        budgets = self.pace.budgets([state.rows[place] for place in places], self.live)
        for place, most in zip(places, budgets, strict=True):
            asked[place] = most
        return asked

    def begun(self, state: _State) -> None:
        self._flight, self._began = state, self.pace.clock.tick()

    def passed(
        self,
        counts: Sequence[int],
        shapes: Sequence[tuple[int, int]],
        stood: Sequence[int],
        emitted: Sequence[int],
        following: Sequence[int],
    ) -> None:
        assert self._flight is not None
        rows, asked = self._flight.rows, self._flight.asked
        judged = [
            Judgement(row, most, count - 1, levels, stands)
            for row, most, count, (_, levels), stands in zip(rows, asked, counts, shapes, stood, strict=True)
            if most and count
        ]
        live = len(counts) - counts.count(0)
        self.pace.passed(live, judged, sum(emitted), self._began, self._judged)
        for row, count in zip(rows, following, strict=True):
            row.ended = count == 0
        self.live = len(following) - following.count(0)

    def select(self, state: _State, rows: Tensor) -> _State:
        chosen = rows.tolist()
        to = {place: i for i, place in enumerate(chosen)}
        kept = [i for i, place in enumerate(state.places) if place in to]
        inner = None
        if kept:
            whole = kept == list(range(len(state.places)))
            inner = state.inner
            if not whole:
                inner = self.drafter.select(inner, torch.tensor(kept, device=self.device))
        return _State(
            requests=[state.requests[place] for place in chosen],
            rows=[state.rows[place] for place in chosen],
            asked=[state.asked[place] for place in chosen],
            inner=inner,
            places=[to[state.places[i]] for i in kept],
        )

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
