"""Checks that a run which goes on where an earlier one stopped has the same settings and inputs."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from nartk.errors import InputFileError, ResumeMismatchError
from nartk.files import JsonObject, reading
from nartk.journal import Journal


def measure_file(name: str, *, least: int = 1) -> JsonObject:
    """The lines of a file and the SHA-256 of its bytes.

    Args:
        least: Fewest lines that it may have, 0 or 1.

    Raises:
        InputFileError: It cannot be read, or holds fewer.
    """
    digest, lines, last = hashlib.sha256(), 0, b"\n"
    with reading(name) as file:
        while block := file.read(1 << 20):
            digest.update(block)
            lines += block.count(b"\n")
            last = block[-1:]
    lines += last != b"\n"
    if lines < least:
        raise InputFileError("no sentence to decode", fix="give a file with at least one", where=name)
    return {"lines": lines, "sha256": digest.hexdigest()}


def require_same(
    path: Path, command: str, parts: Mapping[str, JsonObject], fixes: Mapping[str, str]
) -> bytes | None:
    """Compares the settings in a journal's header with those of now; writes nothing.

    Args:
        parts: The settings to compare, by the name of their part of the header.
        fixes: The remedy where a part differs.

    Returns:
        The header; None where there is no journal, or it was killed before it had one.

    Raises:
        ResumeMismatchError: The journal was begun with other settings, or is no journal of the command.
    """
    header = Journal.header(path) if os.path.exists(path) else None
    if header is None:
        return None
    for name, settings in parts.items():
        try:
            changed = difference(json.loads(header)[name], json.loads(json.dumps(settings)))
        except (ValueError, LookupError, TypeError, AttributeError):
            raise ResumeMismatchError(
                f"not a journal of {command}", fix="choose another name", where=str(path)
            ) from None
        if changed:
            raise ResumeMismatchError(changed, fix=fixes[name], where=str(path))
    return header


def difference(old: JsonObject, new: JsonObject) -> str:
    """Says what the first setting that differs was and is, of the signature the first part; or nothing."""
    for name in new:
        before, now = old.get(name), new[name]
        if before == now:
            continue
        if name == "signature" and isinstance(before, str):
            parts, others = (
                dict(part.partition(":")[::2] for part in text.split("|")) for text in (before, now)
            )
            name = next((key for key in others if parts.get(key) != others[key]), name)
            before, now = parts.get(name, before), others.get(name, now)
        return f"was begun with {name} {_shown(before)}, now it is {_shown(now)}"
    return ""


def _shown(value: object) -> str:
    return repr(value["sha256"][:12] if isinstance(value, dict) and "sha256" in value else value)
