"""Opens a folder of CTranslate2 by the network that its model.bin names."""

from __future__ import annotations

from nartk.checkpoints.checkpoint import Checkpoint
from nartk.checkpoints.ctranslate2.binary import BinaryTensors
from nartk.checkpoints.ctranslate2.whisper import NETWORK as WHISPER
from nartk.checkpoints.ctranslate2.whisper import describe_whisper, read_whisper
from nartk.checkpoints.names import BINARY
from nartk.errors import UnsupportedCheckpointError
from nartk.files import Folder


def read_ctranslate2(
    folder: Folder,
    *,
    source_lang: str | None = None,
    target_lang: str | None = None,
    source_prefix: str | None = None,
) -> Checkpoint:
    """Reads a folder as `nartk.checkpoints.loading.load_checkpoint` does one of nartk's.

    Args:
        source_lang, target_lang, source_prefix: Those of `nartk.checkpoints.loading.load_checkpoint`.

    Raises:
        UnsupportedCheckpointError: The network, its version or a setting of it is not known.
        CheckpointError: A file is missing, corrupt or another model's.
        UsageError: The model does not know a language.
        MissingDependencyError: A module is missing that reads its text.
    """
    return read_whisper(
        folder,
        _known(folder),
        source_lang=source_lang,
        target_lang=target_lang,
        source_prefix=source_prefix,
    )


def describe(folder: Folder) -> Folder:
    """The folder with the JSON files that transformers has of its model; raises as `read_ctranslate2`."""
    return describe_whisper(folder, _known(folder))


def _known(folder: Folder) -> BinaryTensors:
    file = BinaryTensors(folder / BINARY)
    if file.network != WHISPER:
        raise UnsupportedCheckpointError(
            f"is a model of CTranslate2 with the network {file.network!r}",
            fix=f"name the model that it was made of; of CTranslate2's nartk reads {WHISPER}",
            where=str(folder),
        )
    return file
