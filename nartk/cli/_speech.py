"""`nartk-decode --speech`: outputs that hold a spectrogram, as sound files beside their text."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from nartk.bench.turns import TimedCall
from nartk.cli._output import tell
from nartk.cli._transcripts import name_of, require_different
from nartk.data.audio.sounds import write_wav
from nartk.errors import OutputError, StrategyMismatchError
from nartk.files import JsonObject, make_folder
from nartk.protocols.spectrograms import SpeaksMel, SpeechOutput
from nartk.vocoders.vocoder import DEFAULT, load_vocoder

if TYPE_CHECKING:
    from nartk.data.readers import Record
    from nartk.protocols.hypothesis import Hypothesis
    from nartk.serving.model import Model

# Parts of a model whose time `--stats` tells, and the calls of its scorer that compute them.
_PARTS = {"encoder": "encode", "graph": "graphs", "acoustic": "spectrograms"}


class SpeechWriter:
    """Writes the sound of outputs as FOLDER/NAME.wav, each whole or not at all.

    Attributes:
        name: Name of the vocoder.
        files: Number of files that are written.
        frames: Frames of their spectrograms.
        sound_seconds: Length of their sound, s.
        seconds: Time that the vocoder took, s.

    Raises:
        StrategyMismatchError: The model's outputs have no spectrogram.
        OutputError: The folder is a file, or cannot be written to.
        UsageError: The vocoder is for other spectrograms.
        CheckpointError: Its weights are damaged.
    """

    def __init__(self, args: argparse.Namespace, model: Model) -> None:
        output = model.checkpoint.output
        if not isinstance(output, SpeaksMel):
            raise StrategyMismatchError(
                f"--speech {args.speech}, but the model's outputs are text",
                fix="name a model of speech output",
            )
        self.args, self.reads_text, self.passes = args, model.reads_text, model.passes
        self.parts: dict[str, TimedCall[..., object]] = {}
        self.settings = output.mel_settings
        self.longest = model.checkpoint.settings.get("max_mel_len")  # frames
        self.name = DEFAULT if args.vocoder is None else args.vocoder
        self.vocoder = load_vocoder(self.name, self.settings)
        self.folder = Path(args.speech)
        if self.folder.exists() and not self.folder.is_dir():
            raise OutputError("is a file", fix="name a folder", where=args.speech)
        make_folder(self.folder)
        self.files = self.frames = 0
        self.sound_seconds = self.seconds = 0.0

    def checked(self, records: Iterator[Record]) -> Iterator[Record]:
        """The records; raises UsageError if two are of one name, of which the first would be lost."""
        return iter(require_different(records, "wav", reads_text=self.reads_text))

    def time_parts(self) -> None:
        """Times the parts of the model from here on, where it is not one of several replicas."""
        for part, name in _PARTS.items():
            call = getattr(self.passes, name, None)
            if call is not None and self.args.replicas == 1:
                self.parts[part] = TimedCall(call, time.perf_counter)
                setattr(self.passes, name, self.parts[part])

    def write(self, record: Record, hypothesis: Hypothesis) -> None:
        """Writes the sound of an output, and tells the user where there is none, or where it is cut."""
        output = hypothesis.output
        if not isinstance(output, SpeechOutput) or not len(output.mel):
            tell(self.args, f"{record.where}: the output has no sound, and no file")
            return
        if len(output.mel) == self.longest:
            tell(
                self.args,
                f"{record.where}: the sound ends after {self.longest} frames, the model's longest output",
            )
        begun = time.perf_counter()
        samples = self.vocoder.samples(output.mel)
        self.seconds += time.perf_counter() - begun
        write_wav(
            self.folder / f"{name_of(record, reads_text=self.reads_text)}.wav",
            samples,
            self.settings.sample_rate,
        )
        self.files += 1
        self.frames += len(output.mel)
        self.sound_seconds += len(samples) / self.settings.sample_rate

    def report(self) -> JsonObject:
        """Figures for `--stats`: of the vocoder, and of the parts of the model."""
        seconds = {part: call.seconds for part, call in self.parts.items()}
        return {
            "vocoder": self.name,
            "files": self.files,
            "frames": self.frames,
            "sound_seconds": self.sound_seconds,
            **self._timed(self.seconds),
            "parts": {part: self._timed(each) for part, each in seconds.items()},
        }

    def _timed(self, seconds: float) -> JsonObject:
        factor = seconds / self.sound_seconds if self.sound_seconds else None
        return {"seconds": seconds, "real_time_factor": factor}
