"""The most memory that a process held, where Linux tells it.

Not `ru_maxrss`: it never falls, and a child begins with its parent's.
"""

from __future__ import annotations

import ctypes
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


@contextmanager
def rising_at_most(kib: int) -> Iterator[None]:
    """Asserts that what runs within holds no more than that on top of what was held before."""
    if not CLEAR.exists():
        yield
        return
    # What was freed before would be filled again, and not be seen to rise.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
    CLEAR.write_text("5")
    before = peak()
    try:
        yield
    finally:
        assert peak() - before < kib
