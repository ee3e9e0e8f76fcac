"""Segments of Whisper's windows: words between two timestamps, as OpenAI's program cuts them.

It does so in ``transcribe`` of whisper/transcribe.py.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from nartk.protocols.hypothesis import Segment
from nartk.protocols.prompts import FRAMES, STEP, Prompts

HERTZ = 100  # frames a second

Spell = Callable[[Sequence[int]], str]


def cut(
    tokens: Sequence[int], prompts: Prompts, seek: int, frames: int, spell: Spell
) -> tuple[list[Segment], int]:
    """The segments of a window's output, and frames from its start to the next window's.

    Two timestamps in a row end a segment and begin another. What follows the last such pair is left to the
    next window, unless a single timestamp ends the output. Without a pair all is one segment, to the last
    timestamp that is not 0.00 or to the window's end.

    Args:
        tokens: Output without eos.
        seek: Frame of the recording that the window begins with.
        frames: Frames of sound in the window.
        spell: Makes text of tokens that are no timestamps.
    """
    begin, offset = prompts.begin, seek / HERTZ
    times = [token >= begin for token in tokens]
    ends = [i + 1 for i, pair in enumerate(pairwise(times)) if all(pair)]
    is_whole = times[-2:] == [False, True]
    if not ends:
        last = next((token - begin for token in reversed(tokens) if token >= begin), 0)
        length = last * STEP if last else frames / HERTZ
        return [made(offset, offset + length, tokens, prompts, seek, spell)], frames
    borders = [0, *ends, *([len(tokens)] if is_whole else [])]
    found = [
        made(
            offset + (tokens[one] - begin) * STEP,
            offset + (tokens[end - 1] - begin) * STEP,
            tokens[one:end],
            prompts,
            seek,
            spell,
        )
        for one, end in pairwise(borders)
    ]
    return found, frames if is_whole else FRAMES * (tokens[ends[-1] - 1] - begin) or frames


def made(
    start: float, end: float, tokens: Sequence[int], prompts: Prompts, seek: int, spell: Spell
) -> Segment:
    """Makes a segment of tokens; timestamps have no text."""
    return Segment(start, end, spell([each for each in tokens if each < prompts.begin]), tuple(tokens), seek)


def measured(
    segments: Iterable[Segment],
    log_probs: Sequence[float],
    *,
    temperature: float = 0.0,
    no_speech_prob: float | None = None,
) -> list[Segment]:
    """Gives the segments of a window what is said of its output as a whole.

    Args:
        log_probs: Log-probabilities of its tokens, eos among them.
    """
    found = [*segments]
    ratio = compression_ratio("".join(each.text for each in found).strip())
    mean = sum(log_probs) / len(log_probs) if log_probs else 0.0
    return [
        replace(
            each,
            temperature=temperature,
            avg_logprob=mean,
            compression_ratio=ratio,
            no_speech_prob=no_speech_prob,
        )
        for each in found
    ]


def compression_ratio(text: str) -> float:
    """Ratio of the bytes of a text to those of its zlib stream: repetitions raise it."""
    data = text.encode("utf-8")
    return len(data) / len(zlib.compress(data))
