"""Times of the words of Whisper's segments.

Written after ``add_word_timestamps`` of OpenAI's program (whisper/timing.py, 20250625): each window of a
recording is aligned (`nartk.serving.alignment`), punctuation joins its word, and words that are too long at
the ends of sentences and behind pauses are cut. Differences: windows begin where the timestamps say, not
where the last word has ended; and times never go back or beyond the sound.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import numpy as np

from nartk.errors import StrategyMismatchError, named
from nartk.protocols.attending import AttendingScorer, Heads
from nartk.protocols.hypothesis import Segment, Word
from nartk.protocols.passes import FeatureSource
from nartk.protocols.prompts import STEP, Prompts
from nartk.serving.alignment import Spell, aligned, default_heads, split_words

PREPENDED = "\"'“¿([{-"  # join the word behind them
APPENDED = "\"'.。,，!！?？:：”)]}、"  # join the word before them
ENDS = ".。!！?？"  # of sentences
LONGEST_MEDIAN = 0.7  # s, of the lengths of a window's words
PAUSE = 4  # medians, before a first word that may be too long
SLACK = 0.5  # s, by which a segment's own times may differ from those of its words
_FRAME = 0.01  # s


@dataclass
class Timing:
    """A word while its times are found: s from the window's beginning."""

    text: str
    tokens: list[int]
    start: float
    end: float
    probability: float


class WordAligner:
    """Finds the words of recordings by a model's cross-attention.

    Args:
        scorer: Scorer of the model, a `PassScorer` too.
        prompts: Prompts that outputs follow, with a language.
        layers, heads: Number of layers of its decoder, and of the heads of each.
        spell: Makes text of tokens, with the space that it begins with.

    Raises:
        StrategyMismatchError: The scorer does not show what tokens attend to.
    """

    def __init__(
        self, scorer: object, prompts: Prompts, *, layers: int, heads: int, spell: Spell, language: str
    ) -> None:
        if not isinstance(scorer, AttendingScorer):
            raise StrategyMismatchError(
                f"{named('word_timestamps', True)} with a model whose attention cannot be read",
                fix="leave it out",
            )
        self.scorer, self.prompts, self.spell, self.language = scorer, prompts, spell, language
        self.heads: Heads = prompts.heads or default_heads(layers, heads)

    def timed(self, source: FeatureSource, segments: Sequence[Segment]) -> tuple[Segment, ...]:
        """The segments of a recording with their words; a segment's times become those of its words."""
        longest, sound = self.prompts.frames, len(source) if source.sound is None else source.sound
        found: list[Segment] = []
        spoken = 0.0  # end of the last word
        for seek, window in groupby(segments, lambda each: each.seek):
            last = sound if source.kept is None else source.kept.end_of_part(seek)
            end = min(seek + longest, last)
            own = self._window(source.window(seek, end, longest), end - seek, [*window], spoken)
            spoken = next((each.words[-1].end for each in reversed(own) if each.words), spoken)
            found += own
        return tuple(found)

    def _window(
        self, source: FeatureSource, frames: int, segments: Sequence[Segment], spoken: float
    ) -> list[Segment]:
        eos = self.scorer.vocab.eos  # type: ignore[attr-defined]
        texts = [[token for token in each.tokens if token < eos] for each in segments]
        timings = self.align(source, frames, [token for text in texts for token in text])
        return add_words(segments, texts, timings, offset=segments[0].seek * _FRAME, spoken=spoken)

    def align(self, source: FeatureSource, frames: int, text: Sequence[int]) -> list[Timing]:
        """The words of a text in a window of so many frames of sound, behind which zeros may follow."""
        words = self.prompts.words()
        prompt = [self.scorer.start_token, *words]  # type: ignore[attr-defined]
        text = text[: self.scorer.limits.target - len(prompt) - 1]  # type: ignore[attr-defined]
        if not text:
            return []
        begins, probs = aligned(
            self.scorer, source, prompt, text, heads=self.heads, positions=max(1, frames // 2)
        )
        found, at = [], 0
        for word, tokens in split_words(text, self.spell, self.language):
            end = at + len(tokens)
            start, stop = (float(begins[i]) * STEP for i in (at, end))
            found.append(Timing(word, tokens, start, stop, float(probs[at:end].mean())))
            at = end
        return found


def merge_punctuation(
    timings: Sequence[Timing], prepended: str = PREPENDED, appended: str = APPENDED
) -> None:
    """Joins punctuation to the word behind or before it, whose times stay; it is left without text."""
    behind = len(timings) - 1
    for at in range(len(timings) - 2, -1, -1):
        mark, word = timings[at], timings[behind]
        if mark.text.startswith(" ") and mark.text.strip() in prepended:
            word.text, word.tokens = mark.text + word.text, mark.tokens + word.tokens
            mark.text, mark.tokens = "", []
        else:
            behind = at
    before = 0
    for at in range(1, len(timings)):
        word, mark = timings[before], timings[at]
        if not word.text.endswith(" ") and mark.text in appended:
            word.text, word.tokens = word.text + mark.text, word.tokens + mark.tokens
            mark.text, mark.tokens = "", []
        else:
            before = at


def add_words(
    segments: Sequence[Segment],
    texts: Sequence[Sequence[int]],
    timings: Sequence[Timing],
    *,
    offset: float,
    spoken: float,
) -> list[Segment]:
    """The segments of a window with their words, too long ones cut.

    Args:
        texts: Tokens of each segment that are no timestamps.
        timings: Words of all of them; they are changed.
        offset: Beginning of the window, s.
        spoken: End of the last word before it, s.
    """
    lengths = np.array([each.end - each.start for each in timings])
    lengths = lengths[lengths.nonzero()]
    median = min(LONGEST_MEDIAN, float(np.median(lengths))) if len(lengths) else 0.0
    if len(lengths):
        _cut_at_sentences(timings, 2 * median)
    merge_punctuation(timings)
    found, rest = [], iter(timings)
    for segment, text in zip(segments, texts, strict=True):
        words: list[Timing] = []
        saved = 0
        while saved < len(text) and (timing := next(rest, None)) is not None:
            saved += len(timing.tokens)
            if timing.text:
                start, end = (round(offset + each, 2) for each in (timing.start, timing.end))
                words.append(replace(timing, start=start, end=end))
        if words:
            segment = _fitted(segment, words, median, spoken)
            spoken = segment.end
        own = tuple(Word(each.text, each.start, each.end, each.probability) for each in words)
        found.append(replace(segment, words=own))
    return found


def _cut_at_sentences(timings: Sequence[Timing], longest: float) -> None:
    """Cuts words around the ends of sentences to a length, s."""
    for before, timing in pairwise(timings):
        if timing.end - timing.start > longest:
            if timing.text in ENDS:
                timing.end = timing.start + longest
            elif before.text in ENDS:
                timing.start = timing.end - longest


def _fitted(segment: Segment, words: Sequence[Timing], median: float, spoken: float) -> Segment:
    """The segment with times that fit its words, of which the first, the second and the last may be cut."""
    first, last, longest = words[0], words[-1], 2 * median
    second = words[1] if len(words) > 1 else None
    is_long = first.end - first.start > longest
    both_long = second is not None and second.end - first.start > 2 * longest
    if first.end - spoken > PAUSE * median and (is_long or both_long):
        if second is not None and second.end - second.start > longest:
            first.end = second.start = max(second.end / 2, second.end - longest)
        first.start = max(0.0, first.end - longest)
    start, end = segment.start, segment.end
    if start < first.end and start - SLACK > first.start:
        first.start = max(0.0, min(first.end - median, start))
    else:
        start = first.start
    if end > last.start and end + SLACK < last.end:
        last.end = max(last.start + median, end)
    else:
        end = last.end
    return replace(segment, start=start, end=end)


def words_of(segments: Iterable[Segment]) -> tuple[Word, ...]:
    """The words of segments, one after the other."""
    return tuple(word for segment in segments for word in segment.words)
