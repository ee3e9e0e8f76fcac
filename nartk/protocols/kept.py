"""Pieces of a recording that are kept where pauses are left out, and their times in the recording."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

_FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Kept:
    """Pieces of a recording that are decoded as if nothing lay between them.

    Attributes:
        groups: Pieces that are decoded together, each a first frame of the recording and the frame behind it;
            in order, and none of them empty.
        frames: Frames of the whole recording.
    """

    groups: tuple[tuple[tuple[int, int], ...], ...]
    frames: int

    @classmethod
    def of_seconds(cls, groups: Sequence[Sequence[tuple[float, float]]], frames: int, rate: float) -> Kept:
        """Those of times, seconds, in a recording of so many frames, `rate` a second."""
        found = []
        for group in groups:
            pieces = ((round(begin * rate), min(round(end * rate), frames)) for begin, end in group)
            found.append(tuple((begin, end) for begin, end in pieces if begin < end))
        return cls(tuple(filter(None, found)), frames)

    @cached_property
    def pieces(self) -> list[tuple[int, int]]:
        return [piece for group in self.groups for piece in group]

    @cached_property
    def _ends(self) -> list[int]:
        """The kept frame behind each piece."""
        return [*accumulate(end - begin for begin, end in self.pieces)]

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @cached_property
    def parts(self) -> list[tuple[int, int]]:
        """The first kept frame of each group, and the one behind it."""
        ends = [*accumulate(sum(end - begin for begin, end in group) for group in self.groups)]
        return [*zip([0, *ends], ends, strict=False)]

    def end_of_part(self, frame: int) -> int:
        """The kept frame behind the group that a kept frame is in."""
        return next((end for _, end in self.parts if frame < end), len(self))

    def original(self, frame: float, *, is_end: bool = False) -> float:
        """The frame of the recording that a kept frame is, with what it has behind its point.

        Where two pieces meet, an end is the first one's and all else the second's.
        """
        if not self._ends:
            return 0.0
        at = (bisect_left if is_end else bisect_right)(self._ends, frame)
        if at == len(self._ends):
            return float(self.pieces[-1][1])
        return self.pieces[at][1] - (self._ends[at] - frame)


class KeptFrames:
    """The kept ones of frames [T,F], which are read when a slice of them is.

    It takes an array's place as `FeatureSource.frames` where no more than slices are read.
    """

    def __init__(self, frames: _FloatArray, kept: Kept) -> None:
        self._frames, self._kept = frames, kept

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, part: slice) -> _FloatArray:
        first, last, step = part.indices(len(self))
        found: list[Any] = [self._frames[0:0]]
        at = 0
        for begin, end in self._kept.pieces:
            behind = at + end - begin
            if at < last and behind > first:
                found.append(self._frames[begin + max(0, first - at) : end - max(0, behind - last)])
            at = behind
        return np.concatenate(found)[::step]
