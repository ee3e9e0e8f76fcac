"""Small checkpoints that would take 200 MB or more of memory if they were loaded as they ask for."""

from __future__ import annotations

import copy
import zipfile
from pathlib import Path
from typing import Any

import torch


class Zeros:
    def __reduce__(self) -> tuple[Any, tuple[int]]:
        return bytearray, (1_000_000_000,)


def write(checkpoint: Path, folder: Path) -> dict[str, str]:
    """Writes those of a checkpoint of nartk-train; what is wrong with each, by the file's name."""
    state = torch.load(checkpoint, weights_only=False)
    torch.save(torch.zeros(50_000_000), folder / "compressed")
    with zipfile.ZipFile(folder / "compressed") as old:
        parts = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(folder / "compressed", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as new:
        for name, data in parts.items():
            new.writestr(name, data)

    torch.save(state, folder / "a part many times")
    with zipfile.ZipFile(folder / "a part many times", "a") as archive:
        largest = max(archive.filelist, key=lambda part: part.file_size)
        for i in range(1000):
            part = copy.copy(largest)
            part.filename = f"{largest.filename}{i}"
            archive.filelist.append(part)
        archive.writestr("last", b"")  # for the directory to be written anew

    number = torch.zeros(1).expand(1_000_000_000)
    weight = next(iter(state["model"]))
    torch.save({**state, "model": {**state["model"], weight: number}}, folder / "a weight of one number")
    moments = state["last_optimizer_state"]["state"]
    moments[0] = {**moments[0], "exp_avg": number}
    torch.save(state, folder / "a moment of one number")

    torch.save({"model": {}, "cfg": Zeros()}, folder / "zeros")
    torch.save({"model": {}, "cfg": Zeros()}, folder / "zeros, legacy", _use_new_zipfile_serialization=False)
    larger = "is larger than what is stored of it"
    return {
        "compressed": "'compressed/data.pkl' is compressed, from ",
        "a part many times": "its parts have ",
        "a weight of one number": f"tensor '{weight}' {larger}",
        "a moment of one number": f"tensor 'exp_avg' {larger}",
        "zeros": "asks for 'builtins.bytearray', which a checkpoint has no need of",
        "zeros, legacy": "asks for 'builtins.bytearray', which a checkpoint has no need of",
    }
