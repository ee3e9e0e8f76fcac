"""Sound in containers and codecs that libsndfile does not read, such as M4A and WebM, by FFmpeg (PyAV)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any, cast

import numpy as np

from nartk.protocols.passes import FloatArray

STREAMED = frozenset({"mp3", "flac", "ogg", "aac", "matroska"})  # formats that a pipe may bring
# Of other formats, FFmpeg guesses a recording's length; of an mp3 the frame of one of these names tells it.
_TIMED = frozenset({"mov", "matroska", "asf"})
_TIMES_MP3 = (b"Xing", b"Info", b"VBRI")


class MediaError(Exception):
    """FFmpeg cannot read the sound of a file; the text is why."""


class MediaFile:
    """The sound of an open file, with the names of `soundfile.SoundFile`.

    Attributes:
        seconds: Length of the sound by its header; 0: unknown.
        damaged: Packets so far that could not be decoded, and are left out.

    Args:
        file: Opened in binary mode; it may be a pipe.
        form: FFmpeg's name of its format. It is never guessed: some formats name other files to be opened.
        head: Its first bytes.

    Raises:
        MediaError: It is damaged, or holds no sound.
        ImportError: PyAV is not installed.
    """

    extra_info = ""
    frames = None  # samples of a channel: unknown before they are read

    def __init__(self, file: IO[bytes], form: str, head: bytes = b"") -> None:
        import av

        self.damaged = 0
        is_timed = form in _TIMED or (form == "mp3" and any(name in head for name in _TIMES_MP3))
        self._errors: Any = (av.error.FFmpegError, OSError, ValueError)
        try:
            self._container = cast(Any, av.open(file, format=form, metadata_errors="ignore"))
            sounds = self._container.streams.audio
            if not sounds:
                raise MediaError("it holds no sound")
            self._stream = sounds[0]
            codec = self._stream.codec_context
            self.samplerate, self.channels = codec.rate, codec.channels
            self.seconds = self._length() if is_timed else 0.0
        except self._errors as error:
            raise MediaError(_reason(error)) from error
        self._blocks = self._decoded()
        self._held: list[FloatArray] = []

    def _length(self) -> float:
        """The seconds of the sound by its own header, or by that of a container that holds nothing else."""
        import av

        if self._stream.duration is not None:
            return float(self._stream.duration * self._stream.time_base)
        is_alone = len(self._container.streams) == 1 and self._container.duration is not None
        return float(self._container.duration / av.time_base) if is_alone else 0.0

    def read(self, count: int, **form: object) -> FloatArray:
        """The next samples [n, channels] fp32, at most so many; fewer only at the end."""
        have = sum(map(len, self._held))
        while have < count and (block := next(self._blocks, None)) is not None:
            self._held.append(block)
            have += len(block)
        found = np.concatenate([np.zeros((0, self.channels), np.float32), *self._held])
        self._held = [found[count:]]
        return found[:count]

    def close(self) -> None:
        self._container.close()

    def _decoded(self) -> Iterator[FloatArray]:
        import av

        # Of a packed format an array is [1, n * channels], of a planar one [channels, n].
        found = False
        to_floats: Any = av.AudioResampler("flt", self._stream.codec_context.layout, self.samplerate)
        try:
            for packet in self._container.demux(self._stream):
                try:
                    frames = packet.decode()
                except av.error.InvalidDataError:
                    self.damaged += 1
                    continue
                for part in (part for frame in frames for part in to_floats.resample(frame)):
                    found = True
                    yield part.to_ndarray().reshape(-1, self.channels)
            if self.damaged and not found:
                raise MediaError("none of its packets can be decoded")
            for part in to_floats.resample(None):
                yield part.to_ndarray().reshape(-1, self.channels)
        except self._errors as error:
            raise MediaError(_reason(error)) from error


def _reason(error: Exception) -> str:
    """FFmpeg's message, without its error number and file name."""
    return str(getattr(error, "strerror", None) or error)
