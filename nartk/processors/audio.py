"""Sound: files become features as a model's configuration says, or features that are stored are read.

Settings in ``config.json``, all with defaults: those of `nartk.data.audio.features.FeatureSettings`;
``cmvn``, how features are normalised (``none``, ``utterance``, or ``global``, by the means and variances in
the file that ``statistics`` names); ``strict``, whether sound of another rate or of several channels is
refused, instead of converted; ``shortest``, the fewest frames that the model reads; ``padding``, how many
frames of zeros, the mean of what trained, are put at either end of a source; and ``fill``, the seconds that
every source has, silence behind its sound. A convolution that only reads whole windows sees a frame at the
end less often than the others: a word cut tight loses its first and last sound without padding.

A line is the path of a sound file, or of stored features, ``FILE.npz#NAME``; or sound in memory is in its
place.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from itertools import chain
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from nartk.errors import (
    CheckpointError,
    InputFileError,
    InputTooLongError,
    UsageError,
    VocabMismatchError,
    named,
    number_of,
)
from nartk.files import STDIN, Folder, JsonObject, shown
from nartk.processors import InputProcessor, named_file, register_processor
from nartk.processors.frames import OverlappingFrames
from nartk.protocols.passes import FeatureSource, FloatArray
from nartk.protocols.sources import Recording
from nartk.vocab import SpecialIds

if TYPE_CHECKING:
    from nartk.data.audio.features import FeatureSettings
    from nartk.data.audio.normalization import Statistics
    from nartk.data.audio.sounds import Piped
    from nartk.data.audio.voice import Detector

NONE, UTTERANCE, GLOBAL = CMVN = ("none", "utterance", "global")
SHORTEST = 7  # frames, of which subsampling by 4 leaves one
MOST_PADDING = 100  # frames
MOST_FILL = (1, 600)  # least and most seconds of a source that is filled up


class AudioInput:
    """Reads a line as the features of the sound that it names. Implements `InputProcessor`.

    Args:
        settings: Settings of features, computed or stored.
        cmvn: Their normalisation: ``none``, ``utterance``, or ``global``, by `statistics`.
        strict: True to refuse sound of another rate, of several channels or without its end.
        shortest: Fewest frames of a source.
        padding: Frames of zeros at either end of a source, after normalisation.
        fill: Seconds that a source is filled up to with silence, and the most that it has; 0: it has any.

    Attributes:
        tell: Receives a line on each conversion that files need, at the first of them; may be set.
        stdin: Sound that the line ``-`` names; None: it is a file's name, as any other. May be set.
        seconds: Seconds of sound read so far.

    Raises:
        UsageError: One is of a wrong type or out of bounds, or there are no statistics.
    """

    vocab = None

    def __init__(
        self,
        settings: FeatureSettings,
        *,
        cmvn: str = NONE,
        statistics: Statistics | None = None,
        strict: bool = False,
        shortest: int = SHORTEST,
        padding: int = 0,
        fill: float = 0.0,
    ) -> None:
        if cmvn not in CMVN:
            raise UsageError(f"`cmvn` is {cmvn!r}", fix=f"choose from {', '.join(CMVN)}")
        if (cmvn == GLOBAL) != (statistics is not None):
            raise UsageError(f"`cmvn` is {cmvn!r}, which takes statistics if it is {GLOBAL!r}, else none")
        if type(strict) is not bool or type(shortest) is not int or shortest < 1:
            raise UsageError(
                f"`strict` is {strict!r}, `shortest` {shortest!r}", fix="give true or false, and 1 or more"
            )
        if type(padding) is not int or not 0 <= padding <= MOST_PADDING:
            raise UsageError(f"`padding` is {padding!r}", fix=f"give 0 to {MOST_PADDING} frames")
        if padding and cmvn == NONE:
            raise UsageError(
                f"`padding` is {padding}, but zero is not the mean of features without normalisation",
                fix="give 0, or normalise by utterance or by statistics",
            )
        if type(fill) not in (int, float) or not (fill == 0 or MOST_FILL[0] <= fill <= MOST_FILL[1]):
            raise UsageError(
                f"`fill` is {fill!r}", fix=f"give 0, or {MOST_FILL[0]} to {MOST_FILL[1]} seconds"
            )
        if fill and (padding or not settings.is_local):
            raise UsageError(f"`fill` is {fill} with padding, or features {settings.features}", fix="give 0")
        self.settings, self.cmvn, self.statistics = settings, cmvn, statistics
        self.strict, self.shortest, self.padding, self.fill = strict, shortest, padding, float(fill)
        self.tell: Callable[[str], None] = warnings.warn
        self.stdin: Piped | None = None
        self.seconds = 0.0
        self._noticed: set[str] = set()

    def read(self, line: str | Recording, *, longest: int, truncate: bool = False) -> FeatureSource:
        longest -= 2 * self.padding
        if self.settings.is_stored:
            from nartk.data.audio.stored import read_features

            frames = read_features(str(line))
            if len(frames) > longest and not truncate:
                raise self._too_long(f"{len(frames)} frames > {longest}")
            self.seconds += len(frames) * self.settings.shift_ms / 1000
            return self._source(frames[:longest], str(line))
        return self.of_samples(self._samples(line, longest, truncate), name=shown(str(line)))

    def read_sound(self, line: str | Recording, detector: Detector | None = None) -> FeatureSource:
        """The source of sound of any length, which tells where it ends if more frames are behind it.

        Args:
            detector: Listens to the sound while it is read; only Whisper's has one.

        Raises:
            NartkError: Same as in `InputProcessor.read`.
        """
        if detector is not None:
            raise UsageError(f"{named('vad')} with a model that is no Whisper", fix="leave it out")
        return self.read(line, longest=sys.maxsize)

    def of_samples(self, samples: FloatArray, *, name: str = "the sound") -> FeatureSource:
        """The source of samples [N] of the rate in the settings.

        Args:
            name: Its name in errors.

        Raises:
            InputFileError: It is too short, or not finite.
        """
        from nartk.data.audio.features import compute

        self.seconds += len(samples) / self.settings.sample_rate
        if not len(samples):
            raise InputFileError(f"{name!r} holds no sound", fix="give another file")
        if not self.fill:
            return self._source(compute(samples, self.settings), name)
        if len(samples) > self.filled:
            raise self._too_long(f"more than {self.fill:g} s of sound")
        found = self._source(compute(np.pad(samples, (0, self.filled - len(samples))), self.settings), name)
        return replace(found, sound=self.settings.frames(len(samples)))

    @property
    def filled(self) -> int:
        """Samples that every source is filled up to; 0: none is."""
        return int(self.fill * self.settings.sample_rate)

    def read_buffers(self, line: str | Recording, *, before: int, step: int) -> FeatureSource:
        """The source of sound of any length, of a model whose sources are filled up.

        Sound that is longer than that is read in buffers (`nartk.processors.frames.OverlappingFrames`).

        Args:
            before: Frames of a buffer before its own part of the sound, and as many behind it.
            step: Frames from one buffer to the next.
        """
        name, blocks = shown(str(line)), iter(self._blocks(line))
        begin, count = [np.zeros(0, np.float32)], 0
        for block in blocks:
            begin.append(block)
            count += len(block)
            if count > self.filled:
                break
        if count <= self.filled:
            return self.of_samples(np.concatenate(begin), name=name)
        counted = [0]  # samples

        def counting() -> Iterator[FloatArray]:
            for each in chain(begin, blocks):
                counted[0] += len(each)
                yield each

        frames: Any = OverlappingFrames(
            self._filled_buffers(counting(), before, step, name), self.settings.bins, before=before, step=step
        )
        self.seconds += counted[0] / self.settings.sample_rate
        frames.count = self.settings.frames(counted[0])
        return FeatureSource(frames, self.settings.shift_ms)

    def _filled_buffers(
        self, blocks: Iterable[FloatArray], before: int, step: int, name: str
    ) -> Iterator[FloatArray]:
        """The features [T,F] of each buffer of sound in blocks [n], with silence at both ends of it."""
        from nartk.data.audio.features import compute

        shift = self.settings.shift_samples
        silence = np.zeros(before * shift, np.float32)
        held = np.zeros(0, np.float32)
        for block in chain([silence], blocks, [silence]):
            held = np.concatenate([held, block])
            while len(held) >= self.filled:
                yield self._normalized(compute(held[: self.filled], self.settings), name)
                held = held[step * shift :]
        last = np.pad(held, (0, self.filled - len(held)))
        yield self._normalized(compute(last, self.settings), name)

    def levels(self, frames: FloatArray) -> FloatArray | None:
        """The power [T] of frames [T,F] that were read, dB; None where features do not tell it.

        Padding has none: NaN.
        """
        if self.settings.is_stored or self.cmvn == UTTERANCE:
            return None
        from nartk.data.audio.features import levels, silence
        from nartk.data.audio.normalization import restore

        found = levels(frames if self.statistics is None else restore(frames, self.statistics), self.settings)
        if self.padding:
            found[~frames.any(1)] = np.nan
        if self.fill:
            found[found <= silence(self.settings) + 0.1] = np.nan
        return found

    def beside(self, line: str | Recording) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The words in front of a line's frames, and its prompt: as `FeatureSource` has them.

        Raises:
            InputFormatError: A word is none of the model's.
        """
        return (), ()

    def stream(self, line: str | Recording) -> Iterator[FloatArray]:
        """The features of a sound file of any length, in blocks [t,F] as it is read.

        Together they are those of `read`. Memory does not grow with the file.

        Raises:
            UsageError: The model's features need the whole sound.
            InputFileError: Same as in `read`.
        """
        yield from self._streamed(self._blocks(line), shown(str(line)))

    def stream_open(self, file: IO[bytes], seconds: float) -> Iterator[FloatArray]:
        """The same of an open file such as stdin, in blocks of so many seconds as its sound comes."""
        name = str(getattr(file, "name", "an open file")).strip("<>")  # Python's own of stdin
        yield from self._streamed(self._blocks(file, seconds=seconds), name)

    def _streamed(self, blocks: Iterable[FloatArray], name: str) -> Iterator[FloatArray]:
        from nartk.data.audio.features import streamed

        if self.cmvn == UTTERANCE or not self.settings.is_local:
            raise UsageError(
                f"{name!r} cannot be read as a stream: the model's features need the whole sound",
                fix="decode it whole, or use a model with filterbank features and global normalisation",
            )
        edge: FloatArray = np.zeros((self.padding, self.settings.bins), np.float32)
        count = 0
        if self.padding:
            yield edge
        for frames in streamed(blocks, self.settings):
            if len(frames):
                count += len(frames)
                yield self._normalized(frames, name)
        self._require_long(count, name)
        if self.padding:
            yield edge

    def require_equal(self, other: InputProcessor, mine: str, theirs: str) -> None:
        same = isinstance(other, AudioInput) and (
            (self.settings, self.cmvn, self.padding, self.fill)
            == (other.settings, other.cmvn, other.padding, other.fill)
            and (self.statistics is None or self.statistics.equals(other.statistics))
        )
        if not same:
            raise VocabMismatchError(
                f"{mine} reads {self.settings}, normalisation {self.cmvn}; {theirs} other sources",
                fix="use models that read the same features",
            )

    def _samples(self, line: str | Recording, longest: int, truncate: bool) -> FloatArray:
        """The samples of a file, of which no more are read than the model's longest source has."""
        most, count, blocks = self.settings.most_samples(longest), 0, [np.zeros(0, np.float32)]
        if self.fill:
            most = min(most, self.filled)
        for block in self._blocks(line):
            blocks.append(block)
            count += len(block)
            if count > most:
                break
        if count > most and not truncate:
            seconds = most / self.settings.sample_rate
            raise self._too_long(f"more than {seconds:.1f} s of sound, {longest} frames")
        return np.concatenate(blocks)[:most]

    @property
    def _longer(self) -> str:
        """The remedy for sound that is longer than the model reads."""
        seconds = f"{self.fill:g}" if self.fill else "30"
        return f"use {named('long_form', seconds, python='Model.buffers')} with a strategy that reads frames"

    def _too_long(self, message: str) -> InputTooLongError:
        return InputTooLongError(
            message, fix=f"{self._longer}, split the recording, or use {named('truncate', True)}"
        )

    def _blocks(self, source: str | Recording | IO[bytes], **sizes: float) -> Iterable[FloatArray]:
        from nartk.data.audio.sounds import sound_blocks

        found = self.stdin if source == STDIN and self.stdin is not None else source
        rate = self.settings.sample_rate
        return sound_blocks(found, rate=rate, strict=self.strict, tell=self._notice, **sizes)

    def _notice(self, name: str, what: str) -> None:
        if what not in self._noticed:
            self._noticed.add(what)
            self.tell(f"{name!r} has {what}")

    def _source(self, frames: FloatArray, name: str) -> FeatureSource:
        self._require_long(len(frames), name)
        edges = ((self.padding, self.padding), (0, 0))
        return FeatureSource(np.pad(self._normalized(frames, name), edges), self.settings.shift_ms)

    def _require_long(self, count: int, name: str) -> None:
        """Refuses frames that are too few with padding, or none without."""
        least = max(1, self.shortest - 2 * self.padding)
        if count < least:
            raise InputFileError(
                f"{name!r} has {number_of(count, 'frame')}, the model reads {least} or more",
                fix="give a longer sound",
            )

    def _normalized(self, frames: FloatArray, name: str) -> FloatArray:
        """Frames [T,F] as the model reads them; raises InputFileError if one is not finite."""
        from nartk.data.audio.normalization import normalize

        if frames.shape[1] != self.settings.bins:
            raise InputFileError(
                f"{name!r} has {frames.shape[1]} features a frame, the model reads {self.settings.bins}",
                fix="compute the features as the model's config.json says",
            )
        if not np.isfinite(frames).all():
            raise InputFileError(f"the features of {name!r} hold NaN or infinity", fix="give another file")
        return frames if self.cmvn == NONE else normalize(frames, self.statistics)


@register_processor("input", "audio")
def load_input(
    folder: Folder,
    settings: JsonObject,
    specials: SpecialIds,
    make: Callable[..., AudioInput] = AudioInput,
) -> AudioInput:
    from nartk.data.audio.features import FeatureSettings
    from nartk.data.audio.normalization import Statistics

    rest = {name: value for name, value in settings.items() if name not in ("name", "statistics")}
    own = {field.name: rest.pop(field.name) for field in fields(FeatureSettings) if field.name in rest}
    try:
        features = FeatureSettings(**own)
        statistics = None
        if "statistics" in settings:
            statistics = Statistics.read(named_file(folder, settings, "statistics"), features.bins)
        return make(features, statistics=statistics, **rest)
    except (UsageError, TypeError) as error:
        reason = error.message if isinstance(error, UsageError) else f"unknown settings {sorted(rest)}"
        raise CheckpointError(f"'input': {reason}", where=str(folder)) from error
