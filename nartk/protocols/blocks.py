"""Blocks of numbers in which a pass goes to a device, and its results come back, each in one transfer.

The sizes of a pass are rounded up to those of a `Shape`, so that few shapes serve all passes: the tokens that
fill it up write to a spare cell, and nobody reads what is computed of them.

Symbols: N tokens of a pass, n of them scored, C chains of tokens, T cells that a token sees at most, R
sources, S positions of the longest, K candidates.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from nartk.protocols.contexts import Cells, Marks, PendingPass
from nartk.protocols.passes import IntArray, Pass, Want
from nartk.protocols.reading import Reading

_FEWEST = 16  # cells and positions of a shape, at least


def rounded(count: int) -> int:
    """The least of 1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, ... that is not below a number."""
    power = 1 << max(count - 1, 0).bit_length()
    between = power * 3 // 4
    return between if between >= max(count, 48) else power


@dataclass(frozen=True)
class Shape:
    """The sizes of a step: those of a pass, rounded up, and what is read of it.

    Attributes:
        tokens: N.
        chains: C, of which the last is that of the tokens that fill N up.
        cells: T.
        rows, positions: R and S.
        scored: n.
        top: K; 0: none.
        margin, given: Margins are read, and log-probabilities of given words.
        common: Nothing else is read; or else logits and features are, behind the step, and not the above.
    """

    tokens: int
    chains: int
    cells: int
    rows: int
    positions: int
    scored: int
    top: int
    margin: bool
    given: bool
    common: bool

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of each part of the block, as `Parts` has them."""
        columns = len(Columns._fields) * self.tokens
        sources = self.rows * self.positions
        return columns, self.chains * self.cells, sources, self.rows, self.scored, self.given * self.scored

    @property
    def block(self) -> int:
        """Numbers of the block."""
        return sum(self.sizes)


class Columns(NamedTuple):
    """Columns [N] of a block, with a number for each token."""

    token: Any
    position: Any
    cell: Any
    chain: Any
    depth: Any  # cells that it sees in front of its own
    row: Any  # of its source


class Parts(NamedTuple):
    """Parts of a block, as arrays of NumPy or tensors: views of it."""

    columns: Columns
    table: Any  # [C,T] cells of each chain
    sources: Any  # [R,S] cells of each source; behind the last this again
    lengths: Any  # [R]
    only: Any  # [n] indices of the scored tokens
    given: Any  # [n], or [0]


def parts_of(block: Any, shape: Shape) -> Parts:
    """The parts of a block [shape.block]."""
    ends = [0, *accumulate(shape.sizes)]
    columns, table, sources, *rest = (block[a:b] for a, b in pairwise(ends))
    return Parts(
        Columns(*columns.reshape(len(Columns._fields), shape.tokens)),
        table.reshape(shape.chains, shape.cells),
        sources.reshape(shape.rows, shape.positions),
        *rest,
    )


def shape_of(work: Pass, waiting: PendingPass, want: Want, sources: Cells, count: int) -> Shape:
    """The shape of a pass that reads `count` tokens and R sources, whose cells are `sources` [R,S]."""
    common = want.banned is None and want.draw is None and not want.hidden
    return Shape(
        tokens=rounded(len(work.tokens)),
        chains=rounded(len(waiting.table) + 1),
        cells=max(_FEWEST, rounded(waiting.table.shape[1])),
        rows=rounded(len(sources)),
        positions=max(_FEWEST, rounded(sources.shape[1])),
        scored=rounded(count),
        top=want.top if common else 0,
        margin=common and want.margin,
        given=common and want.given is not None,
        common=common,
    )


def pack(
    block: IntArray,
    shape: Shape,
    work: Pass,
    waiting: PendingPass,
    want: Want,
    sources: tuple[Cells, Marks, Cells],
    spare: int,
) -> None:
    """Writes a pass into a block [shape.block].

    Args:
        sources: Cells [R,S] of the sources, which of these they hold, and the source [N] of each token.
        spare: The cell of the tokens that fill the shape up.
    """
    cells, held, which = sources
    tokens, rows, table = len(work.tokens), len(cells), waiting.table
    block[:] = 0
    parts = parts_of(block, shape)
    given = (work.tokens, work.positions, waiting.cells, waiting.chains, waiting.depths, which)
    for column, values in zip(parts.columns, given, strict=True):
        column[:tokens] = values
    parts.columns.cell[tokens:] = spare
    parts.columns.chain[tokens:] = shape.chains - 1
    parts.table[: len(table), : table.shape[1]] = table
    parts.table[-1] = spare
    parts.sources[:rows, : cells.shape[1]] = cells
    parts.sources[:rows, cells.shape[1] :] = cells[:, -1:]
    parts.lengths[:rows] = held.sum(1)
    scored = np.arange(tokens) if want.only is None else want.only
    parts.only[: len(scored)] = scored
    if shape.given:
        parts.given[: len(scored)] = want.given


def unpack(results: IntArray, shape: Shape) -> tuple[IntArray, Reading]:
    """The results [.,n] of a step: which tokens have wrong logits, and what is read of all."""
    rows = iter(np.ascontiguousarray(results))
    wrong = next(rows)
    reading = Reading(best=next(rows), log_probs=next(rows).view(np.float32))
    if shape.top:
        found = np.stack([next(rows) for _ in range(2 * shape.top)], 1)
        reading.top = np.ascontiguousarray(found[:, : shape.top])
        reading.top_log_probs = np.ascontiguousarray(found[:, shape.top :]).view(np.float32)
    if shape.margin:
        reading.margins = next(rows).view(np.float32)
    if shape.given:
        reading.given_log_probs = next(rows).view(np.float32)
    return wrong, reading
