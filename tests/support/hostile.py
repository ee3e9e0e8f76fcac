"""Changes that make folders of models hostile, and what refusing these may cost."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import struct
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nartk.errors import NartkError
from support.malicious import Call
from support.memory import rising_at_most

LONGEST, MOST = 1.0, 200_000  # seconds of the CPU, KiB
DEEP = b"[" * 100_000
Change = Callable[[Path], object]


def written(name: str, raw: bytes | Callable[[bytes], bytes]) -> Change:
    """The file has those bytes, or what is made of its own."""

    def change(folder: Path) -> None:
        path = folder / name
        path.write_bytes(raw(path.read_bytes()) if callable(raw) else raw)

    return change


def elsewhere(name: str, place: Callable[[Path, Path], object]) -> Change:
    """place(path, canary) takes the file's place; the canary is beside the folder."""

    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        place(folder / name, folder.parent / "canary")

    return change


def zipped(path: Path, canary: Path) -> None:
    """What torch.save writes, whose pickle makes the canary."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Call(os.mkdir, str(canary))))


def pickled(path: Path, canary: Path) -> None:
    path.write_bytes(pickle.dumps(Call(os.mkdir, str(canary))))


def patched(at: int, form: str, value: int) -> Callable[[bytes], bytes]:
    """A number somewhere in the file."""

    def made(raw: bytes) -> bytes:
        return raw[:at] + struct.pack(form, value) + raw[at + struct.calcsize(form) :]

    return made


def tree(folder: Path) -> Iterator[tuple[str, float]]:
    return ((str(path), path.lstat().st_mtime) for path in sorted(folder.rglob("*")))


def require_refused(
    source: Path, folder: Path, change: Change, read: Callable[[Path], object], convert: Callable[[Path], int]
) -> None:
    """Asserts that a changed copy of a folder is refused within the bounds, and nothing is written.

    Args:
        folder: Place of the copy, in a folder of its own.
        read: Reads a folder; it reads the unchanged one.
        convert: Runs the command on a folder, and gives its exit code.
    """
    shutil.copytree(source, folder, symlinks=True)
    read(folder)  # as it is, it is read; and what is imported once is
    change(folder)
    before = [*tree(folder.parent)]
    require_soon(lambda: read(folder))
    assert convert(folder) != 0
    assert [*tree(folder.parent)] == before


def require_soon(run: Callable[[], object]) -> None:
    """Asserts that a call raises a named error, soon and without much memory.

    What the process holds already does not count: memory is measured outside of the time, and the collector
    leaves older objects alone. Of three tries the fastest counts: other work makes others slower.
    """
    took = []

    def timed() -> None:
        start = time.process_time()
        try:
            run()
        finally:
            took.append(time.process_time() - start)

    gc.collect()
    gc.freeze()
    try:
        while len(took) < 3 and min(took, default=LONGEST) >= LONGEST:
            with rising_at_most(MOST), pytest.raises(NartkError) as refused:
                timed()
            assert str(refused.value)
    finally:
        gc.unfreeze()
    assert min(took) < LONGEST
