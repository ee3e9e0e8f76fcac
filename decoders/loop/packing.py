"""Unread tokens of hypotheses, and the drafts behind them, as one pass.

What is known of a hypothesis are the tokens that its output begins after, and the output so far; what is
computed are the cells of its context. A pass reads the rest: of a new hypothesis the start token and a forced
prefix, of others as a rule one token. Symbols: N tokens of a pass, n of them scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from nartk.decoders.loop.drafter import NO_DRAFT, Draft, levels
from nartk.errors import PassError
from nartk.protocols.passes import ROOT, IntArray, Pass

_DRAFTED = attrgetter("draft.tokens")


@dataclass(slots=True, eq=False, kw_only=True)
class Unread:
    """Base of hypotheses, as a pass reads them.

    Attributes:
        memory: Handle of its encoded source.
        context: Handle of its cells.
        cells: Tokens that the context holds.
        pending: Number of the last known tokens that still lack their log-probabilities: what follows the
            token before each of them is scored too.
        draft: Draft that follows the last known token in the pass.
        begin, end: Indices of the first and the last unread token in the pass; `pack` sets them.
        node: Index of the last one among the scored tokens; `pack` sets it.
    """

    memory: int
    context: int
    cells: int = 0
    pending: int = 0
    draft: Draft = NO_DRAFT
    begin: int = 0
    end: int = 0
    node: int = 0

    @property
    def unread(self) -> Sequence[int]:
        """The known tokens that the context does not hold, at least one."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Packed:
    """A pass over hypotheses.

    Attributes:
        only: The scored tokens: of each hypothesis the last unread one, those before it that are `pending`,
            and the draft; None: all.
        parents: [N], as `Pass.parents` has them.
    """

    work: Pass
    only: IntArray | None
    parents: Sequence[int]

    @property
    def scored(self) -> IntArray:
        """The scored tokens [n]."""
        return self.work.tokens if self.only is None else self.work.tokens[self.only]


def pack(rows: Sequence[Unread]) -> Packed:
    """The unread tokens of all hypotheses, each a chain, with its draft behind it.

    Raises:
        PassError: A hypothesis has none: what judges drafts is wrong.
    """
    known = [row.unread for row in rows]
    sizes = [*map(len, known)]
    if 0 in sizes:
        raise PassError("more tokens were accepted than were output")
    owners = [[row.memory for row in rows], [row.context for row in rows]]
    if sum(sizes) == len(rows) and not any(map(_DRAFTED, rows)):
        return _of_last_tokens(rows, [token for (token,) in known], owners)
    tokens: list[int] = []
    positions: list[int] = []
    parents: list[int] = []
    counts: list[int] = []
    scored: list[int] = []
    for row, unread in zip(rows, known, strict=True):
        begin, done = len(tokens), row.cells
        tokens += unread
        parents.append(ROOT)
        end = begin
        if len(unread) > 1:
            end = len(tokens) - 1
            parents += range(begin, end)
        positions += range(done, done + end - begin + 1)
        row.begin, row.end, row.node = begin, end, len(scored) + row.pending
        if row.pending:
            scored += range(end - row.pending, end)
        scored.append(end)
        if draft := row.draft.tokens:
            done += end - begin + 1
            tokens += draft
            if row.draft.parents is None:
                positions += range(done, done + len(draft))
                parents += range(end, end + len(draft))
            else:
                positions += [done - 1 + level for level in levels(row.draft.parents)]
                parents += [end + 1 + parent for parent in row.draft.parents]
            scored += range(end + 1, end + 1 + len(draft))
        counts.append(len(tokens) - begin)
    repeated = np.repeat(np.array(owners, np.int32), counts, axis=1)
    chains = np.array([tokens, positions, parents], np.int32)
    work = Pass(chains[0], chains[1], repeated[0], repeated[1], chains[2])
    return Packed(work, None if len(scored) == len(tokens) else np.array(scored, np.int32), parents)


def _of_last_tokens(rows: Sequence[Unread], tokens: list[int], owners: list[list[int]]) -> Packed:
    """The same of one token each, as most passes are, in a fraction of the time."""
    for i, row in enumerate(rows):
        row.begin = row.end = row.node = i
    parents = [ROOT] * len(rows)
    columns = [tokens, [row.cells for row in rows], *owners, parents]
    return Packed(Pass(*np.array(columns, np.int32)), None, parents)


def levels_of(draft: Draft) -> Sequence[int]:
    """Number of drafted tokens on the way to the token before a draft, and to each of it: [1+K]."""
    parents = draft.parents
    return range(1 + len(draft.tokens)) if parents is None else [0, *levels(parents)]


def depth(draft: Draft) -> int:
    """Number of levels of a draft."""
    return len(draft.tokens) if draft.parents is None else max(levels(draft.parents), default=0)
