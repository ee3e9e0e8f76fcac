"""Decodes recordings window by window as transformers' long-form `generate` does.

It does so with ``condition_on_prev_tokens=False`` and one temperature (Radford et al. 2023, section 4.5,
without the text before as a prompt). The next window begins where the last segment that a pair of timestamps
closes has ended, or behind the window where its output has no such pair. A window in which nobody speaks has
no words: the model gives the word for no speech a probability above `NO_SPEECH`, and its output a mean
log-probability below `UNSURE`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

import numpy as np

from nartk.decoders.windowing.segments import Spell, cut, measured
from nartk.protocols.hypothesis import (
    Hypothesis,
    PhaseSeconds,
    Request,
    Result,
    Segment,
    TokenTrace,
    added,
    without_words,
)
from nartk.protocols.passes import FeatureSource, PassScorer
from nartk.protocols.prompts import Prompts
from nartk.protocols.runs import NOTHING, Ended, Run, Waiting

NO_SPEECH, UNSURE = 0.6, -1.0  # a probability, and the mean of log-probabilities, of OpenAI's program


class WindowRun:
    """Implements `nartk.protocols.runs.Run`: each window of a file is a request of a run inside.

    Args:
        prompts: Prompts of the outputs; those of files that are cut have timestamps.
        inner: The run, which decodes windows.
        longest: Most tokens of an output of a source of so many frames.
        size: Most files at a time that are cut.
        timestamps: True if outputs have timestamps; else they are taken out.
        is_timed: True if they are decoded with them, in sound of one window too.
    """

    def __init__(
        self,
        scorer: PassScorer,
        prompts: Prompts,
        inner: Run,
        longest: Callable[[int], int],
        spell: Spell,
        size: int,
        *,
        timestamps: bool,
        is_timed: bool,
    ) -> None:
        self.prompts, self.inner, self.longest, self.size = prompts, inner, longest, size
        self.spell, self.timestamps, self.is_timed = spell, timestamps, is_timed
        self.eos, self.limits = scorer.vocab.eos, scorer.limits
        self._waiting = Waiting()
        self._files: dict[Request, _File] = {}  # by the request of the run inside: a window

    def __len__(self) -> int:
        return len(self._waiting) + len(self._files)

    def admit(self, request: Request) -> None:
        # With timestamps what follows the last whole segment is decoded again, in short sound too.
        if self.is_timed or len(request.source) > self.limits.source:
            self._waiting.add(request)
        else:
            self._decode(_File(request, self, is_cut=False), request, self.prompts.words())

    def _decode(self, file: _File, request: Request, prompt: tuple[int, ...]) -> None:
        """Admits a window with a prompt, and as long an output as that leaves positions for."""
        left = max(1, self.limits.target - 1 - len(prompt))
        longest = min(self.longest(len(request.source)), left)
        window = replace(request, prompt=prompt, max_len=longest, prefix=request.prefix[:longest])
        self._files[window] = file
        self.inner.admit(window)

    def step(self) -> list[Ended]:
        cut = sum(file.is_cut for file in self._files.values())
        for request in self._waiting.take(max(self.size - len(self._files), int(not cut))):
            file = _File(request, self)
            self._decode(file, file.window(), self.prompts.words(timestamps=True))
        found: list[Ended] = []
        for window, result in self.inner.step():
            file, spoken = self._files.pop(window), _spoken(result, self.eos)
            if not file.is_cut:
                found.append((file.request, spoken))
                continue
            file.add(spoken)
            if file.seek >= len(file.request.source):
                early = any(each.is_cut for each in self._files.values())
                found.append((file.request, file.result(early=early)))
            else:  # the language of a file is that of its first window
                self._decode(file, file.window(), result.prompt[1:])
        return found

    def _window_of(self, request: Request) -> Request | None:
        return next((window for window, file in self._files.items() if file.request is request), None)

    def so_far(self, request: Request) -> Hypothesis:
        """The windows that were decoded; of sound of one window, as beam search has it."""
        window = self._window_of(request)
        if window is None:
            return NOTHING
        file = self._files[window]
        return file.so_far() if file.is_cut else self.inner.so_far(window)

    def drop(self, request: Request) -> None:
        self._waiting.drop(request)
        window = self._window_of(request)
        if window is not None:
            self.inner.drop(window)
            del self._files[window]

    def close(self) -> None:
        self._waiting.clear()
        self._files.clear()
        self.inner.close()


def _spoken(result: Result, eos: int) -> Result:
    """A window's result; without words where nobody speaks in it, by Whisper's rule."""
    best = result.hypotheses[0]
    log_probs = best.positional_scores
    if result.no_speech is None or log_probs is None:
        return result
    if result.no_speech > NO_SPEECH and float(np.mean(log_probs)) < UNSURE:
        return replace(result, hypotheses=(without_words(best, eos),))
    return result


@dataclass
class _File:
    """A file and the windows that are decoded.

    Attributes:
        is_cut: True if it is decoded window by window, False if it is one request.
        seek: Frame that the next window begins with.
    """

    request: Request
    run: WindowRun
    is_cut: bool = True
    seek: int = 0
    windows: list[Result] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    trace: list[TokenTrace] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    started: float = field(default_factory=perf_counter)

    def window(self) -> Request:
        """The request of the next window, filled up with zeros as transformers does it."""
        source, longest = self.request.source, self.run.limits.source
        assert isinstance(source, FeatureSource)
        window = source.window(self.seek, self.seek + longest, longest)
        prefix = () if self.windows else self.request.prefix
        return replace(self.request, source=window, prefix=prefix)

    def add(self, result: Result) -> None:
        """Takes the best output of the next window."""
        best, eos, prompts = result.hypotheses[0], self.run.eos, self.run.prompts
        ends = best.tokens[-1:] == (eos,)
        inner = best.tokens[: len(best.tokens) - ends]
        left = len(self.request.source) - self.seek
        kept, advance = prompts.window(inner, min(self.run.limits.source, left))
        timestamps = self.run.timestamps
        shown = [i for i, token in enumerate(kept) if timestamps or token < prompts.begin]
        whole = ends and len(kept) == len(inner)
        log_probs: Sequence[float] = best.positional_scores or ()
        self.tokens += [*(kept[i] for i in shown), eos]
        self.log_probs += [*(log_probs[i] for i in shown), log_probs[-1] if whole and log_probs else 0.0]
        if best.trace is not None:
            before = sum(each.passes for each in self.windows)
            end = best.trace[-1] if whole else TokenTrace("model", 0, None)
            self.trace += (each.after(before) for each in [*(best.trace[i] for i in shown), end])
        frames = min(self.run.limits.source, left)
        segments, _ = cut(inner, prompts, self.seek, frames, self.run.spell)
        self.segments += measured(
            (each for each in segments if each.text.strip()), log_probs, no_speech_prob=result.no_speech
        )
        self.windows.append(result)
        self.seek += advance

    def so_far(self) -> Hypothesis:
        """The output of the windows that were decoded, without the end of the last one."""
        log_probs = tuple(self.log_probs[:-1])
        return Hypothesis(tuple(self.tokens[:-1]), math.fsum(log_probs), log_probs)

    def result(self, *, early: bool) -> Result:
        counts, phases = added(self.windows)
        log_probs = tuple(self.log_probs)
        trace = tuple(self.trace) if self.trace else None
        return Result(
            self.request.index,
            (
                Hypothesis(
                    tuple(self.tokens),
                    math.fsum(log_probs),
                    log_probs,
                    trace=trace,
                    segments=tuple(self.segments),
                ),
            ),
            perf_counter() - self.started,
            left_mid_batch=early,
            phases=PhaseSeconds(**phases),
            sentences=len(self.windows),
            prompt=self.windows[0].prompt,
            **counts,
        )
