"""All file writing goes through here, so that a crash leaves the old file or the new one, never half."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from nartk.errors import OutputError


@contextlib.contextmanager
def writing(path: Path, *, binary: bool = False) -> Iterator[IO]:
    """Opens a temporary file beside `path`; it takes the name `path` when the block ends well.

    A link stays a link, and a device or a pipe is written to directly.

    Raises:
        OutputError: The folder is missing, not writable, or the disk is full.
    """
    mode, encoding = ("wb", None) if binary else ("w", "utf-8")
    if path.exists() and not path.is_file():
        try:
            with path.open(mode, encoding=encoding) as file:
                yield file
        except OSError as error:
            raise _output_error(path, error) from error
        return
    target = Path(os.path.realpath(path))
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise _output_error(path, error) from error
    try:
        with os.fdopen(handle, mode, encoding=encoding) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(name)
        if isinstance(error, OSError):
            raise _output_error(path, error) from error
        raise


def _output_error(path: Path, error: OSError) -> OutputError:
    return OutputError(
        f"cannot write: {error.strerror}", fix="choose a writable place with space", where=str(path)
    )
