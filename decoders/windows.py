"""Decodes sound of any length in windows that follow the timestamps of the model (Radford et al. 2023)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np

from nartk.decoders.beam import BeamStrategy
from nartk.decoders.strategy import Batching
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

    def results(self, scorer: Any, requests: Sequence[Request], batching: Batching) -> Iterator[Result]:
        plain, timed = (
            scorer.prompted(language=self.language, task=self.task, timestamps=timestamps)
            for timestamps in (False, True)
        )
        if any(request.vad for request in requests):
            plain.no_speech, timed.no_speech = {}, {}
        # With timestamps what follows the last whole segment is decoded again, in short sound too.
        longest = 0 if self.timestamps else plain.limits.source
        if whole := [request for request in requests if len(request.source) <= longest]:
            within = {request.index: self._within(request, plain) for request in whole}
            for result in super().results(plain, [*within.values()], batching):
                yield _spoken(plain, within[result.index], result)
        if files := [request for request in requests if len(request.source) > longest]:
            yield from self._in_windows(timed, files, batching)

    def _within(self, request: Request, scorer: Any) -> Request:
        """The request with as long an output as the scorer's prompt leaves positions for."""
        longest = min(self.limit(len(request.source)), scorer.limits.target)
        return replace(request, max_len=longest, prefix=request.prefix[:longest])

    def _in_windows(self, scorer: Any, requests: Sequence[Request], batching: Batching) -> Iterator[Result]:
        """Decodes files, each window of which has its place in a batch."""
        waiting = deque(sorted(requests, key=lambda request: (-len(request.source), request.index)))
        files: list[_File] = []
        unreported: list[Result] = []
        while waiting or files:
            if new := [
                _File(waiting.popleft()) for _ in range(min(batching.size - len(files), len(waiting)))
            ]:
                firsts = [file.window(scorer.limits.source) for file in new]
                for file, words in zip(new, scorer.detect(firsts), strict=True):
                    file.words = words
                files += new
            asked = {
                i: self._within(
                    replace(
                        file.request,
                        index=i,
                        source=file.window(scorer.limits.source),
                        prefix=() if file.windows else file.request.prefix,
                    ),
                    scorer,
                )
                for i, file in enumerate(files)
            }
            for result in super().results(scorer, list(asked.values()), batching):
                unreported.append(result)
                window = asked[result.index]
                found = _spoken(scorer, window, result)
                files[result.index].add(found, scorer, len(window.source), self.timestamps)
            for file in [file for file in files if file.is_done]:
                files.remove(file)
                yield file.result(PhaseSeconds(**added(unreported)[1]), early=bool(files))
                unreported = []


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

    def result(self, phases: PhaseSeconds, *, early: bool) -> Result:
        counts, _ = added(self.windows)
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
            phases=phases,
            sentences=len(self.windows),
            **counts,
        )
