"""Thresholds of approximate strategies that `nartk-calibrate` chose, and where they are kept.

A model folder keeps them in ``calibration.json``, one entry for each strategy and drafter. The model's own
files, and so its fingerprint, stay as they are.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from nartk.checkpoints.names import CALIBRATION as FILE
from nartk.errors import CheckpointError, UsageError
from nartk.files import read_file, write_json, writing
from nartk.protocols.guarantee import Guarantee
from nartk.registry import make_strategy, options_of

FORMAT = 1
_MOST = 10_000_000  # bytes of the file


@dataclass(frozen=True)
class Calibration:
    """The thresholds chosen for a strategy, a model and a drafter.

    Attributes:
        model, drafter: Fingerprints.
        thresholds: The values chosen.
        options: The strategy's other options that they were chosen with.
        evidence: What they rest on, for people to read.
    """

    strategy: str
    model: str
    drafter: str
    thresholds: dict[str, Any]
    options: dict[str, Any]
    evidence: dict[str, Any]


def read_calibrations(folder: Path) -> list[Calibration]:
    """What a model folder keeps; nothing where it has no such file.

    Raises:
        CheckpointError: The file is damaged, or of another format.
    """
    path = folder / FILE
    if not os.path.exists(path):
        return []
    raw = read_file(path, most=_MOST)
    try:
        found = json.loads(raw)
        if found["format"] != FORMAT:
            raise ValueError(f"format {found['format']!r}, this version reads {FORMAT}")
        entries = [Calibration(**entry) for entry in found["calibrations"]]
        for entry in entries:
            for item in fields(entry):
                if not isinstance(getattr(entry, item.name), dict if item.type.startswith("dict") else str):
                    raise TypeError(f"{item.name!r} is {getattr(entry, item.name)!r}")
        return entries
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise _damaged(folder, str(error)) from error


def _damaged(folder: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"not what nartk-calibrate writes: {what}",
        fix="remove it, and calibrate again",
        where=str(folder / FILE),
    )


def store(folder: Path, calibration: Calibration) -> None:
    """Adds a calibration to a model folder, in place of that of the same strategy and drafter.

    Raises:
        OutputError: The folder cannot be written.
        CheckpointError: What is there is damaged.
    """
    key = (calibration.strategy, calibration.drafter)
    kept = [each for each in read_calibrations(folder) if (each.strategy, each.drafter) != key]
    entries = [finite(asdict(each)) for each in (*kept, calibration)]
    with writing(folder / FILE) as file:
        write_json(file, {"format": FORMAT, "calibrations": entries}, allow_nan=False)


def finite(value: Any) -> Any:
    """A value for JSON, which has no infinity: the text ``inf`` stands for it."""
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def types_of(strategy: str) -> dict[str, Callable[[Any], Any]]:
    """The type of each of a strategy's options but for other models, by name."""
    found = ((key, item) for key, item in options_of(strategy).items() if not item.metadata["model"])
    return {key: type(item.default) for key, item in found}


def apply(
    folder: Path, strategy: Any, given: Mapping[str, Any], *, model: str, drafter: str
) -> tuple[dict[str, Any], str]:
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
        for each in read_calibrations(folder)
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
        raise _damaged(folder, str(error)) from error
    for key, value in options.items():
        if key in given and given[key] != value:
            return {}, f"{unfit} {key} {value}, which is now {given[key]}"
    return {key: value for key, value in (options | values).items() if key not in given}, ""
