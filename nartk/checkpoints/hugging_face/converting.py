"""Writes a folder of Hugging Face as a native one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from nartk.architectures.transformer import TransformerConfig
from nartk.checkpoints.checkpoint import Checkpoint, read_config
from nartk.checkpoints.names import CONFIG, MOST_CARD
from nartk.checkpoints.saving import fact_card, save_files
from nartk.checkpoints.tensors import pack_floats
from nartk.files import Folder, read_file
from nartk.version import __version__


def convert(
    checkpoint: Checkpoint, output: Path, *, dtype: str = "fp32", card: str | None = None
) -> TransformerConfig:
    """Writes what `read_hugging_face` has read as a native folder.

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
        card=_card(checkpoint.folder, config, dtype) if card is None else card,
    )
    return config


def _card(folder: Path, config: TransformerConfig, dtype: str) -> str:
    own = folder / "README.md"
    text = read_file(own, most=MOST_CARD).decode("utf-8", "replace") if own.is_file() else ""
    facts = {
        "Architecture": Folder(folder).json(CONFIG)["model_type"],
        "Layers": f"{config.encoder_layers} encoder, {config.decoder_layers} decoder",
        "Vocabulary": f"{config.src_vocab} source, {config.tgt_vocab} target",
        "Stored as": dtype,
        "Converted from": folder.resolve().name,
        "Converted by": f"nartk {__version__}",
        "Training data and licence": "in the card below" if text else "not stated",
    }
    return fact_card(facts) + (f"\n{text}" if text else "")
