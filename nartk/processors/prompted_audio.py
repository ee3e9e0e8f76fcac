"""Sound with words beside it: in front of the frames, such as a language and a task, and a prompt.

A line is the path of a sound, or that, a tab and the words in front; behind another tab may follow the
prompt, text that came before: ``talk.wav``, ``talk.wav<TAB><de> <asr>``, ``talk.wav<TAB><de>
<asr><TAB>Ja.``

Settings in ``config.json`` beside those of ``audio``: ``front``, the words in front of a line that names
none, such as ``<nolang> <asr>``; and those of ``text``, which spell these words and prompts
(``dictionary``, ``words`` and, if there is one, ``sentencepiece``), or of `nartk.processors.vocabulary`,
with ``vocabulary`` in place of ``dictionary``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from nartk.errors import CheckpointError, InputFormatError, VocabMismatchError
from nartk.files import Folder, JsonObject
from nartk.processors import InputProcessor, OutputProcessor, register_processor
from nartk.processors.audio import AudioInput
from nartk.processors.audio import load_input as load_audio
from nartk.processors.text import load_output
from nartk.processors.vocabulary import load_output as load_listed
from nartk.protocols.passes import FeatureSource, FloatArray
from nartk.protocols.sources import Recording
from nartk.vocab import SpecialIds

_TEXT = ("dictionary", "words", "sentencepiece", "vocabulary", "split")


class PromptedAudio(AudioInput):
    """Reads a line as sound, words in front of it and a prompt.

    Args:
        output: Spells words and prompts.
        front: Words in front of a line that names none.
        settings, audio: Same as in `AudioInput`.
    """

    def __init__(self, settings: Any, *, output: OutputProcessor, front: str = "", **audio: Any) -> None:
        super().__init__(settings, **audio)
        self.output, self.front = output, self._ids(front, output)

    def read(self, line: str | Recording, *, longest: int, truncate: bool = False) -> FeatureSource:
        words, prompt = self.beside(line)
        source = super().read(_sound(line), longest=longest, truncate=truncate)
        return replace(source, words=words, prompt=prompt)

    def beside(self, line: str | Recording) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if not isinstance(line, str):
            return self.front, ()
        _, *beside = line.split("\t", 2)
        words = self._ids(beside[0], self.output) if beside and beside[0].strip() else self.front
        return words, tuple(self.output.encode(beside[1])) if len(beside) > 1 else ()

    def read_buffers(self, line: str | Recording, *, before: int, step: int) -> FeatureSource:
        words, prompt = self.beside(line)
        source = super().read_buffers(_sound(line), before=before, step=step)
        return replace(source, words=words, prompt=prompt)

    def stream(self, line: str | Recording) -> Iterator[FloatArray]:
        return super().stream(_sound(line))

    def require_equal(self, other: InputProcessor, mine: str, theirs: str) -> None:
        super().require_equal(other, mine, theirs)
        if not isinstance(other, PromptedAudio):
            raise VocabMismatchError(
                f"{mine} reads words beside sound, {theirs} does not", fix="use models that read the same"
            )
        self.output.vocab.require_equal(other.output.vocab, mine, theirs)

    @staticmethod
    def _ids(text: str, output: OutputProcessor) -> tuple[int, ...]:
        """The ids of words between spaces, all of which the model has."""
        ids = output.vocab.ids(text.split())
        for word, each in zip(text.split(), ids, strict=True):
            if each == output.vocab.unk:
                raise InputFormatError(
                    f"{word!r} is no word of the model", fix="name words of its dictionary"
                )
        return tuple(ids)


def _sound(line: str | Recording) -> str | Recording:
    """A line's sound without what stands beside it."""
    return line.split("\t", 1)[0] if isinstance(line, str) else line


@register_processor("input", "prompted_audio")
def load_input(folder: Folder, settings: JsonObject, specials: SpecialIds) -> AudioInput:
    text = {name: settings[name] for name in _TEXT if name in settings}
    own = {name: value for name, value in settings.items() if name not in (*_TEXT, "front")}
    output: OutputProcessor = (load_listed if "vocabulary" in text else load_output)(folder, text, specials)
    front = settings.get("front", "")
    if not isinstance(front, str):
        raise CheckpointError(f"'front' is {front!r}, not words", where=str(folder))
    try:
        return load_audio(folder, own, specials, partial(PromptedAudio, output=output, front=front))
    except InputFormatError as error:
        raise CheckpointError(f"'front': {error.message}", where=str(folder)) from error
