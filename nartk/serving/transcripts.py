"""Transcripts of recordings: words and segments with their times, and the files that hold them.

Formats: text; SubRip (srt) and WebVTT (vtt); JSON with the names of OpenAI's ``verbose_json``; its program's
TSV, ``start``, ``end`` in milliseconds and ``text``; and NIST's CTM, a line a word: recording, channel, start
and length in seconds, word, and confidence where it is known.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from nartk.decoders.windowing.segments import compression_ratio
from nartk.errors import UsageError, named
from nartk.processors import WordOutput
from nartk.protocols.hypothesis import Hypothesis, Segment, Word
from nartk.protocols.kept import Kept
from nartk.serving.subtitles import Cue, marked, render

if TYPE_CHECKING:
    from nartk.processors import OutputProcessor

SUFFIXES = {"text": "txt", "srt": "srt", "vtt": "vtt", "json": "json", "tsv": "tsv", "ctm": "ctm"}
FORMATS = ("srt", "vtt", "json", "tsv", "ctm")  # that need times
OF_SEVERAL = ("ctm",)  # that one file may hold of several recordings
LONGEST, PAUSE, CHARACTERS = 6.0, 0.6, 42  # of a segment: seconds, seconds between two, characters
_WORD_BEGINS = "\u2581"  # with which sentencepiece marks a piece that begins a word
_CHANNEL = 1


def with_words(found: Hypothesis, output: OutputProcessor) -> Hypothesis:
    """The hypothesis with words and segments, of the times of its tokens.

    Words begin where pieces say so, else each token is one. A segment ends at a pause of `PAUSE`, and before
    it is longer than `LONGEST` or has more than `CHARACTERS`.
    """
    times = found.times or ()
    parts = [*_words(found, output)]
    words = [
        Word(text, times[part.start][0], times[part.stop - 1][1], _prob(found, part)) for part, text in parts
    ]
    segments, begin = [], 0
    for end in range(1, len(words) + 1):
        here, text = words[begin:end], "".join(word.text for word in words[begin : end + 1])
        if end < len(words):
            nearby = words[end].start - here[-1].end <= PAUSE
            if nearby and words[end].end - here[0].start <= LONGEST and len(text.strip()) <= CHARACTERS:
                continue
        tokens = slice(parts[begin][0].start, parts[end - 1][0].stop)
        segments.append(_segment(found, here, tokens))
        begin = end
    return replace(found, words=tuple(words), segments=tuple(segments))


def _words(found: Hypothesis, output: OutputProcessor) -> Iterator[tuple[slice, str]]:
    """The tokens of each word and its text, with the space that stands before it."""
    count = len(found.times or ())
    if isinstance(output, WordOutput):
        yield from output.words(found.tokens[:count])
        return
    pieces = output.vocab.to_words(found.tokens[:count])
    is_marked = any(piece.startswith(_WORD_BEGINS) for piece in pieces)
    begins = [i for i in range(count) if i == 0 or not is_marked or pieces[i].startswith(_WORD_BEGINS)]
    last = slice(0, 0)
    for begin, end in pairwise([*begins, count]):
        before, both = (output.decode(found.tokens[last.start : each]) for each in (begin, end))
        text = (
            both.removeprefix(before)
            if both.startswith(before)
            else f" {output.decode(found.tokens[begin:end])}"
        )
        last = slice(begin, end)
        yield last, text


def _prob(found: Hypothesis, part: slice) -> float | None:
    """The mean probability of tokens; None where the strategy has none."""
    scores = (found.positional_scores or ())[part]
    return math.fsum(map(math.exp, scores)) / len(scores) if scores else None


def _segment(found: Hypothesis, words: Sequence[Word], tokens: slice) -> Segment:
    text = "".join(word.text for word in words)
    scores = (found.positional_scores or ())[tokens]
    return Segment(
        words[0].start,
        words[-1].end,
        text,
        found.tokens[tokens],
        avg_logprob=math.fsum(scores) / len(scores) if scores else 0.0,
        compression_ratio=compression_ratio(text.strip()),
        words=tuple(words),
    )


def placed(found: Hypothesis, kept: Kept, shift: float) -> Hypothesis:
    """The hypothesis of what is kept of a recording, with times in the recording.

    Args:
        shift: Seconds of a frame.
    """

    def of(timed: Segment | Word) -> dict[str, Any]:
        first, last = (round(each / shift, 3) for each in (timed.start, timed.end))
        # What has no length lies at the end of its piece, not before the next one.
        start = kept.original(first, is_end=first == last) * shift
        return {"start": start, "end": max(start, kept.original(last, is_end=True) * shift)}

    segments = []
    for each in found.segments:
        words = tuple(replace(word, **of(word)) for word in each.words)
        segments.append(replace(each, words=words, seek=round(kept.original(each.seek)), **of(each)))
    return replace(found, segments=tuple(segments))


def within(found: Hypothesis, seconds: float) -> Hypothesis:
    """The hypothesis with the times of segments and words inside the sound, none before the one before it."""
    segments, spoken = [], _Clock(seconds)
    clock = _Clock(seconds)
    for each in found.segments:
        words = tuple(replace(word, **spoken.of(word)) for word in each.words)
        segments.append(replace(each, words=words, **clock.of(each)))
    words = tuple(word for each in segments for word in each.words) if segments else found.words
    return replace(found, segments=tuple(segments), words=words, seconds=seconds)


class _Clock:
    """Keeps times between 0 and a length, s, in their order."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.start, self.end = max(0.0, seconds), 0.0, 0.0

    def of(self, timed: Segment | Word) -> dict[str, Any]:
        """Start and end of what follows the ones before."""
        self.start = min(max(timed.start, self.start), self.seconds)
        self.end = min(max(timed.end, self.end, self.start), self.seconds)
        return {"start": self.start, "end": self.end}


def transcript(found: Hypothesis, form: str, *, name: str = "", task: str = "transcribe") -> str:
    """The text of a recording's file in a format, without the line break at its end.

    Args:
        form: A key of `SUFFIXES`.
        name: Name of the recording, in CTM.
        task: Name of what the model did, in JSON.

    Raises:
        UsageError: It needs times, which the output has not.
    """
    if form == "text":
        return found.text.replace("\n", " ")
    if form == "ctm":
        return "\n".join(_ctm(found, name))
    if form == "json":
        return _json(found, task)
    segments = segments_of(found)
    if form == "tsv":
        rows = [
            (str(round(1000 * each.start)), str(round(1000 * each.end)), _plain(each.text))
            for each in segments
        ]
        return "\n".join("\t".join(row) for row in [("start", "end", "text"), *rows])
    return render([Cue(each.start, each.end, _plain(each.text)) for each in segments], form)


def segments_of(found: Hypothesis) -> Sequence[Segment]:
    """The segments of an output, those that its text marks where it has no others; raises UsageError."""
    if found.segments or not found.text.strip():
        return found.segments
    if cues := [*marked(found.text)]:
        return [Segment(each.start, each.end, each.text, ()) for each in cues]
    raise UsageError(
        "segments need times, which this output has not",
        fix=f"use ctc-greedy, ctc-beam or paraformer, or {named('timestamps', True)} with Whisper",
    )


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _ctm(found: Hypothesis, name: str) -> Iterator[str]:
    if not found.words and found.text.strip():
        raise UsageError(
            "CTM needs the times of words, which this output has not",
            fix=f"use ctc-greedy, ctc-beam or paraformer, or {named('word_timestamps', True)} with Whisper",
        )
    recording = re.sub(r"\s+", "_", name) or "-"
    for word in found.words:
        if text := re.sub(r"\s+", "_", word.text.strip()):
            times = f"{word.start:.3f} {word.end - word.start:.3f}"
            sure = "" if word.probability is None else f" {word.probability:.4f}"
            yield f"{recording} {_CHANNEL} {times} {text}{sure}"


def _json(found: Hypothesis, task: str) -> str:
    segments = [_segment_fields(i, each) for i, each in enumerate(segments_of(found))]
    text = "".join(each["text"] for each in segments).strip() if found.segments else found.text
    described: dict[str, Any] = {"task": task, "language": found.language or None}
    if found.seconds is not None:
        described["duration"] = round(found.seconds, 3)
    described |= {"text": text, "segments": segments}
    if found.words:
        described["words"] = [*map(_word_fields, found.words)]
    return json.dumps(described, ensure_ascii=False, allow_nan=False)


def _segment_fields(index: int, segment: Segment) -> dict[str, Any]:
    names = ("text", "tokens", "temperature", "avg_logprob", "compression_ratio", "no_speech_prob")
    times = {name: round(getattr(segment, name), 3) for name in ("start", "end")}
    found = {"id": index, "seek": segment.seek, **times, **{name: getattr(segment, name) for name in names}}
    return found | ({"words": [*map(_word_fields, segment.words)]} if segment.words else {})


def _word_fields(word: Word) -> dict[str, Any]:
    found = {"word": word.text, "start": round(word.start, 3), "end": round(word.end, 3)}
    return found | ({} if word.probability is None else {"probability": word.probability})
