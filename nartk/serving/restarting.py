"""Starts runs again in smaller batches where memory runs out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from nartk.errors import OutOfMemoryError, named
from nartk.protocols.hypothesis import Hypothesis, Request
from nartk.protocols.runs import Batching, Ended, Run


class RestartingRun:
    """Implements `nartk.protocols.runs.Run` with a run inside, which is begun anew where memory runs out.

    Then the batch is halved, and the requests that have not ended start again.

    Args:
        begin: Begins a run.
    """

    def __init__(self, begin: Callable[[Batching], Run], batching: Batching) -> None:
        self._begin, self._batching = begin, batching
        self._inner = begin(batching)
        self._left: dict[Request, None] = {}

    def __len__(self) -> int:
        return len(self._left)

    def admit(self, request: Request) -> None:
        self._inner.admit(request)
        self._left[request] = None

    def step(self) -> Sequence[Ended]:
        """Takes a step of the run inside.

        Raises:
            OutOfMemoryError: Memory runs out with a single sentence in the batch.
        """
        try:
            found = self._inner.step()
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            if self._batching.size == 1:
                raise OutOfMemoryError(
                    "memory ran out with one sentence in the batch", fix=f"lower {named('max_len')}"
                ) from error
            self._inner.close()
            self._batching = replace(self._batching, size=self._batching.size // 2)
            self._inner = self._begin(self._batching)
            for request in self._left:
                self._inner.admit(request)
            return []
        for request, _ in found:
            del self._left[request]
        return found

    def so_far(self, request: Request) -> Hypothesis:
        return self._inner.so_far(request)

    def drop(self, request: Request) -> None:
        if request in self._left:
            del self._left[request]
            self._inner.drop(request)

    def close(self) -> None:
        self._left.clear()
        self._inner.close()


def _is_out_of_memory(error: BaseException) -> bool:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)
