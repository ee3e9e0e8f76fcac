"""Sound files as mono samples of one rate, whole or in blocks, so that memory does not grow with a file.

Samples are float32 [N], 1 the largest that a file of whole numbers can hold. Channels are averaged, but for
those that cancel each other, and rates converted by soxr in its high quality; as it is always given blocks of
the file, whole and streamed reading give the same samples.
"""

from __future__ import annotations

import importlib.util
import io
import os
import re
import shlex
import shutil
import stat
import wave
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nartk.data.audio.media import STREAMED, MediaError, MediaFile
from nartk.data.audio.signatures import CONVERT, HEAD, MEDIA, UNKNOWN, sound_format, wav_head
from nartk.errors import InputFileError, named, number_of, requiring
from nartk.files import STDIN, writing
from nartk.protocols.passes import FloatArray
from nartk.protocols.sources import Recording

if TYPE_CHECKING:
    from soundfile import SoundFile

Source: TypeAlias = "str | Path | bytes | IO[bytes] | Piped | Recording"
Notice: TypeAlias = Callable[[str, str], None]  # of a file's name, and what is odd about it
RATES = range(1000, 768_001)  # Hz
BLOCK_SECONDS = 10.0
_PADDED = 0.1  # s by which the length of a container and that of its sound may differ
_CELLS = 10  # a second, after each of which it is seen again whether channels cancel each other
_CANCELLED = 0.01  # of the power of the loudest channel, that their mean has less of
# libsndfile's log of a file whose end is missing; it reads what is there without a word.
_CUT = re.compile(r"^\s*data : (\d+) \(should be (\d+)\)", re.MULTILINE)
_TELLING = 20  # bytes that are waited for of a pipe, which tell most formats


def requiring_audio() -> AbstractContextManager[None]:
    """Turns a failed import, within, into a MissingDependencyError."""
    return requiring("reading sound needs the package {name}", "audio")


class Sound:
    """An open sound file, read once from its beginning to its end.

    Attributes:
        name: File name for error messages.
        rate: Samples a second.
        channels: Number of channels.
        samples: Samples a channel by the file's header; None: unknown.

    Raises:
        InputFileError: The rate is none of `RATES`.
    """

    def __init__(self, file: SoundFile | MediaFile | _Samples, name: str, *, is_open: bool = False) -> None:
        self.name, self._file, self._is_open = name, file, is_open
        self.rate, self.channels = file.samplerate, file.channels
        self.samples: int | None = file.frames
        if self.rate not in RATES:
            raise self._error(f"has {self.rate} samples a second, not {RATES[0]} to {RATES[-1]}")

    def blocks(
        self, rate: int, *, strict: bool = False, tell: Notice | None = None, seconds: float = BLOCK_SECONDS
    ) -> Iterator[FloatArray]:
        """The samples [n] of the file at a rate, mono, so many seconds at a time; none is empty.

        Args:
            strict: Refuse a file that has another rate, several channels or no end.
            tell: Takes the file's name, and which of these it has.

        Raises:
            InputFileError: `strict` refuses it, the file is damaged, or a sample is NaN or infinite.
        """
        with requiring_audio():
            import soundfile
            import soxr
        mono = _Mono(self.channels, self.rate)
        resampler = soxr.ResampleStream(self.rate, rate, 1, dtype="float32") if self.rate != rate else None
        size, read, last = mono.whole(seconds), 0, False
        if strict:
            self._tell_differences(mono, rate, strict, tell)
        while not last:
            try:
                block = self._file.read(size, dtype="float32", always_2d=True)  # [n, channels]
            except (soundfile.SoundFileError, MediaError) as error:
                raise self._error(f"is damaged after {read} samples: {_reason(error)}") from error
            finite = np.isfinite(block).all(axis=1)
            if not finite.all():
                at = read + int(np.argmin(finite))
                raise self._error(f"holds NaN or infinity at sample {at}", "write it again without")
            chosen = mono.chosen
            samples = mono.of(block)
            if not strict and (read == 0 or mono.chosen != chosen):
                self._tell_differences(mono, rate, strict, tell)
            read += len(block)
            last = not len(block)
            if resampler is not None:
                samples = resampler.resample_chunk(samples, last=last)
            if len(samples):
                yield samples
        if missing := self._missing(read):
            self._notice(missing, "copy it again", strict, tell)

    def _missing(self, read: int) -> str:
        """Describes what the file lacks, of which so many samples were read; empty: nothing."""
        if damaged := getattr(self._file, "damaged", 0):
            return f"{number_of(damaged, 'packet')} that cannot be decoded, and left out"
        cut = _CUT.search(self._file.extra_info)
        if cut is not None and int(cut[2]) < int(cut[1]) < UNKNOWN:
            return f"{cut[2]} bytes of sound, its header says {cut[1]}"
        seconds = getattr(self._file, "seconds", 0.0)
        if read < self.rate * (seconds - _PADDED):
            return f"{read / self.rate:.1f} s of sound, its header says {seconds:.1f}"
        if self.samples is not None and not self._is_open and read < self.samples < UNKNOWN:
            return f"{read} samples, its header says {self.samples}"
        return ""

    def _tell_differences(self, mono: _Mono, rate: int, strict: bool, tell: Notice | None) -> None:
        """Says what is converted, or refuses it."""
        differs = []
        if mono.chosen is not None:
            differs.append(
                f"{self.channels} channels that cancel each other, of which the loudest, number "
                f"{mono.chosen + 1}, is taken"
            )
        elif self.channels > 1:
            differs.append(f"{self.channels} channels, which are averaged")
        if self.rate != rate:
            differs.append(f"{self.rate} samples a second, which become {rate}")
        if differs:
            self._notice(" and ".join(differs), "convert it", strict, tell)

    def _notice(self, what: str, fix: str, strict: bool, tell: Notice | None) -> None:
        if strict:
            raise self._error(f"has {what}", f"{fix}, or leave {named('strict_audio', True)} out")
        if tell is not None:
            tell(self.name, what)

    def _error(self, message: str, fix: str = "give another file") -> InputFileError:
        return InputFileError(f"{self.name!r} {message}", fix=fix)


class _Samples:
    """Samples in memory, as soundfile gives those of a file."""

    extra_info = ""

    def __init__(self, samples: FloatArray, rate: int) -> None:
        self.samplerate, self.channels, self.frames = rate, samples.shape[1], len(samples)
        self._samples, self._at = samples, 0

    def read(self, count: int, **_: object) -> FloatArray:
        """The next samples [count, channels]."""
        self._at += count
        return self._samples[self._at - count : self._at]

    def close(self) -> None:
        """Closes nothing."""


class _Mono:
    """Makes one channel of several: their mean, or the loudest one where they cancel each other.

    It is decided for a tenth of a second at a time, by all power until its end, so that the sizes of blocks
    do not matter. The loudest channel is chosen once.

    Attributes:
        chosen: The channel that is taken; None: the mean is.
    """

    def __init__(self, channels: int, rate: int) -> None:
        self.channels, self.rate, self.cell = channels, rate, max(1, rate // _CELLS)
        self.chosen: int | None = None
        self._loudest: int | None = None  # once there was one
        self._power = np.zeros(channels)  # sums of squares
        self._mean_power = 0.0

    def whole(self, seconds: float) -> int:
        """Samples of a block of about so many seconds; of several channels, of whole tenths of a second."""
        if self.channels == 1:
            return max(1, int(seconds * self.rate))
        return self.cell * max(1, int(seconds * self.rate) // self.cell)

    def of(self, block: FloatArray) -> FloatArray:
        """The samples [n] of a block [n, channels], of a size as `whole` gives."""
        if self.channels == 1:
            return np.ascontiguousarray(block[:, 0])
        found: FloatArray = block.mean(axis=1)
        for begin in range(0, len(block), self.cell):
            part = slice(begin, begin + self.cell)
            self._power += np.square(block[part], dtype=np.float64).sum(axis=0)
            self._mean_power += float(np.square(found[part], dtype=np.float64).sum())
            cancelled = self._mean_power < _CANCELLED * self._power.max()
            if cancelled and self._loudest is None:
                self._loudest = int(self._power.argmax())
            self.chosen = self._loudest if cancelled else None
            if cancelled:
                found[part] = block[part, self._loudest]
        return found


class Piped:
    """Sound of an open file, which may be a pipe such as stdin, and is read as often as is asked.

    Args:
        file: Opened in binary mode, at its beginning.
        name: File name for error messages.
    """

    def __init__(self, file: IO[bytes], name: str) -> None:
        self.file, self.name = file, name
        self._kept: IO[bytes] | None = None

    def whole(self) -> IO[bytes]:
        """A file that can be read from any place; a pipe is read to its end first, into a temporary one."""
        if self.file.seekable():
            return self.file
        if self._kept is None:
            self._kept = TemporaryFile(buffering=0)  # noqa: SIM115
            shutil.copyfileobj(self.file, self._kept)
        return self._kept

    def __del__(self) -> None:
        if self._kept is not None:
            self._kept.close()


class _Begun:
    """A file of which the first bytes are read, and may be others.

    Decoders ask for the places in it that a header names, which a damaged one may have before its beginning.
    Of a pipe no place is skipped: there is nothing behind what has come. As many bytes are read as are asked
    for, unless it ends: an unbuffered pipe gives what has come, which may end within a sample.
    """

    def __init__(self, file: IO[bytes], head: bytes) -> None:
        self.file, self.head, self.at = file, head, 0
        self.is_pipe = not file.seekable()
        self.size = 1 << 62 if self.is_pipe else file.seek(0, os.SEEK_END)
        self.come = len(head)  # bytes of a pipe

    def seekable(self) -> bool:
        return not self.is_pipe

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self.at = offset + (0, self.at, self.size)[whence]
        return self.at

    def read(self, count: int) -> bytes:
        if self.at < 0:
            return b""
        found = self.head[self.at : self.at + count]
        self.at += len(found)
        if len(found) == count or (self.is_pipe and self.at != self.come):
            return found
        if not self.is_pipe:
            self.file.seek(self.at)
        while len(found) < count and (more := self.file.read(count - len(found))):
            found += more
            self.at += len(more)
            self.come += len(more)
        return found


@contextmanager
def open_sound(source: Source) -> Iterator[Sound]:
    """Opens a sound file, or the bytes of one. Of an open file that is a pipe, what it still has to give.

    Sound that comes by a pipe is given as it comes, if it is a WAV or AU file, or if PyAV is installed and
    its format allows for it; else when it has come to its end.

    Raises:
        InputFileError: There is no such file, it cannot be read, or it is no sound that can be read.
        MissingDependencyError: soundfile is not installed.
    """
    if isinstance(source, Recording):
        if isinstance(source.data, bytes):
            source = source.data
        else:
            yield Sound(_Samples(source.data, source.rate), str(source))
            return
    name, opened = _opened(source)
    with opened as data:
        is_pipe = not data.seekable()
        size = None if is_pipe else data.seek(0, os.SEEK_END)
        if not is_pipe:
            data.seek(0)
        head = _Begun(data, b"").read(_TELLING if is_pipe else HEAD)
        form = sound_format(head)
        if is_pipe and not (form in ("wav", "au") or (form in STREAMED and _has_av())):
            with open_sound(Piped(_Begun(data, head), name)) as sound:  # type: ignore[arg-type]
                yield sound
            return
        is_open = False
        if form == "wav":
            head, is_open = wav_head(_Begun(data, head), size)  # type: ignore[arg-type]
        # libsndfile ends an mp3 where it guesses that it ends, by the bits a second of its first frame.
        by_ffmpeg = form in MEDIA or (form in STREAMED and (is_pipe or (form == "mp3" and _has_av())))
        begun = _Begun(data, head) if is_pipe or is_open or by_ffmpeg else data
        with closing(_media(begun, name, str(form), head) if by_ffmpeg else _sound_file(begun, name)) as file:
            yield Sound(file, name, is_open=is_open)


def _sound_file(data: Any, name: str) -> SoundFile:
    """An open file as libsndfile reads it; raises as `open_sound`."""
    with requiring_audio():
        import soundfile
    try:
        # By its descriptor: of a file with a name, soundfile takes the format from the name's suffix.
        handle = data.fileno()
        os.lseek(handle, 0, os.SEEK_SET)
    except (AttributeError, io.UnsupportedOperation):
        data.seek(0)
        handle = data
    try:
        file = soundfile.SoundFile(handle, closefd=False)
    except soundfile.SoundFileError as error:
        raise InputFileError(f"{name!r} cannot be read as audio: {_reason(error)}", fix=CONVERT) from error
    # Else soundfile seeks behind each block that it reads, and an mp3 decoder loses what came before.
    file.seekable = lambda: False
    return file


def _media(data: IO[bytes] | _Begun, name: str, form: str, head: bytes) -> MediaFile:
    """The same as FFmpeg does."""
    if data.seekable():
        data.seek(0)
    try:
        return MediaFile(data, form, head)  # type: ignore[arg-type]
    except ImportError as error:
        raise InputFileError(
            f"{name!r} is {MEDIA.get(form, form)}, which takes the package {error.name!r} to be read",
            fix="pip install 'nartk[media]', or convert it: "
            + shlex.join(["ffmpeg", "-i", name, f"{Path(name).stem}.wav"]),
        ) from error
    except MediaError as error:
        raise InputFileError(f"{name!r} cannot be read as audio: {_reason(error)}", fix=CONVERT) from error


def _has_av() -> bool:
    return importlib.util.find_spec("av") is not None


def _opened(source: str | Path | bytes | IO[bytes] | Piped) -> tuple[str, AbstractContextManager[IO[bytes]]]:
    """A source's name, and what opens it; a file that is open already stays so."""
    if isinstance(source, bytes):
        return f"{len(source)} bytes", io.BytesIO(source)
    if isinstance(source, str | Path):
        return os.fspath(source), open_file(os.fspath(source))
    if isinstance(source, Piped):
        return source.name, nullcontext(source.whole())
    name = getattr(source, "name", None)  # of a pipe, a number
    return name.strip("<>") if isinstance(name, str) else "an open file", nullcontext(source)


def read_sound(
    source: Source, *, rate: int = 16000, strict: bool = False, tell: Notice | None = None
) -> FloatArray:
    """The samples [N] of a sound file at a rate, mono. Raises as `open_sound` and `Sound.blocks`."""
    blocks = sound_blocks(source, rate=rate, strict=strict, tell=tell)
    return np.concatenate([np.zeros(0, np.float32), *blocks])


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


def write_wav(path: Path, samples: FloatArray, rate: int) -> None:
    """Writes samples [N] as a WAV file of 16-bit PCM, whole or not at all; what is louder than 1 is clipped.

    Raises:
        OutputError: The folder is missing, not writable, or the disk is full.
    """
    with writing(path, binary=True) as file, wave.open(file, "wb") as sound:
        sound.setparams((1, 2, rate, len(samples), "NONE", ""))
        sound.writeframes((samples * 32768).round().clip(-32768, 32767).astype("<i2").tobytes())


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
            raise InputFileError(
                f"{name!r} is no file", fix=f"give a file; sound of a pipe is read from stdin, {STDIN}"
            )
        return open(name, "rb")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputFileError(f"{name!r} cannot be read: {reason}", fix="check the name") from error


def _reason(error: Exception) -> str:
    """libsndfile's message, without the file object."""
    return str(getattr(error, "error_string", error)).rstrip(".")
