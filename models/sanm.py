"""FunASR's Paraformer, of SAN-M: self-attention with a memory of neighbours.

Gao et al. 2020 (https://arxiv.org/abs/2006.01713) and 2022 (https://arxiv.org/abs/2206.08317), as FunASR's
``SANMEncoder`` and ``ParaformerSANMDecoder`` compute them. It differs from these in this: sines and cosines
of positions are fp64, rounded at the end; and what `nartk.models.cif` says of fires.

Symbols: B rows, T frames, F features of a frame, m frames side by side, S positions of the encoder, N fires,
D features of the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from nartk.architectures.parts import Group
from nartk.architectures.positions import sinusoids
from nartk.architectures.sanm_paraformer import SanmEncoder
from nartk.architectures.settings import Config
from nartk.errors import PassError
from nartk.models.layers import Attention, FeedForward
from nartk.models.paraformer import Paraformer
from nartk.models.parts import DepthwiseModule, PartModule
from nartk.models.training import Dropout
from nartk.models.transformer import DecoderModule, Encoded, SourceEncoder, pad_frames
from nartk.protocols.passes import Source, features_of


class MemoryAttention(Attention):
    """Self-attention, plus its values and what a convolution gives of them."""

    memory: DepthwiseModule

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        """x [B,S,mF or D] -> [B,S,D]; kept [B,S]."""
        q, k, v = self.split(self.qkv(x), 3)  # [B,H,S,D/H]
        values = v.transpose(1, 2).flatten(2)
        remembered: Tensor = self.memory(values, kept) + values
        return self.attend(q, k, v, kept[:, None, None]) + remembered


class SanmLayer(PartModule):
    """A layer of the encoder; the first one may read other features than it gives."""

    self_attention: MemoryAttention
    self_norm: nn.LayerNorm
    ffn: FeedForward
    ffn_norm: nn.LayerNorm

    def __init__(self, part: Group, config: Config) -> None:
        super().__init__(part, config)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        """x [B,S,mF or D] -> [B,S,D]; kept [B,S]."""
        attended = self.dropout(self.self_attention(self.self_norm(x), kept))
        x = x + attended if x.shape == attended.shape else attended
        return x + self.dropout(self.ffn(self.ffn_norm(x)))


class SanmEncoderModule(SourceEncoder):
    """Encodes frames side by side."""

    inputs: ClassVar[tuple[str, ...]] = ("frames", "lengths")

    stacking: nn.Module
    layers: Sequence[SanmLayer]
    norm: nn.LayerNorm

    def __init__(self, config: SanmEncoder) -> None:
        super().__init__(config.tree["encoder"], config)
        nn.init.ones_(self.stacking.get_buffer("factor"))
        self.config = config
        self.dropout = Dropout(config.dropout)
        self.scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0

    def forward(self, frames: Tensor, lengths: Tensor) -> Encoded:
        """Encodes frames [B,T,F], of each row the first lengths [B], at least 1."""
        x, kept = self.stacked(frames, lengths)
        table = sinusoids(self.config.source_positions, x.shape[2], 1)
        x = self.dropout(x + torch.from_numpy(table[: x.shape[1]].copy()).to(x.device, x.dtype))
        for layer in self.layers:
            x = layer(x, kept)
        return Encoded(self.norm(x), kept)

    def stacked(self, frames: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Frames side by side [B,S,mF], normalised and scaled, and which positions count, [B,S].

        Around each `subsampling`-th frame of a row lie as many before it as behind it, of an even number one
        more behind; in place of those beyond an end lies the frame there.
        """
        config = self.config
        positions = torch.arange(config.encoded_length(int(lengths.max())), device=frames.device)
        window = torch.arange(config.stacked_frames, device=frames.device) - (config.stacked_frames - 1) // 2
        at = (config.subsampling * positions[:, None] + window).flatten()  # [S*m]
        at = at.clamp(min=0).minimum(lengths[:, None] - 1)  # [B,S*m]
        x = frames.gather(1, at[:, :, None].expand(-1, -1, frames.shape[2]))
        x = x.unflatten(1, (-1, config.stacked_frames)).flatten(2)
        x = (x + self.stacking.offset) * self.stacking.factor * self.scale
        counts = (lengths + config.subsampling - 1).div(config.subsampling, rounding_mode="floor")
        return x, positions < counts[:, None]

    def read(self, sources: Sequence[Source]) -> Encoded:
        config = self.config
        found = features_of(sources, config.input_features)
        for i, (frames, source) in enumerate(zip(found, sources, strict=True)):
            if not 0 < len(frames) <= config.max_source_len:
                raise PassError(
                    f"source {i} has {len(frames)} frames, not between 1 and {config.max_source_len}"
                )
            config.words_beside(i, source)
        encoded: Encoded = self(*pad_frames(found, self.norm.weight))
        return encoded


class SanmDecoderLayer(PartModule):
    """A feed-forward network, memory of what it gives, and attention to the source; each may lack."""

    ffn: FeedForward
    ffn_norm: nn.LayerNorm
    memory: DepthwiseModule | None
    self_norm: nn.LayerNorm | None
    cross_attention: Attention | None
    cross_norm: nn.LayerNorm | None

    def __init__(self, part: Group, config: Config) -> None:
        super().__init__(part, config)
        self.dropout = Dropout(config.dropout)

    def source_kv(self, memory: Tensor) -> tuple[Tensor, Tensor] | None:
        """Keys and values of the encoded source [B,S,D]: two of [B,H,S,D/H]; None: it is not read."""
        if self.cross_attention is None:
            return None
        k, v = self.cross_attention.split(self.cross_attention.kv(memory), 2)
        return k, v

    def forward(
        self,
        x: Tensor,
        source_kv: tuple[Tensor, Tensor] | None,
        source_mask: Tensor | None,
        mask: Tensor | None = None,
        *,
        causal: bool = False,
    ) -> Tensor:
        """x [B,N,D] -> the same shape; `mask` [B,1,1,N] tells which fires count, None: all."""
        y: Tensor = self.ffn(self.ffn_norm(x))
        if self.memory is None or self.self_norm is None:
            return y
        y = self.self_norm(y)
        x = x + self.dropout(self.memory(y, None if mask is None else mask[:, 0, 0]) + y)
        if source_kv is None or self.cross_attention is None or self.cross_norm is None:
            return x
        (q,) = self.cross_attention.split(self.cross_attention.q(self.cross_norm(x)), 1)
        return x + self.dropout(self.cross_attention.attend(q, *source_kv, source_mask))


class SanmDecoderModule(DecoderModule):
    """Maps fires and a memory to features of words."""

    layers: Sequence[SanmDecoderLayer]  # type: ignore[assignment]

    @property
    def recurs(self) -> bool:
        return False


class SanmParaformer(Paraformer):
    """FunASR's Paraformer."""

    decoder_class: ClassVar[type[DecoderModule]] = SanmDecoderModule
