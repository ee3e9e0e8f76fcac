"""Makes a checkpoint of what a folder of Hugging Face has been read as."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from nartk.checkpoints.checkpoint import Checkpoint, assemble
from nartk.checkpoints.hugging_face.tensors import MappedTensors
from nartk.checkpoints.names import CONFIG
from nartk.errors import CheckpointError
from nartk.files import Folder, JsonObject


def as_checkpoint(
    folder: Folder,
    config: JsonObject,
    tensors: MappedTensors,
    files: Mapping[str, Path],
    *,
    also: Sequence[str],
    notices: Sequence[str],
) -> Checkpoint:
    """The checkpoint of a folder, of a configuration as nartk's has it.

    Args:
        files: Of the processors, by name.
        also: Names of what its fingerprint covers besides, if it is there.
    """
    beside = {key: value for key, value in config.items() if key not in ("architecture", "model")}
    names = sorted(filter(folder.has, {CONFIG, *also, *files}))
    digests = [tensors.digest(), json.dumps(beside), *map(folder.sha256, names)]
    return assemble(
        folder,
        config,
        tensors,
        files=files,
        fingerprint=hashlib.sha256("\n".join(digests).encode()).hexdigest()[:12],
        notices=notices,
    )


def start_token_of(
    config: JsonObject, generation_config: JsonObject | None, default: tuple[str, int] | None, where: str
) -> int:
    """What outputs begin after, as `generate` has it, and where that finds nothing, what the files have.

    Args:
        config, generation_config: What the files of these names hold; None: there is no such file.
        default: A setting of the family, and its default.
        where: For messages.
    """
    given = [] if generation_config is None else [generation_config]
    for values in (*given, config):
        for key in ("decoder_start_token_id", "bos_token_id"):
            found = values.get(key)
            if isinstance(found, list) and len(found) == 1:
                (found,) = found
            if type(found) is int:
                return found
    if default is None:
        raise CheckpointError("'decoder_start_token_id' is missing", where=where)
    name, fallback = default
    value = found = config.get(name)
    if isinstance(found, list) and found:
        found = found[0]
    if found is None:
        return fallback
    if type(found) is not int:
        raise CheckpointError(f"{name!r} is {value!r}, not the id of a word", where=where)
    return found
