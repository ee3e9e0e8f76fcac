"""A Transformer's weights under the names that fairseq, Hugging Face and CTranslate2 give them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from nartk.architectures.transformer import TransformerConfig
from nartk.checkpoints.hugging_face.tensors import names_of
from nartk.errors import UnsupportedCheckpointError
from nartk.models.layers import Embedding
from nartk.models.transformer import Transformer


def renamed(model: Transformer, names: Mapping[str, str]) -> dict[str, Tensor]:
    """The weights of a model as another library names and cuts them.

    Without positions and output layer, which each library keeps in its own way. Tensors share memory with
    the model's.

    Args:
        names: Same as in `checkpoints.hugging_face.settings.Family`.
    """
    found: dict[str, Tensor] = {}
    for name, weight in model.state_dict().items():
        if not name.startswith("output.") and not name.endswith(".positions.weight"):
            theirs = names_of(name, names, gated=model.config.gated_ffn)
            found |= zip(theirs, weight.chunk(len(theirs)), strict=True)
    return found


def require_attention(config: TransformerConfig, library: str) -> None:
    """Raises UnsupportedCheckpointError where the decoder has other features, or no self-attention."""
    if config.decoder_recurrence != "none":
        raise UnsupportedCheckpointError(
            f"`decoder_recurrence` {config.decoder_recurrence}, which models of {library} have not",
            fix="decode with nartk",
        )
    if config.side_features("decoder") != config.d_model:
        raise UnsupportedCheckpointError(
            f"`decoder_features` {config.decoder_features}, where models of {library} have `d_model` "
            f"{config.d_model} on both sides"
        )


def position_table(embedding: Embedding, length: int) -> Tensor:
    """Position embeddings [length, d_model] of positions 0 to length-1; zeros if the words have none."""
    if embedding.positions is not None:
        return embedding.positions.weight.detach()[:length]
    if embedding.table is not None:
        return embedding.table[:length]
    return torch.zeros(length, embedding.words.embedding_dim)
