"""Decodes sound of any length in windows that follow the timestamps of the model (Radford et al. 2023)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np

from nartk.decoders.beam import BeamStrategy
from nartk.protocols.guarantee import Guarantee, Promise
from nartk.protocols.hypothesis import (
    Hypothesis,
    PhaseSeconds,
    Request,
    Result,
    TokenTrace,
    added,
    without_words,
)
from nartk.protocols.passes import FeatureSource, PassScorer, Prompted
from nartk.protocols.runs import NOTHING, Batching, Ended, Run, Waiting
from nartk.registry import WIDEST, option, register_decoder

NO_SPEECH, UNSURE = 0.6, -1.0  # a probability, and the mean of log-probabilities, of OpenAI's program


@register_decoder("windows")
class Windows(BeamStrategy):
    """Decodes what the model reads at once as greedy or beam search does, and longer sound window by window.

    The next window begins where the last segment that a pair of timestamps closes has ended, or behind the
    window where its output has no such pair (section 4.5 of the paper, without the text before as a prompt,
    and without decoding a window again at another temperature). Outputs are those of transformers' long-form
    `generate` with ``condition_on_prev_tokens=False``: a file's language is that of its first window.

    The output of a file of several windows has an eos behind each window, and as its score the sum of its
    log-probabilities; of further hypotheses than the best it has none. A window in which nobody speaks has no
    words (section 4.5): the model gives the word for no speech a probability above `NO_SPEECH`, and its
    output a mean log-probability below `UNSURE`.
    """

    needs = (PassScorer, Prompted)  # type: ignore[assignment]
    promise = Promise(Guarantee.APPROXIMATE, "each window as greedy or beam search decodes it")
    reads_any_length = True

    beam_size: int = option(1, "hypotheses that are kept; 1: greedy search", low=1, high=WIDEST)
    language: str = option(
        "",
        "of the sound, such as en or german; empty: the model's own choice, which may be to detect it",
        does_nothing=True,
    )
    task: str = option(
        "",
        "empty: the model's own, as a rule to transcribe",
        choices=("", "transcribe", "translate"),
        does_nothing=True,
    )
    timestamps: bool = option(
        False, "outputs have times, in seconds from the beginning of the sound", does_nothing=True
    )

    def begin(self, scorer: Any, batching: Batching) -> Run:
        plain, timed = (
            scorer.prompted(language=self.language, task=self.task, timestamps=timestamps)
            for timestamps in (False, True)
        )
        return WindowRun(self, plain, timed, batching)

    def begin_whole(self, scorer: Any, batching: Batching) -> Run:
        """Begins a run over what the model reads at once."""
        return super().begin(scorer, batching)


class WindowRun:
    """Implements `nartk.protocols.runs.Run`: sound of one window is a request of a run, longer sound a file.

    Args:
        plain, timed: The model without timestamps, for sound of one window, and with them.
    """

    def __init__(self, strategy: Windows, plain: Any, timed: Any, batching: Batching) -> None:
        self.strategy, self.plain, self.timed = strategy, plain, timed
        self.size = batching.size
        self._of_plain, self._of_timed = (strategy.begin_whole(each, batching) for each in (plain, timed))
        self._whole: dict[Request, Request] = {}  # by that of the run inside the one that was admitted
        self._waiting = Waiting()  # files
        self._files: dict[Request, _File] = {}  # by that of the window that is decoded

    def __len__(self) -> int:
        return len(self._whole) + len(self._waiting) + len(self._files)

    def admit(self, request: Request) -> None:
        if request.vad and self.plain.no_speech is None:
            self.plain.no_speech, self.timed.no_speech = {}, {}
        # With timestamps what follows the last whole segment is decoded again, in short sound too.
        if self.strategy.timestamps or len(request.source) > self.plain.limits.source:
            self._waiting.add(request)
            return
        own = self._within(request, self.plain)
        self._whole[own] = request
        self._of_plain.admit(own)

    def _within(self, request: Request, scorer: Any) -> Request:
        """The request with as long an output as the scorer's prompt leaves positions for."""
        longest = min(self.strategy.limit(len(request.source)), scorer.limits.target)
        return replace(request, max_len=longest, prefix=request.prefix[:longest])

    def step(self) -> list[Ended]:
        found: list[Ended] = []
        for own, result in self._of_plain.step():
            found.append((self._whole.pop(own), _spoken(self.plain, own, result)))
        self._open_files()
        for window, result in self._of_timed.step():
            file = self._files.pop(window)
            spoken = _spoken(self.timed, window, result)
            file.add(spoken, self.timed, len(window.source), self.strategy.timestamps)
            if file.is_done:
                found.append((file.request, file.result(early=bool(self._files))))
            else:
                self._next_window(file)
        return found

    def _open_files(self) -> None:
        """Lets files in while there are places, and finds out their languages."""
        free = self.size - len(self._files) - len(self._whole)
        new = [_File(request) for request in self._waiting.take(max(free, int(not len(self._files))))]
        if new:
            firsts = [file.window(self.timed.limits.source) for file in new]
            for file, words in zip(new, self.timed.detect(firsts), strict=True):
                file.words = words
                self._next_window(file)

    def _next_window(self, file: _File) -> None:
        request = file.request
        source = file.window(self.timed.limits.source)
        prefix = () if file.windows else request.prefix
        window = self._within(replace(request, source=source, prefix=prefix), self.timed)
        self._files[window] = file
        self._of_timed.admit(window)

    def so_far(self, request: Request) -> Hypothesis:
        """The windows that were decoded; of sound of one window, as beam search has it."""
        for own, admitted in self._whole.items():
            if admitted is request:
                return self._of_plain.so_far(own)
        for file in self._files.values():
            if file.request is request:
                return file.so_far()
        return NOTHING

    def drop(self, request: Request) -> None:
        self._waiting.drop(request)
        for own in [own for own, admitted in self._whole.items() if admitted is request]:
            self._of_plain.drop(own)
            del self._whole[own]
            _forget(self.plain, own)
        for window in [window for window, file in self._files.items() if file.request is request]:
            self._of_timed.drop(window)
            del self._files[window]
            _forget(self.timed, window)

    def close(self) -> None:
        for request in [*self._whole.values(), *(file.request for file in self._files.values())]:
            self.drop(request)
        self._waiting.clear()
        self._of_plain.close()
        self._of_timed.close()


def _forget(scorer: Any, request: Request) -> None:
    """Drops what the scorer has heard of a request that nobody asks for any more."""
    source: Any = request.source
    if scorer.no_speech is not None:
        scorer.no_speech.pop(id(source.frames), None)


def _spoken(scorer: Any, request: Request, result: Result) -> Result:
    """What was found in a window; without words where nobody speaks in it, by Whisper's rule."""
    source: Any = request.source
    if scorer.no_speech is None or not request.vad:
        return result
    prob, best = scorer.no_speech.pop(id(source.frames)), result.hypotheses[0]
    log_probs = best.positional_scores
    if prob > NO_SPEECH and log_probs is not None and float(np.mean(log_probs)) < UNSURE:
        return replace(result, hypotheses=(without_words(best, scorer.vocab.eos),))
    return result


@dataclass
class _File:
    """A file and the windows that are decoded.

    Attributes:
        words: Of its prompt.
        seek: Frame that the next window begins with.
    """

    request: Request
    words: tuple[int, ...] = ()
    seek: int = 0
    windows: list[Result] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    trace: list[TokenTrace] = field(default_factory=list)
    started: float = field(default_factory=perf_counter)

    @property
    def is_done(self) -> bool:
        return self.seek >= len(self.request.source)

    def window(self, longest: int) -> FeatureSource:
        """The next window, filled up with zeros as transformers does it."""
        source: Any = self.request.source
        frames = source.frames[self.seek : self.seek + longest]
        filled = np.pad(frames, ((0, longest - len(frames)), (0, 0)))
        return FeatureSource(filled, source.shift, words=self.words)

    def add(self, result: Result, scorer: Any, longest: int, timestamps: bool) -> None:
        """Takes the best output of the next window."""
        best = result.hypotheses[0]
        ends = bool(best.tokens) and best.tokens[-1] == scorer.vocab.eos
        inner = best.tokens[: len(best.tokens) - ends]
        kept, advance = scorer.window(inner, min(longest, len(self.request.source) - self.seek))
        log_probs: Sequence[float] = best.positional_scores or ()
        shown = [i for i, token in enumerate(kept) if timestamps or token < scorer.first_timestamp]
        whole = ends and len(kept) == len(inner)
        self.tokens += [*(kept[i] for i in shown), scorer.vocab.eos]
        self.log_probs += [*(log_probs[i] for i in shown), log_probs[-1] if whole and log_probs else 0.0]
        if best.trace is not None:
            before = sum(each.passes for each in self.windows)
            end = best.trace[-1] if whole else TokenTrace("model", 0, None)
            for each in [*(best.trace[i] for i in shown), end]:
                own = each.verifier_pass
                self.trace.append(replace(each, verifier_pass=own + before if own else 0))
        self.windows.append(result)
        self.seek += advance

    def so_far(self) -> Hypothesis:
        """The output of the windows that were decoded, without the end of the last one."""
        log_probs = tuple(self.log_probs[:-1])
        return Hypothesis(tuple(self.tokens[:-1]), math.fsum(log_probs), log_probs)

    def result(self, *, early: bool) -> Result:
        counts, phases = added(self.windows)
        best = Hypothesis(
            tokens=tuple(self.tokens),
            score=math.fsum(self.log_probs),
            positional_scores=tuple(self.log_probs),
            trace=tuple(self.trace) if self.trace else None,
        )
        return Result(
            index=self.request.index,
            hypotheses=(best,),
            seconds=perf_counter() - self.started,
            left_mid_batch=early,
            phases=PhaseSeconds(**phases),
            sentences=len(self.windows),
            **counts,
        )
