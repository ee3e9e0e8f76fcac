"""Subtitles of a recording, SubRip (srt) and WebVTT (vtt), of outputs with times.

A cue is a segment between two timestamps of Whisper's, or words of a model that tells when each was said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from nartk.errors import UsageError, named
from nartk.protocols.hypothesis import Hypothesis

FORMATS = ("srt", "vtt")
LONGEST, PAUSE, CHARACTERS = 6.0, 0.6, 42  # of a cue: seconds, seconds between two, characters
READ, SHORTEST = 15.0, 1.0  # characters a second of a cue whose end is not known, and its seconds at least
_TIMESTAMP = re.compile(r"<\|(\d+\.\d\d)\|>")
_WORD_BEGINS = "\u2581"  # with which sentencepiece marks a piece that begins a word


@dataclass(frozen=True)
class Cue:
    """Text that is shown from `start` to `end`, seconds."""

    start: float
    end: float
    text: str


def cues(found: Hypothesis, write: Callable[[Sequence[int]], str]) -> list[Cue]:
    """The cues of an output, in their order.

    Args:
        write: Makes a line of tokens.

    Raises:
        UsageError: The output has words, and no times.
    """
    if not found.text.strip():
        return []
    if _TIMESTAMP.search(found.text):
        return [*_segments(found.text)]
    if found.times is None:
        raise UsageError(
            "subtitles need times, which this output has not",
            fix=f"use ctc-greedy, ctc-beam or paraformer, or {named('timestamps', True)} with Whisper",
        )
    return [
        Cue(found.times[part.start][0], found.times[part.stop - 1][1], write(found.tokens[part]).strip())
        for part in _parts(found, write)
    ]


def _segments(text: str) -> Iterator[Cue]:
    """The texts behind timestamps, each to the next timestamp; where a window ends, several may follow."""
    first, *rest = _TIMESTAMP.split(text)
    starts, texts = [0.0, *map(float, rest[::2])], [first, *rest[1::2]]
    for start, end, words in zip(starts, [*starts[1:], 0.0], map(str.strip, texts), strict=True):
        if words:
            yield Cue(start, end if end > start else start + max(SHORTEST, len(words) / READ), words)


def _parts(found: Hypothesis, write: Callable[[Sequence[int]], str]) -> Iterator[slice]:
    """The tokens of each cue; words are not divided where pieces tell where they begin."""
    times = found.times or ()
    marked = any(piece.startswith(_WORD_BEGINS) for piece in found.pieces)
    words = [i for i in range(len(times)) if not marked or found.pieces[i].startswith(_WORD_BEGINS)]
    begin = 0
    for one, end in pairwise([*words[1:], len(times)]):
        pause = times[one][0] - times[one - 1][1]
        is_long = times[end - 1][1] - times[begin][0] > LONGEST
        if pause > PAUSE or is_long or len(write(found.tokens[begin:end])) > CHARACTERS:
            yield slice(begin, one)
            begin = one
    if times:
        yield slice(begin, len(times))


def render(found: Sequence[Cue], form: str) -> str:
    """A file's text, without the line break at its end."""
    mark = "," if form == "srt" else "."
    blocks = [
        f"{number}\n{_clock(cue.start, mark)} --> {_clock(cue.end, mark)}\n"
        f"{cue.text if form == 'srt' else escape(cue.text, quote=False)}\n"
        for number, cue in enumerate(found, start=1)
    ]
    return "\n".join(blocks if form == "srt" else ["WEBVTT\n", *blocks]).removesuffix("\n")


def _clock(seconds: float, mark: str) -> str:
    milliseconds = round(1000 * seconds)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{mark}{rest % 1000:03}"
