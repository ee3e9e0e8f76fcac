"""The shape of HiFi-GAN's generator (Kong et al. 2020, https://arxiv.org/abs/2010.05646)."""

from __future__ import annotations

import math
from dataclasses import dataclass

END = 7  # kernel of the first and of the last convolution
LAST_SLOPE = 0.01  # of the leaky ReLU before the last one


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
        wide = END // 2 / self.hop  # of the last convolution, in frames
        scale = self.hop
        for rate, kernel in zip(reversed(self.upsample_rates), reversed(self.upsample_kernels), strict=True):
            widest = max(
                sum((kernel // 2) * (each + self.paired) for each in dilations)
                for kernel, dilations in zip(self.kernels, self.dilations, strict=True)
            )
            wide += widest / scale
            scale //= rate
            wide += kernel / rate / scale
        return math.ceil(wide + END // 2)
