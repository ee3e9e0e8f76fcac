"""Whisper's sound and text: log-mel frames of sound of any length; words and times as its tokenizer has them.

Settings of the input in ``config.json`` are those of `nartk.processors.audio`, those of the output those of
`nartk.processors.hugging_face` and what `nartk.protocols.prompts.Prompts` has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from nartk.errors import CheckpointError, InputFileError, UsageError, named
from nartk.files import Folder, JsonObject
from nartk.processors import audio, hugging_face, register_processor
from nartk.processors.audio import AudioInput
from nartk.processors.frames import FrameFile
from nartk.processors.text import TextOutput
from nartk.protocols.hypothesis import Hypothesis
from nartk.protocols.kept import Kept, KeptFrames
from nartk.protocols.outputs import Text
from nartk.protocols.passes import FeatureSource, FloatArray
from nartk.protocols.prompts import STEP, Prompts
from nartk.protocols.sources import Recording
from nartk.vocab import SpecialIds, Vocab

if TYPE_CHECKING:
    from nartk.data.audio.voice import Detector

NAME = "whisper"


class WhisperInput(AudioInput):
    """Reads sound as the frames of 30 s, silence behind its end; longer sound, where it may be, as its own.

    Of longer sound the loudest frame is that of all, as in transformers, and the frames lie in a file
    (`nartk.processors.frames`), so that memory does not grow with the sound.
    """

    def of_samples(self, samples: FloatArray, *, name: str = "the sound") -> FeatureSource:
        found = super().of_samples(samples, name=name)
        return replace(found, sound=min(len(found), len(samples) // self.settings.shift_samples))

    @property
    def _longer(self) -> str:
        return f"use {named('strategy', 'windows')}"

    def read(self, line: str | Recording, *, longest: int, truncate: bool = False) -> FeatureSource:
        if longest * self.settings.shift_ms <= self.settings.seconds * 1000:
            return super().read(line, longest=longest, truncate=truncate)
        from nartk.data.audio.features import WhisperLogMel

        most, count, begin = self.settings.most_samples(longest), 0, [np.zeros(0, np.float32)]
        blocks = iter(self._blocks(line))
        for block in blocks:
            begin.append(block)
            count += len(block)
            if count > most:
                break
        if count <= most:
            return self.of_samples(np.concatenate(begin), name=str(line))
        log_mel = WhisperLogMel(self.settings)
        frames: Any = FrameFile(
            log_mel.frames(chain(begin[1:], blocks)), self.settings.bins, finish=log_mel.floored
        )
        self.seconds += len(frames) * self.settings.shift_ms / 1000
        return FeatureSource(frames, self.settings.shift_ms)

    def read_sound(self, line: str | Recording, detector: Detector | None = None) -> FeatureSource:
        """The same with silence behind the sound, as OpenAI's program computes frames.

        There are at least as many as the model reads at once, and a few behind the sound; with a detector
        those alone that hold speech.

        Args:
            detector: Listens to the sound while it is read.
        """
        from nartk.data.audio.features import WhisperLogMel
        from nartk.data.audio.voice import RATE, chunks, listened

        settings, begin, count = self.settings, [np.zeros(0, np.float32)], 0
        rate, least = settings.sample_rate, int(settings.seconds * settings.sample_rate)
        blocks = iter(self._blocks(line))
        if detector is not None:
            if rate != RATE:
                raise UsageError(f"{named('vad')} with sound of {rate} samples a second", fix="leave it out")
            blocks = listened(blocks, detector)
        for block in blocks:
            begin.append(block)
            count += len(block)
            if count > least:
                break
        if not count:
            raise InputFileError(f"{str(line)!r} holds no sound", fix="give another file")
        log_mel, counted = WhisperLogMel(settings), [count]

        def silent_at_the_end() -> Iterator[FloatArray]:
            yield np.concatenate(begin)
            for block in blocks:
                counted.append(len(block))
                yield block
            yield np.zeros(max(settings.window_samples * 2, least - sum(counted)), np.float32)

        found = log_mel.frames(silent_at_the_end())
        frames: Any
        if count > least:
            frames = FrameFile(found, settings.bins, finish=log_mel.floored)
        else:
            frames = self._normalized(log_mel.floored(np.concatenate([*found])), str(line))
        self.seconds += sum(counted) / rate
        sound = sum(counted) // settings.shift_samples
        if detector is None:
            return FeatureSource(frames, settings.shift_ms, sound=sound)
        groups = chunks(detector.spans(settings.seconds), settings.seconds)
        kept = Kept.of_seconds(groups, sound, 1000 / settings.shift_ms)
        left: Any = KeptFrames(frames, kept)
        return FeatureSource(left, settings.shift_ms, kept=kept)


@dataclass(frozen=True)
class WhisperText(TextOutput):
    """Words and times of outputs. Implements `OutputProcessor` and `nartk.protocols.prompts.Prompted`.

    Timestamps are written as ``<|1.04|>``, in seconds from the beginning of the sound. An output of several
    windows has an eos behind each.
    """

    text: hugging_face.HuggingFaceTokenizer
    prompts: Prompts

    @property
    def vocab(self) -> Vocab:
        return self.text.vocab

    def encode(self, text: str) -> list[int]:
        return self.text.encode(text)

    def spelled(self, ids: Sequence[int]) -> str:
        """The text of words, with the space that it begins with."""
        return self.text.decode(ids)

    def write(self, hypothesis: Hypothesis) -> Text:
        """The text, whose times are those of its segments if all words are in one."""
        segments, begin = hypothesis.segments, self.prompts.begin
        tokens = [token for token in hypothesis.tokens if token != self.vocab.eos]
        is_timed = any(token >= begin for token in tokens)
        if not is_timed or tokens != [token for each in segments for token in each.tokens]:
            return super().write(hypothesis)
        return Text("".join(f"<|{each.start:.2f}|>{each.text}<|{each.end:.2f}|>" for each in segments))

    def decode(self, ids: Sequence[int]) -> str:
        begin, found, words, start = self.prompts.begin, "", [], 0
        window: list[int] = []
        for id in ids:
            if id == self.vocab.eos:
                start += self.prompts.window(window, self.prompts.frames)[1]
                window = []
                continue
            window.append(id)
            if id < begin:
                words.append(id)
            else:
                found += f"{self.text.decode(words)}<|{start / 100 + (id - begin) * STEP:.2f}|>"
                words = []
        return (found + self.text.decode(words)).strip()


@register_processor("input", NAME)
def load_input(folder: Folder, settings: JsonObject, specials: SpecialIds) -> AudioInput:
    return audio.load_input(folder, settings, specials, WhisperInput)


@register_processor("output", NAME)
def load_output(folder: Folder, settings: JsonObject, specials: SpecialIds) -> WhisperText:
    text = hugging_face.load_output(folder, settings, specials)
    values = {item.name: settings.get(item.name, item.default) for item in fields(Prompts)}
    missing = [name for name, value in values.items() if value is MISSING]
    if missing:
        raise CheckpointError(f"{missing[0]!r} is missing in 'output'", where=str(folder))
    try:
        return WhisperText(text, Prompts.of(values, len(text.vocab)))
    except UsageError as error:
        raise CheckpointError(f"'output': {error.message}", where=str(folder)) from error
