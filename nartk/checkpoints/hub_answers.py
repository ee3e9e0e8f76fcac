"""Bounds on what a hub's answers may cost while `huggingface_hub` downloads: time, memory, and trust.

That library repeats what fails for a while, and waits as long as an answer takes or asks it to. It compares
sizes and not hashes, and keeps a list of files for good. Here an answer that comes too slowly, is too long or
asks for too long a wait is an error at once. What was downloaded is compared with its hash, and after an
error no list of files is kept. Of versions before 1.0, which speak through `requests`, hashes are compared.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

_SLOWEST = 100  # bytes a second, over HF_HUB_DOWNLOAD_TIMEOUT seconds
_LONGEST_WAIT = 60  # seconds that an answer may ask for; without, the library repeats for half a minute
_MOST_RESPONSES = 1000  # of one model, which has some tens of files
_MOST_LISTED = 50_000_000  # bytes of a list of files
_BLOCK = 1 << 20


class BadAnswerError(OSError):
    """An answer of the hub that is refused."""


@contextmanager
def bounded_responses() -> Iterator[None]:
    """Watches the answers that the library's client gets within the block.

    Raises:
        BadAnswerError: One is slower than `_SLOWEST`, asks to wait for more than `_LONGEST_WAIT`, lists more
            than `_MOST_LISTED` bytes, or is one of more than `_MOST_RESPONSES`.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]  # given, though not named

    hooks: dict[str, list[Callable[[Any], None]]] | None = getattr(get_session(), "event_hooks", None)
    if hooks is None:
        yield
        return
    seconds = constants.HF_HUB_DOWNLOAD_TIMEOUT
    count = 0

    def limit(request: Any) -> None:
        limits = request.extensions.get("timeout", {})
        request.extensions["timeout"] = {
            each: seconds if limits.get(each) is None else limits[each]
            for each in ("connect", "read", "write", "pool")
        }

    def answered(response: Any) -> None:
        nonlocal count
        count += 1
        if count > _MOST_RESPONSES:
            raise BadAnswerError(f"more than {_MOST_RESPONSES} answers")
        _refuse_long_wait(response)
        listed = "/api/" in response.request.url.path
        response.iter_raw = _steady(response.iter_raw, seconds, _MOST_LISTED if listed else None)

    added = {"request": limit, "response": answered}
    for name, hook in added.items():
        hooks[name].append(hook)
    try:
        yield
    finally:
        for name, hook in added.items():
            hooks[name].remove(hook)


def _refuse_long_wait(response: Any) -> None:
    asked = response.headers.get("Retry-After", "")
    if response.status_code >= 400 and asked.isdecimal() and int(asked) > _LONGEST_WAIT:
        raise BadAnswerError(f"it answers {response.status_code} and asks to wait {int(asked)} s")


def _steady(
    chunks: Callable[..., Iterator[bytes]], seconds: float, most: int | None
) -> Callable[..., Iterator[bytes]]:
    """Same chunks of an answer's body; a BadAnswerError if they come too slowly, or are too many."""

    def watched(*args: Any, **options: Any) -> Iterator[bytes]:
        began, since, total = monotonic(), 0, 0
        for chunk in chunks(*args, **options):
            since, total = since + len(chunk), total + len(chunk)
            if most is not None and total > most:
                raise BadAnswerError(f"a list of files of more than {most} bytes")
            if monotonic() - began > seconds:
                if since < _SLOWEST * seconds:
                    raise BadAnswerError(
                        f"{since} bytes came in {seconds} s; at least {_SLOWEST} a second do"
                    )
                began, since = monotonic(), 0
            yield chunk

    return watched


class Downloads:
    """Files that one download adds to the cache's folder of a model.

    Args:
        model: Name of the model.
    """

    def __init__(self, model: str) -> None:
        from huggingface_hub import constants

        self._folder = Path(constants.HF_HUB_CACHE) / f"models--{model.replace('/', '--')}"
        self._before = {path.resolve() for name in ("blobs", "trees") for path in self._files(name)}

    def _files(self, name: str) -> list[Path]:
        return [*(self._folder / name).glob("*")]

    def forget_lists(self) -> None:
        """Takes the new lists of files out of the cache, which the library would not ask for again."""
        kept: dict[str, Any] = getattr(
            sys.modules.get("huggingface_hub._tree_cache"), "_IN_MEMORY_TREE_CACHE", {}
        )
        for path in self._files("trees"):
            if path.resolve() not in self._before:
                path.unlink(missing_ok=True)
                kept.pop(str(path), None)

    def check(self, snapshot: Path) -> None:
        """Compares the new files of a snapshot with the hashes that the hub named; others leave the cache.

        Raises:
            BadAnswerError: One has another hash.
        """
        for link in snapshot.glob("*"):
            blob = link.resolve()
            if blob.parent.name == "blobs" and blob not in self._before and not is_named_by_hash(blob):
                blob.unlink()
                link.unlink(missing_ok=True)
                raise BadAnswerError(f"{link.name} is not what its hash names")


def is_named_by_hash(path: Path) -> bool:
    """Tells whether a file has the hash of its name: SHA-256, git's SHA-1, or a mirror's; True of others."""
    head = b"blob %d\0" % path.stat().st_size
    digests = {
        64: [hashlib.sha256()],
        40: [hashlib.sha1(begin, usedforsecurity=False) for begin in (head, b"")],
    }.get(len(path.name), [])
    with path.open("rb") as file:
        while digests and (block := file.read(_BLOCK)):
            for digest in digests:
                digest.update(block)
    return not digests or path.name in [digest.hexdigest() for digest in digests]
