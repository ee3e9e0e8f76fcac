"""Contexts on the host: which cells each hypothesis holds, who shares them, and the rules of a pass.

It is the executable specification of the rules in `protocols.passes`, in plain Python: it knows handles and
numbers of cells, not what a cell holds. Scorers that keep their contexts on the host derive from
`Contexts`, and find what a token sees in `PendingPass.visible`.

Symbols: B sources, N tokens of a pass.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from nartk.errors import PassError
from nartk.protocols.passes import ROOT, IntArray, Limits, Pass, Scores

T = TypeVar("T")


class CellPool:
    """Counts the holders of each cell; a cell without holders is handed out again."""

    def __init__(self) -> None:
        self._holders: list[int] = []  # of each cell
        self._free: list[int] = []

    @property
    def size(self) -> int:
        """Cells handed out at any time: all cells are below."""
        return len(self._holders)

    @property
    def in_use(self) -> int:
        """Cells with a holder."""
        return len(self._holders) - len(self._free)

    def take(self, count: int) -> list[int]:
        """Hands out cells that nobody holds, each with one holder."""
        reused = [self._free.pop() for _ in range(min(count, len(self._free)))]
        for cell in reused:
            self._holders[cell] = 1
        new = range(self.size, self.size + count - len(reused))
        self._holders.extend(1 for _ in new)
        return [*reused, *new]

    def share(self, cells: Iterable[int]) -> None:
        """Adds a holder to each cell."""
        for cell in cells:
            self._holders[cell] += 1

    def release(self, cells: Iterable[int]) -> None:
        """Removes a holder from each cell."""
        for cell in cells:
            self._holders[cell] -= 1
            if self._holders[cell] == 0:
                self._free.append(cell)


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
        cells: Cell of each token, N different ones.
        visible: Cells that each token sees, in order: its context's, those of its parents in the pass, and
            its own, which is the last.
    """

    def __init__(self, cells: list[int], visible: list[list[int]]) -> None:
        self.cells = cells
        self.visible = visible
        self.key = object()  # not the id of this, which another one may get afterwards


@dataclass(frozen=True)
class _Open:
    """Tokens of a pass that waits, as `Contexts` keeps them; only the caller refers to the `PendingPass`."""

    contexts: list[int]
    parents: list[int]
    cells: list[int]


class Contexts:
    """Lists of cells by handle, and the passes that wait. All rules are checked before anything changes.

    Base of scorers whose contexts live on the host: all of `PassScorer` but `encode`, `free` and
    `run`, as it says.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._pool = CellPool()
        self._lists: Handles[list[int]] = Handles("context")
        self._open: dict[object, _Open] = {}  # passes that wait, by the key of their `PendingPass`
        self._waits: dict[int, object] = {}  # by context: the pass that it waits for
        # Keys of passes whose `PendingPass` is gone. The collector may run in the middle of any method, which
        # therefore looks here when it begins.
        self._dropped: deque[object] = deque()

    @property
    def size(self) -> int:
        """Cells handed out at any time: all cells are below."""
        return self._pool.size

    @property
    def cells_in_use(self) -> int:
        self._end_dropped()
        return self._pool.in_use

    def cells(self, context: int) -> list[int]:
        """A copy of the cells of a context."""
        return [*self._lists[context]]

    def open(self, count: int) -> IntArray:
        if count < 0:
            raise PassError(f"cannot open {count} contexts")
        return self._lists.add([] for _ in range(count))

    def fork(self, contexts: Sequence[int] | IntArray) -> IntArray:
        self._end_dropped()
        lists = [self._idle(context) for context in _ints(contexts)]
        for cells in lists:
            self._pool.share(cells)
        return self._lists.add([*cells] for cells in lists)

    def truncate(self, contexts: Sequence[int] | IntArray, lengths: Sequence[int] | IntArray) -> None:
        self._end_dropped()
        handles, kept = self._lists.distinct(contexts), _ints(lengths)
        if len(handles) != len(kept):
            raise PassError(f"{len(handles)} contexts have {len(kept)} lengths")
        for handle, length in zip(handles, kept, strict=True):
            if not 0 <= length <= len(self._idle(handle)):
                held = len(self._lists[handle])
                raise PassError(f"context {handle} of {held} cells cannot keep {length}")
        for handle, length in zip(handles, kept, strict=True):
            cells = self._lists[handle]
            self._pool.release(cells[length:])
            del cells[length:]

    def close(self, contexts: Sequence[int] | IntArray) -> None:
        self._end_dropped()
        handles = self._lists.distinct(contexts)
        for handle, cells in zip(handles, self._lists.remove(handles), strict=True):
            self._pool.release(cells)
            key = self._waits.pop(handle, None)
            if key is not None:
                work = self._open[key]
                pairs = zip(work.contexts, work.cells, strict=True)
                self._pool.release(cell for context, cell in pairs if context == handle)

    def begin(self, work: Pass, memories: Handles[T]) -> PendingPass:
        """Checks a pass and hands out a cell for each of its tokens; its contexts wait for `commit`.

        Raises:
            PassError: The pass breaks a rule. Nothing has then changed.
        """
        self._end_dropped()
        count = _check_arrays(work)
        _check_range(work.tokens, "word", self.limits.words)
        _check_range(work.positions, "position", self.limits.target)
        for memory in sorted(set(_ints(work.memory))):
            memories[memory]
        contexts, parents = _ints(work.contexts), _ints(work.parents)
        for i, (context, parent) in enumerate(zip(contexts, parents, strict=True)):
            self._idle(context)
            if not (parent == ROOT or 0 <= parent < i):
                raise PassError(f"token {i} follows token {parent} of the pass, which is no earlier one")
            if parent != ROOT and contexts[parent] != context:
                raise PassError(
                    f"token {i} of context {context} follows token {parent} of context {contexts[parent]}"
                )

        cells = self._pool.take(count)
        visible: list[list[int]] = []
        for cell, context, parent in zip(cells, contexts, parents, strict=True):
            before = self._lists[context] if parent == ROOT else visible[parent]
            visible.append([*before, cell])
        waiting = PendingPass(cells, visible)
        weakref.finalize(waiting, self._dropped.append, waiting.key).atexit = False
        self._open[waiting.key] = _Open(contexts, parents, cells)
        self._waits.update(dict.fromkeys(contexts, waiting.key))
        return waiting

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
        last: dict[int, int] = {}  # by context: the last token kept
        for index in indices:
            if not 0 <= index < len(work.cells):
                raise PassError(f"token {index} is kept, not between 0 and {len(work.cells) - 1}")
            context, parent = work.contexts[index], work.parents[index]
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
        work = self._open.pop(key)
        for index in kept:
            self._lists[work.contexts[index]].append(work.cells[index])
        left = set(range(len(work.cells))).difference(kept)
        # Those of a context that was closed meanwhile went with it.
        self._pool.release(work.cells[i] for i in sorted(left) if work.contexts[i] in self._lists)
        for context in work.contexts:
            self._waits.pop(context, None)

    def _end_dropped(self) -> None:
        while self._dropped:
            key = self._dropped.popleft()
            if key in self._open:
                self._end(key, ())

    def _idle(self, context: int) -> list[int]:
        """The cells of a context that is open and waits for nothing; else PassError."""
        cells = self._lists[context]
        if context in self._waits:
            raise PassError(f"context {context} waits for `commit`", fix="commit its pass first")
        return cells


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
    for i, value in enumerate(_ints(values)):
        if not 0 <= value < bound:
            raise PassError(f"token {i} has {name} {value}, not between 0 and {bound - 1}")


def _ints(values: Sequence[int] | IntArray) -> list[int]:
    return values.tolist() if isinstance(values, np.ndarray) else [int(value) for value in values]


def _named(token: int) -> str:
    return "the context's last cell" if token == ROOT else f"token {token}"
