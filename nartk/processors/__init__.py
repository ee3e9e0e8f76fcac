"""Processors: what lies between a line of a file and what a model reads and outputs.

A model's ``config.json`` names one for its input and one for its output. Each kind is a file of this folder,
named as it is; another package's are registered when they are imported.
"""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from nartk.errors import CheckpointError, UnsupportedCheckpointError
from nartk.files import Folder, JsonObject
from nartk.protocols.hypothesis import Hypothesis
from nartk.protocols.outputs import Output
from nartk.protocols.paragraph import Paragraph
from nartk.protocols.passes import Source
from nartk.vocab import SpecialIds, Vocab


class InputProcessor(Protocol):
    """Reads a line as a source."""

    @property
    def vocab(self) -> Vocab | None:
        """Dictionary of its sources' words; None: they have no words."""

    def read(self, line: str, *, longest: int, truncate: bool = False) -> Source:
        """The source of a line, of at most so many tokens with eos, or frames.

        Args:
            truncate: True to cut longer sources instead of refusing them.

        Raises:
            InputTooLongError: It is longer.
            InputFileError: It names a file that cannot be read.
        """

    def require_equal(self, other: InputProcessor, mine: str, theirs: str) -> None:
        """Raises VocabMismatchError unless both make the same sources of a line."""


class OutputProcessor(Protocol):
    """Makes outputs of hypotheses, and reads text as their words."""

    @property
    def vocab(self) -> Vocab:
        """Dictionary of the output's words."""

    def encode(self, text: str) -> list[int]:
        """Ids of a line, without bos or eos: of a forced prefix, or of a draft."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; bos, eos and pad are left out."""

    def write(self, hypothesis: Hypothesis) -> Output:
        """The output of a sentence, by its tokens and whatever else the decoder says of it."""

    def join(self, outputs: Sequence[Output], paragraph: Paragraph) -> Output:
        """The output of a line, by those of its sentences."""


@runtime_checkable
class WordOutput(Protocol):
    """An output processor that knows which tokens a word has."""

    def words(self, ids: Sequence[int]) -> list[tuple[slice, str]]:
        """The tokens of each word, and its text with the space that stands before it."""


# Makes a processor of a model folder, its settings in config.json, and the model's special ids.
Loader: TypeAlias = Callable[[Folder, JsonObject, SpecialIds], Any]
F = TypeVar("F", bound=Loader)
SIDES = ("input", "output")
_LOADERS: dict[tuple[str, str], Loader] = {}


def register_processor(side: str, name: str) -> Callable[[F], F]:
    """Declares what loads the processor `name` of a side, ``input`` or ``output``."""

    def register(load: F) -> F:
        _LOADERS[side, name] = load
        return load

    return register


def load_processor(
    side: str, folder: str | os.PathLike[str], settings: JsonObject, specials: SpecialIds
) -> Any:
    """The processor that the settings name.

    Raises:
        UnsupportedCheckpointError: This version has none of that name.
        CheckpointError: A file of it is missing or corrupt.
    """
    name = settings.get("name")
    known = [module.name for module in pkgutil.iter_modules(__path__)]
    if name in known:
        import_module(f"{__name__}.{name}")
    if not isinstance(name, str) or (side, name) not in _LOADERS:
        names = {each for at, each in _LOADERS if at == side} | set(known)
        raise UnsupportedCheckpointError(
            f"an {side} processor {name!r}",
            fix=f"this version knows {', '.join(sorted(names))}",
            where=str(folder),
        )
    return _LOADERS[side, name](Folder.at(folder), settings, specials)


def named_file(folder: Folder, settings: JsonObject, key: str) -> Path:
    """The file of a model folder that settings name; raises CheckpointError if there is none."""
    name = settings.get(key)
    if not isinstance(name, str) or name in ("", ".", "..") or set(name) & set("/\\:\0"):
        raise CheckpointError(f"{key!r} is {name!r}, not the name of a file", where=str(folder))
    if not folder.has(name):
        raise CheckpointError(f"the file {name!r} is missing", where=str(folder))
    return folder / name
