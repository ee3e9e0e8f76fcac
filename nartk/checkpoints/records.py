"""Records that commands add to a model folder, in a JSON file that is no part of the model.

The model's own files, and so its fingerprint, stay as they are.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from nartk.errors import CheckpointError
from nartk.files import read_file, write_json, writing

FORMAT = 1
_MOST = 10_000_000  # bytes of the file
_TYPES = {"str": (str,), "int": (int,), "float": (float, int), "list": (list,), "dict": (dict,)}
R = TypeVar("R", bound="FolderRecord")


@dataclass(frozen=True)
class FolderRecord:
    """One record of such a file.

    Raises:
        TypeError: A value has another type than its field.
    """

    file: ClassVar[str]  # its name in a model folder
    key: ClassVar[str]  # under which it has the records
    writer: ClassVar[tuple[str, str]]  # the command that writes it, and the verb that does so again

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if type(value) not in _TYPES[str(item.type).partition("[")[0]]:
                raise TypeError(f"{item.name!r} is {value!r}")

    @classmethod
    def read(cls: type[R], folder: Path) -> list[R]:
        """The records that a model folder keeps; none where it has no such file.

        Raises:
            CheckpointError: The file is damaged, or of another format.
        """
        if not os.path.exists(folder / cls.file):
            return []
        raw = read_file(folder / cls.file, most=_MOST)
        try:
            found = json.loads(raw)
            if found["format"] != FORMAT:
                raise ValueError(f"format {found['format']!r}, this version reads {FORMAT}")
            return [cls(**each) for each in found[cls.key]]
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise cls.damaged(folder, str(error)) from error

    def replaces(self: R, other: R) -> bool:
        """Tells whether a folder that gets this record keeps another one no longer."""
        raise NotImplementedError

    def store(self, folder: Path) -> None:
        """Adds the record to a model folder.

        Raises:
            OutputError: The folder cannot be written.
            CheckpointError: The file of records is damaged.
        """
        kept = [each for each in self.read(folder) if not self.replaces(each)]
        entries = [finite(asdict(each)) for each in (*kept, self)]
        with writing(folder / self.file) as file:
            write_json(file, {"format": FORMAT, self.key: entries}, allow_nan=False)

    @classmethod
    def damaged(cls, folder: Path, what: str) -> CheckpointError:
        command, again = cls.writer
        return CheckpointError(
            f"not what {command} writes: {what}",
            fix=f"remove it, and {again} again",
            where=str(folder / cls.file),
        )


def finite(value: Any) -> Any:
    """A value for JSON, which has no infinity: the text ``inf`` stands for it."""
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
