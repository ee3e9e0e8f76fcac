"""No input of its own: the model reads what another model has encoded, so there is no line to read.

It has no settings in ``config.json``.
"""

from __future__ import annotations

from nartk.errors import SourceMismatchError, named
from nartk.files import Folder, JsonObject
from nartk.processors import InputProcessor, register_processor
from nartk.protocols.passes import Source
from nartk.vocab import SpecialIds

NAME = "encoded"


class EncodedInput:
    """Refuses every line. Implements `InputProcessor`."""

    vocab = None

    def read(self, line: str, *, longest: int, truncate: bool = False) -> Source:
        raise SourceMismatchError(
            "the model drafts from what its verifier has encoded, and reads no lines",
            fix=f"name its verifier, and this one with {named('drafter')}",
        )

    def require_equal(self, other: InputProcessor, mine: str, theirs: str) -> None:
        """Nothing: its sources are its verifier's, whatever these are made of."""


@register_processor("input", NAME)
def load(folder: Folder, settings: JsonObject, specials: SpecialIds) -> EncodedInput:
    """The processor of a model folder."""
    return EncodedInput()
