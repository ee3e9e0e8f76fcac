"""`nartk-decode --partials`: recordings that are decoded while they are read."""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from nartk.cli._job import Job
from nartk.cli._output import tell
from nartk.errors import InputFileError, InputFormatError, NartkError, UsageError, number_of
from nartk.files import STDIN, JsonObject
from nartk.protocols.hypothesis import DecodeStats, Hypothesis, Result
from nartk.serving.outcomes import summarize
from nartk.serving.streaming import Partial, StreamStats, buffers_of, stream

if TYPE_CHECKING:
    from nartk.data.readers import Record
    from nartk.decoders.hotwords import WithHotwords
    from nartk.serving.model import Model

_WARM_UP = 100  # frames of silence
_SHOWN = ("stable", "revised", "audio_ms", "seconds")  # of a partial text, in JSONL
_MOST = 200  # characters of a text that stderr shows: its end


class PartialsJob(Job):
    """Decodes recordings one after the other while they are read, and tells what it has heard so far.

    Args:
        cut: Times of chunks, as `nartk.serving.streaming.stream` takes them.
    """

    def __init__(
        self, args: argparse.Namespace, model: Model, strategy: WithHotwords, *rest: Any, **cut: float
    ) -> None:
        self.buffers = buffers_of(model, **cut)  # the signature is that of the same chunks at once
        super().__init__(args, replace(model, buffers=self.buffers), strategy, *rest)
        assert model.sound is not None  # else there are no buffers
        self.reader = model.sound
        self.stream: Callable[..., Iterator[Partial]] = partial(
            stream,
            self.model,
            strategy=strategy,
            **cut,  # type: ignore[arg-type]
        )
        self.took = StreamStats()  # all recordings
        self.partials: list[JsonObject] = []  # of the one that is decoded

    def warm_up(self, records: Iterator[Record]) -> Iterator[Record]:
        silence = np.zeros((_WARM_UP, self.reader.settings.bins), np.float32)
        deque(self.stream([silence]), maxlen=0)
        return records

    def decode(self, records: Iterator[Record], done: Callable[[int], None]) -> None:
        for record in records:
            self._write(record, self._streamed(record))
            done(self.lines)

    def _streamed(self, record: Record) -> Result | NartkError:
        if record.error is not None:
            return record.error
        if record.prefix:
            raise UsageError(
                "--partials with a prefix, which outputs cannot be made to begin with", fix="leave it out"
            )
        if not record.text.strip():
            return Result(self.lines, (Hypothesis(tokens=()),))
        stdin = self.reader.stdin
        sound = stdin.file if record.text == STDIN and stdin is not None else record.text
        took, start, last = StreamStats(), time.perf_counter(), None
        vocab = self.model.checkpoint.target_vocab
        self.partials = []
        try:
            for found in self.stream(sound, stats=took):
                if not found.is_last and (last is None or last.text != found.text):
                    cut = "" if len(found.text) <= _MOST else "... "
                    tell(self.args, f"{found.audio_ms / 1000:.2f} s: {cut}{found.text[-_MOST:]}")
                if self.args.output_format == "jsonl":  # how it differs: all texts of an hour are too many
                    same = 0 if last is None else len(last.tokens) - found.revised
                    shown = {name: getattr(found, name) for name in _SHOWN}
                    self.partials.append({"added": vocab.to_words(found.tokens[same:]), **shown})
                last = found
        except (InputFileError, InputFormatError) as error:
            return error
        assert last is not None  # a stream has a last text
        if not last.tokens and self.model.vad:
            tell(self.args, f"{record.text!r} holds no speech")
        seconds = time.perf_counter() - start
        tokens = (*last.tokens, vocab.eos)
        best = Hypothesis(tokens, output=last.output, pieces=tuple(vocab.to_words(tokens)))
        self.took.add(took)
        result = Result(
            self.lines, (best,), seconds, passes=took.partials, sound_seconds=took.audio_ms / 1000
        )
        self.windows.append(summarize([result], seconds))
        return result

    def _describe(self, hypothesis: Hypothesis) -> JsonObject:
        return super()._describe(hypothesis) | {"partials": self.partials}

    def report(self) -> JsonObject:
        took, cut = self.took, self.buffers
        position = cut.subsampling * self.reader.settings.shift_ms
        latencies = DecodeStats(latencies=[each / 1000 for each in took.latencies_ms])
        return super().report() | {
            "chunk_ms": cut.chunk * position,
            "left_ms": cut.left * position,
            "look_ahead_ms": cut.right * position,
            "partials": took.partials,
            "revised": took.revised,
            "token_latency_ms": {"mean": took.mean_latency_ms, **latencies.latency_ms},
            "model_real_time_factor": took.real_time_factor,
        }

    def summary(self) -> str:
        took = self.took
        return (
            f"{super().summary()}; {number_of(took.partials, 'partial text')}, "
            f"{number_of(took.revised, 'token')} revised, a token's latency {took.mean_latency_ms:.0f} ms"
        )
