"""Unpacks files of text by their first bytes, and refuses those that are no text."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

from nartk.errors import InputFileError, requiring

# Packed files by their first bytes, with what opens them.
_PACKED: dict[bytes, Callable[[IO[bytes]], IO[bytes]]] = {
    b"\x1f\x8b": lambda file: _opened("gzip", file),
    b"BZh": lambda file: _opened("bz2", file),
    b"\xfd7zXZ\0": lambda file: _opened("lzma", file),
    b"\x28\xb5\x2f\xfd": lambda file: _zstd(file),
}
PACKED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
# Files that are no text, by their first bytes; UTF-32 before UTF-16, which begins so too.
_OTHERS = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"PK\x03\x04": "a ZIP archive",  # as the documents of offices are
    b"%PDF-": "a PDF document",
}
_SEEN = 1024  # bytes that are looked at


def suffix_of(name: str) -> str:
    """The suffix of a file's name, before that of a packed file: ``in.tsv.gz`` is TSV."""
    path = Path(name)
    return (path.with_suffix("") if path.suffix.lower() in PACKED_SUFFIXES else path).suffix


def is_packed(file: IO[bytes]) -> bool:
    return _head(file).startswith((*_PACKED,))


def unpacked(file: IO[bytes]) -> IO[bytes]:
    """The text of a file that may be packed by gzip, bzip2, xz or zstd.

    Raises:
        InputFileError: It is packed twice, or its first bytes are those of UTF-16, UTF-32 or of no text.
        MissingDependencyError: It is packed by zstd, and neither Python nor a package unpacks that.
    """
    head = _head(file)
    unpacks = next((opened for begin, opened in _PACKED.items() if head.startswith(begin)), None)
    if unpacks is not None:
        file = unpacks(file)
        if is_packed(file):
            raise InputFileError("is packed twice or more", fix="unpack it until it is packed once")
        head = _head(file)
    what = next((what for begin, what in _OTHERS.items() if head.startswith(begin)), None)
    # Of Latin text in UTF-16, which may have no byte order mark, every second byte is zero.
    few, many = sorted(head[at::2].count(0) * 8 for at in (0, 1))
    if what is None and len(head) >= 4 and few < len(head) < many / 2:
        what = "UTF-16"
    if what is not None:
        fix = "convert it to UTF-8" + (
            f", as with iconv -f {what} -t UTF-8" if what.startswith("UTF") else ""
        )
        raise InputFileError(f"is {what}, not UTF-8", fix=fix)
    return file


def _head(file: IO[bytes]) -> bytes:
    """The first bytes of a file, which are read again."""
    if hasattr(file, "peek"):
        return cast(bytes, file.peek(_SEEN))[:_SEEN]
    head = file.read(_SEEN)
    file.seek(-len(head), io.SEEK_CUR)
    return head


def _opened(module: str, file: IO[bytes]) -> IO[bytes]:
    from importlib import import_module

    opened: IO[bytes] = import_module(module).open(file, "rb")
    return opened


def _zstd(file: IO[bytes]) -> IO[bytes]:
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]  # of Python 3.14

        opened: IO[bytes] = zstd.open(file, "rb")
        return opened
    except ImportError:
        with requiring("a file packed by zstd needs the module {name}, which is not installed", "zstd"):
            import zstandard
    return io.BufferedReader(_ZstdFile(file, zstandard.ZstdDecompressor().decompressobj))


class _ZstdFile(io.RawIOBase):
    """A file of frames of zstd; EOFError where the last one is cut off, which `zstandard` does not tell."""

    def __init__(self, file: IO[bytes], begin: Callable[[], Any]) -> None:
        self._file, self._begin = file, begin
        self._frame: Any = None
        self._packed = self._plain = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._plain:
            data = self._packed or self._file.read(io.DEFAULT_BUFFER_SIZE)
            if not data:
                if self._frame is not None:
                    raise EOFError("cut off")
                return 0
            if self._frame is None:
                self._frame = self._begin()
            self._plain, self._packed = self._frame.decompress(data), b""
            if self._frame.eof:
                self._frame, self._packed = None, self._frame.unused_data
        count = min(len(buffer), len(self._plain))
        buffer[:count], self._plain = self._plain[:count], self._plain[count:]
        return count
