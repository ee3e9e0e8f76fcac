"""The memory that a process holds, and the most that it held, where Linux tells it.

Not `ru_maxrss`: it never falls, and a child begins with its parent's.
"""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak() -> int:
    """KiB since the process began, or since `rising_at_most` did."""
    found = re.search(r"VmHWM:\s+(\d+) kB", STATUS.read_text())
    assert found is not None
    return int(found[1])


def resident() -> int:
    """KiB that the process holds now, without what was freed and is kept for later."""
    trim()
    found = re.search(r"VmRSS:\s+(\d+) kB", STATUS.read_text())
    assert found is not None
    return int(found[1])


def trim() -> None:
    """Gives memory that was freed back to the system."""
    gc.collect()
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if give_back is not None:
        give_back(0)


@contextmanager
def rising_at_most(kib: int) -> Iterator[None]:
    """Asserts that what runs within holds no more than that on top of what was held before."""
    if not CLEAR.exists():
        yield
        return
    trim()  # what was freed before would be filled again, and not be seen to rise
    CLEAR.write_text("5")
    before = peak()
    try:
        yield
    finally:
        assert peak() - before < kib
