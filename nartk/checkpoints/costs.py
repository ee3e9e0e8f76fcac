"""What passes of a model take on a machine, as `nartk-bench --tune` measured it, and where it is kept.

A model folder keeps it in ``costs.json``, for each way in which the model was run. The model's own files, and
so its fingerprint, stay as they are.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from nartk.checkpoints.names import COSTS as FILE
from nartk.errors import CheckpointError
from nartk.files import read_file, write_json, writing
from nartk.protocols.passes import PassCosts

FORMAT = 1
_MOST = 10_000_000  # bytes of the file


@dataclass(frozen=True)
class Tuned:
    """Measured costs.

    Attributes:
        model: Fingerprint.
        numerics: How it computes, as a signature says.
        threads: Most threads of a pass.
        tokens, times, encoding: As `PassCosts` has them.
    """

    model: str
    numerics: str
    device: str
    dtype: str
    threads: int
    tokens: list[int]
    times: list[float]
    encoding: float

    @property
    def setting(self) -> tuple[str, str, str, int]:
        """The setting that they were measured in."""
        return self.numerics, self.device, self.dtype, self.threads

    @property
    def costs(self) -> PassCosts:
        return PassCosts(tuple(self.tokens), tuple(self.times), self.encoding)

    def check(self) -> None:
        """Raises ValueError or TypeError where it is none."""
        for item in fields(self):
            value = getattr(self, item.name)
            wanted = {"str": str, "int": int, "float": float}.get(str(item.type), list)
            if type(value) is not wanted and not (wanted is float and type(value) is int):
                raise TypeError(f"{item.name!r} is {value!r}")
        numbers = [*self.times, self.encoding]
        if not all(type(each) is int for each in self.tokens) or self.tokens != sorted({*self.tokens}):
            raise ValueError(f"'tokens' is {self.tokens!r}")
        if len(self.tokens) < 2 or len(self.times) != len(self.tokens):
            raise ValueError(f"{len(self.tokens)} 'tokens' and {len(self.times)} 'times'")
        if not all(type(each) in (int, float) and math.isfinite(each) and each >= 0 for each in numbers):
            raise ValueError(f"times are {numbers!r}")
        if self.times != sorted(self.times) or self.times[0] <= 0:
            raise ValueError(f"'times' is {self.times!r}")


def read(folder: Path) -> list[Tuned]:
    """What a model folder keeps; nothing where it has no such file.

    Raises:
        CheckpointError: The file is damaged, or of another format.
    """
    if not os.path.exists(folder / FILE):
        return []
    raw = read_file(folder / FILE, most=_MOST)
    try:
        found = json.loads(raw)
        if found["format"] != FORMAT:
            raise ValueError(f"format {found['format']!r}, this version reads {FORMAT}")
        entries = [Tuned(**each) for each in found["costs"]]
        for each in entries:
            each.check()
        return entries
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"not what nartk-bench --tune writes: {error}",
            fix="remove it, and tune again",
            where=str(folder / FILE),
        ) from error


def store(folder: Path, tuned: Tuned) -> None:
    """Adds costs to a model folder, in place of those for the same way to run it and of another model's.

    Raises:
        OutputError: The folder cannot be written.
        CheckpointError: What is there is damaged.
    """
    kept = [each for each in read(folder) if each.setting != tuned.setting and each.model == tuned.model]
    with writing(folder / FILE) as file:
        write_json(file, {"format": FORMAT, "costs": [asdict(each) for each in (*kept, tuned)]})


def stored(
    folder: Path, *, model: str, numerics: str, device: str, dtype: str, threads: int
) -> PassCosts | None:
    """The costs that a folder keeps for a model and a way to run it; None: it keeps none.

    Raises:
        CheckpointError: The file is damaged.
    """
    setting = numerics, device, dtype, threads
    found = [each.costs for each in read(folder) if each.model == model and each.setting == setting]
    return found[-1] if found else None
