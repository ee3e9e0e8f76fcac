"""Vocabularies of CTranslate2: lists of words in JSON, or a word a line."""

from __future__ import annotations

import json

from nartk.errors import CheckpointError
from nartk.files import Folder

_MOST = 50_000_000  # bytes


def read_vocabulary(folder: Folder, name: str) -> list[str]:
    """The words of ``NAME.json`` or ``NAME.txt`` of a folder.

    Raises:
        CheckpointError: There is neither, or it is damaged.
    """
    if folder.has(f"{name}.json"):
        path, raw = f"{name}.json", folder.read(f"{name}.json", most=_MOST)
        try:
            found = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise CheckpointError("not JSON", where=str(folder / path)) from error
        if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
            raise CheckpointError("not a list of words", where=str(folder / path))
        return found
    path = f"{name}.txt"
    if not folder.has(path):
        raise CheckpointError(f"has neither {name}.json nor {path}", where=str(folder))
    try:
        text = folder.read(path, most=_MOST).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError("not UTF-8", where=str(folder / path)) from error
    return text.removesuffix("\n").split("\n")
