"""Parts of a recording that hold speech: pauses are left out, times are those of the recording."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import whisper_models
from support.hf_folders import transformers

import nartk
from nartk.data.audio.voice import chunks, detector
from nartk.decoders.windowing.parts import PartRun
from nartk.errors import UsageError
from nartk.protocols.hypothesis import Hypothesis, Request, Result, Segment, Word
from nartk.protocols.kept import Kept, KeptFrames
from nartk.protocols.passes import FeatureSource
from nartk.protocols.runs import NOTHING, Ended, run_through
from nartk.protocols.sources import Recording
from nartk.registry import make_strategy
from nartk.serving.transcripts import within

EOS = 2
SHIFT = 10.0  # ms


class Echo:
    """A run that outputs the sum of each frame of a request, one request a step, the last admitted first."""

    def __init__(self) -> None:
        self.waiting: list[Request] = []
        self.most = 0
        self.seen: list[Request] = []

    def __len__(self) -> int:
        return len(self.waiting)

    def admit(self, request: Request) -> None:
        self.waiting.append(request)
        self.seen.append(request)
        self.most = max(self.most, len(self.waiting))

    def step(self) -> list[Ended]:
        request = self.waiting.pop()
        source = request.source
        assert isinstance(source, FeatureSource)
        tokens = tuple(int(value) for value in source.frames[:, 0])
        segments = tuple(
            Segment(i * SHIFT / 1000, (i + 1) * SHIFT / 1000, str(token), (token,), seek=i)
            for i, token in enumerate(tokens)
        )
        hypothesis = Hypothesis(
            (*tokens, EOS), -1.0, (-1.0,) * (len(tokens) + 1), segments=segments, language="x"
        )
        return [(request, Result(request.index, (hypothesis,), passes=3))]

    def so_far(self, request: Request) -> Hypothesis:
        return NOTHING

    def drop(self, request: Request) -> None:
        self.waiting.remove(request)

    def close(self) -> None:
        self.waiting.clear()


def recording(count: int, *groups: tuple[tuple[int, int], ...] | None, index: int = 0) -> Request:
    """One whose n-th frame is the number 10 + n."""
    frames: Any = np.arange(10, 10 + count, dtype=np.float32)[:, None]
    kept = None if groups == (None,) else Kept(groups, count)  # type: ignore[arg-type]
    if kept is not None:
        frames = KeptFrames(frames, kept)
    return Request(index, FeatureSource(frames, SHIFT, kept=kept), 100)


GROUPS = (((2, 4), (7, 9)), ((10, 13),))


@pytest.mark.parametrize("detects", [False, True])
@pytest.mark.parametrize("size", [1, 8])
def test_pauses_are_left_out(detects: bool, size: int) -> None:
    """By hand: whatever ends first, the parts come in order, with the times of their frames."""
    inner = Echo()
    prompt_in = (lambda language: (7, ord(language))) if detects else None
    ((_, result),) = run_through(PartRun(inner, EOS, size, prompt_in), [recording(20, *GROUPS)])
    (best,) = result.hypotheses
    assert best.tokens == (12, 13, 17, 18, EOS, 20, 21, 22, EOS)
    assert best.positional_scores == (-1.0,) * 9
    assert [each.seek for each in best.segments] == [*range(7)]  # among kept frames
    assert [each.start for each in best.segments] == pytest.approx([frame / 100 for frame in range(7)])
    assert [each.end for each in best.segments] == pytest.approx([(frame + 1) / 100 for frame in range(7)])
    assert result.passes == 6
    assert inner.most <= size
    prompts = [each.prompt for each in inner.seen]
    assert prompts == ([None, (7, ord("x"))] if detects else [None, None])


def test_what_holds_no_speech_is_empty() -> None:
    inner = Echo()
    run = PartRun(inner, EOS, 4, lambda _: ())
    results = dict(run_through(run, [recording(20, index=4), recording(9, None, index=5)]))
    silent, whole = sorted(results.values(), key=lambda each: each.index)
    assert (silent.index, silent.hypotheses[0].tokens, silent.hypotheses[0].segments) == (4, (EOS,), ())
    assert whole.hypotheses[0].tokens == (*range(10, 19), EOS)


def test_many_recordings_at_a_time() -> None:
    draw = np.random.default_rng(3)
    requests, expected = [], {}
    for index in range(30):
        edges = np.sort(draw.choice(200, 12, replace=False)).reshape(-1, 2)
        cut = draw.integers(1, len(edges))
        times = [[(a / 100, b / 100) for a, b in part.tolist()] for part in (edges[:cut], edges[cut:])]
        requests.append(recording(180, *Kept.of_seconds(times, 180, 100.0).groups, index=index))
        parts = ([f for a, b in part for f in range(a, min(b, 180))] for part in (edges[:cut], edges[cut:]))
        expected[index] = [token for part in parts if part for token in (*(10 + f for f in part), EOS)]
    for request, result in run_through(PartRun(Echo(), EOS, 3, lambda _: ()), requests):
        assert result.index == request.index
        assert [*result.hypotheses[0].tokens] == expected[result.index]


def test_a_recording_is_dropped() -> None:
    inner = Echo()
    run = PartRun(inner, EOS, 2)
    one, other = recording(20, *GROUPS), recording(20, *GROUPS, index=1)
    run.admit(one)
    run.admit(other)
    assert run.step() == []  # the second part of the first has ended, its first has not
    assert run.so_far(one) is NOTHING
    run.drop(one)
    assert run.so_far(one) is NOTHING
    ended = [each for _ in range(2) for each in run.step()]
    assert [request for request, _ in ended] == [other]
    assert len(run) == len(inner) == 0
    run.admit(replace(one))
    run.close()
    assert len(run) == len(inner) == 0


def test_an_output_so_far() -> None:
    inner = Echo()
    run = PartRun(inner, EOS, 1)
    request = recording(20, *GROUPS)
    run.admit(request)
    assert run.step() == []
    assert run.so_far(request).tokens == (12, 13, 17, 18, EOS)


def test_frames_of_the_recording() -> None:
    """By hand."""
    kept = Kept((((5, 8),), ((20, 22),)), 30)
    assert len(kept) == 5
    assert [kept.original(frame) for frame in (0, 2.5, 3, 4, 5, 9)] == [5, 7.5, 20, 21, 22, 22]
    assert [kept.original(frame, is_end=True) for frame in (0, 3, 3.5, 5)] == [5, 8, 20.5, 22]
    assert kept.parts == [(0, 3), (3, 5)]
    nothing = Kept((), 30)
    assert (len(nothing), nothing.parts, nothing.original(3.0)) == (0, [], 0.0)


def test_kept_frames_are_slices_of_what_is_kept() -> None:
    draw = np.random.default_rng(5)
    frames = draw.normal(size=(90, 2)).astype(np.float32)
    for _ in range(50):
        edges = np.sort(draw.choice(90, 10, replace=False)).reshape(-1, 2)
        kept = Kept((tuple((int(a), int(b)) for a, b in edges),), 90)
        whole = np.concatenate([frames[a:b] for a, b in edges])
        found = KeptFrames(frames, kept)
        assert len(found) == len(whole)
        for _ in range(20):
            begin, end = draw.integers(-5, len(whole) + 5, 2)
            assert np.array_equal(found[begin:end], whole[begin:end])


def sound_of(rng: np.random.Generator, *parts: tuple[float, float]) -> Any:
    """Noise of so many seconds and amplitude each, 16,000 samples a second."""
    return np.concatenate([rng.normal(0, level, round(16000 * s)) for s, level in parts]).astype(np.float32)


def test_whisper_decodes_the_parts(tmp_path: Path) -> None:
    """Each part as the sound that it is, cut by hand; times are those of the recording, in any batch."""
    transformers()
    rng = random.Random(6)
    model = whisper_models.random_model(
        whisper_models.random_settings(rng, seconds=1.0), 6, ends=3.0, times=3.0, suppress_tokens=[]
    )
    whisper_models.save(model, tmp_path)
    loaded = replace(nartk.load(tmp_path, threads=1), vad=False)
    draw = np.random.default_rng(6)
    samples = [
        sound_of(draw, (1.5, 1e-5), (0.3, 0.1), (2.0, 1e-5), (0.4, 0.1), (1.7, 1e-5), (2.5, 0.1), (1, 1e-5))
        for _ in range(3)
    ]
    options: Any = {"language": "de", "temperatures": "0", "timestamps": True, "condition": False}
    options["word_timestamps"] = True
    together = loaded.decode([(each, 16000) for each in samples], vad="energy", batch_size=8, **options)
    words = 0
    for own, found in zip(samples, together, strict=True):
        alone = loaded.decode((own, 16000), vad="energy", batch_size=1, **options)
        assert (alone.tokens, alone.segments) == (found.tokens, found.segments)
        heard = detector("energy")
        heard.listen(own)
        spans = heard.spans(1.0)
        frames = loaded.request(0, loaded_source(own), loaded.strategy("windows", options)).source
        assert isinstance(frames, FeatureSource)
        tokens: list[int] = []
        segments: list[Segment] = []
        parts_words: list[Word] = []
        for group in chunks(spans, 1.0):
            pieces = [(round(100 * begin), min(round(100 * end), len(own) // 160)) for begin, end in group]
            part = np.concatenate([frames.frames[begin:end] for begin, end in pieces])
            best = loaded.decode(FeatureSource(part, SHIFT), **options)
            tokens += best.tokens
            parts_words += best.words
            places = [frame for begin, end in pieces for frame in range(begin, end)]
            for each in best.segments:
                first, last = round(100 * each.start), round(100 * each.end)
                start = places[first] if first < len(places) else places[-1] + 1
                segments.append(replace(each, start=start / 100, end=max(start, places[last - 1] + 1) / 100))
        assert found.tokens == tuple(tokens)
        assert [each.text for each in found.segments] == [each.text for each in segments]
        ordered = within(Hypothesis((), segments=tuple(segments)), len(own) / 16000).segments
        for mine, theirs in zip(found.segments, ordered, strict=True):
            assert (mine.start, mine.end) == pytest.approx((theirs.start, theirs.end), abs=0.011)
        # Words of a part do not depend on the parts beside it.
        probabilities = [word.probability for word in found.words]
        assert probabilities == pytest.approx([word.probability for word in parts_words], abs=1e-6)
        assert [word.text for word in found.words] == [word.text for word in parts_words]
        words += sum(len(each.text) for each in found.segments)
        assert found.seconds == pytest.approx(len(own) / 16000, abs=0.01)
    assert words


def loaded_source(samples: Any) -> Recording:
    return Recording(samples[:, None], 16000)


def test_what_does_not_go_with_it_is_refused(tmp_path: Path) -> None:
    for options in ({"clips": "0 3"}, {"rules": "transformers"}):
        with pytest.raises(UsageError, match="vad"):
            make_strategy("windows", {"vad": "energy", **options})
    with pytest.raises(UsageError, match="vad"):
        make_strategy("windows", {"vad": "loud"})
