"""Contexts on the host: which cells each hypothesis holds, who shares them, and the rules of a pass.

It is the executable specification of the rules in `protocols.passes`, in arrays of NumPy: it knows handles
and numbers of cells, not what a cell holds. Scorers that keep their contexts on the host derive from
`Contexts`, and find what a token sees in `PendingPass.seen`.

Symbols: B sources, N tokens of a pass, T cells that one of them sees at most, R lists of cells.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from nartk.errors import PassError
from nartk.protocols.passes import ROOT, IntArray, Limits, Pass, Scores

T = TypeVar("T")
Cells: TypeAlias = npt.NDArray[np.int64]
Marks: TypeAlias = npt.NDArray[np.bool_]


class CellPool:
    """Counts the holders of each cell; a cell without holders is handed out again.

    Attributes:
        size: Cells handed out at any time: all cells are below.
    """

    def __init__(self) -> None:
        self.size = 0
        self._holders = np.zeros(0, np.int64)  # of each cell, with room for more
        self._free = np.zeros(0, np.int64)

    @property
    def in_use(self) -> int:
        """Cells with a holder."""
        return self.size - len(self._free)

    def take(self, count: int) -> Cells:
        """Hands out cells that nobody holds, each with one holder."""
        left = max(len(self._free) - count, 0)
        reused, self._free = self._free[left:], self._free[:left]
        new = np.arange(self.size, self.size + count - len(reused))
        self.size += len(new)
        if self.size > len(self._holders):
            self._holders = np.concatenate([self._holders, np.zeros(self.size, np.int64)])
        cells = np.concatenate([reused, new])
        self._holders[cells] = 1
        return cells

    def share(self, cells: Cells) -> None:
        """Adds a holder to each cell."""
        np.add.at(self._holders, cells, 1)

    def release(self, cells: Cells) -> None:
        """Removes a holder from each cell."""
        if len(cells) == 0:
            return
        np.subtract.at(self._holders, cells, 1)
        gone = np.sort(cells[self._holders[cells] == 0])  # once for each holder that was removed now
        self._free = np.concatenate([self._free, gone[runs(gone)[0]]])


class CellLists:
    """Lists of cells of a pool. Each is a row of a table; a row that was given back is used again.

    Attributes:
        lengths: [rows], cells of each list.
    """

    def __init__(self) -> None:
        self.pool = CellPool()
        self.lengths = np.zeros(0, np.int64)
        self._cells = np.zeros((0, 0), np.int64)
        self._free: list[int] = []

    def add(self, count: int) -> list[int]:
        """Takes rows for so many empty lists."""
        if count > len(self._free):
            have = len(self.lengths)
            more = max(count, have)
            self._free.extend(range(have + more - 1, have - 1, -1))
            self.lengths = np.pad(self.lengths, (0, more))
            self._cells = np.pad(self._cells, ((0, more), (0, 0)))
        rows = [self._free.pop() for _ in range(count)]
        self.lengths[rows] = 0
        return rows

    def fill(self, lengths: Sequence[int]) -> tuple[list[int], Cells]:
        """Takes lists of new cells: their rows, and the cells of one list after another."""
        rows, counts = self.add(len(lengths)), np.array(lengths, np.int64)
        cells = self.pool.take(int(counts.sum()))
        depths = np.arange(len(cells)) - (np.cumsum(counts) - counts).repeat(counts)
        self.append(np.array(rows).repeat(counts), depths, cells)
        return rows, cells

    def padded(self, rows: list[int]) -> tuple[Cells, Marks]:
        """Lists [R,T], none empty, behind whose end stands their last cell, and which of these they hold."""
        lengths = self.lengths[rows]
        cells = self.first(rows, int(lengths.max()))
        held = np.arange(cells.shape[1]) < lengths[:, None]
        return np.where(held, cells, cells[np.arange(len(rows)), lengths - 1, None]), held

    def append(self, rows: Cells, depths: Cells, cells: Cells) -> None:
        """Appends cells [n], already held, to rows [n], each behind `depths` [n] others, in any order."""
        self.reserve(int(depths.max(initial=-1)) + 1)
        self._cells[rows, depths] = cells
        np.add.at(self.lengths, rows, 1)

    def copy(self, rows: list[int]) -> list[int]:
        """Copies lists, whose cells have one more holder each: the rows of the copies."""
        new = self.add(len(rows))
        self._cells[new], self.lengths[new] = self._cells[rows], self.lengths[rows]
        self.pool.share(self._between(new, 0, self.lengths[new]))
        return new

    def cut(self, rows: list[int], lengths: list[int]) -> None:
        """Gives back what lists hold beyond lengths."""
        kept = np.array(lengths, np.int64)
        self.pool.release(self._between(rows, kept[:, None], self.lengths[rows]))
        self.lengths[rows] = kept

    def remove(self, rows: list[int]) -> None:
        """Gives back lists and their rows."""
        self.cut(rows, [0] * len(rows))
        self._free.extend(rows)

    def reserve(self, length: int) -> None:
        """Makes room for lists of so many cells."""
        have = self._cells.shape[1]
        if length > have:
            self._cells = np.pad(self._cells, ((0, 0), (0, max(length, 2 * have) - have)))

    def first(self, rows: Cells | list[int], length: int) -> Cells:
        """The first so many cells of lists, [R,length]; behind their end any."""
        self.reserve(length)
        return self._cells[:, :length][rows]

    def _between(self, rows: list[int], begin: Cells | int, end: Cells) -> Cells:
        """Cells of lists from depths [R,1] to [R]."""
        cells = self.first(rows, int(end.max(initial=0)))
        depths = np.arange(cells.shape[1])
        return cells[(depths >= begin) & (depths < end[:, None])]


class Handles(Generic[T]):
    """Values by handle. No handle is given out twice, so that one that was given back is always refused.

    Args:
        name: Noun before a handle in messages, such as ``context``.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._values: dict[int, T] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, handle: int) -> bool:
        return handle in self._values

    def __getitem__(self, handle: int) -> T:
        """The value of a handle; PassError if it is not open."""
        if handle not in self._values:
            raise PassError(f"{self._name} {handle} is not open", fix="use a handle until it is given back")
        return self._values[handle]

    def add(self, values: Iterable[T]) -> IntArray:
        """Takes values: a handle for each."""
        handles = []
        for value in values:
            self._values[self._next] = value
            handles.append(self._next)
            self._next += 1
        return np.array(handles, np.int32)

    def distinct(self, handles: Sequence[int] | IntArray) -> list[int]:
        """The handles, all of which are open and none of which is named twice; else PassError."""
        found: dict[int, None] = {}
        for handle in _ints(handles):
            self[handle]
            if handle in found:
                raise PassError(f"{self._name} {handle} is named twice", fix="name it once")
            found[handle] = None
        return list(found)

    def remove(self, handles: Sequence[int] | IntArray) -> list[T]:
        """Gives handles back: their values. PassError as `distinct`; nothing has then changed."""
        return [self._values.pop(handle) for handle in self.distinct(handles)]


class PendingPass:
    """A pass that waits for `commit`. When the last reference to it goes, the pass ends and keeps nothing.

    Attributes:
        cells: [N] int64, cell of each token, all different.
        table: [C,T] int64, cells of each chain, whose tokens follow their neighbour: those that its first one
            sees, and its own; behind their end any.
        chains: [N], chain of each token.
        depths: [N], number of cells that each sees in front of its own.
    """

    def __init__(self, cells: Cells, table: Cells, chains: Cells, depths: Cells) -> None:
        self.cells, self.table, self.chains, self.depths = cells, table, chains, depths
        self.key = object()  # not the id of this, which another one may get afterwards

    @property
    def counted(self) -> Marks:
        """Places [N,T] of `seen` that hold what a token sees."""
        return np.arange(self.table.shape[1]) <= self.depths[:, None]

    @property
    def seen(self) -> Cells:
        """Cells [N,T] that each token sees: its context's, those of its parents in the pass, and its own.

        Its own stands behind them, too: what is masked still meets the values, and another token's might be
        NaN.
        """
        return np.where(self.counted, self.table[self.chains], self.cells[:, None])

    @property
    def visible(self) -> list[list[int]]:
        """Cells that each token sees, as lists."""
        return [cells[counted].tolist() for cells, counted in zip(self.seen, self.counted, strict=True)]


@dataclass(frozen=True)
class _Open:
    """Tokens of a pass that waits, as `Contexts` keeps them; only the caller refers to the `PendingPass`.

    Attributes:
        rows: [N], those of their contexts.
        depths: [N], number of cells that each sees in front of its own.
    """

    contexts: IntArray
    parents: IntArray
    cells: Cells
    rows: Cells
    depths: Cells
    distinct: list[int]  # contexts


class Contexts:
    """Lists of cells by handle, and the passes that wait. All rules are checked before anything changes.

    Base of scorers whose contexts live on the host: all of `PassScorer` but `encode`, `free` and
    `run`, as it says.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._cells = CellLists()
        self._lists: Handles[int] = Handles("context")  # rows of `_cells`
        self._open: dict[object, _Open] = {}  # passes that wait, by the key of their `PendingPass`
        self._waits: dict[int, object] = {}  # by context: the pass that it waits for
        # Keys of passes whose `PendingPass` is gone. The collector may run in the middle of any method, which
        # therefore looks here when it begins.
        self._dropped: deque[object] = deque()

    @property
    def size(self) -> int:
        """Cells handed out at any time: all cells are below."""
        return self._cells.pool.size

    @property
    def cells_in_use(self) -> int:
        self._end_dropped()
        return self._cells.pool.in_use

    def cells(self, context: int) -> list[int]:
        """A copy of the cells of a context."""
        row = self._lists[context]
        found: list[int] = self._cells.first([row], int(self._cells.lengths[row]))[0].tolist()
        return found

    def open(self, count: int) -> IntArray:
        if count < 0:
            raise PassError(f"cannot open {count} contexts")
        return self._lists.add(self._cells.add(count))

    def fork(self, contexts: Sequence[int] | IntArray) -> IntArray:
        self._end_dropped()
        return self._lists.add(self._cells.copy([self._idle(context) for context in _ints(contexts)]))

    def truncate(self, contexts: Sequence[int] | IntArray, lengths: Sequence[int] | IntArray) -> None:
        self._end_dropped()
        handles, kept = self._lists.distinct(contexts), _ints(lengths)
        if len(handles) != len(kept):
            raise PassError(f"{len(handles)} contexts have {len(kept)} lengths")
        rows = []
        for handle, length in zip(handles, kept, strict=True):
            rows.append(self._idle(handle))
            held = self._cells.lengths[rows[-1]]
            if not 0 <= length <= held:
                raise PassError(f"context {handle} of {held} cells cannot keep {length}")
        self._cells.cut(rows, kept)

    def close(self, contexts: Sequence[int] | IntArray) -> None:
        self._end_dropped()
        handles = self._lists.distinct(contexts)
        self._cells.remove(self._lists.remove(handles))
        for handle in handles:
            key = self._waits.pop(handle, None)
            if key is not None:
                work = self._open[key]
                self._cells.pool.release(work.cells[work.contexts == handle])

    def begin(self, work: Pass, memories: Handles[T]) -> PendingPass:
        """Checks a pass and hands out a cell for each of its tokens; its contexts wait for `commit`.

        Raises:
            PassError: The pass breaks a rule. Nothing has then changed.
        """
        self._end_dropped()
        count = _check_arrays(work)
        _check_range(work.tokens, "word", self.limits.words)
        _check_range(work.positions, "position", self.limits.target)
        for memory in sorted({*work.memory.tolist()}):
            memories[memory]
        # Copies: the caller may use its arrays again before `commit`.
        contexts, parents, index = work.contexts.copy(), work.parents.copy(), np.arange(count)
        earlier = (parents >= 0) & (parents < index)
        wrong = (parents != ROOT) & ~(earlier & (contexts.take(parents, mode="clip") == contexts))
        bad = int(wrong.argmax()) if wrong.any() else count
        starts, which = runs(contexts)
        asked = starts[: which[min(bad, count - 1)] + 1]  # those of tokens up to the bad one
        rows = np.array([self._idle(context) for context in contexts[asked].tolist()])
        if bad < count:
            parent = parents[bad]
            if not earlier[bad]:
                raise PassError(f"token {bad} follows token {parent} of the pass, which is no earlier one")
            raise PassError(
                f"token {bad} of context {contexts[bad]} follows token {parent} of context {contexts[parent]}"
            )

        cells = self._cells.pool.take(count)
        waiting = PendingPass(cells, *self._chains(parents, rows[which], cells))
        weakref.finalize(waiting, self._dropped.append, waiting.key).atexit = False
        handles = contexts[starts].tolist()
        self._open[waiting.key] = _Open(contexts, parents, cells, rows[which], waiting.depths, handles)
        self._waits.update(dict.fromkeys(handles, waiting.key))
        return waiting

    def _chains(self, parents: IntArray, rows: Cells, cells: Cells) -> tuple[Cells, Cells, Cells]:
        """`table`, `chains` and `depths` of `PendingPass`, of tokens whose contexts have rows [N].

        Tokens that follow their neighbour are a chain: each sees what the one before does, and itself.
        """
        index = np.arange(len(parents))
        begins = parents != index - 1
        begins[0] = True
        first, chain = np.flatnonzero(begins), np.cumsum(begins) - 1
        depths = index - first[chain]  # in a chain
        before = self._cells.lengths[rows[first]]  # [chains], cells in front of a chain's own
        branches = [(int(i), int(parents[first[i]])) for i in np.flatnonzero(parents[first] != ROOT)]
        for i, parent in branches:
            before[i] = before[chain[parent]] + depths[parent] + 1
        depths += before[chain]
        table = self._cells.first(rows[first], int(depths.max()) + 1)
        table[chain, depths] = cells
        for i, parent in branches:
            table[i, : before[i]] = table[chain[parent], : before[i]]
        return table, chain, depths

    def waits(self, waiting: PendingPass) -> bool:
        """Tells whether the pass has begun here and not ended."""
        return waiting.key in self._open

    def commit(self, scores: PendingPass | Scores, kept: Sequence[int] | IntArray) -> None:
        """Ends a pass, as `PassScorer.commit` does; also takes the `PendingPass` that `begin` gave."""
        self._end_dropped()
        waiting = scores if isinstance(scores, PendingPass) else getattr(scores, "waiting", None)
        if not isinstance(waiting, PendingPass):
            raise PassError(f"{type(scores).__name__} is not what `run` gave")
        if not self.waits(waiting):
            raise PassError("the pass has ended, or is another scorer's", fix="commit each pass once")
        work, indices = self._open[waiting.key], _ints(kept)
        contexts, parents = work.contexts.tolist(), work.parents.tolist()
        last: dict[int, int] = {}  # by context: the last token kept
        for index in indices:
            if not 0 <= index < len(work.cells):
                raise PassError(f"token {index} is kept, not between 0 and {len(work.cells) - 1}")
            context, parent = contexts[index], parents[index]
            self._lists[context]
            before = last.get(context, ROOT)
            if parent != before:
                raise PassError(
                    f"token {index} is kept after {_named(before)}, but follows {_named(parent)}",
                    fix="keep a path from the context's last cell on",
                )
            last[context] = index
        self._end(waiting.key, indices)

    def _end(self, key: object, kept: Sequence[int]) -> None:
        work, chosen = self._open.pop(key), np.array(kept, np.int64)
        self._cells.append(work.rows[chosen], work.depths[chosen], work.cells[chosen])
        left = np.ones(len(work.cells), bool)
        left[chosen] = False
        for context in work.distinct:
            self._waits.pop(context, None)
            if context not in self._lists:  # closed meanwhile: its cells went with it
                left &= work.contexts != context
        self._cells.pool.release(work.cells[left])

    def _end_dropped(self) -> None:
        while self._dropped:
            key = self._dropped.popleft()
            if key in self._open:
                self._end(key, ())

    def _idle(self, context: int) -> int:
        """The row of a context that is open and waits for nothing; else PassError."""
        row = self._lists[context]
        if context in self._waits:
            raise PassError(f"context {context} waits for `commit`", fix="commit its pass first")
        return row


def check_sources(sources: Sequence[Sequence[int]], *, longest: int, words: int) -> None:
    """Refuses a source that is empty, longer than `longest` tokens, or holds a word not below `words`."""
    for i, source in enumerate(sources):
        if not 0 < len(source) <= longest:
            raise PassError(f"source {i} has {len(source)} tokens, not between 1 and {longest}")
        for word in source:
            if not 0 <= word < words:
                raise PassError(f"source {i} holds word {word}, not between 0 and {words - 1}")


def _check_arrays(work: Pass) -> int:
    """N, if all arrays of a pass are [N] int32 and N is not 0; else PassError."""
    count = len(work.tokens)
    if count == 0:
        raise PassError("the pass has no tokens", fix="run no pass")
    for field in fields(Pass):
        check_array(field.name, getattr(work, field.name), np.int32, count)
    return count


def check_array(name: str, array: npt.NDArray[np.generic], dtype: type[np.generic], count: int) -> None:
    """Refuses an array that is not [count] of a type."""
    if array.dtype != dtype or array.shape != (count,):
        wanted = f"{np.dtype(dtype)} [{count}]"
        raise PassError(f"`{name}` is {array.dtype} {list(array.shape)}, not {wanted}")


def _check_range(values: IntArray, name: str, bound: int) -> None:
    wrong = (values < 0) | (values >= bound)
    if wrong.any():
        i = int(wrong.argmax())
        raise PassError(f"token {i} has {name} {values[i]}, not between 0 and {bound - 1}")


def runs(values: IntArray | Cells) -> tuple[Cells, Cells]:
    """Runs of equal neighbours among values [N]: where each begins, and the run of each value."""
    begins = np.empty(len(values), bool)
    begins[:1] = True
    np.not_equal(values[1:], values[:-1], out=begins[1:])
    return begins.nonzero()[0], begins.cumsum() - 1


def _ints(values: Sequence[int] | IntArray) -> list[int]:
    return values.tolist() if isinstance(values, np.ndarray) else [int(value) for value in values]


def _named(token: int) -> str:
    return "the context's last cell" if token == ROOT else f"token {token}"
