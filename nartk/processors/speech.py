"""Output processors of models that speak: text, and the log-mel spectrogram of it.

Settings in ``config.json``: those of `nartk.processors.text`, and ``mel``, the settings of the spectrogram
(`nartk.protocols.spectrograms.MelSettings`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nartk.errors import CheckpointError, UsageError
from nartk.files import Folder, JsonObject
from nartk.processors import OutputProcessor, register_processor
from nartk.processors.text import load_output
from nartk.protocols.hypothesis import Hypothesis
from nartk.protocols.outputs import Output
from nartk.protocols.paragraph import Paragraph
from nartk.protocols.spectrograms import MelSettings, Speech, SpeechOutput
from nartk.vocab import SpecialIds, Vocab

NAME = "speech"


class SpokenText:
    """Writes outputs as speech where they have a spectrogram. Implements `OutputProcessor` and `SpeaksMel`.

    Args:
        text: Writes their text.
    """

    def __init__(self, text: OutputProcessor, mel_settings: MelSettings) -> None:
        self.text, self.mel_settings = text, mel_settings

    @property
    def vocab(self) -> Vocab:
        return self.text.vocab

    def encode(self, text: str) -> list[int]:
        return self.text.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self.text.decode(ids)

    def write(self, hypothesis: Hypothesis) -> Output:
        written = self.text.write(hypothesis)
        if hypothesis.mel is None:
            return written
        return Speech(str(written), hypothesis.mel, self.mel_settings)

    def join(self, outputs: Sequence[Output], paragraph: Paragraph) -> Output:
        text = self.text.join(outputs, paragraph)
        mels = [each.mel for each in outputs if isinstance(each, SpeechOutput)]
        return Speech(str(text), np.concatenate(mels), self.mel_settings) if mels else text


@register_processor("output", NAME)
def load_speech(folder: Folder, settings: JsonObject, specials: SpecialIds) -> SpokenText:
    text = load_output(folder, settings, specials)
    return SpokenText(text, mel_settings(settings.get("mel"), str(folder)))


def mel_settings(values: object, where: str) -> MelSettings:
    """The settings of spectrograms that a file has; raises CheckpointError if they are none."""
    try:
        return MelSettings(**values)  # type: ignore[arg-type]  # which names what is wrong
    except TypeError as error:
        raise CheckpointError(f"'mel' is {values!r}, no settings of spectrograms", where=where) from error
    except UsageError as error:
        raise CheckpointError(f"'mel': {error.message}", fix=error.fix, where=where) from error
