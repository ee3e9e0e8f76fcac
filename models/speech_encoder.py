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
from dataclasses import replace
from itertools import pairwise
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nartk.architectures.encoders import SpeechEncoder as SpeechEncoderConfig
from nartk.architectures.positions import interleaved_sinusoids
from nartk.errors import PassError
from nartk.models.layers import Attention, FeedForward
from nartk.models.training import Dropout
from nartk.models.transformer import Encoded, SourceEncoder
from nartk.protocols.passes import Source, features_of

_MOMENTUM = 0.1  # of batch norm's running statistics


class Subsampling(nn.Module):
    """Convolutions of stride 2 over frames and features: [B,T,F] -> [B,S,d_model].

    None is padded, so that no position that counts sees what lies behind its utterance.
    """

    def __init__(self, config: SpeechEncoderConfig) -> None:
        super().__init__()
        channels = (1, *[config.channels] * config.convolutions)
        self.conv = nn.ModuleList(
            nn.Conv2d(before, after, 3, stride=2) for before, after in pairwise(channels)
        )
        left = config.encoded_length(config.input_features)
        self.out = nn.Linear(config.channels * left, config.d_model)

    def forward(self, frames: Tensor) -> Tensor:
        x = frames[:, None]  # [B,1,T,F]
        for conv in self.conv:
            x = F.relu(conv(x))
        out: Tensor = self.out(x.transpose(1, 2).flatten(2))  # [B,C,S,F'] -> [B,S,C*F']
        return out


class RelativeAttention(Attention):
    """Self-attention whose scores know how far a key is (Dai et al. 2019, section 3.3).

    The score of query i and key j is ((q_i + u) k_j + (q_i + v) P r_(i-j)) / sqrt(D), with r the sinusoids of
    the distance, P a projection, and u, v learned of each head.
    """

    def __init__(self, config: SpeechEncoderConfig) -> None:
        super().__init__(config, "encoder")
        features = config.attention_features("encoder")
        self.positions = nn.Linear(config.d_model, self.heads * features, bias=False)
        self.bias_u = nn.Parameter(torch.empty(self.heads, features))
        self.bias_v = nn.Parameter(torch.empty(self.heads, features))
        nn.init.xavier_uniform_(self.bias_u)
        nn.init.xavier_uniform_(self.bias_v)

    def forward(self, x: Tensor, kept: Tensor, distances: Tensor) -> Tensor:
        """x [B,S,d_model] -> the same shape; kept [B,1,1,S]; distances [2S-1,d_model], from S - 1 down."""
        q, k, v = self.split(self.qkv(x), 3)  # [B,H,S,D]
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
    return shifted.unflatten(-1, (size, 2 * size - 1))[..., :size]


class PlainAttention(Attention):
    """Self-attention whose scores know no positions."""

    def forward(self, x: Tensor, kept: Tensor, distances: Tensor | None) -> Tensor:
        q, k, v = self.split(self.qkv(x), 3)
        return self.attend(q, k, v, kept)


class BatchNorm(nn.Module):
    """Batch norm over positions [B,S,d] of which only those count that are kept.

    Evaluation uses running means and variances, which go `_MOMENTUM` of the way to those of each batch.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, features: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))
        self.eps = eps

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        mean, var = self.running_mean, self.running_var
        if self.training:
            wide = x if x.dtype == torch.float64 else x.float()
            counted, count = kept[:, :, None].to(wide.dtype), kept.sum()
            mean = (wide * counted).sum((0, 1)) / count
            var = ((wide - mean).square() * counted).sum((0, 1)) / count
            with torch.no_grad():
                unbiased = var * (count / (count - 1).clamp(min=1))
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), _MOMENTUM)
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), _MOMENTUM)
        scale = self.weight * (var + self.eps).rsqrt()
        return x * scale.to(x.dtype) + (self.bias - mean * scale).to(x.dtype)


class LayerNorm(nn.LayerNorm):
    """Layer norm, for which nothing but a position itself counts."""

    def forward(self, input: Tensor, kept: Tensor | None = None) -> Tensor:
        return super().forward(input)


class Depthwise(nn.Conv1d):
    """A convolution of each feature by itself, [B,S,d] -> the same shape; what is not kept is 0 to it."""

    def __init__(self, features: int, kernel: int) -> None:
        super().__init__(features, features, kernel, padding=kernel // 2, groups=features)

    def forward(self, input: Tensor, kept: Tensor | None = None) -> Tensor:
        x = input if kept is None else input.masked_fill(~kept[:, :, None], 0.0)
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class Convolution(nn.Module):
    """The Conformer's convolution module, without its first norm."""

    def __init__(self, config: SpeechEncoderConfig) -> None:
        super().__init__()
        d = config.d_model
        self.up = nn.Linear(d, 2 * d)
        self.depthwise = Depthwise(d, config.conv_kernel)
        is_batch = config.conv_norm == "batch"
        self.norm = BatchNorm(d, config.eps_of_batch_norm) if is_batch else LayerNorm(d, config.norm_eps)
        self.down = nn.Linear(d, d)

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        """x [B,S,d_model] -> the same shape; kept [B,S]."""
        x = self.depthwise(F.glu(self.up(x), -1), kept)
        out: Tensor = self.down(F.silu(self.norm(x, kept)))
        return out


class Gating(nn.Module):
    """A feed-forward network of which one half, convolved, gates the other (cgMLP, Sakuma et al. 2021)."""

    def __init__(self, config: SpeechEncoderConfig) -> None:
        super().__init__()
        inner = config.gating_features
        self.up = nn.Linear(config.d_model, inner)
        self.norm = nn.LayerNorm(inner // 2, config.norm_eps)
        self.depthwise = Depthwise(inner // 2, config.conv_kernel)
        self.down = nn.Linear(inner // 2, config.d_model)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        """x [B,S,d_model] -> the same shape; kept [B,S]."""
        gated, gate = F.gelu(self.up(x)).chunk(2, -1)
        out: Tensor = self.down(self.dropout(gated * self.depthwise(self.norm(gate), kept)))
        return out


class Merge(nn.Module):
    """Joins two branches [B,S,d_model] each: what lies side by side and its convolution, projected."""

    def __init__(self, config: SpeechEncoderConfig) -> None:
        super().__init__()
        self.depthwise = Depthwise(2 * config.d_model, config.merge_kernel)
        self.out = nn.Linear(2 * config.d_model, config.d_model)

    def forward(self, one: Tensor, other: Tensor, kept: Tensor) -> Tensor:
        both = torch.cat([one, other], -1)
        out: Tensor = self.out(both + self.depthwise(both, kept))
        return out


class SpeechLayer(nn.Module):
    """A block of the encoder; `attends_prompt`: it reads a prompt too (Peng et al. 2024, section 3)."""

    def __init__(self, config: SpeechEncoderConfig, *, attends_prompt: bool = False) -> None:
        super().__init__()

        def norm() -> nn.LayerNorm:
            return nn.LayerNorm(config.d_model, config.norm_eps)

        self.ffn1_norm, self.ffn1 = norm(), FeedForward(config, config.encoder_ffn)
        relative = config.encoder_positions == "transformer-xl"
        self.self_norm = norm()
        self.self_attention = RelativeAttention(config) if relative else PlainAttention(config, "encoder")
        self.conv: Convolution | None = None
        if config.encoder_block == "e-branchformer":
            self.cgmlp_norm, self.cgmlp, self.merge = norm(), Gating(config), Merge(config)
        else:
            self.conv_norm, self.conv = norm(), Convolution(config)
        self.ffn2_norm, self.ffn2 = norm(), FeedForward(config, config.encoder_ffn)
        self.cross_attention: Attention | None = None
        if attends_prompt:
            self.cross_norm = norm()
            self.cross_attention = Attention(config, "encoder", over_source=True)
        self.final_norm = norm()
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
        return self.final_norm(x)

    @staticmethod
    def _read(attention: Attention, x: Tensor, prompt: Tensor, kept: Tensor) -> Tensor:
        (q,) = attention.split(attention.q(x), 1)
        k, v = attention.split(attention.kv(prompt), 2)
        return attention.attend(q, k, v, kept[:, None, None])


class SpeechEncoder(SourceEncoder):
    """Encodes speech; holds the CTC head, whose predictions its layers may read."""

    inputs: ClassVar[tuple[str, ...]] = ("frames", "lengths")
    ctc: nn.Linear

    def __init__(self, config: SpeechEncoderConfig) -> None:
        super().__init__()
        self.config = config
        # The decoder's activation and gates are not the encoder's.
        own = replace(config, activation="silu", gated_ffn=False)
        self.subsample = Subsampling(own)
        # A ModuleList is a sequence, but does not say of what.
        self.layers: Sequence[SpeechLayer] = nn.ModuleList(  # type: ignore[assignment]
            SpeechLayer(own, attends_prompt=i in config.prompted_layers) for i in range(config.encoder_layers)
        )
        self.norm = nn.LayerNorm(config.d_model, config.norm_eps)
        self.ctc = nn.Linear(config.d_model, config.tgt_vocab)
        self.condition = nn.Linear(config.tgt_vocab, config.d_model) if config.self_conditioning else None
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
        config, weight = self.config, self.ctc.weight
        found = features_of(sources, config.input_features)
        for i, frames in enumerate(found):
            if not config.least_frames <= len(frames) <= config.max_source_len:
                raise PassError(
                    f"source {i} has {len(frames)} frames, not between {config.least_frames} and "
                    f"{config.max_source_len}"
                )
        lengths = torch.tensor([len(frames) for frames in found], device=weight.device)
        rows = [torch.tensor(frames) for frames in found]
        padded = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return padded.to(weight.device, weight.dtype), lengths

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
