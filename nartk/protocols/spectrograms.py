"""Log-mel spectrograms of speech that a model says: their settings, and the outputs that hold them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from nartk.errors import UsageError
from nartk.protocols.passes import FloatArray

if TYPE_CHECKING:
    from nartk.files import JsonObject


@dataclass(frozen=True)
class MelSettings:
    """Settings of a log-mel spectrogram: log(max(mel bins of magnitude, 1e-5)), frame by frame.

    Attributes:
        sample_rate: Sampling rate of the sound, Hz.
        bins: F, mel bins a frame.
        window: Samples of a frame's window, and of its Fourier transform.
        hop: Samples from one frame to the next.
        low: Lowest frequency of a bin, Hz.
        high: Highest frequency of a bin, Hz.

    Raises:
        UsageError: One is of a wrong type or out of bounds.
    """

    sample_rate: int = 22050
    bins: int = 80
    window: int = 1024
    hop: int = 256
    low: float = 20.0
    high: float = 8000.0

    def __post_init__(self) -> None:
        bounds: dict[str, tuple[float, float]] = {
            "sample_rate": (1000, 768_000),
            "bins": (1, 4096),
            "window": (16, 65536),
            "hop": (1, self.window if isinstance(self.window, int) else 1),
            "high": (1, self.sample_rate / 2 if isinstance(self.sample_rate, int) else 1),
            "low": (0, self.high - 1 if isinstance(self.high, int | float) else 0),
        }
        for field in fields(self):
            value, type_ = getattr(self, field.name), type(field.default)
            if not (type(value) is type_ or (type_ is float and type(value) is int)):
                raise UsageError(f"`{field.name}` is {value!r}", fix=f"give a value of type {type_.__name__}")
        for name, (least, most) in bounds.items():
            if not least <= getattr(self, name) <= most:
                raise UsageError(f"`{name}` is {getattr(self, name)}", fix=f"give {least:g} to {most:g}")

    def differences(self, other: MelSettings) -> str:
        """The settings in which another differs, with both values, for messages; empty: none."""
        return ", ".join(
            f"{field.name} {getattr(self, field.name):g} and not {getattr(other, field.name):g}"
            for field in fields(self)
            if getattr(self, field.name) != getattr(other, field.name)
        )


@runtime_checkable
class SpeechOutput(Protocol):
    """An `Output` that holds speech beside its text.

    Attributes:
        mel: Log-mel spectrogram [T,F] float32, without normalisation.
        mel_settings: Settings of the spectrogram.
    """

    @property
    def mel(self) -> FloatArray: ...

    @property
    def mel_settings(self) -> MelSettings: ...


@runtime_checkable
class SpeaksMel(Protocol):
    """An output processor whose outputs are each a `SpeechOutput`, but for those of no token.

    Attributes:
        mel_settings: Settings of their spectrograms.
    """

    @property
    def mel_settings(self) -> MelSettings: ...


@dataclass(frozen=True, eq=False)
class Speech:
    """Implements `Output` and `SpeechOutput`: text, and the spectrogram of it.

    Attributes:
        text: Text of the output.
        mel: Log-mel spectrogram [T,F] float32, without normalisation.
        mel_settings: Settings of the spectrogram.
    """

    text: str
    mel: FloatArray
    mel_settings: MelSettings

    def __str__(self) -> str:
        return self.text

    def fields(self) -> JsonObject:
        return {"text": self.text, "mel_frames": len(self.mel)}
