"""Models of sentencepiece: by their library, and as `tokenizers` takes them."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nartk.errors import CheckpointError
from nartk.files import read_file
from nartk.processors.hugging_face.tokenizer import MOST, Token

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # types of a sentencepiece model's pieces


class Models(dict[str, Any]):
    """The sentencepiece models of files, each read when it is asked for."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self.paths = paths

    def __missing__(self, key: str) -> Any:
        import sentencepiece

        try:
            found = sentencepiece.SentencePieceProcessor(model_file=str(self.paths[key]))
        except (RuntimeError, OSError) as error:
            raise CheckpointError("not a sentencepiece model", where=str(self.paths[key])) from error
        self[key] = found
        return found


class Pieces:
    """The parts of a sentencepiece model's file that `tokenizers` takes.

    The file is a message of protocol buffers: field 1 is a piece (1: text, 2: score, 3: type), and field 2 of
    field 3 the precompiled normalisation.
    """

    def __init__(self, path: Path) -> None:
        data = read_file(path, most=MOST)
        self._pieces: list[tuple[str, float, int]] = []
        self.charsmap: str | None = None
        for number, value in _fields(data):
            if number == 1:
                piece = dict(_fields(value))
                text, score = piece[1].decode("utf-8"), struct.unpack("<f", piece.get(2, bytes(4)))[0]
                self._pieces.append((text, score, piece.get(3, _NORMAL)))
            elif number == 3:
                charsmap = dict(_fields(value)).get(2)
                self.charsmap = base64.b64encode(charsmap).decode() if charsmap else None

    def scored(self) -> list[tuple[str, float]]:
        """The pieces and their scores."""
        return [(text, score) for text, score, _ in self._pieces]

    def symbols(self) -> list[Token]:
        """The pieces that no text is cut into: control symbols, and a user's own."""
        return [
            {"content": text, "special": type == _CONTROL, "normalized": False}
            for text, _, type in self._pieces
            if type in (_CONTROL, _USER_DEFINED)
        ]


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values of the fields of a message; raises IndexError where it is cut off."""
    at, end = 0, len(data)

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < end:
        tag = varint()
        type = tag & 7
        if type == 0:
            yield tag >> 3, varint()
            continue
        size = varint() if type == 2 else {1: 8, 5: 4}[type]
        if at + size > end:
            raise IndexError("a field is cut off")
        yield tag >> 3, data[at : at + size]
        at += size
