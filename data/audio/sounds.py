"""Sound files as mono samples of one rate, whole or in blocks, so that memory does not grow with a file.

Samples are float32 [N], 1 the largest that a file of whole numbers can hold. Channels are averaged, rates
converted by soxr in its high quality; as it is always given blocks of the file, whole and streamed reading
give the same samples.
"""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from nartk.errors import InputFileError, named, requiring
from nartk.passes import FloatArray

Source: TypeAlias = str | Path | bytes | IO[bytes]
Notice: TypeAlias = Callable[[str, str], None]  # of a file's name, and what is odd about it
RATES = range(1000, 768_001)  # Hz
BLOCK_SECONDS = 10.0
# libsndfile's log of a file whose end is missing; it reads what is there without a word.
_CUT = re.compile(r"^\s*data : (\d+) \(should be (\d+)\)", re.MULTILINE)
_UNKNOWN = 0x7FFF_0000  # bytes that a header has from there on if its program could not know the size


def requiring_audio() -> AbstractContextManager[None]:
    """Turns a failed import, within, into a MissingDependencyError."""
    return requiring("reading sound needs the package {name}", "audio")


class Sound:
    """An open sound file, read once from its beginning to its end.

    Attributes:
        name: As errors call it.
        rate: Samples a second.
        channels: Of a sample.
        samples: As many as the file says that it has.
    """

    def __init__(self, file: Any, name: str) -> None:
        self.name, self._file = name, file
        self.rate, self.channels, self.samples = file.samplerate, file.channels, file.frames

    def blocks(
        self,
        rate: int,
        *,
        strict: bool = False,
        tell: Notice | None = None,
        seconds: float = BLOCK_SECONDS,
    ) -> Iterator[FloatArray]:
        """The samples [n] of the file at a rate, mono, so many seconds at a time; none is empty.

        Args:
            strict: Whether a file that has another rate, several channels or no end is refused.
            tell: Is called with the file's name, and what it has of these.

        Raises:
            InputFileError: `strict` refuses it, the file is damaged, or a sample is NaN or infinite.
        """
        with requiring_audio():
            import soundfile
            import soxr
        differs = []
        if self.channels > 1:
            differs.append(f"{self.channels} channels, which are averaged")
        if self.rate != rate:
            differs.append(f"{self.rate} samples a second, which become {rate}")
        if differs:
            self._notice(" and ".join(differs), "convert it", strict, tell)
        resampler = soxr.ResampleStream(self.rate, rate, 1, dtype="float32") if self.rate != rate else None
        size, read = max(1, int(seconds * self.rate)), 0
        while True:
            try:
                block = self._file.read(size, dtype="float32", always_2d=True)  # [n, channels]
            except soundfile.SoundFileError as error:
                raise self._error(f"is damaged after {read} samples: {_reason(error)}") from error
            finite = np.isfinite(block).all(axis=1)
            if not finite.all():
                at = read + int(np.argmin(finite))
                raise self._error(f"holds NaN or infinity at sample {at}", "write it again without")
            read += len(block)
            last = not len(block)
            mono = np.ascontiguousarray(block[:, 0]) if self.channels == 1 else block.mean(axis=1)
            if resampler is not None:
                mono = resampler.resample_chunk(mono, last=last)
            if len(mono):
                yield mono
            if last:
                break
        cut = _CUT.search(self._file.extra_info)
        if cut is not None and int(cut[2]) < int(cut[1]) < _UNKNOWN:
            self._notice(f"{cut[2]} bytes of sound, its header says {cut[1]}", "copy it again", strict, tell)
        elif self._file.seekable() and read < self.samples < np.iinfo(np.int64).max:
            # What comes by a pipe ends where it ends: its header was written before that was known.
            message = f"{read} samples, its header says {self.samples}"
            self._notice(message, "copy it again", strict, tell)

    def _notice(self, what: str, fix: str, strict: bool, tell: Notice | None) -> None:
        if strict:
            raise self._error(f"has {what}", f"{fix}, or leave {named('strict_audio', True)} out")
        if tell is not None:
            tell(self.name, what)

    def _error(self, message: str, fix: str = "give another file") -> InputFileError:
        return InputFileError(f"{self.name!r} {message}", fix=fix)


@contextmanager
def open_sound(source: Source) -> Iterator[Sound]:
    """Opens a sound file, or the bytes of one; of an open file, what its descriptor still has to give.

    Raises:
        InputFileError: There is no such file, it cannot be read, or it is no sound that can be read.
        MissingDependencyError: soundfile is not installed.
    """
    with requiring_audio():
        import soundfile
    name, opened = _opened(source)
    with opened as data:
        try:
            # By its descriptor: of a file with a name, soundfile takes the format from the name's suffix.
            file = soundfile.SoundFile(data if isinstance(source, bytes) else data.fileno(), closefd=False)
        except soundfile.SoundFileError as error:
            fix = "give a sound file, such as wav, flac, ogg or mp3"
            raise InputFileError(f"{name!r} is no sound: {_reason(error)}", fix=fix) from error
        with file:
            if file.samplerate not in RATES:
                raise InputFileError(
                    f"{name!r} has {file.samplerate} samples a second, not {RATES[0]} to {RATES[-1]}",
                    fix="give another file",
                )
            yield Sound(file, name)


def _opened(source: Source) -> tuple[str, AbstractContextManager[IO[bytes]]]:
    """A source's name, and what opens it; a file that is open already stays so."""
    if isinstance(source, bytes):
        return f"{len(source)} bytes", io.BytesIO(source)
    if isinstance(source, str | Path):
        return os.fspath(source), open_file(os.fspath(source))
    return str(source.name), nullcontext(source)


def read_sound(
    source: Source,
    *,
    rate: int = 16000,
    strict: bool = False,
    tell: Notice | None = None,
) -> FloatArray:
    """The samples [N] of a sound file at a rate, mono. Raises as `open_sound` and `Sound.blocks`."""
    with open_sound(source) as sound:
        blocks = [np.zeros(0, np.float32), *sound.blocks(rate, strict=strict, tell=tell)]
    return np.concatenate(blocks)


def sound_blocks(
    source: Source,
    *,
    rate: int = 16000,
    strict: bool = False,
    tell: Notice | None = None,
    seconds: float = BLOCK_SECONDS,
) -> Iterator[FloatArray]:
    """The same in blocks [n] of so many seconds."""
    with open_sound(source) as sound:
        yield from sound.blocks(rate, strict=strict, tell=tell, seconds=seconds)


def resample(samples: FloatArray, rate: float, to: float) -> FloatArray:
    """Samples [N] of one rate as samples [about N * to / rate] of another."""
    with requiring_audio():
        import soxr
    if rate == to:
        return samples
    found: FloatArray = soxr.resample(samples, rate, to).astype(np.float32, copy=False)
    return found


def open_file(name: str) -> IO[bytes]:
    """Opens a file that has an end: of others, such as a pipe, reading might never return.

    Raises:
        InputFileError: There is no such file, or it cannot be read.
    """
    try:
        if not stat.S_ISREG(os.stat(name).st_mode):
            raise InputFileError(f"{name!r} is no file", fix="give a file")
        return open(name, "rb")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputFileError(f"{name!r} cannot be read: {reason}", fix="check the name") from error


def _reason(error: Exception) -> str:
    """What libsndfile says, without the object that it says it of."""
    return str(getattr(error, "error_string", error)).rstrip(".")
