"""Whisper (Radford et al. 2023, arXiv:2212.04356): a Transformer over frames that convolutions halve.

Differences from transformers' WhisperForConditionalGeneration: sources may be shorter than 30 s, and what
lies behind a source changes nothing of it, whatever shares its batch; the dropout of layers is left out.

Symbols: B rows, T frames, F features of a frame, S encoder positions, V words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nartk.architectures.encoders import WhisperEncoder
from nartk.architectures.parts import Group
from nartk.errors import PassError
from nartk.models.layers import Embedding, EncoderLayer
from nartk.models.parts import AnyNorm
from nartk.models.transformer import Encoded, SourceEncoder, pad_frames
from nartk.protocols.passes import Source, features_of


class WhisperEncoderModule(SourceEncoder):
    """Maps frames to the memory that a decoder attends to, a position for every second frame."""

    inputs: ClassVar[tuple[str, ...]] = ("frames", "lengths")

    conv: Sequence[nn.Conv1d]
    embedding: Embedding
    layers: Sequence[EncoderLayer]
    norm: AnyNorm | None

    def __init__(self, config: WhisperEncoder) -> None:
        encoder = config.tree["encoder"]
        super().__init__(Group({"conv": encoder["conv"], **encoder.parts}), config)
        self.encoded_length = config.encoded_length
        self.features, self.longest = config.input_features, config.max_source_len

    def forward(self, frames: Tensor, lengths: Tensor) -> Encoded:
        """Encodes frames [B,T,F], zeros behind the lengths [B]."""
        x = frames.transpose(1, 2)  # [B,T,F] -> [B,F,T]
        inside = torch.arange(frames.shape[1], device=frames.device) < lengths[:, None]
        # The second convolution sees zeros behind a source, as it does where the source is alone.
        x = F.gelu(self.conv[0](x)) * inside[:, None]
        x = F.gelu(self.conv[1](x)).transpose(1, 2)  # [B,d_model,S] -> [B,S,d_model]
        positions = torch.tensor([self.encoded_length(length) for length in lengths.tolist()])
        kept = torch.arange(x.shape[1], device=x.device) < positions.to(x.device)[:, None]
        x = self.embedding.add_positions(x, torch.arange(x.shape[1], device=x.device))
        for layer in self.layers:
            x = layer(x, kept[:, None, None])
        return Encoded(x if self.norm is None else self.norm(x), kept)

    def read(self, sources: Sequence[Source]) -> Encoded:
        found = features_of(sources, self.features)
        for i, frames in enumerate(found):
            if not 0 < len(frames) <= self.longest:
                raise PassError(f"source {i} has {len(frames)} frames, not between 1 and {self.longest}")
            if not torch.from_numpy(frames).isfinite().all():
                raise PassError(f"source {i} holds NaN or infinity")
        encoded: Encoded = self(*pad_frames(found, self.conv[0].weight))
        return encoded
