"""Scorers, which compute a model's passes: those of the engine, or those in torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nartk.architectures import architecture
from nartk.checkpoints.checkpoint import Checkpoint, read_config
from nartk.checkpoints.quantized import restored
from nartk.errors import WITHOUT_TORCH, requiring_torch

if TYPE_CHECKING:
    from nartk.architectures.settings import Config
    from nartk.checkpoints.tensors import Array
    from nartk.models.transformer import Transformer

TYPES = ("fp32", "bf16", "fp16", "int8")  # fp16: on a GPU alone; int8: on the engine alone
WITHOUT_BOTH = f"{WITHOUT_TORCH}, or install nartk with its engine, from a wheel or with a C++17 compiler"


def load_network(checkpoint: Checkpoint) -> Transformer:
    """The network of a checkpoint, in fp32 on the CPU.

    Raises:
        UnsupportedCheckpointError: This version has no such architecture.
        CheckpointError: The weights do not fit the configuration, or it the dictionaries.
    """
    import torch

    config = read_config(checkpoint)
    model: Transformer = architecture(checkpoint.architecture).network(config)
    weights = weights_in(checkpoint, config, "fp32")
    model.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    return model


def weights_in(checkpoint: Checkpoint, config: Config, dtype: str) -> Mapping[str, Array]:
    """The weights of a checkpoint by name, as a scorer of a type reads them.

    Those of an int8 folder are, but for int8, the fp32 numbers that they stand for.
    """
    if checkpoint.quantized in (None, dtype):
        return checkpoint.tensors
    return restored(checkpoint.tensors, config)


def reference_scorer(checkpoint: Checkpoint, device: str, dtype: str) -> Any:
    """The scorer of a checkpoint in torch.

    Raises:
        MissingDependencyError: torch is not installed.
    """
    with requiring_torch("decoding without the engine", fix=WITHOUT_BOTH):
        from nartk.models.reference import DTYPES
    found = architecture(checkpoint.architecture)
    return (found.scorer if device == "cpu" else found.device_scorer)(
        model=load_network(checkpoint),
        vocab=checkpoint.target_vocab,
        dtype=DTYPES[dtype],
        device=device,
        **words_of(checkpoint),
    )


def words_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Arguments of a scorer about words: source vocabulary, if any, and start token, if any."""
    found: dict[str, Any] = {}
    if checkpoint.input.vocab is not None:
        found["source_vocab"] = checkpoint.input.vocab
    if architecture(checkpoint.architecture).autoregressive:
        found["start_token"] = checkpoint.start_token
    return found
