"""Times of a model's passes on a machine, as `nartk-bench --tune` measured them, and their file.

A model folder keeps them in ``costs.json``, for each way in which the model was run. The model's own files,
and so its fingerprint, stay as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from nartk.checkpoints.names import COSTS as FILE
from nartk.checkpoints.records import FolderRecord
from nartk.protocols.passes import PassCosts

_SETTING = ("numerics", "device", "dtype", "threads")  # what costs of a model depend on


@dataclass(frozen=True)
class Tuned(FolderRecord):
    """Measured costs.

    Attributes:
        model: Fingerprint.
        numerics: Numerics, as in a signature.
        threads: Most threads of a pass.
        tokens, times, encoding: Same as in `PassCosts`.

    Raises:
        ValueError: The times are none, or do not grow with the tokens.
    """

    file: ClassVar[str] = FILE
    key: ClassVar[str] = "costs"
    writer: ClassVar[tuple[str, str]] = ("nartk-bench --tune", "tune")

    model: str
    numerics: str
    device: str
    dtype: str
    threads: int
    tokens: list[int]
    times: list[float]
    encoding: float

    @property
    def costs(self) -> PassCosts:
        return PassCosts(tuple(self.tokens), tuple(self.times), self.encoding)

    def replaces(self, other: Tuned) -> bool:
        same = all(getattr(self, name) == getattr(other, name) for name in _SETTING)
        return same or other.model != self.model

    def __post_init__(self) -> None:
        super().__post_init__()
        numbers = [*self.times, self.encoding]
        if not all(type(each) is int for each in self.tokens) or self.tokens != sorted({*self.tokens}):
            raise ValueError(f"'tokens' is {self.tokens!r}")
        if len(self.tokens) < 2 or len(self.times) != len(self.tokens):
            raise ValueError(f"{len(self.tokens)} 'tokens' and {len(self.times)} 'times'")
        if not all(type(each) in (int, float) and math.isfinite(each) and each >= 0 for each in numbers):
            raise ValueError(f"times are {numbers!r}")
        if self.times != sorted(self.times) or self.times[0] <= 0:
            raise ValueError(f"'times' is {self.times!r}")


def stored(folder: Path, **setting: object) -> PassCosts | None:
    """The costs that a folder keeps for a model run in a way, by names of `Tuned`; None: it keeps none.

    Raises:
        CheckpointError: The file is damaged.
    """
    found = [
        each.costs
        for each in Tuned.read(folder)
        if all(getattr(each, name) == value for name, value in setting.items())
    ]
    return found[-1] if found else None
