"""The tokens of all rows as one pass. Symbols: B rows, N tokens of a pass."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat

import numpy as np

from nartk.decoders.loop.drafter import Draft, levels
from nartk.decoders.loop.rows import Row
from nartk.passes import ROOT, Pass


def last_tokens(rows: Sequence[Row]) -> Pass:
    """The last token of each row: a pass without drafts."""
    for i, row in enumerate(rows):
        row.begin = i
    columns = [
        [row.last for row in rows],
        [len(row.tokens) for row in rows],
        [row.memory for row in rows],
        [row.context for row in rows],
        [ROOT] * len(rows),
    ]
    return Pass(*np.array(columns, np.int32))


def packed(rows: Sequence[Row]) -> Pass:
    """The last token of each row, and its draft behind it."""
    tokens: list[int] = []
    positions: list[int] = []
    parents: list[int] = []
    counts: list[int] = []
    for row in rows:
        begin = row.begin = len(tokens)
        draft, done = row.draft.tokens, len(row.tokens)
        tokens.append(row.last)
        positions.append(done)
        parents.append(ROOT)
        counts.append(1 + len(draft))
        if not draft:
            continue
        tokens += draft
        if row.draft.parents is None:
            positions += range(done + 1, done + 1 + len(draft))
            parents += range(begin, begin + len(draft))
        else:
            positions += [done + level for level in levels(row.draft.parents)]
            parents += [begin + 1 + parent for parent in row.draft.parents]
    memory = chain.from_iterable(map(repeat, [row.memory for row in rows], counts))
    contexts = chain.from_iterable(map(repeat, [row.context for row in rows], counts))
    return Pass(*np.array([tokens, positions, list(memory), list(contexts), parents], np.int32))


def levels_of(draft: Draft) -> Sequence[int]:
    """How many drafted tokens lie on the way to the token before a draft, and to each of it: [1+K]."""
    parents = draft.parents
    return range(1 + len(draft.tokens)) if parents is None else [0, *levels(parents)]


def depth(draft: Draft) -> int:
    """How many levels a draft has."""
    return len(draft.tokens) if draft.parents is None else max(levels(draft.parents), default=0)
