"""The stamp of the engine's sources, which a compiled engine carries; setup.py runs this file by itself."""

from __future__ import annotations

import hashlib
from pathlib import Path

SUFFIXES = (".cpp", ".h", ".inc")


def stamp(folder: Path) -> str:
    """A C identifier made of the sources in a folder, the same whichever ends of line git wrote."""
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.suffix in SUFFIXES:
            digest.update(file.name.encode() + b"\0" + file.read_bytes().replace(b"\r\n", b"\n"))
    return f"nartk_sources_{digest.hexdigest()[:32]}"
