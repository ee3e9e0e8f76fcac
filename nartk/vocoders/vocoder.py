"""Base of vocoders: their options, and loading one by its name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Protocol

import numpy as np

from nartk.errors import UsageError
from nartk.protocols.passes import FloatArray
from nartk.protocols.spectrograms import MelSettings
from nartk.registry import VOCODERS, read_options

DEFAULT = "griffin-lim"
_OPTION = re.compile(r"\w+=")  # what an option begins with; a folder's name may hold colons


class Vocoder(Protocol):
    """Makes sound of log-mel spectrograms of given settings."""

    def samples(self, mel: FloatArray) -> FloatArray:
        """The sound [T * hop] float32, between -1 and 1, of a log-mel spectrogram [T,F]."""


class VocoderOptions:
    """Options of a vocoder, from which one is opened.

    Attributes:
        name: Name by which it is declared.
        reads_folder: True if it has weights, which it reads from a folder.
    """

    name: ClassVar[str]
    reads_folder: ClassVar[bool] = False

    def open(self, settings: MelSettings, folder: Path) -> Vocoder:
        """A vocoder for spectrograms of these settings; one without weights reads nothing of the folder.

        Raises:
            UsageError: The folder's vocoder is for other spectrograms.
            CheckpointError: Its weights are damaged, incomplete, or of another network.
        """
        raise NotImplementedError


class _Checked:
    """Refuses what is no spectrogram before the vocoder reads it."""

    def __init__(self, vocoder: Vocoder, settings: MelSettings) -> None:
        self._vocoder, self._settings = vocoder, settings

    def samples(self, mel: FloatArray) -> FloatArray:
        """The sound as `Vocoder.samples` gives it.

        Raises:
            UsageError: The spectrogram has another number of bins, or holds NaN or infinity.
        """
        if mel.ndim != 2 or mel.shape[1] != self._settings.bins:
            raise UsageError(
                f"the spectrogram is {list(mel.shape)}, the vocoder reads [T, {self._settings.bins}]",
                fix="name a vocoder of as many bins",
            )
        if not np.isfinite(mel).all():
            raise UsageError("the spectrogram holds NaN or infinity", fix="use another model")
        if not len(mel):
            return np.zeros(0, np.float32)
        samples = self._vocoder.samples(np.asarray(mel, np.float32))
        # What is louder than full scale becomes softer as a whole: files would clip it.
        bounded: FloatArray = samples / np.maximum(np.abs(samples).max(initial=0.0), np.float32(1))
        return bounded


def load_vocoder(
    name: str = DEFAULT,
    settings: MelSettings | None = None,
    options: Mapping[str, object] = MappingProxyType({}),
) -> Vocoder:
    """Loads a vocoder.

    Args:
        name: Its name, behind colons the folder of its weights, if it has any, and options:
            ``griffin-lim:iterations=60``, ``hifi-gan:FOLDER:dtype=int8:threads=2``.
        settings: Settings of the spectrograms that it is to read; None: the default ones.
        options: Further options by name, in place of those.

    Raises:
        UnknownStrategyError: There is no such vocoder.
        UsageError: The folder is missing, or one is given for a vocoder without weights; an option is unknown
            or out of its bounds; or the folder's vocoder is for spectrograms of other settings.
        CheckpointError: Its weights are damaged, incomplete, or of another network.
        MissingDependencyError: A package that it needs is not installed.
    """
    stem, *parts = name.split(":")
    given: list[str] = []
    while parts and _OPTION.match(parts[-1]):
        given.insert(0, parts.pop())
    types = {key: type(item.default) for key, item in VOCODERS.options(stem).items()}
    made: VocoderOptions = VOCODERS.make(stem, {**read_options(name, stem, given, types), **options})
    folder = ":".join(parts)
    if made.reads_folder != bool(folder):
        wrong, fix = (
            ("has weights, but no folder is named", f"give {stem}:FOLDER")
            if made.reads_folder
            else (f"has no weights, but {folder!r} is named", f"give {stem}")
        )
        raise UsageError(f"the vocoder {stem!r} {wrong}", fix=fix)
    settings = MelSettings() if settings is None else settings
    return _Checked(made.open(settings, Path(folder)), settings)
