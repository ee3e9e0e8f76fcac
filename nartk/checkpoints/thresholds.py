"""Thresholds of approximate strategies that `nartk-calibrate` chose, and where they are kept.

A model folder keeps them in ``calibration.json``, one entry for each strategy and drafter. The model's own
files, and so its fingerprint, stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from nartk.checkpoints.names import CALIBRATION as FILE
from nartk.checkpoints.records import FolderRecord
from nartk.errors import UsageError
from nartk.files import JsonObject
from nartk.protocols.guarantee import Guarantee
from nartk.registry import Options, make_strategy, options_of


@dataclass(frozen=True)
class Calibration(FolderRecord):
    """The thresholds chosen for a strategy, a model and a drafter.

    Attributes:
        model, drafter: Fingerprints.
        thresholds: The values chosen.
        options: The strategy's other options that they were chosen with.
        evidence: Measurements that they rest on, for people to read.
    """

    file: ClassVar[str] = FILE
    key: ClassVar[str] = "calibrations"
    writer: ClassVar[tuple[str, str]] = ("nartk-calibrate", "calibrate")

    strategy: str
    model: str
    drafter: str
    thresholds: dict[str, Any]
    options: dict[str, Any]
    evidence: dict[str, Any]

    def replaces(self, other: Calibration) -> bool:
        return (self.strategy, self.drafter) == (other.strategy, other.drafter)


def types_of(strategy: str) -> dict[str, type]:
    """The type of each of a strategy's options but for other models, by name."""
    found = ((key, item) for key, item in options_of(strategy).items() if not item.metadata["model"])
    return {key: type(item.default) for key, item in found}


def apply(folder: Path, strategy: Any, given: Options, *, model: str, drafter: str) -> tuple[JsonObject, str]:
    """The options that a folder's calibration sets, and in a line why it sets none, or nothing.

    It sets what the user has not given. A strategy that promises identity keeps its promise: nothing is set.

    Args:
        given: The options that the user gave.
        model, drafter: Fingerprints of the models at hand.

    Raises:
        CheckpointError: The file is damaged, or holds values that the strategy refuses.
    """
    if strategy.promised.guarantee is not Guarantee.APPROXIMATE:
        return {}, ""
    found = [
        each
        for each in Calibration.read(folder)
        if each.strategy == strategy.name and not each.thresholds.keys() <= given.keys()
    ]
    if not found:
        return {}, ""
    unfit = f"the thresholds in {folder / FILE} are not used: they are for"
    mine = [each for each in found if each.drafter == drafter]
    if not mine:
        return {}, f"{unfit} drafter {' or '.join(each.drafter for each in found)}, this one is {drafter}"
    (entry,) = mine[-1:]
    if entry.model != model:
        return {}, f"{unfit} model {entry.model}, this one is {model}"
    types = types_of(strategy.name)
    try:
        values, options = (
            {key: types[key](value) for key, value in part.items()}
            for part in (entry.thresholds, entry.options)
        )
        make_strategy(strategy.name, values | options)
    except (LookupError, TypeError, ValueError, UsageError) as error:
        raise Calibration.damaged(folder, str(error)) from error
    for key, value in options.items():
        if key in given and given[key] != value:
            return {}, f"{unfit} {key} {value}, which is now {given[key]}"
    return {key: value for key, value in (options | values).items() if key not in given}, ""
