"""A journal: records that a run which is killed has finished, each whole or not there."""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO

from nartk.errors import OutputError, ResumeMismatchError
from nartk.files import output_error

_RECORD = struct.Struct("<II")  # bytes of the payload, and the CRC-32 of the payload


class Journal:
    """A file of records that is only ever appended to: a run that is killed goes on after its last record.

    The first record is the header, which says what the others belong to. A record that is cut off or
    damaged, as a crash leaves it, ends the file: it and what follows it are done again.

    Attributes:
        count: Records after the header.
    """

    def __init__(self, path: Path, file: IO[bytes], count: int) -> None:
        self.path, self.count = path, count
        self._file = file

    @classmethod
    @contextlib.contextmanager
    def open(cls, path: Path, header: bytes) -> Iterator[Journal]:
        """Opens a journal, or begins one.

        Raises:
            ResumeMismatchError: It has another header, or is no journal. Nothing has been written.
            OutputError: It cannot be written, or another process writes to it.
        """
        with contextlib.ExitStack() as stack:
            try:
                file = _open_locked(path, stack)
                count, end = -1, 0
                for payload, after in _read_records(file):
                    if count < 0 and payload != header:
                        raise ResumeMismatchError("the journal belongs to another run", where=str(path))
                    count, end = count + 1, after
                if count < 0:
                    _require_cut(path, file, _record(header))
                file.truncate(end)
            except OSError as error:
                raise output_error(path, error) from error
            journal = cls(path, file, count)
            if count < 0:
                journal.append(header)
            yield journal

    @staticmethod
    def header(path: Path) -> bytes | None:
        """The header of a journal, which is only read; None where it was killed before it had one.

        Raises:
            OutputError: It cannot be read.
        """
        try:
            with path.open("rb") as file:
                return next((payload for payload, _ in _read_records(file)), None)
        except OSError as error:
            raise output_error(path, error) from error

    def append(self, payload: bytes, *, sync: bool = True) -> None:
        """Adds a record of one byte or more; raises OutputError.

        Args:
            sync: True if it is on the disk when this returns; else it survives the process, not a loss of
                power.
        """
        rest = _record(payload)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            if sync:
                os.fsync(self._file.fileno())
        except OSError as error:
            raise output_error(self.path, error) from error
        self.count += 1

    def remove(self) -> None:
        """Removes the file, which stays locked until it is closed; raises OutputError."""
        try:
            self.path.unlink()
        except OSError as error:
            raise output_error(self.path, error) from error

    def records(self) -> Iterator[bytes]:
        """All records after the header, in their order."""
        with self.path.open("rb") as file:
            yield from (payload for payload, _ in islice(_read_records(file), 1, None))


def _record(payload: bytes) -> bytes:
    return _RECORD.pack(len(payload), zlib.crc32(payload)) + payload


def _require_cut(path: Path, file: IO[bytes], header: bytes) -> None:
    """Refuses a file without a header that is not the beginning of this one; raises ResumeMismatchError."""
    file.seek(0)
    found = file.read(len(header) + 1).rstrip(b"\0")  # zeros: as a file system may leave it
    if not header.startswith(found):
        raise ResumeMismatchError("no journal", fix="move it away, or choose another name", where=str(path))


def _read_records(file: IO[bytes]) -> Iterator[tuple[bytes, int]]:
    """The whole records of a journal, each with the place where it ends."""
    size = os.fstat(file.fileno()).st_size
    while len(head := file.read(_RECORD.size)) == _RECORD.size:
        length, checksum = _RECORD.unpack(head)
        # No record is empty: zeros, which a file system may leave at the end, would look like such ones.
        if not 0 < length <= size - file.tell():
            return
        payload = file.read(length)
        if zlib.crc32(payload) != checksum:
            return
        yield payload, file.tell()


def _open_locked(path: Path, stack: contextlib.ExitStack) -> IO[bytes]:
    """Opens or makes a file, without a buffer, that no other process writes to; raises OSError, OutputError.

    One that its last writer has removed meanwhile is not taken: what has its name now is.
    """
    while True:
        file = stack.enter_context(path.open("a+b", buffering=0))
        _lock(path, file)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(file.fileno())):
                file.seek(0)
                return file


def _lock(path: Path, file: IO[bytes]) -> None:
    """Keeps a second process out until the file is closed, on systems that can."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OutputError(
            "another run writes to it", fix="let that one finish, or choose another output", where=str(path)
        ) from None
