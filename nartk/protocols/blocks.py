"""Blocks of numbers in which a pass goes to a device, and its results come back, each in one transfer.

The sizes of a pass are rounded up to those of a `Shape`, so that few shapes serve all passes: the tokens that
fill it up write to a spare cell, and nobody reads what is computed of them.

Symbols: N tokens of a pass, n of them scored, T cells that a token sees at most, S positions of the longest
source, K candidates.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nartk.protocols.contexts import Cells, PendingPass
from nartk.protocols.passes import IntArray, Pass, Want
from nartk.protocols.reading import Reading

_FEWEST = 16  # cells and positions of a shape, at least


def rounded(count: int) -> int:
    """The least of 1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, ... that is not below a number."""
    power = 1 << max(count - 1, 0).bit_length()
    between = power * 3 // 4
    return between if between >= max(count, 48) else power


class Shape(NamedTuple):
    """The sizes of a step: those of a pass, rounded up, and what is read of it.

    Attributes:
        tokens: N.
        cells, positions: T and S; 0 where kernels go through the lists, whatever their lengths.
        scored: n.
        top: K; 0: none.
        margin, given: Margins are read, and log-probabilities of given words.
        common: Nothing else is read; or else logits and features are, behind the step, and not the above.
    """

    tokens: int
    cells: int
    positions: int
    scored: int
    top: int
    margin: bool
    given: bool
    common: bool

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of each part of the block in front of the lists, as `Parts` has them."""
        return len(Columns._fields) * self.tokens, self.scored, self.given * self.scored


class Columns(NamedTuple):
    """Columns [N] of a block, with a number for each token."""

    token: Any
    position: Any
    cell: Any
    begin: Any  # of the cells that it sees in front of its own, among the lists
    depth: Any  # how many they are
    source: Any  # begin of its source's cells, among the lists
    length: Any  # how many they are


class Parts(NamedTuple):
    """Parts of a block, as arrays of NumPy or tensors: views of it."""

    columns: Columns
    only: Any  # [n] indices of the scored tokens
    given: Any  # [n], or [0]
    lists: Any  # [.] cells of chains of tokens and of sources, one list after another


def parts_of(block: Any, shape: Shape) -> Parts:
    """The parts of a block, which may be longer than a pass fills it."""
    columns, only, given = shape.sizes
    scored = columns + only
    lists = scored + given
    table = block[:columns].reshape(len(Columns._fields), shape.tokens)
    return Parts(Columns(*table), block[columns:scored], block[scored:lists], block[lists:])


def shape_of(work: Pass, waiting: PendingPass, want: Want, sources: Cells, count: int, listed: bool) -> Shape:
    """The shape of a pass that reads `count` tokens.

    Args:
        sources: [R,S], cells of its sources.
        listed: True: kernels go through the lists.
    """
    common = want.banned is None and want.words is None and want.draw is None and not want.hidden
    cells, positions = (max(_FEWEST, rounded(each.shape[1])) for each in (waiting.table, sources))
    return Shape(
        tokens=rounded(len(work.tokens)),
        cells=0 if listed else cells,
        positions=0 if listed else positions,
        scored=rounded(count),
        top=want.top if common else 0,
        margin=common and want.margin,
        given=common and want.given is not None,
        common=common,
    )


def numbers_of(shape: Shape, waiting: PendingPass, sources: Cells) -> int:
    """Numbers of the block of a pass whose sources have cells [R,S]."""
    return sum(shape.sizes) + waiting.table.size + sources.size


def pack(
    block: IntArray,
    shape: Shape,
    work: Pass,
    waiting: PendingPass,
    want: Want,
    sources: tuple[Cells, Cells, Cells],
    spare: int,
) -> None:
    """Writes a pass into a block [`numbers_of`].

    Args:
        sources: Cells [R,S] of the sources, how many [R] each has, and the source [N] of each token.
        spare: The cell of the tokens that fill the shape up.
    """
    cells, lengths, which = sources
    tokens, table = len(work.tokens), waiting.table
    columns, only, given, lists = parts_of(block, shape)
    block[: sum(shape.sizes)] = 0
    begins, begin = waiting.chains * table.shape[1], table.size + which * cells.shape[1]
    values = work.tokens, work.positions, waiting.cells, begins, waiting.depths, begin, lengths[which]
    for column, each in zip(columns, values, strict=True):
        column[:tokens] = each
    # What fills the shape up reads the first cell of a source.
    columns.cell[tokens:], columns.source[tokens:], columns.length[tokens:] = spare, table.size, 1
    lists[: table.size] = table.ravel()
    lists[table.size :] = cells.ravel()
    scored = np.arange(tokens) if want.only is None else want.only
    only[: len(scored)] = scored
    if shape.given:
        given[: len(scored)] = want.given


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
