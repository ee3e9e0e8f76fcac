"""Files. All writing goes through here, so that a crash leaves the old file or the new one, never half."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NoReturn, TypeAlias

from nartk.errors import CheckpointError, InputFileError, OutputError, UsageError
from nartk.unpacking import unpacked

STDIN = "-"  # as the name of a file; of an output, stdout
BOM = b"\xef\xbb\xbf"  # a byte order mark, which is no text
JsonObject: TypeAlias = dict[str, Any]  # what json reads and writes as one
MOST_LINE = 1 << 24  # bytes of a line; a longer one is no sentence
MOST_JSON = 1_000_000  # bytes of a file of settings
_MOST_KEPT = 500_000_000  # bytes of a JSON file
_WRITTEN: set[Path] = set()  # what is `claimed`


@contextlib.contextmanager
def reading(name: str) -> Iterator[IO[bytes]]:
    """Opens a file of text, or stdin, and unpacks it (`nartk.unpacking`).

    Raises:
        InputFileError: It cannot be read, is damaged, or is no UTF-8 from its first bytes on.
        MissingDependencyError: A package is missing that unpacks it.
    """
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if name == STDIN else open(name, "rb") as file:
            yield unpacked(file)
    except InputFileError as error:
        error.where = error.where or shown(name)
        raise
    except _damage() as error:
        what = getattr(error, "strerror", None) or f"damaged: {error}"
        raise InputFileError(f"cannot read: {what}", fix="give a readable file", where=shown(name)) from error


def _damage() -> tuple[type[Exception], ...]:
    """Exceptions that unpacking a damaged file raises."""
    errors: list[type[Exception]] = [OSError, EOFError]
    for module, name in (("lzma", "LZMAError"), ("zlib", "error"), ("zstandard", "ZstdError")):
        if (loaded := sys.modules.get(module)) is not None:  # else nothing has raised it
            errors.append(getattr(loaded, name))
    return (*errors,)


def raw_lines(file: IO[bytes], most: int = MOST_LINE) -> Iterator[tuple[bytes, bool]]:
    """The lines of a file without their ends, each with whether it is whole.

    A line ends at a line feed and nowhere else. A carriage return before it goes with it, and so does a byte
    order mark at the start of the file.

    Args:
        most: Bytes of a line; what a longer one has beyond is skipped unread.
    """
    start = BOM
    while raw := file.readline(most + 1):
        whole = len(raw) <= most or raw.endswith(b"\n")
        rest = raw
        while not rest.endswith(b"\n") and (rest := file.readline(most)):
            pass
        yield raw.removeprefix(start).removesuffix(b"\n").removesuffix(b"\r"), whole
        start = b""


def first_bytes(name: str, most: int) -> bytes:
    """The first bytes of a file as it is, or of what stdin has brought, where they stay; of a device none."""
    try:
        if name == STDIN:
            peek = getattr(sys.stdin.buffer, "peek", None)
            return b"" if peek is None or sys.stdin.buffer.isatty() else bytes(peek(most)[:most])
        if not os.path.isfile(name):
            return b""
        with open(name, "rb") as file:
            return file.read(most)
    except OSError:  # which reading it reports
        return b""


def read_lines(name: str) -> list[str]:
    """Lines of a file or of stdin, without their ends, as `raw_lines` has them.

    Raises:
        InputFileError: It cannot be read or is not UTF-8.
    """
    found = []
    with reading(name) as file:
        for number, (raw, whole) in enumerate(raw_lines(file), start=1):
            if not whole:
                raise InputFileError(
                    f"a line of more than {MOST_LINE} bytes", fix="split it", where=f"{shown(name)}:{number}"
                )
            try:
                found.append(raw.decode())
            except UnicodeDecodeError as error:
                raise not_utf8(shown(name), number, raw[error.start]) from error
    return found


def not_utf8(name: str, line: int, byte: int) -> InputFileError:
    """The error of a byte in a line, counted from 1, of a file that should be UTF-8."""
    return InputFileError(
        f"byte {byte:#x} is not UTF-8", fix="convert the file to UTF-8", where=f"{name}:{line}"
    )


def shown(name: str) -> str:
    """A file as errors name it."""
    return "stdin" if name == STDIN else name


def require_storable(path: Path, *, fix: str) -> None:
    """Raises OutputError, with what can be done, where a file cannot be written to its folder."""
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise OutputError(f"cannot write: {error.strerror}", fix=fix, where=str(path)) from error


@contextlib.contextmanager
def writing(path: Path, *, binary: bool = False) -> Iterator[IO[Any]]:
    """Opens a temporary file beside `path`; it takes the name `path` when the block ends well.

    A link stays a link, and a device or a pipe is written to directly.

    Raises:
        OutputError: The folder is missing, not writable, or the disk is full.
        UsageError: The file is being written already, and would be lost.
    """
    mode, encoding = ("wb", None) if binary else ("w", "utf-8")
    if os.path.exists(path) and not os.path.isfile(path):
        try:
            with path.open(mode, encoding=encoding) as file:
                yield file
        except OSError as error:
            raise output_error(path, error) from error
        return
    import tempfile  # which takes 10 ms: few write files

    target = Path(os.path.realpath(path))
    with claimed(target, str(path)):
        try:
            handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        except OSError as error:
            raise output_error(path, error) from error
        try:
            with os.fdopen(handle, mode, encoding=encoding) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, target)
            _sync_folder(target.parent)
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.unlink(name)
            if isinstance(error, OSError):
                raise output_error(path, error) from error
            raise


def _sync_folder(folder: Path) -> None:
    """Has the names of a folder's files on the disk, where the system can; raises OSError."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a folder that may be written to and not read
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that keep no order of names
            raise
    finally:
        os.close(handle)


@contextlib.contextmanager
def claimed(target: Path, name: str) -> Iterator[None]:
    """Keeps a file, or stdout, from a second output; raises UsageError, which names it so."""
    if target in _WRITTEN:
        raise UsageError(f"two outputs go to {name!r}", fix="name two files")
    _WRITTEN.add(target)
    try:
        yield
    finally:
        _WRITTEN.discard(target)


def write_json(file: IO[str], values: Any, **settings: Any) -> None:
    """Writes JSON for people, which ends with a line's end; `settings` are those of `json.dump`."""
    json.dump(values, file, indent=2, **settings)
    file.write("\n")


@contextlib.contextmanager
def writing_folder(path: Path, *, known: Collection[str]) -> Iterator[Path]:
    """Makes a temporary folder beside `path`; it takes the place of `path` when the block ends well.

    Args:
        known: Names of the files that go with an older folder; one that holds another is not replaced.

    Raises:
        OutputError: `path` is no folder, holds another file, or nothing can be written there.
    """
    import shutil
    import tempfile

    target = Path(os.path.realpath(path))
    made = None
    try:
        if os.path.lexists(target):
            for name in sorted(os.listdir(target)):
                if name not in known or not os.path.isfile(target / name):
                    fix = "name another folder, or remove it yourself"
                    raise OutputError(f"holds {name!r}, which would be lost", fix=fix, where=str(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
        yield made
        os.chmod(made, 0o777 & ~_umask())
        for file in made.iterdir():  # some libraries write files that nobody else can read
            os.chmod(file, 0o666 & ~_umask())
        if not target.exists():
            os.rename(made, target)
            return
        older = made.with_name(f"{made.name}.old")
        os.rename(target, older)
        try:
            os.rename(made, target)
        except BaseException:
            os.rename(older, target)
            raise
        shutil.rmtree(older, ignore_errors=True)
    except OSError as error:
        raise output_error(path, error) from error
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)


def make_folder(path: Path) -> None:
    """Makes a folder that files can be written to; raises OutputError."""
    import tempfile

    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise output_error(path, error) from error


def read_file(path: Path, *, most: int) -> bytes:
    """The bytes of a file of at most so many.

    Raises:
        CheckpointError: It cannot be read, or is larger.
    """
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise CheckpointError(f"cannot read: {error.strerror}", where=str(path)) from error
    if len(data) > most:
        raise CheckpointError(f"larger than {most} bytes", where=str(path))
    return data


def sha256(path: Path) -> str:
    """The SHA-256 of a file in hexadecimal digits; raises CheckpointError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return _digest(iter(lambda: file.read(1 << 20), b""))
    except OSError as error:
        raise CheckpointError(f"cannot read: {error.strerror}", where=str(path)) from error


def _digest(blocks: Iterable[bytes]) -> str:
    import hashlib  # 4 ms, which a command that reads no model saves

    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block)
    return digest.hexdigest()


def parse_json(raw: bytes, path: Path) -> JsonObject:
    """The object in the text of a JSON file; raises CheckpointError."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is no number")

    try:
        found = json.loads(raw.decode("utf-8"), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"not JSON: {error}", where=str(path)) from error
    if not isinstance(found, dict):
        raise CheckpointError("not a JSON object", where=str(path))
    return found


class Folder(os.PathLike[str]):
    """A model folder, each of whose JSON files is read once, when it is first needed.

    All that opens a model shares one of these, and takes it where it takes a path.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._objects: dict[str, JsonObject] = {}
        self._hashes: dict[str, str] = {}
        self._unread: dict[str, bytes] = {}  # JSON files of which only the hash was needed so far

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> Folder:
        """The folder at a path; one that is given stays the same."""
        return path if isinstance(path, Folder) else cls(path)

    def __fspath__(self) -> str:
        return str(self.path)

    __str__ = __fspath__

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def has(self, name: str) -> bool:
        return os.path.isfile(self / name)

    def read(self, name: str, *, most: int) -> bytes:
        """The bytes of a file; raises CheckpointError if it cannot be read, or is larger than `most`."""
        raw = self._unread.pop(name, None)
        if raw is None or len(raw) > most:
            raw = read_file(self / name, most=most)
            self._hashes[name] = _digest([raw])
        return raw

    def json(self, name: str, *, most: int = MOST_JSON) -> JsonObject:
        """The object in a JSON file, which is not to be changed; raises CheckpointError as `read`."""
        if name not in self._objects:
            self._objects[name] = parse_json(self.read(name, most=most), self / name)
        return self._objects[name]

    def optional_json(self, name: str) -> JsonObject | None:
        """Same as `json`; None where there is no such file."""
        return self.json(name) if self.has(name) else None

    def sha256(self, name: str) -> str:
        """The SHA-256 of a file in hexadecimal digits; raises CheckpointError if it cannot be read."""
        if name not in self._hashes and name.endswith(".json"):
            self._unread[name] = self.read(name, most=_MOST_KEPT)
        elif name not in self._hashes:
            self._hashes[name] = sha256(self / name)
        return self._hashes[name]


class PackageFolder(Folder):
    """A folder whose files may lie in one inside of it.

    Args:
        inner: Name of that one.
    """

    def __init__(self, path: str | os.PathLike[str], inner: str) -> None:
        super().__init__(path)
        self.inner = self.path / inner

    def __truediv__(self, name: str) -> Path:
        found = self.inner / name
        return found if found.is_file() else self.path / name


class DescribedFolder(Folder):
    """A folder some of whose JSON files are not there, or say less: objects take their place.

    Args:
        objects: Their contents, by name.
    """

    def __init__(self, path: str | os.PathLike[str], objects: Mapping[str, JsonObject]) -> None:
        super().__init__(path)
        self._described = objects

    def has(self, name: str) -> bool:
        return name in self._described or super().has(name)

    def read(self, name: str, *, most: int) -> bytes:
        if name not in self._described:
            return super().read(name, most=most)
        raw = json.dumps(self._described[name]).encode()
        self._hashes[name] = _digest([raw])
        return raw


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def output_error(path: Path, error: OSError) -> OutputError:
    """The error of a file that the system refuses to write."""
    return OutputError(
        f"cannot write: {error.strerror}", fix="choose a writable place with space", where=str(path)
    )
