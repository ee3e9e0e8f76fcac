"""Features of long recordings, which lie in a file until they are read.

Symbols: T frames, F features of a frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
