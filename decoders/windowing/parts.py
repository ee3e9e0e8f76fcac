"""Decodes the parts of a recording that hold speech, each as a recording of its own, many at a time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from nartk.protocols.hypothesis import Hypothesis, PhaseSeconds, Request, Result, Segment, TokenTrace, added
from nartk.protocols.passes import FeatureSource
from nartk.protocols.runs import NOTHING, Ended, Run


class PartRun:
    """Implements `nartk.protocols.runs.Run`: each part of a recording is a request of a run inside.

    A part is as much of what is kept as the model reads at once, without the pauses between, as in
    faster-whisper's batches. So no words come of pauses, and no part waits for the one before it. Times are
    those among kept frames. A source of which nothing is left out is one part.

    Args:
        inner: Decodes parts, each as one recording.
        eos: Id of the word that ends outputs.
        size: Most parts that are admitted inside, whose frames are in memory.
        prompt_in: Makes the words before outputs in a language, by its code: the first part of a recording
            tells it for all; None: it is known.
    """

    def __init__(
        self, inner: Run, eos: int, size: int, prompt_in: Callable[[str], tuple[int, ...]] | None = None
    ) -> None:
        self.inner, self.eos, self.size, self.prompt_in = inner, eos, size, prompt_in
        self._recordings: dict[Request, _Recording] = {}
        self._waiting: deque[tuple[_Recording, int]] = deque()
        self._parts: dict[Request, tuple[_Recording, int]] = {}  # those that are admitted inside

    def __len__(self) -> int:
        return len(self._recordings)

    def admit(self, request: Request) -> None:
        found = self._recordings[request] = _Recording.of(request)
        first = len(found.parts) if self.prompt_in is None else min(1, len(found.parts))
        self._waiting += ((found, number) for number in range(first))

    def step(self) -> list[Ended]:
        while self._waiting and len(self._parts) < self.size:
            recording, number = self._waiting.popleft()
            part = recording.part(number)
            self._parts[part] = recording, number
            self.inner.admit(part)
        for part, result in self.inner.step() if self._parts else ():
            recording, number = self._parts.pop(part)
            recording.results[number] = result
            if self.prompt_in is not None and number == 0:
                recording.prompt = self.prompt_in(result.hypotheses[0].language)
                self._waiting += ((recording, other) for other in range(1, len(recording.parts)))
        ended = [each for each in self._recordings.values() if each.has_ended]
        for each in ended:
            del self._recordings[each.request]
        return [(each.request, each.joined(each.results, self.eos)) for each in ended]

    def so_far(self, request: Request) -> Hypothesis:
        """The output of the parts before the first that has not ended."""
        if request not in self._recordings:
            return NOTHING
        recording = self._recordings[request]
        known = recording.results.index(None) if None in recording.results else len(recording.results)
        return recording.joined(recording.results[:known], self.eos).hypotheses[0] if known else NOTHING

    def drop(self, request: Request) -> None:
        recording = self._recordings.pop(request, None)
        self._waiting = deque(each for each in self._waiting if each[0] is not recording)
        for part in [part for part, (owner, _) in self._parts.items() if owner is recording]:
            del self._parts[part]
            self.inner.drop(part)

    def close(self) -> None:
        self._recordings.clear()
        self._waiting.clear()
        self._parts.clear()
        self.inner.close()


@dataclass(eq=False)
class _Recording:
    """A request, the first frame of each of its parts and the frame behind it, and their results.

    Attributes:
        prompt: Words before the output of a part; None: the model's own.
    """

    request: Request
    parts: Sequence[tuple[int, int]]
    results: list[Result | None]
    prompt: tuple[int, ...] | None = None

    @classmethod
    def of(cls, request: Request) -> _Recording:
        source = request.source
        assert isinstance(source, FeatureSource)
        parts = [(0, len(source))] if source.kept is None else source.kept.parts
        return cls(request, parts, [None] * len(parts), request.prompt)

    @property
    def has_ended(self) -> bool:
        return None not in self.results

    def part(self, number: int) -> Request:
        source, (begin, end) = self.request.source, self.parts[number]
        assert isinstance(source, FeatureSource)
        own = replace(source, frames=source.frames[begin:end], kept=None)
        prefix = self.request.prefix if number == 0 else ()
        return replace(self.request, source=own, prefix=prefix, prompt=self.prompt)

    def joined(self, results: Sequence[Result | None], eos: int) -> Result:
        """The result of the first parts."""
        found = [each for each in results if each is not None]
        best = [each.hypotheses[0] for each in found]
        counts, phases = added(found)
        log_probs = tuple(chain.from_iterable(each.positional_scores or () for each in best))
        segments = (
            self._placed(begin, each)
            for (begin, _), hypothesis in zip(self.parts, best, strict=False)
            for each in hypothesis.segments
        )
        hypothesis = Hypothesis(
            tuple(chain.from_iterable(each.tokens for each in best)) or (eos,),
            math.fsum(log_probs),
            log_probs if best else (0.0,),
            trace=_traces(found),
            segments=tuple(segments),
            language=best[0].language if best else "",
        )
        return Result(
            self.request.index,
            (hypothesis,),
            max((each.seconds for each in found), default=0.0),
            left_mid_batch=any(each.left_mid_batch for each in found),
            phases=PhaseSeconds(**phases),
            sentences=sum(each.sentences for each in found),
            prompt=found[0].prompt if found else (),
            **counts,
        )

    def _placed(self, begin: int, segment: Segment) -> Segment:
        """A segment of the part that begins with a frame, with its times among all kept frames."""
        assert isinstance(self.request.source, FeatureSource)
        seconds = begin * self.request.source.shift / 1000
        start, end = segment.start + seconds, segment.end + seconds
        return replace(segment, start=start, end=end, seek=segment.seek + begin)


def _traces(results: Sequence[Result]) -> tuple[TokenTrace, ...] | None:
    """The traces of parts, whose passes are counted one part after the other."""
    found, before = [], 0
    for result in results:
        if (trace := result.hypotheses[0].trace) is None:
            return None
        found += [each.after(before) for each in trace]
        before += result.passes
    return tuple(found) if results else None
