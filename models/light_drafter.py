"""A light drafter in torch: in the place of an encoder it has what its verifier has encoded.

Symbols: B rows, S positions of a source, D features of the verifier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from nartk.architectures.encoders import EncodedSources
from nartk.errors import PassError
from nartk.models.reference import OnTorch
from nartk.models.transformer import Encoded, SourceEncoder, pad_frames
from nartk.protocols.passes import Source, features_of


class EncodedSourcesModule(SourceEncoder):
    """Hands on what was encoded; it has no weights."""

    inputs: ClassVar[tuple[str, ...]] = ("memory", "kept")
    like: Tensor  # of the type and on the device of what reads it

    def __init__(self, config: EncodedSources) -> None:
        super().__init__(config.tree["encoder"], config)
        self.features, self.longest = config.d_model, config.max_source_len
        self.register_buffer("like", torch.zeros(0), persistent=False)

    def forward(self, memory: Tensor, kept: Tensor) -> Encoded:
        """Vectors [B,S,D] of which `kept` [B,S] count."""
        return Encoded(memory, kept)

    def read(self, sources: Sequence[Source]) -> Encoded:
        found = features_of(sources, self.features)
        for i, vectors in enumerate(found):
            if not 0 < len(vectors) <= self.longest:
                raise PassError(f"source {i} has {len(vectors)} positions, not between 1 and {self.longest}")
            if not torch.from_numpy(vectors).isfinite().all():
                raise PassError(f"NaN or infinity in source {i}")
        memory, lengths = pad_frames(found, self.like)
        return Encoded(memory, torch.arange(memory.shape[1], device=memory.device) < lengths[:, None])


class VectorsOnTorch(OnTorch):
    """Implements `nartk.protocols.encoded.ReadsEncoded`."""

    @property
    def encoded_features(self) -> int:
        features: int = self.model.config.d_model
        return features
