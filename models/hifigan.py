"""HiFi-GAN's generator: sound of log-mel spectrograms (Kong et al. 2020, https://arxiv.org/abs/2010.05646).

Symbols: T frames, F mel bins, N samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

_END = 7  # kernel of the first and of the last convolution
_LAST_SLOPE = 0.01  # of the leaky ReLU before the last one


@dataclass(frozen=True)
class HifiGanConfig:
    """The shape of a generator; the default one is V1 of the paper.

    Attributes:
        bins: F, mel bins a frame.
        channels: Channels of the first layer, halved by each upsampling.
        upsample_rates: Stride of each upsampling; their product is the samples of a frame.
        upsample_kernels: Kernel of each.
        kernels: Kernels of the residual blocks behind an upsampling, whose mean is taken.
        dilations: Dilations of the convolutions in each block.
        paired: True if a convolution without dilation follows each (V1, V2), False for V3.
        slope: Slope of the leaky ReLU below 0.
        normalizes: True if mean and scale of the bins are weights too.
    """

    bins: int = 80
    channels: int = 512
    upsample_rates: tuple[int, ...] = (8, 8, 2, 2)
    upsample_kernels: tuple[int, ...] = (16, 16, 4, 4)
    kernels: tuple[int, ...] = (3, 7, 11)
    dilations: tuple[tuple[int, ...], ...] = ((1, 3, 5), (1, 3, 5), (1, 3, 5))
    paired: bool = True
    slope: float = 0.1
    normalizes: bool = False

    @property
    def hop(self) -> int:
        """Samples of a frame."""
        return math.prod(self.upsample_rates)

    @property
    def context(self) -> int:
        """Frames on each side of a frame that its samples depend on, at most."""
        wide = _END // 2 / self.hop  # of the last convolution, in frames
        scale = self.hop
        for rate, kernel in zip(reversed(self.upsample_rates), reversed(self.upsample_kernels), strict=True):
            widest = max(
                sum((kernel // 2) * (each + self.paired) for each in dilations)
                for kernel, dilations in zip(self.kernels, self.dilations, strict=True)
            )
            wide += widest / scale
            scale //= rate
            wide += kernel / rate / scale
        return math.ceil(wide + _END // 2)


class ResidualBlock(nn.Module):
    """Convolutions of one kernel and of growing dilation, each added to what it reads."""

    def __init__(
        self, channels: int, kernel: int, dilations: tuple[int, ...], *, paired: bool, slope: float
    ) -> None:
        super().__init__()
        self.slope = slope

        def convolutions(dilations: tuple[int, ...]) -> nn.ModuleList:
            return nn.ModuleList(
                nn.Conv1d(channels, channels, kernel, dilation=each, padding=each * (kernel - 1) // 2)
                for each in dilations
            )

        self.convs1 = convolutions(dilations)
        self.convs2 = convolutions((1,) * len(dilations)) if paired else None

    def forward(self, x: Tensor) -> Tensor:
        for i, first in enumerate(self.convs1):
            found = first(leaky_relu(x, self.slope))
            if self.convs2 is not None:
                found = self.convs2[i](leaky_relu(found, self.slope))
            x = found + x
        return x


class HifiGan(nn.Module):
    """Makes sound [B,N] of log-mel spectrograms [B,T,F], N = T * hop."""

    mean: Tensor
    scale: Tensor

    def __init__(self, config: HifiGanConfig) -> None:
        super().__init__()
        self.config = config
        channels = [config.channels >> i for i in range(len(config.upsample_rates) + 1)]
        self.conv_pre = nn.Conv1d(config.bins, channels[0], _END, padding=_END // 2)
        self.ups = nn.ModuleList(
            nn.ConvTranspose1d(
                channels[i], channels[i + 1], kernel, stride=rate, padding=(kernel - rate) // 2
            )
            for i, (rate, kernel) in enumerate(
                zip(config.upsample_rates, config.upsample_kernels, strict=True)
            )
        )
        self.resblocks = nn.ModuleList(
            ResidualBlock(width, kernel, dilations, paired=config.paired, slope=config.slope)
            for width in channels[1:]
            for kernel, dilations in zip(config.kernels, config.dilations, strict=True)
        )
        self.conv_post = nn.Conv1d(channels[-1], 1, _END, padding=_END // 2)
        if config.normalizes:
            self.register_buffer("mean", torch.zeros(config.bins))
            self.register_buffer("scale", torch.ones(config.bins))

    def forward(self, mel: Tensor) -> Tensor:
        if self.config.normalizes:
            mel = (mel - self.mean) / self.scale
        x = self.conv_pre(mel.transpose(1, 2))  # [B,T,F] -> [B,C,T]
        blocks = len(self.config.kernels)
        for i, up in enumerate(self.ups):
            x = up(leaky_relu(x, self.config.slope))
            x = sum(block(x) for block in self.resblocks[i * blocks : (i + 1) * blocks]) / blocks
        return torch.tanh(self.conv_post(leaky_relu(x, _LAST_SLOPE))).squeeze(1)
