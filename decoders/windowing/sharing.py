"""Encoded sources that several requests share: a window that is decoded again, or sampled several times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nartk.protocols.passes import IntArray, Pass, PassScorer, Scores, Source, Want
from nartk.protocols.prompts import Prompts
from nartk.protocols.wrapped import WrappedPasses


@dataclass(eq=False)
class _Held:
    """A source, its handle, how many requests read it, and whether its owner may ask for it again."""

    source: Source
    handle: int
    readers: int = 0
    is_kept: bool = True


class SharedSources(WrappedPasses):
    """Implements `PassScorer` around another one: a source is encoded once until `release` is called.

    A source is known by its identity; two that are equal are two.

    Args:
        prompts: Prompts that take the place of the scorer's own.
    """

    def __init__(self, scorer: PassScorer, prompts: Prompts) -> None:
        super().__init__(scorer)
        self.prompts = prompts
        self._by_source: dict[int, _Held] = {}  # by the identity of a source, which is held
        self._by_handle: dict[int, _Held] = {}

    def encode(self, sources: Sequence[Source]) -> IntArray:
        new = {id(each): each for each in sources if id(each) not in self._by_source}
        if new:
            handles = self.scorer.encode([*new.values()]).tolist()
            for (key, source), handle in zip(new.items(), handles, strict=True):
                self._by_source[key] = self._by_handle[handle] = _Held(source, handle)
        found = [self._by_source[id(each)] for each in sources]
        for held in found:
            held.readers += 1
        return np.array([held.handle for held in found], np.int32)

    def free(self, memory: Sequence[int] | IntArray) -> None:
        for handle in memory:
            held = self._by_handle[int(handle)]
            held.readers -= 1
            self._free_unread(held)

    def release(self, source: Source) -> None:
        """Lets a source go as soon as nobody reads it."""
        held = self._by_source.get(id(source))
        if held is not None:
            held.is_kept = False
            self._free_unread(held)

    def release_all(self) -> None:
        """Releases all sources."""
        for held in [*self._by_source.values()]:
            self.release(held.source)

    def _free_unread(self, held: _Held) -> None:
        if not held.readers and not held.is_kept:
            del self._by_source[id(held.source)], self._by_handle[held.handle]
            self.scorer.free([held.handle])

    def run(self, work: Pass, want: Want) -> Scores:
        return self.scorer.run(work, want)

    def commit(self, scores: Scores, kept: Sequence[int] | IntArray) -> None:
        self.scorer.commit(scores, kept)
