"""Long recordings by buffers, against models that read the whole at once.

The models see only so far to either side; where the context of buffers is as wide, nothing may change.
"""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.local_frames import (
    EOS,
    FEATURES,
    SHIFT,
    FractionalFires,
    LocalFires,
    LocalFrames,
    recording,
    requests_of,
)
from support.scripted_passes import decode
from support.sounds import tones, wav
from support.speech_models import save_random_speech

import nartk
from nartk.cli.decode import main as decode_command
from nartk.errors import SourceMismatchError, StrategyMismatchError, UsageError
from nartk.processors.frames import FrameFile
from nartk.protocols.parallel import FrameScorer, always_banned
from nartk.protocols.passes import Draw, FeatureSource, PassScorer, TextSource, Want
from nartk.registry import make_strategy
from nartk.serving.long_form import (
    BufferedFrames,
    Buffers,
    buffers_for,
    carried_fires,
    positions_of,
    read_long,
)
from nartk.serving.streaming import stream


def buffers(chunk: int, left: int, right: int, whole: int = 0, subsampling: int = 4) -> Buffers:
    return Buffers(chunk, left, right, subsampling, whole)


# How recordings are cut.


@pytest.mark.parametrize(("chunk", "left", "right"), [(1, 0, 0), (5, 2, 3), (7, 20, 0), (4, 0, 9)])
def test_chunks_are_the_whole_recording_once(chunk: int, left: int, right: int) -> None:
    for count in range(60):
        windows = [*buffers(chunk, left, right).windows(count)]
        kept = [position for each in windows for position in range(each.first, each.last)]
        assert kept == [*range(count)]
        for each in windows:
            assert each.first - each.begin == min(left, each.first)
            assert each.end - each.last == min(right, count - each.last)


@pytest.mark.parametrize("subsampling", [1, 4, 8])
def test_a_windows_frames_give_its_positions(subsampling: int) -> None:
    """By the convolutions: a kernel of 3, a stride of 2, no padding, as often as they halve."""
    cut = buffers(5, 3, 2, subsampling=subsampling)
    for frames in range(200):
        count = frames
        for _ in range({1: 0, 4: 2, 8: 3}[subsampling]):
            count = max(0, (count - 1) // 2)
        assert cut.positions(frames) == count
        for window in cut.windows(count):
            part = cut.frames_of(window)
            assert cut.positions(part.stop - part.start) == window.end - window.begin
            assert part.start == window.begin * subsampling
            assert part.stop <= frames


def test_times_are_whole_positions() -> None:
    cut = Buffers.of_time(chunk_ms=22000, left_ms=4000, look_ahead_ms=4000, shift_ms=10, subsampling=4)
    assert cut == Buffers(550, 100, 100, 4, 750)
    with pytest.raises(
        UsageError, match=r"left_ms is 50, but the model's positions are 40 ms\. Fix: give 40"
    ):
        Buffers.of_time(chunk_ms=400, left_ms=50, look_ahead_ms=0, shift_ms=10, subsampling=4)
    with pytest.raises(UsageError, match=r"chunk_ms is 0, .* Fix: give 80"):
        Buffers.of_time(chunk_ms=0, left_ms=80, look_ahead_ms=0, shift_ms=10, subsampling=8)


# What is read of them.

WANTS = {
    "best": Want(),
    "everything": Want(top=3, margin=True),
    "given": Want(given=np.zeros(0, np.int32)),
    "banned": Want(banned=always_banned((0, 5), 0), top=2),
    "drawn": Want(draw=Draw(np.zeros(0))),
}


def sized(name: str, count: int) -> Want:
    """The want for so many frames, different for each."""
    rng = np.random.default_rng(count)
    if name == "given":
        return Want(given=rng.integers(0, 12, count).astype(np.int32))
    if name == "banned":
        return Want(banned=always_banned((0, 5), count), top=2)
    if name == "drawn":
        return Want(draw=Draw(rng.random(count)))
    return WANTS[name]


def mismatch(scorer: Any, cut: Buffers, sources: list[FeatureSource], name: str) -> float:
    """How far what is read of buffers lies from what is read of whole recordings, infinite for words."""
    buffered = BufferedFrames(scorer, cut)
    mine, whole = buffered.encode(sources), scorer.encode(sources)
    counts = scorer.frames(whole)
    if counts.tolist() != buffered.frames(mine).tolist():
        return np.inf
    want = sized(name, int(counts.sum()))
    found, wanted = buffered.read_frames(mine, want), scorer.read_frames(whole, want)
    worst = 0.0
    for key, value in vars(wanted).items():
        if key == "logits" or value is None:
            continue
        got = getattr(found, key)
        if value.dtype == np.int32:
            worst = max(worst, 0.0 if (got == value).all() else np.inf)
        else:
            worst = max(worst, float(np.abs(got - value).max(initial=0.0)))
    index = np.random.default_rng(1).permutation(int(counts.sum()))[:50]
    worst = max(worst, float(np.abs(found.rows(index) - wanted.rows(index)).max(initial=0.0)))
    buffered.free(mine)
    scorer.free(whole)
    assert scorer.memories_in_use == 0
    return worst


SOURCES = [recording(1, 700), recording(2, 7), recording(3, 403), recording(4, 150)]


@pytest.mark.parametrize("name", WANTS)
@pytest.mark.parametrize("model", [LocalFrames, LocalFires, FractionalFires])
def test_with_enough_context_buffers_change_nothing(name: str, model: type[LocalFrames]) -> None:
    for seed in range(3):
        scorer = model(sees=5, seed=seed)
        for cut in (buffers(17, 5, 5), buffers(3, 5, 6), buffers(40, 9, 5, whole=54)):
            assert mismatch(scorer, cut, SOURCES, name) < 1e-5


@pytest.mark.parametrize("cut", [buffers(17, 4, 5), buffers(17, 5, 4), buffers(17, 0, 0)])
def test_with_less_context_they_do(cut: Buffers) -> None:
    assert mismatch(LocalFrames(sees=5), cut, SOURCES, "everything") > 0.01


def test_a_chunk_that_begins_a_frame_late_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Buffers.frames_of

    def late(self: Buffers, window: Any) -> slice:
        part = right(self, window)
        return slice(part.start + (part.start > 0), part.stop + (part.start > 0))

    monkeypatch.setattr(Buffers, "frames_of", late)
    assert mismatch(LocalFrames(sees=5), buffers(17, 5, 5), [recording(1, 1501)], "everything") > 0.01


def test_some_frames_alone() -> None:
    scorer = LocalFrames(sees=3)
    buffered = BufferedFrames(scorer, buffers(9, 3, 3))
    mine, whole = buffered.encode(SOURCES), scorer.encode(SOURCES)
    total = int(scorer.frames(whole).sum())
    only = np.flatnonzero(np.random.default_rng(3).random(total) < 0.1).astype(np.int32)
    want = Want(only=only, given=np.arange(len(only), dtype=np.int32) % 12)
    found, wanted = buffered.read_frames(mine, want), scorer.read_frames(whole, want)
    assert found.best.tolist() == wanted.best.tolist()
    assert found.given_log_probs == pytest.approx(wanted.given_log_probs, abs=1e-5)
    assert found.rows([3, 0]) == pytest.approx(wanted.rows([3, 0]), abs=1e-5)


def test_a_result_does_not_depend_on_where_buffers_lie() -> None:
    """A recording without its first positions: all others say the same, but for those that saw the first."""
    scorer, cut, sees = LocalFrames(sees=5), buffers(17, 5, 5), 5
    whole = recording(7, 1503)
    buffered = BufferedFrames(scorer, cut)
    found = buffered.read_frames(buffered.encode([whole]), Want())
    for dropped in (1, 6, 17, 100):
        part = FeatureSource(whole.frames[4 * dropped :], SHIFT)
        later = buffered.read_frames(buffered.encode([part]), Want())
        assert later.best[sees:].tolist() == found.best[dropped + sees :].tolist()
        assert later.log_probs[sees:] == pytest.approx(found.log_probs[dropped + sees :], abs=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "model"),
    [
        ("ctc-greedy", {}, LocalFrames),
        ("ctc-beam", {"beam_size": 4, "nbest": 3}, LocalFrames),
        ("paraformer", {}, LocalFires),
        ("paraformer", {}, FractionalFires),
    ],
)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_strategies_decode_recordings_of_any_length(
    name: str, options: dict[str, Any], model: type[LocalFrames], batch_size: int
) -> None:
    strategy, scorer = make_strategy(name, options), model(sees=5, seed=2)
    buffered = BufferedFrames(scorer, buffers(40, 5, 5, whole=50))
    found = decode(strategy, Counted(buffered), requests_of(SOURCES), batch_size=batch_size)
    longest = max(scorer.sizes)
    assert longest <= 4 * 51
    wanted = decode(strategy, Counted(scorer), requests_of(SOURCES), batch_size=batch_size)
    assert len(found[0].hypotheses[0].tokens) > 20
    for mine, theirs in zip(found, wanted, strict=True):
        assert [each.tokens for each in mine.hypotheses] == [each.tokens for each in theirs.hypotheses]
        scores = [each.score for each in theirs.hypotheses]
        assert [each.score for each in mine.hypotheses] == pytest.approx(scores, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "options", "model"),
    [
        ("ctc-greedy", {}, LocalFrames),
        ("ctc-greedy", {"hotwords": "w1 w2"}, LocalFrames),
        ("ctc-beam", {"hotwords": "w1 w2"}, LocalFrames),
        ("paraformer", {}, LocalFires),
        ("paraformer", {"hotwords": "w1 w2"}, LocalFires),
    ],
)
def test_recordings_without_speech_have_no_words(
    name: str, options: dict[str, Any], model: type[LocalFrames]
) -> None:
    """Alone, where no frame is scored, and beside one with speech."""
    quiet, spoken = recording(1, 700), recording(2, 700)

    def levels(frames: np.ndarray) -> np.ndarray:
        is_quiet = any((frames[0] == row).all() for row in quiet.frames[::4])
        return np.repeat([0.0, 0.0 if is_quiet else 30.0], [len(frames) - 9, 9])

    buffered = BufferedFrames(model(sees=5, seed=2), buffers(40, 5, 5, whole=50), levels=levels)
    strategy = make_strategy(name, options)
    (alone,) = decode(strategy, Counted(buffered), requests_of([quiet]))
    assert [each.tokens for each in alone.hypotheses] == [(EOS,)]
    both = decode(strategy, Counted(buffered), requests_of([quiet, spoken]))
    tokens = [each.hypotheses[0].tokens for each in sorted(both, key=lambda each: each.index)]
    assert tokens[0] == (EOS,)
    assert len(tokens[1]) > 9


class Counted:
    """A scorer without passes, for `decode` of the tests."""

    cells_in_use = 0

    def __init__(self, scorer: Any) -> None:
        self.scorer = scorer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.scorer, name)


def test_eos_in_the_middle_of_a_paraformers_recording_ends_nothing() -> None:
    """Each buffer ends with one; only that of the last is kept."""
    scorer = LocalFires(sees=2)
    buffered = BufferedFrames(scorer, buffers(30, 4, 0))
    memory = buffered.encode([recording(1, 900)])
    best = buffered.read_frames(memory, Want()).best.tolist()
    assert best.count(EOS) == 1
    assert best[-1] == EOS


def test_words_in_front_of_the_frames_are_the_first_buffers() -> None:
    source = recording(1, 400)
    prompted = FeatureSource(source.frames, SHIFT, words=(7, 8))
    scorer = LocalFrames(sees=3)
    for whole in (0, 999):
        buffered = BufferedFrames(scorer, buffers(20, 6, 3, whole=whole))
        memory = buffered.encode([prompted])
        best = buffered.read_frames(memory, Want()).best
        bare = scorer.read_frames(scorer.encode([source]), Want()).best
        assert buffered.frames(memory).tolist() == [len(best)]
        assert best.tolist() == [7, 8, *bare.tolist()]


def test_memory_does_not_grow_with_the_recording() -> None:
    """Of features in a file; half an hour takes hardly more than three minutes."""
    peaks = []
    for frames in (18_000, 180_000):
        rng = np.random.default_rng(0)
        blocks = (rng.random((500, FEATURES), np.float32) for _ in range(frames // 500))
        features: Any = FrameFile(blocks, FEATURES)
        scorer = LocalFrames(sees=5)
        buffered = BufferedFrames(scorer, buffers(550, 100, 100))
        tracemalloc.start()
        try:
            (result,) = decode(
                make_strategy("ctc-greedy", {"max_len": 10**6}),
                Counted(buffered),
                requests_of([FeatureSource(features, SHIFT)]),
            )
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert len(result.hypotheses[0].tokens) > frames / 100
    per_hour = 2 * (peaks[1] - peaks[0]) / 0.9
    assert per_hour < 40e6  # labels, their scores and what is banned; features would be 115 MB of 80 each


def test_what_does_not_fit_is_refused_by_name() -> None:
    scorer = LocalFrames(sees=1, longest=100)
    with pytest.raises(UsageError, match="a buffer of 163 frames, the model reads 100 at once"):
        BufferedFrames(scorer, buffers(20, 10, 10))
    buffered = BufferedFrames(scorer, buffers(10, 2, 2))
    assert isinstance(buffered, FrameScorer)
    assert not isinstance(buffered, PassScorer)
    with pytest.raises(SourceMismatchError, match="source 1 is text of 2 tokens, the model reads features"):
        buffered.encode([recording(0, 200), TextSource((5, EOS))])
    blind = LocalFrames(sees=1)
    memory = blind.encode([recording(0, 200)])
    with pytest.raises(StrategyMismatchError, match="does not tell where in a recording its words are"):
        carried_fires(blind)
    with pytest.raises(StrategyMismatchError, match=r"a buffer has 49 positions, by .* has 50"):
        positions_of(LocalCtc(blind), memory, [*buffers(99, 0, 0).windows(50)])


class LocalCtc:
    """The same model, with a blank."""

    blank = 0

    def __init__(self, scorer: LocalFrames) -> None:
        self.frames = scorer.frames


# From sound files to text.


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of at most 4 s of sound, and recordings of 9.4 s and 1 s beside it."""
    pytest.importorskip("kaldi_native_fbank")
    folder = tmp_path_factory.mktemp("long")
    save_random_speech(folder / "model", "owsm_ctc", 3, words=12, max_source_len=400)
    for name, seconds in (("long", 9.4), ("short", 1.0)):
        (folder / f"{name}.wav").write_bytes(wav(tones(seconds)))
    return folder


def test_a_model_decodes_a_file_that_is_longer_than_it_reads(model: Path) -> None:
    lines = [str(model / f"{name}.wav") for name in ("long", "short")]
    loaded = nartk.load(model / "model")
    loaded = replace(loaded, vad=False)  # the recordings are noise
    run = loaded.run(lines, "ctc-greedy")
    assert list(run.errors) == [0]
    plain = run.hypotheses[1]
    loaded = replace(loaded, buffers=buffers_for(loaded, 3.2))
    assert loaded.buffers == Buffers(60, 10, 10, 4, 80)
    run = loaded.run(lines, "ctc-greedy")
    assert run.errors == {}
    assert run.hypotheses[1][0].tokens == plain[0].tokens  # what fits a buffer is read as ever
    assert "|buffers:10+60+10" in run.signature
    # By hand: each buffer by itself, its context dropped, and all labels collapsed.
    features = loaded.checkpoint.input.read(lines[0], longest=10**9)
    assert isinstance(features, FeatureSource)
    scorer, labels = loaded.passes, []
    count = (((len(features) - 1) // 2) - 1) // 2
    for first in range(0, count, 60):
        begin, last = max(0, first - 10), min(first + 60, count)
        part = features.frames[4 * begin : 4 * min(last + 10, count) + 3]
        memory = scorer.encode([FeatureSource(part, 10.0)])
        banned = always_banned((1, 2), int(scorer.frames(memory)[0]))
        labels += scorer.read_frames(memory, Want(banned=banned)).best[first - begin : last - begin].tolist()
        scorer.free(memory)
    wanted = [b for a, b in zip([0, *labels], labels, strict=False) if b not in (0, a)]
    assert run.hypotheses[0][0].tokens == (*wanted, EOS)
    assert len(wanted) > 10


def test_slices_of_a_file_are_those_of_the_array() -> None:
    rng = np.random.default_rng(2)
    blocks = [rng.random((count, 5), np.float32) for count in (3, 0, 40, 1)]
    whole = np.concatenate(blocks)
    found, halved = FrameFile(blocks, 5), FrameFile(blocks, 5, finish=lambda frames: frames / 2)
    assert len(found) == len(whole) == 44
    for part in (slice(None), slice(3, 9), slice(-5, None), slice(40, 99), slice(7, 7), slice(9, 3)):
        assert found[part].tolist() == whole[part].tolist()
        assert halved[part].tolist() == (whole[part] / 2).tolist()


def test_features_in_a_file_are_those_of_the_sound(model: Path) -> None:
    loaded = nartk.load(model / "model")
    reader: Any = loaded.checkpoint.input
    for name in ("long", "short"):
        line = str(model / f"{name}.wav")
        before = reader.seconds
        found = read_long(reader, line)
        assert reader.seconds - before == pytest.approx(len(found) / 100)
        wanted = reader.read(line, longest=10**9)
        assert isinstance(found.frames, FrameFile)
        assert (found.frames[:] == wanted.frames).all()
        assert found.shift == wanted.shift


def test_the_command_decodes_long_files(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [str(model / f"{name}.wav") for name in ("long", "short")]
    loaded = nartk.load(model / "model")
    loaded = replace(loaded, buffers=buffers_for(loaded, 3.2), vad=False)
    wanted = [each.text for each in loaded.decode(lines, "ctc-greedy")]
    arguments = [str(model / "model"), *lines, "--strategy", "ctc-greedy", "--quiet", "--no-vad"]
    assert decode_command([*arguments, "--long-form", "3.2"]) == 0
    assert capsys.readouterr().out.splitlines() == wanted
    assert decode_command(arguments) == 3
    assert capsys.readouterr().out.splitlines() == ["", wanted[1]]
    assert decode_command([*arguments, "--long-form", "0.28"]) == 2
    error = capsys.readouterr().err
    assert "--long-form is 0.28 s, 7 positions of the model's encoder. Fix: give at least 0.32" in error


def test_strategies_that_read_a_whole_source_are_refused(model: Path) -> None:
    loaded = nartk.load(model / "model")
    loaded = replace(loaded, buffers=buffers_for(loaded))
    assert loaded.buffers.whole == 99  # no more than the model reads
    strategy = make_strategy("joint-ctc", {})
    with pytest.raises(StrategyMismatchError):
        loaded.scorer_for(strategy)


def test_a_stream_of_a_file_ends_as_its_chunks_at_once(model: Path) -> None:
    loaded = nartk.load(model / "model")
    line = str(model / "long.wav")
    partials = [*stream(loaded, line, chunk_ms=640, left_ms=1280, look_ahead_ms=160)]
    loaded = replace(loaded, buffers=Buffers(16, 32, 4, 4))
    (wanted,) = loaded.decode([line], "ctc-greedy")
    assert partials[-1].tokens == wanted.tokens[:-1]
    assert partials[-1].text == wanted.text
    assert len(partials) == 15
    assert sum(each.revised for each in partials) > 0
