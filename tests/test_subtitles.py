"""Transcripts: words and segments of tokens with times, and files in each format."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nartk.errors import UsageError
from nartk.protocols.hypothesis import Hypothesis, Segment, Word
from nartk.protocols.outputs import Text
from nartk.serving.subtitles import Cue, render
from nartk.serving.transcripts import segments_of, transcript, with_words

PIECES = ("\u2581new", "\u2581yo", "rk", "\u2581is", "\u2581big", "</s>")
OPENAI = json.loads((Path(__file__).parent / "oracles" / "word_times.json").read_text())["written"]


def write(tokens: Sequence[int]) -> str:
    return "".join(PIECES[i] for i in tokens if i < 5).replace("\u2581", " ").strip()


PROCESSOR: Any = SimpleNamespace(
    decode=write, vocab=SimpleNamespace(to_words=lambda ids: [PIECES[id] for id in ids])
)


def spoken(*times: tuple[float, float], scores: tuple[float, ...] | None = None) -> Hypothesis:
    count = len(times)
    tokens = (*range(5 - count, 5), 5)
    found = Hypothesis(tokens, output=Text(write(tokens)), times=times, positional_scores=scores)
    return with_words(found, PROCESSOR)


def parts(found: Hypothesis) -> list[tuple[float, float, str]]:
    return [(each.start, each.end, each.text.strip()) for each in segments_of(found)]


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


def test_words_have_the_times_of_their_pieces_and_their_mean_probability() -> None:
    times = ((0.0, 0.4), (0.5, 0.7), (0.7, 0.9), (1.0, 1.2), (1.2, 1.4))
    found = spoken(*times, scores=(0.0, -1.0, -2.0, 0.0, 0.0, 0.0))
    mean = (2.718281828459045**-1 + 2.718281828459045**-2) / 2
    assert [(word.text, word.start, word.end) for word in found.words] == [
        ("new", 0.0, 0.4),
        (" york", 0.5, 0.9),
        (" is", 1.0, 1.2),
        (" big", 1.2, 1.4),
    ]
    assert [word.probability for word in found.words] == pytest.approx([1, mean, 1, 1])
    (segment,) = found.segments
    assert (segment.text, segment.tokens, segment.words) == ("new york is big", (0, 1, 2, 3, 4), found.words)
    assert segment.avg_logprob == pytest.approx(-0.6)


def test_a_segment_ends_at_a_pause_or_when_it_is_long_and_never_in_a_word() -> None:
    close = spoken((0, 0.4), (0.5, 0.7), (0.7, 0.9), (1, 1.2), (1.2, 1.4))
    assert parts(close) == [(0, 1.4, "new york is big")]
    pause = spoken((0, 0.4), (0.5, 0.7), (0.7, 0.9), (1.6, 1.8), (1.9, 2.0))
    assert parts(pause) == [(0, 0.9, "new york"), (1.6, 2.0, "is big")]
    # The pause of a second is within a word, which takes the segment beyond 6 s.
    inside = spoken((0, 5), (5.1, 5.2), (6.2, 6.4), (6.5, 6.6), (6.6, 6.7))
    assert parts(inside) == [(0, 5, "new"), (5.1, 6.7, "york is big")]


def test_timestamps_in_a_text_divide_it() -> None:
    text = "<|0.00|> Hello there.<|1.52|><|1.52|> Bye.<|30.00|>"
    assert parts(Hypothesis((9,), output=Text(text))) == [(0, 1.52, "Hello there."), (1.52, 30, "Bye.")]


def test_no_segment_is_lost_where_windows_meet() -> None:
    """A segment that is not closed ends with the next; the last one lasts as long as reading it takes."""
    text = (
        "<|0.00|> One <b> two.<|18.80|><|19.36|><|18.80|> Three<|30.00|> four."
        "<|48.64|> Five, six and seven more."
    )
    assert parts(Hypothesis((9,), output=Text(text))) == [
        (0, 18.8, "One <b> two."),
        (18.8, 30, "Three"),
        (30, 48.64, "four."),
        (48.64, 48.64 + 25 / 15, "Five, six and seven more."),
    ]


def test_nothing_said_is_an_empty_file_and_words_without_times_are_refused() -> None:
    empty = {"text": "", "srt": "", "vtt": "WEBVTT", "tsv": "start\tend\ttext", "ctm": ""}
    for form, wanted in empty.items():
        assert transcript(Hypothesis((5,)), form) == wanted
    said = Hypothesis((0, 5), output=Text("new"))
    for form in ("srt", "vtt", "tsv", "json"):
        with pytest.raises(UsageError, match="segments need times, which this output has not"):
            transcript(said, form)
    timed = Hypothesis((0, 5), output=Text("new"), segments=(Segment(0, 1, " new", (0,)),))
    with pytest.raises(UsageError, match="the times of words, which this output has not"):
        transcript(timed, "ctm")


@pytest.mark.parametrize("each", OPENAI, ids=lambda each: f"{len(each['segments'])}-{each['format']}")
def test_files_are_those_of_openais_writers(each: Any) -> None:
    """But for numbers of cues, hours and escapes in WebVTT, arrows in a text, and white space in it."""
    segments = tuple(Segment(part["start"], part["end"], part["text"], ()) for part in each["segments"])
    said = Hypothesis((0,), output=Text("a" if segments else ""), segments=segments)
    found, wanted = transcript(said, each["format"]), each["file"].rstrip("\n")
    if each["format"] == "vtt":
        lines = [re.sub(r"(^| )00:(?=\d\d:\d\d\.)", r"\1", line) for line in found.splitlines()]
        found = unescape("\n".join(line for line in lines if not line.isdecimal()))
    if each["format"] != "tsv":
        found, wanted = found.replace("six -->", "six ->"), wanted.replace("Two\tthree", "Two three")
    assert found == wanted


def test_json_has_the_names_of_verbose_json_and_ctm_a_line_a_word() -> None:
    words = (Word(" new york", 0.5, 1.25, 0.75), Word(" is", 1.25, 2.0))
    segment = Segment(0.5, 2.0, " new york is", (7, 8), 3, 0.2, -0.5, 1.5, 0.1, words)
    found = Hypothesis(
        (7, 8, 9), output=Text("x"), segments=(segment,), words=words, language="en", seconds=2.5
    )
    timed = [
        {"word": " new york", "start": 0.5, "end": 1.25, "probability": 0.75},
        {"word": " is", "start": 1.25, "end": 2.0},
    ]
    assert json.loads(transcript(found, "json")) == {
        "task": "transcribe",
        "language": "en",
        "duration": 2.5,
        "text": "new york is",
        "segments": [
            {
                "id": 0,
                "seek": 3,
                "start": 0.5,
                "end": 2.0,
                "text": " new york is",
                "tokens": [7, 8],
                "temperature": 0.2,
                "avg_logprob": -0.5,
                "compression_ratio": 1.5,
                "no_speech_prob": 0.1,
                "words": timed,
            }
        ],
        "words": timed,
    }
    assert transcript(found, "ctm", name="my talk") == (
        "my_talk 1 0.500 0.750 new_york 0.7500\nmy_talk 1 1.250 0.750 is"
    )
