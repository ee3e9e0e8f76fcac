"""Opens a folder of CTranslate2 by the network that its model.bin names."""

from __future__ import annotations

from collections.abc import Callable

from nartk.checkpoints.checkpoint import Checkpoint
from nartk.checkpoints.ctranslate2.binary import BinaryTensors
from nartk.checkpoints.ctranslate2.text import NETWORK as TRANSFORMER
from nartk.checkpoints.ctranslate2.text import read_text
from nartk.checkpoints.ctranslate2.whisper import NETWORK as WHISPER
from nartk.checkpoints.ctranslate2.whisper import describe_whisper, read_whisper
from nartk.checkpoints.names import BINARY
from nartk.errors import UnsupportedCheckpointError
from nartk.files import Folder

_READERS: dict[str, Callable[..., Checkpoint]] = {TRANSFORMER: read_text, WHISPER: read_whisper}


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
    file = BinaryTensors(folder / BINARY)
    reader = _READERS.get(file.network)
    if reader is None:
        raise UnsupportedCheckpointError(
            f"is a model of CTranslate2 with the network {file.network!r}",
            fix=f"name the model that it was made of; of CTranslate2's nartk reads {' and '.join(_READERS)}",
            where=str(folder),
        )
    return reader(folder, file, source_lang=source_lang, target_lang=target_lang, source_prefix=source_prefix)


def describe(folder: Folder) -> Folder:
    """A folder with the JSON files that transformers has of its model, where it is read as one of its."""
    file = BinaryTensors(folder / BINARY)
    return describe_whisper(folder, file) if file.network == WHISPER else folder
