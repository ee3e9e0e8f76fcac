"""Subtitles by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from nartk.errors import UsageError
from nartk.protocols.hypothesis import Hypothesis
from nartk.protocols.outputs import Text
from nartk.serving.subtitles import Cue, cues, render

PIECES = ("\u2581new", "\u2581yo", "rk", "\u2581is", "\u2581big", "</s>")


def write(tokens: Sequence[int]) -> str:
    return "".join(PIECES[i] for i in tokens if i < 5).replace("\u2581", " ").strip()


def spoken(*times: tuple[float, float]) -> Hypothesis:
    return Hypothesis((0, 1, 2, 3, 4, 5), output=Text(write(range(5))), pieces=PIECES, times=times)


def test_srt_and_vtt_are_as_their_formats_say() -> None:
    found = [Cue(0.0, 1.5, "one"), Cue(3661.0406, 3662, "two")]
    assert render(found, "srt") == (
        "1\n00:00:00,000 --> 00:00:01,500\none\n\n2\n01:01:01,041 --> 01:01:02,000\ntwo"
    )
    assert render(found[:1], "vtt") == "WEBVTT\n\n1\n00:00:00.000 --> 00:00:01.500\none"
    assert render([], "vtt") == "WEBVTT"
    assert render([], "srt") == ""


def test_marks_of_webvtt_are_written_as_text() -> None:
    """By the escapes of its specification; SubRip has none."""
    found = [Cue(0.0, 1.5, 'R&D <b> x --> "y"')]
    assert render(found, "vtt").endswith('\nR&amp;D &lt;b&gt; x --&gt; "y"')
    assert render(found, "srt").endswith('\nR&D <b> x --> "y"')


def test_a_cue_ends_at_a_pause_or_when_it_is_long_and_never_in_a_word() -> None:
    close = spoken((0, 0.4), (0.5, 0.7), (0.7, 0.9), (1, 1.2), (1.2, 1.4))
    assert cues(close, write) == [Cue(0, 1.4, "new york is big")]
    pause = spoken((0, 0.4), (0.5, 0.7), (0.7, 0.9), (1.6, 1.8), (1.9, 2.0))
    assert cues(pause, write) == [Cue(0, 0.9, "new york"), Cue(1.6, 2.0, "is big")]
    # The pause of a second is within a word, which takes the cue beyond 6 s.
    inside = spoken((0, 5), (5.1, 5.2), (6.2, 6.4), (6.5, 6.6), (6.6, 6.7))
    assert cues(inside, write) == [Cue(0, 5, "new"), Cue(5.1, 6.7, "york is big")]


def test_segments_of_whisper_are_cues() -> None:
    text = "<|0.00|> Hello there.<|1.52|><|1.52|> Bye.<|30.00|>"
    assert cues(Hypothesis((9,), output=Text(text)), write) == [
        Cue(0, 1.52, "Hello there."),
        Cue(1.52, 30, "Bye."),
    ]


def test_no_segment_is_lost_where_windows_meet() -> None:
    """A segment that is not closed ends with the next; the last one lasts as long as reading it takes."""
    text = (
        "<|0.00|> One <b> two.<|18.80|><|19.36|><|18.80|> Three<|30.00|> four."
        "<|48.64|> Five, six and seven more."
    )
    assert cues(Hypothesis((9,), output=Text(text)), write) == [
        Cue(0, 18.8, "One <b> two."),
        Cue(18.8, 30, "Three"),
        Cue(30, 48.64, "four."),
        Cue(48.64, 48.64 + 25 / 15, "Five, six and seven more."),
    ]


def test_one_word_is_one_cue() -> None:
    found = Hypothesis((4, 5), output=Text("big"), pieces=PIECES[4:], times=((0.5, 0.9),))
    assert cues(found, write) == [Cue(0.5, 0.9, "big")]


def test_nothing_said_is_no_cue_and_words_without_times_are_refused() -> None:
    assert cues(Hypothesis((5,)), write) == []
    with pytest.raises(UsageError, match="subtitles need times, which this output has not"):
        cues(Hypothesis((0, 5), output=Text("new"), pieces=PIECES[:1]), write)
