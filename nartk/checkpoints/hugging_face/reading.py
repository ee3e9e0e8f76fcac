"""Opens a folder of Hugging Face by its model_type."""

from __future__ import annotations

from nartk.checkpoints.checkpoint import Checkpoint
from nartk.checkpoints.hugging_face.families import FAMILIES
from nartk.checkpoints.names import ADAPTER, CONFIG
from nartk.errors import UnsupportedCheckpointError
from nartk.files import Folder

_SPEECH = "whisper"


def read_hugging_face(
    folder: Folder,
    *,
    source_lang: str | None = None,
    target_lang: str | None = None,
    source_prefix: str | None = None,
    allow_pickle: bool = False,
) -> Checkpoint:
    """Reads a folder as `nartk.checkpoints.loading.load_checkpoint` does one of nartk's.

    Args:
        source_lang, target_lang: Of the lines and of the outputs; None: the tokenizer's and the model's own.
        source_prefix: Put before each line.
        allow_pickle: Whether weights may be pickled; what they hold is not run.

    Raises:
        UnsupportedCheckpointError: The family is not known, or what `read_text` and `read_speech` refuse.
        CheckpointError: A file is missing or corrupt.
        UsageError: The tokenizer does not know a language, or the model has none.
        MissingDependencyError: A module is missing that reads its text, or its pickled weights.
    """
    if folder.has(ADAPTER):
        raise UnsupportedCheckpointError(
            f"an adapter ({ADAPTER})",
            fix="merge it into its model, as peft's merge_and_unload does, and save that",
            where=str(folder),
        )
    name = folder.json(CONFIG).get("model_type")
    if name == _SPEECH:
        from nartk.checkpoints.hugging_face.speech import read_speech as read
    elif name in [*FAMILIES]:  # a list: the name may be of any type
        from nartk.checkpoints.hugging_face.text import read_text as read
    else:
        raise UnsupportedCheckpointError(
            f"the model_type {name!r}",
            fix=f"known are {', '.join(sorted([*FAMILIES, _SPEECH]))}",
            where=str(folder / CONFIG),
        )
    return read(
        folder,
        source_lang=source_lang,
        target_lang=target_lang,
        source_prefix=source_prefix,
        allow_pickle=allow_pickle,
    )
