"""HiFi-GAN's generator: sound of log-mel spectrograms (Kong et al. 2020, https://arxiv.org/abs/2010.05646).

Symbols: T frames, F mel bins, N samples.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from nartk.protocols.hifigan import END, LAST_SLOPE, HifiGanConfig
from nartk.protocols.passes import FloatArray


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
        self.conv_pre = nn.Conv1d(config.bins, channels[0], END, padding=END // 2)
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
        self.conv_post = nn.Conv1d(channels[-1], 1, END, padding=END // 2)
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
        return torch.tanh(self.conv_post(leaky_relu(x, LAST_SLOPE))).squeeze(1)

    @torch.inference_mode()
    def sound(self, mel: FloatArray) -> FloatArray:
        """The sound [N] of one spectrogram [T,F]."""
        found: FloatArray = self(torch.from_numpy(mel)[None])[0].numpy()
        return found
