"""Griffin-Lim: sound whose magnitudes are those of a spectrogram, without a network.

Source: Griffin and Lim 1984, https://doi.org/10.1109/TASSP.1984.1164317; with the momentum of Perraudin et
al. 2013, https://doi.org/10.1109/WASPAA.2013.6701851. Magnitudes are estimated from mel bins by least
squares, then by multiplicative updates that keep them positive (Lee and Seung 2000, theorem 1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from nartk.data.audio.spectra import hann, mel_bins, transforms
from nartk.protocols.passes import FloatArray
from nartk.protocols.spectrograms import MelSettings
from nartk.registry import option, register_vocoder
from nartk.vocoders.vocoder import Vocoder, VocoderOptions

_UPDATES = 5  # of magnitudes; more change them by less than the phases' error
_TOGETHER = 128  # frames whose transforms are computed at a time
_TINY = 1e-10  # keeps divisions by 0 away
_QUIETEST = 1e-3  # sum of squared windows by which a sample is divided, at least


@register_vocoder("griffin-lim")
class GriffinLimOptions(VocoderOptions):
    """Finds phases that fit the magnitudes, step by step, in NumPy; needs no weights."""

    iterations: int = option(32, "steps; more sound better and take longer", low=1, high=10_000)
    momentum: float = option(0.99, "acceleration of the steps; 0: Griffin and Lim's own", low=0, high=0.999)

    def open(self, settings: MelSettings, folder: Path) -> Vocoder:
        return GriffinLim(settings, self.iterations, self.momentum)


class GriffinLim:
    """Implements `Vocoder`; the same spectrogram gives the same sound."""

    def __init__(self, settings: MelSettings, iterations: int, momentum: float) -> None:
        self.settings, self.iterations = settings, iterations
        self._pull = np.float32(momentum / (1 + momentum))
        self._bins = mel_bins(settings)
        self._inverse = np.linalg.pinv(self._bins)
        self._shape = hann(settings.window)

    def samples(self, mel: FloatArray) -> FloatArray:
        of, count = self.settings, len(mel)
        magnitudes = self._magnitudes(mel)
        phases = np.random.default_rng(0).random(magnitudes.shape, np.float32)
        spectrum = magnitudes * np.exp(np.complex64(2j * np.pi) * phases)
        previous = np.zeros_like(spectrum)
        norm: FloatArray = np.maximum(self._added(lambda block: self._shape**2, count), np.float32(_QUIETEST))

        def frames(block: slice) -> FloatArray:
            """Windows of the samples whose transforms are a block of the spectrum."""
            found: FloatArray = np.fft.irfft(spectrum[block], of.window).astype(np.float32, copy=False)
            found *= self._shape
            return found

        def inverted() -> FloatArray:
            """The samples whose transforms are nearest to the spectrum."""
            return self._added(frames, count) / norm

        for _ in range(self.iterations):
            sound = inverted()
            for block in _blocks(count):
                held = sound[block.start * of.hop : (block.stop - 1) * of.hop + of.window]
                found = transforms(held, of.window, of.hop)
                moved = found - self._pull * previous[block]
                moved *= magnitudes[block] / np.maximum(np.abs(moved), np.float32(_TINY))
                spectrum[block], previous[block] = moved, found
        begin = of.window // 2
        sound = inverted()[begin : begin + count * of.hop]
        return np.pad(sound, (0, count * of.hop - len(sound)))

    def _magnitudes(self, mel: FloatArray) -> FloatArray:
        """Magnitudes [T, window // 2 + 1] whose mel bins are nearly those of a log-mel spectrogram [T,F]."""
        wanted = np.exp(mel)
        found: FloatArray = np.maximum(wanted @ self._inverse, np.float32(_TINY))
        aim = wanted @ self._bins.T
        gram = self._bins @ self._bins.T
        for _ in range(_UPDATES):
            found *= aim / np.maximum(found @ gram, np.float32(_TINY))
        return found

    def _added(self, frames: Callable[[slice], FloatArray], count: int) -> FloatArray:
        """Frames [T, window], given in blocks, added up where each lies in the sound -> [about T * hop]."""
        hop, window = self.settings.hop, self.settings.window
        slots = -(-window // hop)
        sums = np.zeros((count + slots - 1, hop), np.float32)
        for block in _blocks(count):
            each = frames(block)
            for slot in range(slots):
                part = each[..., slot * hop : (slot + 1) * hop]
                sums[block.start + slot : block.stop + slot, : part.shape[-1]] += part
        return sums.reshape(-1)


def _blocks(count: int) -> Iterator[slice]:
    """The frames of a spectrogram, so many at a time as fit into a processor's cache."""
    return (slice(begin, min(begin + _TOGETHER, count)) for begin in range(0, count, _TOGETHER))
