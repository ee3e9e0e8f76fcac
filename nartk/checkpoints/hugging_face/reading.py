"""Opens a folder of Hugging Face by its model_type, and writes it as a native one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from nartk.architectures.settings import Config
from nartk.checkpoints.checkpoint import Checkpoint, read_config
from nartk.checkpoints.hugging_face.families import FAMILIES
from nartk.checkpoints.names import ADAPTER, CONFIG, MOST_CARD
from nartk.checkpoints.saving import fact_card, save_files
from nartk.checkpoints.tensors import pack_floats
from nartk.errors import UnsupportedCheckpointError
from nartk.files import Folder, read_file
from nartk.version import __version__

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
        source_lang, target_lang: Languages of lines and outputs; None: the tokenizer's and the model's own.
        source_prefix: Put before each line.
        allow_pickle: True if weights may be pickled; their code is not run.

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
        from nartk.checkpoints.hugging_face.speech import read_speech

        read: Callable[..., Checkpoint] = read_speech
    elif name in [*FAMILIES]:  # a list: the name may be of any type
        from nartk.checkpoints.hugging_face.text import read_text

        read = read_text
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


def convert(checkpoint: Checkpoint, output: Path, *, dtype: str = "fp32", card: str | None = None) -> Config:
    """Writes a folder of another library, which was read, as a native one.

    Args:
        dtype: Type of the stored weights: fp32, bf16 or fp16.
        card: Text of ``card.md``; by default facts, and the folder's own card.

    Raises:
        CheckpointError: The vocabulary does not fit, or a number is too large for the type.
        OutputError: The folder cannot be written.
    """
    config, tensors = read_config(checkpoint), checkpoint.tensors
    shared = config.shared_weights()
    save_files(
        output,
        weights=pack_floats(tensors, [name for name in tensors if name not in shared], dtype),
        config={
            "architecture": checkpoint.architecture,
            "model": asdict(config),
            "aliases": shared,
            **checkpoint.beside,
        },
        files=checkpoint.files,
        card=_card(checkpoint, config, dtype) if card is None else card,
    )
    return config


def _card(checkpoint: Checkpoint, config: Config, dtype: str) -> str:
    folder = checkpoint.folder
    described = Folder(folder).optional_json(CONFIG) or {}
    own = folder / "README.md"
    text = read_file(own, most=MOST_CARD).decode("utf-8", "replace") if own.is_file() else ""
    facts = {
        "Architecture": described.get("model_type", checkpoint.architecture),
        "Layers": f"{config.layers('encoder')} encoder, {config.layers('decoder')} decoder",
        "Vocabulary": f"{config.src_vocab} source, {config.tgt_vocab} target",
        "Stored as": dtype,
        "Converted from": folder.resolve().name,
        "Converted by": f"nartk {__version__}",
        "Training data and licence": "in the card below" if text else "not stated",
    }
    return fact_card(facts) + (f"\n{text}" if text else "")
