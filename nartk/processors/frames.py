"""Features of long recordings, which lie in a file until they are read.

Symbols: T frames, F features of a frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from tempfile import TemporaryFile

import numpy as np

from nartk.protocols.passes import FloatArray


class FrameFile:
    """Frames [T,F] fp32 in a file without a name, of which a slice reads its own.

    It takes an array's place as `FeatureSource.frames` where no more than slices are read, so that memory
    does not grow with the recording: pages of a mapped file would count as the process's own.

    Args:
        blocks: The frames, in blocks [t,F].
        width: F.
        finish: Transforms frames when they are read, if that takes all of them to be known.
    """

    def __init__(
        self,
        blocks: Iterable[FloatArray],
        width: int,
        *,
        finish: Callable[[FloatArray], FloatArray] | None = None,
    ) -> None:
        self._file = TemporaryFile()  # noqa: SIM115
        self._width, self._finish = width, finish
        self._count = 0
        for frames in blocks:
            self._file.write(np.ascontiguousarray(frames, np.float32).data)
            self._count += len(frames)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, part: slice) -> FloatArray:
        begin, end, step = part.indices(self._count)
        size = 4 * self._width  # bytes of a frame
        self._file.seek(begin * size)
        data = self._file.read(max(0, end - begin) * size)
        found = np.frombuffer(data, np.float32).reshape(-1, self._width)[::step]
        return found if self._finish is None else self._finish(found)

    def __del__(self) -> None:
        self._file.close()


class OverlappingFrames:
    """Frames of a recording in buffers that overlap, each with its own features, in a file.

    A slice reads the recording's frames, each of the buffer whose part it is, as of an array [T,F]; its times
    are the recording's. `buffer` reads a buffer as a model does, silence before and behind the recording too.

    Args:
        buffers: Features of each buffer, [size,F] all.
        width: F.
        before: Frames of a buffer before its own part.
        step: Frames of that part, and from one buffer to the next.

    Attributes:
        count: T, frames of the recording; to be set once the buffers were read.
        buffers: Number of buffers.
    """

    def __init__(self, buffers: Iterable[FloatArray], width: int, *, before: int, step: int) -> None:
        self._before, self._step, self._size = before, step, 0
        self.count = self.buffers = 0
        self._file = FrameFile(self._counted(buffers), width)

    def _counted(self, buffers: Iterable[FloatArray]) -> Iterator[FloatArray]:
        for frames in buffers:
            self._size = len(frames)
            self.buffers += 1
            yield frames

    def buffer(self, number: int) -> FloatArray:
        """The frames [size,F] of a buffer."""
        return self._file[number * self._size : (number + 1) * self._size]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, part: slice) -> FloatArray:
        begin, end, step = part.indices(self.count)
        found = [self._file[0:0]]
        while begin < end:
            number = min(begin // self._step, self.buffers - 1)
            left = self._step - (begin - number * self._step) if number + 1 < self.buffers else end - begin
            first = number * self._size + self._before + begin - number * self._step
            size = min(left, end - begin)
            found.append(self._file[first : first + size])
            begin += size
        return np.concatenate(found)[::step]
