"""HiFi-GAN's generator on the engine: its weights as the engine's convolutions read them.

Symbols: T frames, F mel bins, N samples, k taps of a kernel.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from nartk.architectures.parts import PANEL, filled
from nartk.engine import FORCED_ISA, _native
from nartk.protocols.hifigan import HifiGanConfig
from nartk.protocols.passes import FloatArray

Convolution = tuple[
    _native.Linear, int, int
]  # a layer over windows, the rows before their own, their dilation


class GeneratorOnEngine:
    """Computes sound of spectrograms.

    Args:
        tensors: Weights by the names of `nartk.models.hifigan.HifiGan`.
        type: Type of weights and products: fp32, bf16 or int8.
        threads: Most threads of a call.
    """

    def __init__(
        self, config: HifiGanConfig, tensors: Mapping[str, FloatArray], type: str, threads: int
    ) -> None:
        self._tensors, self._type = tensors, type
        self._statistics = (tensors["mean"], tensors["scale"]) if config.normalizes else None
        count = len(config.kernels)
        stages = [
            {
                "up": self._transposed(f"ups.{i}", rate),
                "rate": rate,
                "channels": config.channels >> (i + 1),
                "blocks": [self._block(f"resblocks.{i * count + j}", config, j) for j in range(count)],
            }
            for i, rate in enumerate(config.upsample_rates)
        ]
        generator = {
            "bins": config.bins,
            "paired": config.paired,
            "slope": config.slope,
            "first": self._convolution("conv_pre"),
            "last": self._convolution("conv_post"),
            "stages": stages,
        }
        self._vocoder = _native.Vocoder(generator, _native.isa(os.environ.get(FORCED_ISA, "")), threads)

    def sound(self, mel: FloatArray) -> FloatArray:
        """The sound [N] of a spectrogram [T,F]."""
        if self._statistics is not None:
            mean, scale = self._statistics
            mel = (mel - mean) / scale
        return self._vocoder.run(mel)

    def _block(self, name: str, config: HifiGanConfig, index: int) -> list[Convolution]:
        found = []
        for i, dilation in enumerate(config.dilations[index]):
            found.append(self._convolution(f"{name}.convs1.{i}", dilation))
            if config.paired:
                found.append(self._convolution(f"{name}.convs2.{i}"))
        return found

    def _convolution(self, name: str, dilation: int = 1) -> Convolution:
        weight, bias = self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"]  # [out,in,k], [out]
        taps = np.moveaxis(weight, 1, 2).reshape(len(weight), -1)
        return _native.Linear.pack(taps, bias, self._type), (weight.shape[2] - 1) // 2, dilation

    def _transposed(self, name: str, rate: int) -> Convolution:
        """A transposed convolution as a layer from a window of inputs to all `rate` outputs that one begins.

        Output rate * i + q reads input j by tap rate * (i - j) + q + padding, where there is such a tap.
        """
        weight, bias = self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"]  # [in,out,k], [out]
        inputs, outputs, kernel = weight.shape
        padding = (kernel - rate) // 2
        first, last = -((padding + rate - 1) // rate), (kernel - 1 - padding) // rate  # of i - j
        wide = filled(outputs, PANEL)
        taps = np.zeros((rate, wide, last - first + 1, inputs), np.float32)
        for q in range(rate):
            for back in range(first, last + 1):
                tap = rate * back + q + padding
                if 0 <= tap < kernel:
                    taps[q, :outputs, last - back] = weight[:, :, tap].T
        biases = np.tile(np.pad(bias, (0, wide - outputs)), rate)
        return _native.Linear.pack(taps.reshape(rate * wide, -1), biases, self._type), last, 1
