"""Streams against the same chunks decoded at once, and their counts against what was given."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, product
from typing import Any

import numpy as np
import pytest
from support.local_frames import (
    FEATURES,
    SHIFT,
    FractionalFires,
    LocalFires,
    LocalFrames,
    recording,
    requests_of,
)

from nartk.decoders.graphs.hotwords import Hotwords
from nartk.protocols.parallel import always_banned
from nartk.protocols.passes import FeatureSource, Want
from nartk.registry import make_strategy
from nartk.serving.long_form import BufferedFrames, Buffers
from nartk.serving.streaming import FrameStream, Partial, StreamStats

STRATEGY = {LocalFrames: "ctc-greedy", LocalFires: "paraformer", FractionalFires: "paraformer"}
MODELS = pytest.mark.parametrize("model", [*STRATEGY])


def streamed(
    scorer: Any, cut: Buffers, source: FeatureSource, sizes: Sequence[int]
) -> tuple[list[Partial], StreamStats]:
    """Gives a recording in blocks of these sizes, again and again."""
    stream = FrameStream(scorer, cut, shift=SHIFT)
    given, partials, i = 0, [], 0
    while given < len(source):
        block = source.frames[given : given + sizes[i % len(sizes)]]
        partials += stream.accept(block)
        given += len(block)
        i += 1
    partials += stream.finish()
    assert scorer.memories_in_use == 0
    return partials, stream.stats


def at_once(scorer: Any, cut: Buffers, source: FeatureSource) -> tuple[int, ...]:
    """Long-form decoding with the same chunks, without eos."""
    strategy = make_strategy(STRATEGY[type(scorer)], {})
    (result,) = strategy.run(BufferedFrames(scorer, cut), requests_of([source]), batch_size=1)
    return result.hypotheses[0].tokens[:-1]


CUTS = [(16, 64, 8), (1, 5, 0), (5, 0, 3), (7, 3, 20), (200, 0, 0)]


@MODELS
@pytest.mark.parametrize("cut", CUTS)
def test_the_last_text_is_that_of_the_same_chunks_at_once(model: type[LocalFrames], cut: Any) -> None:
    for seed, (frames, sizes) in enumerate(
        [(1500, [100]), (1503, [1, 7, 640]), (403, [9999]), (60, [13]), (9, [3])]
    ):
        scorer, source = model(sees=5, seed=seed), recording(seed, frames)
        buffers = Buffers(*cut, subsampling=4)
        partials, _ = streamed(scorer, buffers, source, sizes)
        assert partials[-1].tokens == at_once(scorer, buffers, source)
        assert partials[-1].is_last
        assert not any(each.is_last for each in partials[:-1])
        assert len(partials) == max(1, -(-buffers.positions(frames) // buffers.chunk))


def test_no_word_is_lost_or_doubled_where_chunks_meet() -> None:
    """With as much context as a position sees, a stream says what the model says of the whole recording."""
    for seed in range(4):
        scorer, source = FractionalFires(sees=3, seed=seed), recording(seed, 2000)
        memory = scorer.encode([source])
        whole = scorer.read_frames(memory, Want(banned=always_banned((0, 1), len(scorer.of(memory)[0]))))
        *words, last = whole.best.tolist()
        scorer.free(memory)
        assert len(words) > 100
        for cut in ((16, 12, 8), (4, 12, 8), (1, 12, 8), (5, 12, 13)):
            partials, _ = streamed(scorer, Buffers(*cut, 4), source, [64])
            assert partials[-1].tokens == (*words, last)[: len(words) + (last != 2)]


@MODELS
def test_texts_are_prefixes_or_say_what_they_revise(model: type[LocalFrames]) -> None:
    """Labels of the look-ahead see less of what follows than those of the chunk that they become."""
    revised = 0
    for seed in range(5):
        scorer, source = model(sees=6, seed=seed), recording(seed, 2000)
        partials, stats = streamed(scorer, Buffers(8, 6, 6, 4), source, [80])
        before: tuple[int, ...] = ()
        stable: tuple[int, ...] = ()
        for each in partials:
            common = next(
                (i for i, (a, b) in enumerate(zip(before, each.tokens, strict=False)) if a != b),
                min(len(before), len(each.tokens)),
            )
            assert each.revised == len(before) - common
            assert each.tokens[: len(stable)] == stable
            before, stable = each.tokens, each.tokens[: each.stable]
            revised += each.revised
        assert stats.revised == sum(each.revised for each in partials)
        assert stats.partials == len(partials)
    assert revised > 0


@MODELS
def test_without_look_ahead_nothing_is_revised(model: type[LocalFrames]) -> None:
    partials, stats = streamed(model(sees=3), Buffers(10, 3, 0, 4), recording(3, 900), [50])
    assert stats.revised == 0
    assert all(each.stable == len(each.tokens) for each in partials)


def test_latency_is_the_sound_read_since_a_token_began() -> None:
    """By hand: when each token of the last text was first shown not to change, after where it begins."""
    scorer, source = LocalFrames(sees=4, seed=1), recording(5, 1600)
    partials, stats = streamed(scorer, Buffers(8, 8, 4, 4), source, [40])
    buffered = BufferedFrames(scorer, Buffers(8, 8, 4, 4))
    handle = buffered.encode([source])
    count = int(buffered.frames(handle)[0])
    labels = buffered.read_frames(handle, Want(banned=always_banned((1, 2), count))).best.tolist()
    begins = [i for i, (a, b) in enumerate(zip([0, *labels], labels, strict=False)) if b not in (0, a)]
    last = partials[-1].tokens
    assert len(begins) == len(last)
    wanted = []
    for i in range(len(last)):
        since = len(partials) - 1
        while since and partials[since - 1].tokens[: i + 1] == last[: i + 1]:
            since -= 1
        wanted.append(partials[since].audio_ms - 40 * begins[i])
    assert stats.latencies_ms == wanted
    assert 0 < stats.mean_latency_ms < 40 * 13
    assert stats.audio_ms == 16000
    assert len(stats.seconds) == stats.partials


@pytest.mark.parametrize("model", [LocalFrames, LocalFires])
def test_hotwords_of_one_chunk_are_the_strategy_s(model: type[LocalFrames]) -> None:
    changed = 0
    for seed in range(8):
        scorer, source = model(sees=2, seed=seed), recording(seed, 160)
        options = {"hotwords": "w3 w1 / w5 / w2 w2 w4", "hotword_weight": 4.0}
        plain, favoured = (make_strategy(STRATEGY[model], given) for given in ({}, options))
        stream = FrameStream(
            scorer, Buffers(200, 0, 0, 4), shift=SHIFT, hotwords=favoured.automaton(scorer.vocab)
        )
        tokens = [*stream.accept(source.frames), *stream.finish()][-1].tokens
        found = [
            next(each.run(scorer, requests_of([source]), batch_size=1)).hypotheses[0].tokens[:-1]
            for each in (favoured, plain)
        ]
        assert tokens == found[0]
        changed += found[0] != found[1]
    assert changed > 2


def test_hotwords_are_favoured_where_chunks_meet() -> None:
    """Each chunk has the best of all its labels, given those before it: by trying all of them."""
    chunk, words, blank, over_border = 2, 12, 0, 0
    for seed in range(12):
        scorer, source = LocalFrames(sees=2, seed=seed), recording(seed, 90)
        scorer.labels[3:] = 0.0  # of what comes later it sees nothing
        log_probs = scorer.logits(source).astype(np.float64)
        log_probs -= np.logaddexp.reduce(log_probs, 1, keepdims=True)
        log_probs[:, [1, 2]] = -np.inf  # bos and eos are silent
        rng = np.random.default_rng(seed)
        phrases = {tuple(rng.integers(4, words, rng.integers(2, 4)).tolist()) for _ in range(30)}
        hotwords = Hotwords.of([*phrases], [2.0] * len(phrases))

        def bonus(labels: Sequence[int], phrases: set[tuple[int, ...]] = phrases) -> float:
            said = [each for each, _ in groupby(labels) if each != blank]
            ends = ((i, len(phrase), phrase) for phrase in phrases for i in range(len(said)))
            return sum(2.0 * size for i, size, phrase in ends if tuple(said[i : i + size]) == phrase)

        labels: list[int] = []
        for own in np.split(log_probs, range(chunk, len(log_probs), chunk)):
            every = [*product(range(words), repeat=len(own))]
            scores = [
                sum(row[each] for row, each in zip(own, one, strict=True)) + bonus([*labels, *one])
                for one in every
            ]
            best = every[int(np.argmax(scores))]
            over_border += bonus([*labels, *best]) > bonus(labels) + bonus(best)
            labels += best
        stream = FrameStream(scorer, Buffers(chunk, 12, 0, 4), shift=SHIFT, hotwords=hotwords)
        partials = [*stream.accept(source.frames), *stream.finish()]
        assert [*partials[-1].tokens] == [each for each, _ in groupby(labels) if each != blank]
    assert over_border > 3


def test_padding_is_no_sound() -> None:
    """The same frames, of which the first and last are padding: texts are as of all, times less."""
    source = recording(5, 1600)
    found = []
    for padding in (0, 8):
        stats = StreamStats()
        stream = FrameStream(
            LocalFrames(sees=4, seed=1), Buffers(8, 8, 4, 4), shift=SHIFT, padding=padding, stats=stats
        )
        texts = []
        for begin in range(0, 1600, 8):
            is_sound = padding <= begin < 1600 - padding
            texts += stream.accept(source.frames[begin : begin + 8], is_sound=is_sound)
        found.append(([*texts, *stream.finish()], stats))
    (plain, of_all), (padded, of_sound) = found
    assert [each.tokens for each in padded] == [each.tokens for each in plain]
    assert of_sound.audio_ms == of_all.audio_ms - 2 * 8 * SHIFT
    assert padded[0].audio_ms == plain[0].audio_ms - 8 * SHIFT
    times = [each.audio_ms for each in padded]
    assert times == sorted(times)
    pairs = zip(of_sound.latencies_ms[:3], of_all.latencies_ms[:3], strict=True)
    assert all(one == pytest.approx(other) for one, other in pairs)


@pytest.mark.parametrize("hotwords", [None, Hotwords.of([[4]], [0.0])])
def test_a_word_may_come_again_behind_a_chunk_that_is_left_out(hotwords: Hotwords | None) -> None:
    """By hand: the labels of three chunks, in the second of which nobody speaks."""
    cut, again = Buffers(6, 0, 0, 4), 0
    for seed in range(60):
        scorer, source = LocalFrames(sees=0, seed=seed, words=6), recording(seed, 4 * 18 + 3)
        labels = scorer.logits(source)
        labels[:, [1, 2]] = -np.inf
        first, _, last = np.split(labels.argmax(1), 3)
        wanted = [
            label for chunk in (first, last) for label, _ in groupby(chunk.tolist()) if label != scorer.blank
        ]
        count = iter(range(9))
        stream = FrameStream(
            scorer,
            cut,
            shift=SHIFT,
            levels=lambda frames, count=count: np.arange(len(frames)) * float(next(count) != 1),
            hotwords=hotwords,
        )
        partials = [*stream.accept(source.frames), *stream.finish()]
        assert [*partials[-1].tokens] == wanted
        again += first[-1] == last[0] != scorer.blank
    assert again > 3


CHUNK = 30  # positions


class FalseEnds(LocalFires):
    """Takes every fourth fire of a whole chunk for the end."""

    def encoded(self, memory: Sequence[int]) -> list[np.ndarray]:
        found = super().encoded(memory)
        for logits, alphas in zip(found, self.weights(memory), strict=True):
            if len(logits) == CHUNK:
                logits[np.flatnonzero(alphas)[3::4], 2] = 999
        return found


class WithoutThem(LocalFires):
    """Does not fire there."""

    def alphas(self, source: FeatureSource) -> np.ndarray:
        found = super().alphas(source)
        if len(found) == CHUNK:
            found[np.flatnonzero(found[:-1])[3::4]] = 0.0
        return found


def test_hotwords_go_over_an_end_that_is_none() -> None:
    """A pause that a model takes for the end is no word between two."""
    changed = 0
    for seed in range(12):
        source = recording(seed, 4 * (3 * CHUNK + 5) + 3)
        texts = []
        for model, weight in ((FalseEnds, 4.0), (WithoutThem, 4.0), (WithoutThem, 0.0)):
            phrases = np.random.default_rng(seed).integers(4, 12, (30, 3)).tolist()
            hotwords = Hotwords.of(phrases, [weight] * 30)
            cut = Buffers(CHUNK, 0, 0, 4)
            stream = FrameStream(model(sees=2, seed=seed), cut, shift=SHIFT, hotwords=hotwords)
            texts.append([*stream.accept(source.frames), *stream.finish()][-1].tokens)
        assert texts[0] == texts[1]
        changed += texts[1] != texts[2]
    assert changed > 6


@pytest.mark.parametrize("model", [LocalFrames, LocalFires])
def test_no_token_is_shown_before_its_sound_came(model: type[LocalFrames]) -> None:
    """A word of the look-ahead, and then the same word, but of later sound, in its place."""
    for seed in range(6):
        scorer = model(sees=8, seed=seed, words=5)
        _, stats = streamed(scorer, Buffers(4, 8, 8, 4), recording(seed, 600), [8])
        assert min(stats.latencies_ms) >= 0


def test_memory_does_not_grow_with_the_recording() -> None:
    """What is kept of the features is one buffer's."""
    stream = FrameStream(LocalFrames(sees=2), Buffers(8, 6, 4, 4), shift=SHIFT)
    rng = np.random.default_rng(0)
    kept = 0
    for _ in range(200):
        [*stream.accept(rng.random((37, FEATURES), np.float32))]
        assert stream._frames is not None
        kept = max(kept, len(stream._frames))
    assert kept <= 4 * (8 + 6 + 4 + 1) + 37 + 8


@MODELS
def test_a_recording_without_a_position_gives_an_empty_text(model: type[LocalFrames]) -> None:
    for frames in (0, 6):
        stream = FrameStream(model(sees=2), Buffers(8, 6, 4, 4), shift=SHIFT)
        assert [*stream.accept(recording(0, frames).frames)] == []
        (last,) = stream.finish()
        assert (last.tokens, last.stable, last.is_last) == ((), 0, True)
