"""Encoders of speech: the Conformer and the E-Branchformer, over frames that convolutions subsample.

Gulati et al. 2020 (https://arxiv.org/abs/2005.08100): half a feed-forward network, attention with relative
positions (Dai et al. 2019), a convolution, the other half. Kim et al. 2022 (https://arxiv.org/abs/2210.00077):
attention beside a gating network with a convolution (Sakuma et al. 2021), both merged with a convolution.
Intermediate CTC and self-conditioning: Nozaki and Komatsu 2021 (https://arxiv.org/abs/2104.02724).

It differs from ESPnet's program in this. Padding changes nothing of an utterance: behind its end convolutions
see zeros, as they do in an utterance alone, and batch norm's means are of what counts. Sinusoids of distances
are computed, in fp64, as many as there are.

What differs within ESPnet is a setting. Its Conformer's intermediate CTC reads what the encoder's last norm
makes of a layer, that of its E-Branchformer (OWSM-CTC's too) the layer as it is (`intermediate_norm`); layers
are conditioned on the same predictions. Its layer norms add 1e-12 to the variance (`norm_eps`), its batch
norm 1e-5 (`batch_norm_eps`).

Symbols: B rows, T frames, F features of a frame, S positions of the encoder, W tokens of a prompt, H heads, D
features a head, V words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nartk.architectures.encoders import SpeechEncoder
from nartk.architectures.parts import Group
from nartk.architectures.positions import interleaved_sinusoids
from nartk.architectures.settings import Config
from nartk.errors import PassError
from nartk.models.layers import Attention, FeedForward
from nartk.models.parts import BatchNormModule, DepthwiseModule, PartModule
from nartk.models.training import Dropout
from nartk.models.transformer import HEADS, Encoded, SourceEncoder, pad_frames
from nartk.protocols.passes import Source, features_of


class Subsampling(PartModule):
    """Convolutions of stride 2 over frames and features: [B,T,F] -> [B,S,d_model].

    None is padded, so that no position that counts sees what lies behind its utterance.
    """

    conv: Sequence[nn.Conv2d]
    out: nn.Linear

    def forward(self, frames: Tensor) -> Tensor:
        x = frames[:, None]  # [B,1,T,F]
        for conv in self.conv:
            x = F.relu(conv(x))
        out: Tensor = self.out(x.transpose(1, 2).flatten(2))  # [B,C,S,F'] -> [B,S,C*F']
        return out


class RelativeAttention(Attention):
    """Self-attention whose scores may know how far a key is (Dai et al. 2019, section 3.3).

    The score of query i and key j is ((q_i + u) k_j + (q_i + v) P r_(i-j)) / sqrt(D), with r the sinusoids of
    the distance, P a projection, and u, v learned of each head.
    """

    positions: nn.Linear | None
    bias_u: nn.Parameter
    bias_v: nn.Parameter

    def forward(self, x: Tensor, kept: Tensor, distances: Tensor | None) -> Tensor:
        """x [B,S,d_model] -> the same shape; kept [B,1,1,S]; distances [2S-1,d_model], from S - 1 down."""
        q, k, v = self.split(self.qkv(x), 3)  # [B,H,S,D]
        if self.positions is None:
            return self.attend(q, k, v, kept)
        r = self.positions(distances).unflatten(1, (self.heads, -1)).transpose(0, 1)  # [H,2S-1,D]
        by_distance = (q + self.bias_v[:, None]) @ r.transpose(1, 2)  # [B,H,S,2S-1]
        scores = _by_key(by_distance) * self.scale
        return self.attend(q + self.bias_u[:, None], k, v, scores.masked_fill(~kept, -math.inf))


def _by_key(x: Tensor) -> Tensor:
    """Picks for each query i and key j what x [...,S,2S-1] has for the distance i - j: [...,S,S].

    The distances of x go from S - 1 down.
    """
    size = x.shape[-2]
    shifted = F.pad(x, (1, 0)).flatten(-2)[..., size:]  # each row begins one distance later than that before
    picked: Tensor = shifted.unflatten(-1, (size, 2 * size - 1))
    return picked[..., :size]


class ConvolutionModule(PartModule):
    """The Conformer's convolution module, without its first norm."""

    up: nn.Linear
    depthwise: DepthwiseModule
    norm: nn.Module
    down: nn.Linear

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        """x [B,S,d_model] -> the same shape; kept [B,S]."""
        x = self.depthwise(F.glu(self.up(x), -1), kept)
        x = self.norm(x, kept) if isinstance(self.norm, BatchNormModule) else self.norm(x)
        out: Tensor = self.down(F.silu(x))
        return out


class Gating(PartModule):
    """A feed-forward network of which one half, convolved, gates the other (cgMLP, Sakuma et al. 2021)."""

    up: nn.Linear
    norm: nn.LayerNorm
    depthwise: DepthwiseModule
    down: nn.Linear

    def __init__(self, part: Group, config: Config) -> None:
        super().__init__(part, config)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        """x [B,S,d_model] -> the same shape; kept [B,S]."""
        gated, gate = F.gelu(self.up(x)).chunk(2, -1)
        out: Tensor = self.down(self.dropout(gated * self.depthwise(self.norm(gate), kept)))
        return out


class Merge(PartModule):
    """Joins two branches [B,S,d_model] each: what lies side by side and its convolution, projected."""

    depthwise: DepthwiseModule
    out: nn.Linear

    def forward(self, one: Tensor, other: Tensor, kept: Tensor) -> Tensor:
        both = torch.cat([one, other], -1)
        out: Tensor = self.out(both + self.depthwise(both, kept))
        return out


class SpeechLayer(PartModule):
    """A block of the encoder, which may read a prompt too (Peng et al. 2024, section 3)."""

    ffn1_norm: nn.LayerNorm
    ffn1: FeedForward
    self_norm: nn.LayerNorm
    self_attention: RelativeAttention
    conv_norm: nn.LayerNorm
    conv: ConvolutionModule | None
    cgmlp_norm: nn.LayerNorm
    cgmlp: Gating
    merge: Merge
    ffn2_norm: nn.LayerNorm
    ffn2: FeedForward
    cross_norm: nn.LayerNorm
    cross_attention: Attention | None
    final_norm: nn.LayerNorm

    def __init__(self, part: Group, config: Config) -> None:
        super().__init__(part, config)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        kept: Tensor,
        distances: Tensor | None,
        prompt: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """x [B,S,d_model] -> the same shape.

        Args:
            kept: [B,S] bool.
            distances: [2S-1,d_model], sinusoids of the distances from S - 1 down, if they are wanted.
            prompt: Encoded, [B,W,d_model], and which of it counts, [B,W].
        """
        drop = self.dropout
        x = x + 0.5 * drop(self.ffn1(self.ffn1_norm(x)))
        attended = drop(self.self_attention(self.self_norm(x), kept[:, None, None], distances))
        if self.conv is not None:
            x = x + attended
            x = x + drop(self.conv(self.conv_norm(x), kept))
        else:
            gated = drop(self.cgmlp(self.cgmlp_norm(x), kept))
            x = x + drop(self.merge(attended, gated, kept))
        x = x + 0.5 * drop(self.ffn2(self.ffn2_norm(x)))
        if self.cross_attention is not None and prompt is not None:
            x = x + drop(self._read(self.cross_attention, self.cross_norm(x), *prompt))
        out: Tensor = self.final_norm(x)
        return out

    @staticmethod
    def _read(attention: Attention, x: Tensor, prompt: Tensor, kept: Tensor) -> Tensor:
        (q,) = attention.split(attention.q(x), 1)
        k, v = attention.split(attention.kv(prompt), 2)
        return attention.attend(q, k, v, kept[:, None, None])


class SpeechEncoderModule(SourceEncoder):
    """Encodes speech; holds the CTC head, whose predictions its layers may read."""

    inputs: ClassVar[tuple[str, ...]] = ("frames", "lengths")
    subsample: Subsampling
    layers: Sequence[SpeechLayer]
    norm: nn.LayerNorm
    ctc: nn.Linear
    condition: nn.Linear | None

    def __init__(self, config: SpeechEncoder) -> None:
        tree = config.tree
        heads = {name: tree[name] for name in HEADS if name in tree.parts}
        prompt = dict(tree["encoder"].parts)
        own = {name: prompt.pop(name) for name in ("subsample", "layers", "norm")}
        super().__init__(Group({**own, **heads, **prompt}), config)
        self.config = config
        self.dropout = Dropout(config.dropout)
        self.scale = 1.0 if config.encoder_positions == "none" else math.sqrt(config.d_model)

    def forward(self, frames: Tensor, lengths: Tensor) -> Encoded:
        """Encodes frames [B,T,F], of each row the first lengths [B], at least `least_frames`."""
        return self.encode(*self.subsampled(frames, lengths), intermediate=True)

    def read(self, sources: Sequence[Source]) -> Encoded:
        """Encodes features; raises as SourceEncoder, and PassError where too few frames are left of one."""
        frames, lengths = self.frames_of(sources)
        for i, source in enumerate(sources):
            self.config.words_beside(i, source)
        return self.encode(*self.subsampled(frames, lengths))

    def frames_of(self, sources: Sequence[Source]) -> tuple[Tensor, Tensor]:
        """The frames [B,T,F] of sources, padded with zeros, and how many each has, [B]."""
        config = self.config
        found = features_of(sources, config.input_features)
        for i, frames in enumerate(found):
            if not config.least_frames <= len(frames) <= config.max_source_len:
                raise PassError(
                    f"source {i} has {len(frames)} frames, not between {config.least_frames} and "
                    f"{config.max_source_len}"
                )
        return pad_frames(found, self.ctc.weight)

    def subsampled(self, frames: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Frames [B,T,F] of lengths [B] as [B,S,d_model], scaled, and which positions count, [B,S]."""
        x = self.subsample(frames) * self.scale
        for _ in range(self.config.convolutions):
            lengths = (lengths - 1) // 2
        return x, torch.arange(x.shape[1], device=x.device) < lengths[:, None]

    def encode(
        self,
        x: Tensor,
        kept: Tensor,
        *,
        prompt: tuple[Tensor, Tensor] | None = None,
        intermediate: bool = False,
    ) -> Encoded:
        """Encodes positions x [B,S,d_model] of which `kept` [B,S] counts.

        Args:
            prompt: Memory [B,W,d_model] that some layers read, and which positions count, [B,W].
            intermediate: True to return the intermediate CTC's logits.
        """
        config, size = self.config, x.shape[1]
        distances = None
        if config.encoder_positions == "transformer-xl":
            distances = self._sinusoids(range(size - 1, -size, -1), x)
        elif config.encoder_positions == "sinusoidal":
            x = x + self._sinusoids(range(size), x)
        x = self.dropout(x)
        found = []
        for number, layer in enumerate(self.layers, start=1):
            x = layer(x, kept, distances, prompt)
            if number in config.intermediate_layers and (intermediate or self.condition is not None):
                found.append(self.ctc(self.norm(x) if config.intermediate_norm else x))
                if self.condition is not None:
                    x = x + self.condition(found[-1].softmax(-1))
        return Encoded(self.norm(x), kept, intermediate=found if intermediate else [])

    def _sinusoids(self, positions: range, x: Tensor) -> Tensor:
        return torch.from_numpy(interleaved_sinusoids(positions, x.shape[2])).to(x.device, x.dtype)
