"""Opens a model folder, whichever format it has."""

from __future__ import annotations

import os
from pathlib import Path

from nartk.checkpoints.checkpoint import Checkpoint
from nartk.checkpoints.foreign import (
    ARGOS,
    is_argos,
    is_ctranslate2,
    is_marian,
    refuse_foreign,
)
from nartk.checkpoints.generation import KEY, check_generation, read_generation
from nartk.checkpoints.hub import hub_folder, is_hub_name
from nartk.checkpoints.names import ADAPTER, CONFIG, GENERATION_CONFIG, model_folder
from nartk.checkpoints.native import read_native
from nartk.errors import ModelNotFoundError, NartkError, UsageError, named
from nartk.files import Folder, JsonObject, PackageFolder


def load_checkpoint(
    folder: str | os.PathLike[str],
    *,
    check: bool = False,
    source_lang: str | None = None,
    target_lang: str | None = None,
    source_prefix: str | None = None,
) -> Checkpoint:
    """Reads a model folder, nartk's, Hugging Face's, CTranslate2's or Marian's.

    Args:
        folder: Its path, or the `Folder` itself, of which some files may have been read.
        check: True to compare also the hashes of files that are not read as a whole.
        source_lang, target_lang, source_prefix: Those of the text of a Hugging Face folder.

    Raises:
        ModelNotFoundError: `folder` is no folder, or holds no model.
        CheckpointError: A file is missing, corrupt or inconsistent.
        UnsupportedCheckpointError: It is another library's, or holds a model that nartk cannot express.
    """
    opened = Folder.at(folder)
    if is_marian(opened):
        from nartk.checkpoints.marian.reading import read_marian

        return read_marian(
            opened, source_lang=source_lang, target_lang=target_lang, source_prefix=source_prefix
        )
    if is_argos(opened):
        opened = PackageFolder(opened.path, ARGOS)
    if is_ctranslate2(opened):
        from nartk.checkpoints.ctranslate2.reading import read_ctranslate2

        return read_ctranslate2(
            opened, source_lang=source_lang, target_lang=target_lang, source_prefix=source_prefix
        )
    if not opened.has(CONFIG) and not opened.has(ADAPTER):
        refuse_foreign(opened.path)
        raise ModelNotFoundError(
            f"no model at {str(opened)!r}",
            fix=f"name a shipped model or a folder with {CONFIG}, nartk's or Hugging Face's",
        )
    languages = {"source_lang": source_lang, "target_lang": target_lang, "source_prefix": source_prefix}
    if is_hugging_face(opened):
        from nartk.checkpoints.hugging_face.reading import read_hugging_face

        return read_hugging_face(
            opened, source_lang=source_lang, target_lang=target_lang, source_prefix=source_prefix
        )
    for name, value in languages.items():
        if value is not None:
            raise UsageError(
                f"{named(name, value)} for {str(opened)!r}, a model of nartk, which has its own",
                fix="leave it out, or convert the folder of Hugging Face again with it",
            )
    if "format" not in opened.json(CONFIG):
        refuse_foreign(opened.path)
    return read_native(opened, check=check)


def located(name: str | os.PathLike[str]) -> Path:
    """The folder of a model: of a shipped one, of one of the hub, which may be downloaded, or a path itself.

    Raises:
        ModelNotFoundError: There is no such model.
    """
    if isinstance(name, str) and is_hub_name(name):
        return hub_folder(name)
    return model_folder(name)


def is_hugging_face(folder: Folder) -> bool:
    """Tells whether a folder is one of Hugging Face's, of a model or of an adapter."""
    if not folder.has(CONFIG):
        return folder.has(ADAPTER)
    config = folder.json(CONFIG)
    return "format" not in config and "model_type" in config


def generation_of(folder: Folder) -> JsonObject:
    """Reads the generation options that a model folder sets; none of a damaged one, which loading reports."""
    try:
        if is_marian(folder):
            from nartk.checkpoints.marian.reading import generation

            return generation(folder)
        if is_ctranslate2(folder):
            from nartk.checkpoints.ctranslate2.reading import describe

            folder = describe(folder)
        config = folder.json(CONFIG)
        if "model_type" not in config:
            return check_generation(config[KEY], str(folder))
        return read_generation(config, folder.optional_json(GENERATION_CONFIG))
    except (NartkError, ValueError, LookupError, TypeError):  # which loading reports
        return {}
