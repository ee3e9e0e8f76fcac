"""Decodes recordings window by window as OpenAI's program does (Radford et al. 2023, section 4.5).

It is ``transcribe`` of whisper/transcribe.py and ``decode`` of whisper/decoding.py, version 20250625. What is
otherwise here:

* Windows of several recordings are decoded in one batch, and a window is encoded once, however often it is
  decoded.
* Draws depend on the seed, the window's place in its recording and the temperature alone.
* Beam search is ours.
* Segments without a length or without words are left out; there they are kept, empty.
* Times behind the sound's end are its end, and clips end there: there a clip that ends behind it never ends.
* Text before a prompt that fills its half of the context is left out, where the program takes all of it by a
  slip (``tokens[-0:]``).
* Hotwords are faster-whisper's (1.2.1): text in front of what was said before, which is cut to fit beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

from nartk.decoders.windowing.segments import HERTZ, Spell, compression_ratio, cut
from nartk.decoders.windowing.sharing import SharedSources
from nartk.protocols.hypothesis import (
    Hypothesis,
    PhaseSeconds,
    Request,
    Result,
    Segment,
    TokenTrace,
    added,
)
from nartk.protocols.passes import FeatureSource
from nartk.protocols.prompts import DETECTED
from nartk.protocols.runs import NOTHING, Ended, Run, Waiting

HOT = 0.5  # temperature above which a window's words are no prompt of the next one


@dataclass(frozen=True)
class Rules:
    """Values by which windows follow each other and are decoded again.

    Attributes:
        temperatures: Those at which a window is decoded, one after the other, until its output is good.
        compression_ratio: An output that is compressed further is no good.
        min_log_prob: Nor is one whose mean log-probability is lower.
        no_speech: Probability of no speech above which such an output is left out.
        condition: True if what was said before is a prompt.
        initial, hotwords: Words in front of the first window's prompt, and of all windows'.
        carry: True if the initial ones are in front of all windows' prompts.
        clips: Begin and end of the parts that are decoded, frames; of the last an end may be missing.
        timestamps: True if outputs have timestamps; else they are taken out.
        seed: Seed of draws.
    """

    temperatures: tuple[float, ...]
    compression_ratio: float
    min_log_prob: float
    no_speech: float
    condition: bool
    initial: tuple[int, ...]
    hotwords: tuple[int, ...]
    carry: bool
    clips: tuple[int, ...]
    timestamps: bool
    seed: int

    def clips_of(self, frames: int) -> list[tuple[int, int]]:
        """Begin and end of the clips of a recording of so many frames."""
        points = [*self.clips] or [0]
        if len(points) % 2:
            points.append(frames)
        ends = [min(end, frames) for end in points[1::2]]
        return [*zip(points[::2], ends, strict=True)]


class TranscribeRun:
    """Implements `nartk.protocols.runs.Run`: each window of a file is a request of a run inside.

    Args:
        scorer: That of the runs inside.
        begin: Begins the run that decodes windows at a temperature.
        longest: Most tokens of an output of a source of so many frames.
        size: Most files at a time, twice.
    """

    def __init__(
        self,
        rules: Rules,
        scorer: SharedSources,
        begin: Callable[[float], Run],
        longest: Callable[[int], int],
        spell: Spell,
        size: int,
    ) -> None:
        self.rules, self.scorer, self.begin, self.longest = rules, scorer, begin, longest
        self.spell, self.size, self.prompts = spell, size, scorer.prompts
        self.eos, self.limits = scorer.vocab.eos, scorer.limits
        self._waiting = Waiting()
        self._runs: dict[float, Run] = {}  # by temperature
        self._files: dict[Request, _File] = {}  # by the request of a run inside: a window

    def __len__(self) -> int:
        return len(self._waiting) + len(self._files)

    def admit(self, request: Request) -> None:
        self._waiting.add(request)

    def step(self) -> list[Ended]:
        found: list[Ended] = []
        # More than fit into a batch, so that windows that enter it are encoded together.
        for request in self._waiting.take(max(0, 2 * self.size - len(self._files))):
            file = _File(request, self)
            if file.find_window():
                self._decode(file)
            else:
                found.append((request, file.result(early=bool(self._files))))
        for run in [*self._runs.values()]:
            if len(run):
                for window, result in run.step():
                    found += self._read(self._files.pop(window), window, result)
        return found

    def _decode(self, file: _File) -> None:
        window = file.request_of_window()
        temperature = 0.0 if file.is_detecting else self.rules.temperatures[file.tries]
        if temperature not in self._runs:
            self._runs[temperature] = self.begin(temperature)
        self._files[window] = file
        self._runs[temperature].admit(window)

    def _read(self, file: _File, window: Request, result: Result) -> list[Ended]:
        """Takes the result of a file's window; the file's own, if that was the last one."""
        if file.take(window, result):
            self.scorer.release(window.source)
            if not file.find_window():
                return [(file.request, file.result(early=bool(self._files)))]
        self._decode(file)
        return []

    def _window_of(self, request: Request) -> Request | None:
        return next((window for window, file in self._files.items() if file.request is request), None)

    def so_far(self, request: Request) -> Hypothesis:
        """The windows that were decoded."""
        window = self._window_of(request)
        return NOTHING if window is None else self._files[window].so_far()

    def drop(self, request: Request) -> None:
        self._waiting.drop(request)
        window = self._window_of(request)
        if window is not None:
            for run in self._runs.values():
                run.drop(window)
            self.scorer.release(window.source)
            del self._files[window]

    def close(self) -> None:
        self._waiting.clear()
        self._files.clear()
        try:
            for run in self._runs.values():
                run.close()
        finally:
            self.scorer.release_all()


@dataclass
class _Output:
    """A window's output.

    Attributes:
        tokens: Without eos.
        mean: Mean log-probability, eos counted.
    """

    best: Hypothesis
    tokens: list[int]
    mean: float
    ratio: float


@dataclass(eq=False)
class _File:
    """A recording and the windows that are decoded.

    Attributes:
        words: Prompt behind the start token.
        seek: Frame that the next window begins with.
        clips: Clips that are not decoded yet.
        earlier: Words of the initial prompt and of all segments, timestamps among them.
        reset: Number of these that are no prompt any more.
        source: The window that is decoded; None: a new one begins.
        tries: Times that it has been decoded.
        no_speech: Probability that nobody speaks in it.
        is_detecting: True if only the language is to be found.
    """

    request: Request
    run: TranscribeRun
    words: tuple[int, ...] = ()
    seek: int = 0
    clips: list[tuple[int, int]] = field(default_factory=list)
    earlier: list[int] = field(default_factory=list)
    reset: int = 0
    source: FeatureSource | None = None
    tries: int = 0
    no_speech: float | None = None
    is_detecting: bool = False
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    trace: list[TokenTrace] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    windows: int = 0
    started: float = field(default_factory=perf_counter)

    def __post_init__(self) -> None:
        source, rules = self.request.source, self.run.rules
        assert isinstance(source, FeatureSource)
        self.frames = len(source) if source.sound is None else source.sound
        self.clips = rules.clips_of(self.frames)
        self.seek = self.clips[0][0]
        asked = self.request.prompt
        self.words = self.run.prompts.words(timestamps=True) if asked is None else asked
        self.earlier = [*rules.initial]

    def find_window(self) -> bool:
        """Moves to the next window; False: there is none."""
        self.source = None
        while self.clips:
            begin, end = self.clips[0]
            self.seek = max(self.seek, begin)
            if self.seek < end:
                # The language is that of the first 30 s, behind whose end silence is heard, not nothing.
                is_first = (self.seek, self.size) == (0, self.run.limits.source)
                self.is_detecting = DETECTED in self.words and not is_first
                return True
            del self.clips[0]
            if self.clips:
                self.seek = self.clips[0][0]
        return False

    @property
    def size(self) -> int:
        """Frames of sound in the window."""
        return min(self.run.limits.source, self.clips[0][1] - self.seek)

    def request_of_window(self) -> Request:
        """Makes the request that decodes the window, or finds the language."""
        run, longest = self.run, self.run.limits.source
        if self.source is None:
            source = self.request.source
            assert isinstance(source, FeatureSource)
            begin, end = (0, longest) if self.is_detecting else (self.seek, self.seek + self.size)
            self.source = source.window(begin, end, longest)
        # A draw depends on the window, not on the number of the recording.
        made = replace(self.request, index=0, source=self.source, prompt=self.words, vad=not self.tries)
        if self.is_detecting:
            return replace(made, prompt=(DETECTED,), vad=False, max_len=1, prefix=(), trace=False)
        before = self.before()
        left = run.limits.target - len(before) - len(self.words)
        most = max(1, min(run.longest(len(self.request.source)), run.limits.target // 2, left))
        prefix = () if self.windows else self.request.prefix[:most]
        seed = (run.rules.seed * 1_000_003 + self.seek) * 1_000_003 + self.tries
        return replace(made, before=before, max_len=most, prefix=prefix, seed=seed % 2**63)

    def before(self) -> tuple[int, ...]:
        """The words in front of the start token: hotwords, and what was said before."""
        rules, most = self.run.rules, self.run.limits.target // 2 - 1
        hotwords = rules.hotwords[:most]
        if rules.carry:
            words = _last(self.earlier[max(len(rules.initial), self.reset) :], most - len(rules.initial))
            words = [*rules.initial, *words]
        else:
            words = self.earlier[self.reset :]
        words = _last(words, most - len(hotwords))
        return (self.run.prompts.previous, *hotwords, *words) if hotwords or words else ()

    def take(self, window: Request, result: Result) -> bool:
        """Takes the result of a window; whether it is done with, or else decoded again."""
        self.results.append(result)
        self.words = result.prompt[len(window.before) + 1 :] if DETECTED in self.words else self.words
        if self.is_detecting:
            self.words = (*self.words, *self.run.prompts.words(timestamps=True)[1:])
            self.run.scorer.release(window.source)
            self.source, self.is_detecting = None, False
            return False
        rules = self.run.rules
        self.no_speech = self.no_speech if self.tries else result.no_speech
        found = self._best(result)
        is_unsure = found.mean < rules.min_log_prob
        is_heard = self.request.vad and self.no_speech is not None and self.no_speech > rules.no_speech
        is_bad = (found.ratio > rules.compression_ratio or is_unsure) and not (is_heard and is_unsure)
        if is_bad and self.tries + 1 < len(rules.temperatures):
            self.tries += 1
            return False
        if is_heard and found.mean <= rules.min_log_prob:
            self._add(found, [], self.size)
        else:
            self._add(found, *cut(found.tokens, self.run.prompts, self.seek, self.size, self.run.spell))
            if not rules.condition or rules.temperatures[self.tries] > HOT:
                self.reset = len(self.earlier)
        self.tries = 0
        return True

    def _best(self, result: Result) -> _Output:
        """The likeliest output of a window, by its mean log-probability without eos."""
        outputs = []
        for each in result.hypotheses:
            tokens = [*each.tokens]
            del tokens[len(tokens) - (tokens[-1:] == [self.run.eos]) :]
            total = math.fsum(each.positional_scores or ())
            outputs.append((total / max(1, len(tokens)), total, tokens, each))
        _, total, tokens, best = max(outputs, key=lambda output: output[0])
        text = self.run.spell([token for token in tokens if token < self.run.prompts.begin]).strip()
        return _Output(best, tokens, total / (len(tokens) + 1), compression_ratio(text))

    def _add(self, found: _Output, segments: Sequence[Segment], advance: int) -> None:
        """Takes over the segments of a window that have a length and words, and moves on."""
        best, rules, begin, end = found.best, self.run.rules, 0, self.frames / HERTZ
        shown: list[int] = []
        for each in segments:
            if each.start != each.end and each.text.strip():
                self.earlier += each.tokens
                positions = range(begin, begin + len(each.tokens))
                shown += [
                    i for i in positions if rules.timestamps or found.tokens[i] < self.run.prompts.begin
                ]
                self.segments.append(
                    replace(
                        each,
                        start=min(each.start, end),
                        end=min(each.end, end),
                        temperature=rules.temperatures[self.tries],
                        avg_logprob=found.mean,
                        compression_ratio=found.ratio,
                        no_speech_prob=self.no_speech,
                    )
                )
            begin += len(each.tokens)
        log_probs: Sequence[float] = best.positional_scores or ()
        is_whole = bool(segments) and begin == len(best.tokens) - 1  # eos follows
        self.tokens += [*(best.tokens[i] for i in shown), self.run.eos]
        self.log_probs += [*(log_probs[i] for i in shown), log_probs[-1] if is_whole else 0.0]
        if best.trace is not None:
            before = sum(each.passes for each in self.results[:-1])
            last = best.trace[-1] if is_whole else TokenTrace("model", 0, None)
            self.trace += (token.after(before) for token in [*(best.trace[i] for i in shown), last])
        self.windows += 1
        self.seek += advance

    def so_far(self) -> Hypothesis:
        """The output of the windows that were decoded, without the end of the last one."""
        log_probs = tuple(self.log_probs[:-1])
        return Hypothesis(tuple(self.tokens[:-1]), math.fsum(log_probs), log_probs)

    def result(self, *, early: bool) -> Result:
        counts, phases = added(self.results)
        if not self.windows:  # no frame of sound
            self.tokens, self.log_probs = [self.run.eos], [0.0]
        names = {id: code for code, id in self.run.prompts.languages.items()}
        best = Hypothesis(
            tuple(self.tokens),
            math.fsum(self.log_probs),
            tuple(self.log_probs),
            trace=tuple(self.trace) or None,
            segments=tuple(self.segments),
            language=names.get(next(iter(self.words), -1), ""),
        )
        return Result(
            self.request.index,
            (best,),
            perf_counter() - self.started,
            left_mid_batch=early,
            phases=PhaseSeconds(**phases),
            sentences=max(1, self.windows),
            prompt=(self.run.scorer.start_token, *self.words),
            **counts,
        )


def _last(tokens: Sequence[int], count: int) -> list[int]:
    """The last so many tokens."""
    return [*tokens[max(0, len(tokens) - max(0, count)) :]]
