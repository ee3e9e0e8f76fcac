"""Outputs in the form in which they are handed out and written: text, frames or samples of sound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from nartk.files import JsonObject


class Output(Protocol):
    """An output as an output processor (`nartk.processors`) makes it of a hypothesis."""

    def __str__(self) -> str:
        """The output as text, of which a file of outputs has a line."""

    def fields(self) -> JsonObject:
        """The output as keys of JSON."""


class Text(str):
    """Implements `Output`."""

    __slots__ = ()

    def fields(self) -> JsonObject:
        return {"text": str(self)}


NO_TEXT = Text()
