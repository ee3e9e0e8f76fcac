"""Subtitles, SubRip (srt) and WebVTT (vtt), and the cues that Whisper's timestamps divide a text into."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

READ, SHORTEST = 15.0, 1.0  # characters a second of a cue whose end is not known, and its seconds at least
_TIMESTAMP = re.compile(r"<\|(\d+\.\d\d)\|>")


@dataclass(frozen=True)
class Cue:
    """Text that is shown from `start` to `end`, seconds."""

    start: float
    end: float
    text: str


def marked(text: str) -> Iterator[Cue]:
    """The texts behind timestamps, each to the next timestamp; where a window ends, several may follow."""
    first, *rest = _TIMESTAMP.split(text)
    if not rest:
        return
    starts, texts = [0.0, *map(float, rest[::2])], [first, *rest[1::2]]
    for start, end, words in zip(starts, [*starts[1:], 0.0], map(str.strip, texts), strict=True):
        if words:
            yield Cue(start, end if end > start else start + max(SHORTEST, len(words) / READ), words)


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
