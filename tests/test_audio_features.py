"""Features equal torchaudio's and transformers'; they are streamed, normalised and batched as promised."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sounds import FBANKS, KEPT, RATE, WHISPERS, expected, noise, sine, sound_of

from nartk.data.audio import features, spectra
from nartk.data.audio.augmentation import SPEEDS, SpecAugment, change_speed, change_tempo
from nartk.data.audio.buckets import make_batches, padding
from nartk.data.audio.features import Fbank, FeatureSettings, compute, streamed
from nartk.data.audio.normalization import Statistics, normalize
from nartk.data.audio.spectra import mel_weights
from nartk.data.audio.stored import names, read_features, write_features
from nartk.errors import (
    CheckpointError,
    InputFileError,
    InputTooLongError,
    LengthMismatchError,
    UsageError,
)
from nartk.protocols.passes import FloatArray


@pytest.mark.parametrize("name", FBANKS)
def test_the_filterbank_is_torchaudios(name: str) -> None:
    of = FeatureSettings(**FBANKS[name])
    found, wanted = compute(sound_of(FBANKS[name]), of), expected(f"fbank {name}")
    assert found.dtype == np.float32
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() < 5e-4  # of logarithms from -16 to 27
    for other in FBANKS:
        if other != name:  # each of the settings counts
            changed = {**FBANKS[name], "window": FBANKS[other].get("window", "povey")}
            assert np.abs(compute(sound_of(changed), FeatureSettings(**changed)) - wanted).max() > 0.01


@pytest.mark.parametrize("bins", WHISPERS)
def test_whispers_features_are_transformers(bins: int) -> None:
    of = FeatureSettings(features="whisper", bins=bins)
    found, wanted = compute(noise(RATE // 2), of), expected(f"whisper {bins}")
    assert found.shape == (3000, bins)
    assert np.abs(found[:KEPT] - wanted).max() < 1e-4
    assert np.abs(found[KEPT:] - wanted[-1]).max() < 1e-6
    assert np.abs(compute(noise(30 * RATE), of)[-KEPT:] - expected(f"whisper full {bins}")).max() < 1e-4


@pytest.mark.parametrize("name", FBANKS)
def test_frames_are_counted_as_kaldi_does(name: str) -> None:
    of = FeatureSettings(**FBANKS[name])
    window, shift = of.window_samples, of.shift_samples
    for samples in (0, 1, window - 1, window, window + shift - 1, window + shift, 3 * window + 5):
        wanted = 0 if samples < window else 1 + (samples - window) // shift
        assert len(compute(noise(samples), of)) == wanted
    for frames in (1, 2, 9):
        most = of.most_samples(frames)
        assert [len(compute(noise(n), of)) for n in (most, most + 1)] == [frames, frames + 1]


@pytest.mark.parametrize("seed", range(4))
def test_streamed_features_of_espnet_are_those_of_the_whole(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, of = random.Random(seed), FeatureSettings("espnet", transform=512)
    monkeypatch.setattr(spectra, "_TOGETHER", draw.choice((1, 7, 3000)))
    for count in (1, 255, 256, 257, 5120, draw.randint(5000, RATE)):
        samples = noise(count)
        whole = compute(samples, of)
        assert len(whole) == of.frames(count) == 1 + count // of.shift_samples
        cuts = sorted(draw.choices(range(count + 1), k=draw.randint(0, 30)))
        assert np.concatenate([*streamed(np.split(samples, cuts), of)]).tobytes() == whole.tobytes()
    assert len(compute(noise(0), of)) == 0
    for frames in (1, 2, 9):
        most = of.most_samples(frames)
        assert [of.frames(most), of.frames(most + 1)] == [frames, frames + 1]


@pytest.mark.parametrize("seed", range(8))
def test_streamed_features_are_those_of_the_whole(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, of, samples = random.Random(seed), FeatureSettings(), noise(RATE)
    whole = compute(samples, of)
    monkeypatch.setattr(features, "_PIECE", draw.choice((7, 1000, 10**6)))
    cuts = sorted(draw.choices(range(RATE + 1), k=draw.randint(0, 30)))
    blocks = np.split(samples, cuts)
    assert np.concatenate([*streamed(blocks, of)]).tobytes() == whole.tobytes()
    # Blocks on their own have other frames: what a window lacks at a cut is in none of them.
    if len(cuts) > 3:
        assert sum(len(compute(block, of)) for block in blocks) < len(whole)


def test_a_frame_comes_with_its_last_sample() -> None:
    of = FeatureSettings()
    fbank, samples = Fbank(of), noise(of.window_samples)
    assert len(fbank.accept(samples[:-1])) == 0
    assert fbank.accept(samples[-1:]).tobytes() == compute(samples, of).tobytes()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"features": "mfcc"}, "`features` is 'mfcc'. Fix: choose from fbank, whisper, espnet, stored"),
        ({"bins": "80"}, "`bins` is '80'. Fix: give a int"),
        ({"bins": True}, "`bins` is True"),
        ({"window": "kaiser"}, "`window` is 'kaiser'. Fix: choose from povey, hamming, hanning"),
        ({"sample_rate": 7}, "`sample_rate` is 7. Fix: give 1000 to 768000, in Hz"),
        ({"shift_ms": 0.0}, "`shift_ms` is 0.0. Fix: give 1 to 1000"),
        ({"shift_ms": float("nan")}, "`shift_ms` is nan"),
        ({"transform": 512}, "`transform` is 512"),
        ({"features": "espnet", "transform": 399}, "no less than the window's 400 samples"),
        ({"features": "espnet", "transform": 65_537}, "`transform` is 65537. Fix: give 0 to 65536"),
        ({"features": "whisper", "sample_rate": 8000}, "`sample_rate` is 8000, Whisper's is 16000"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        FeatureSettings(**changed)
    assert message in str(caught.value)


def test_what_cannot_be_computed_is_refused() -> None:
    with pytest.raises(InputTooLongError, match=r"30\.1 s of sound > 30 s"):
        compute(np.zeros(30 * RATE + 1600, np.float32), FeatureSettings(features="whisper"))
    with pytest.raises(UsageError, match="stored"):
        compute(noise(RATE), FeatureSettings(features="stored"))


def test_an_utterance_is_normalised_to_mean_0_and_variance_1() -> None:
    frames = np.random.default_rng(1).normal(3e4, 2.0, (50, 7)).astype(np.float32)
    found = normalize(frames)
    wide = frames.astype(np.float64)
    assert found.dtype == np.float32
    assert found == pytest.approx((wide - wide.mean(0)) / wide.std(0), abs=1e-5)
    assert not normalize(np.full((9, 3), -15.9424, np.float32)).any()  # digital silence
    assert not normalize(frames[:1]).any()


def test_statistics_of_parts_are_those_of_the_whole(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    parts = [(rng.normal(1e4, 1.0, (n, 4)) + n).astype(np.float32) for n in (1, 30, 0, 7, 200)]
    whole, found = np.concatenate(parts).astype(np.float64), Statistics.of(iter(parts))
    assert found.frames == len(whole)
    assert found.mean == pytest.approx(whole.mean(0), rel=1e-12)
    assert found.variance == pytest.approx(whole.var(0), rel=1e-9)
    found.write(tmp_path / "cmvn.json")
    again = Statistics.read(tmp_path / "cmvn.json", 4)
    assert again.equals(found)
    assert normalize(parts[1], again) == pytest.approx((parts[1] - whole.mean(0)) / whole.std(0), abs=1e-5)
    with pytest.raises(InputFileError, match="no frame"):
        Statistics.of([])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"frames": 1}',
        '{"frames": 1, "mean": [1, 2], "variance": [1]}',
        '{"frames": 1, "mean": [1, 2], "variance": [1, -1]}',
        '{"frames": 1, "mean": [1, NaN], "variance": [1, 1]}',
        '{"frames": 0, "mean": [1, 2], "variance": [1, 1]}',
        '{"frames": 1, "mean": ["a", 2], "variance": [1, 1]}',
        '{"frames": 1, "mean": [[1, 2]], "variance": [[1, 1]]}',
    ],
)
def test_what_are_no_statistics_is_a_corrupt_model(tmp_path: Path, text: str) -> None:
    (tmp_path / "cmvn.json").write_text(text)
    with pytest.raises(CheckpointError):
        Statistics.read(tmp_path / "cmvn.json", 2)


def runs(marked: np.ndarray) -> int:
    """How many runs of marks there are."""
    return int(np.sum(np.diff(np.concatenate([[0], marked.astype(int)])) == 1))


def test_masks_are_spans_of_times_and_bins() -> None:
    rng = np.random.default_rng(3)
    frames = np.random.default_rng(4).normal(size=(60, 20)).astype(np.float32)
    kept = frames.copy()
    mask = SpecAugment(time_masks=2, time_width=9, bin_masks=1, bin_width=4)
    widths, begins = [], []
    for _ in range(400):
        found = mask(frames, rng)
        changed = found != frames
        times, bins = changed.all(axis=1), changed.all(axis=0)
        assert (changed == (times[:, None] | bins)).all()  # nothing else is changed
        assert np.unique(found[changed]) == pytest.approx(frames.mean()) or not changed.any()
        assert runs(times) <= 2
        assert runs(bins) <= 1
        assert times.sum() <= 18
        widths.append(int(bins.sum()))
        begins += [int(bins.argmax())] if bins.sum() == 4 else []
    assert (frames == kept).all()
    # Widths 0 to 4 are equally likely, and so are the 17 begins of a mask of 4 bins.
    counts = np.bincount(widths, minlength=5)
    assert len(counts) == 5
    assert np.abs(counts - 80).max() < 4 * 80**0.5
    assert {min(begins), max(begins)} == {0, 16}


def test_masks_keep_to_the_share_of_the_frames() -> None:
    frames, rng = np.ones((10, 4), np.float32), np.random.default_rng(0)
    frames[0] = 2
    mask = SpecAugment(time_masks=1, time_width=100, time_share=0.2, bin_masks=0)
    changed = [int((mask(frames, rng) != frames).all(axis=1).sum()) for _ in range(200)]
    assert set(changed) == {0, 1, 2}
    wide = SpecAugment(time_masks=0, bin_masks=1, bin_width=27)
    assert max(int((wide(frames, rng) != frames).all(axis=0).sum()) for _ in range(200)) == 4
    assert mask(frames[:0], rng).shape == (0, 4)
    same = (SpecAugment()(frames, np.random.default_rng(7)) for _ in range(2))
    assert next(same).tobytes() == next(same).tobytes()


@pytest.mark.parametrize("changed", [{"time_share": 1.5}, {"time_masks": -1}, {"bin_width": -2}])
def test_masks_that_make_no_sense_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(changed))):
        SpecAugment(**changed)


@pytest.mark.parametrize("factor", SPEEDS)
def test_a_faster_tone_is_higher_and_shorter(factor: float) -> None:
    found = change_speed(0.5 * sine(RATE, 400), factor)
    assert abs(len(found) - RATE / factor) <= 1
    assert np.abs(found - 0.5 * sine(len(found), 400 * factor))[500:-500].max() < 1e-4


@pytest.mark.parametrize("length", [1, 2, 57])
@pytest.mark.parametrize("factor", SPEEDS)
def test_faster_features_are_those_between(length: int, factor: float) -> None:
    frames = noise(length * 3).reshape(length, 3)
    found = change_tempo(frames, factor)
    count = max(1, round(length / factor))
    wanted = torch.nn.functional.interpolate(
        torch.from_numpy(frames.T[None].astype(np.float64)), count, mode="linear", align_corners=True
    )
    assert found.dtype == np.float32
    assert found.shape == (count, 3)
    np.testing.assert_allclose(found, wanted[0].numpy().T, atol=1e-5)


@pytest.mark.parametrize("change", [change_speed, change_tempo])
def test_a_speed_out_of_bounds_is_refused(change: Callable[[FloatArray, float], FloatArray]) -> None:
    with pytest.raises(UsageError, match="a speed of 0"):
        change(noise(100), 0.0)


def lengths_of(seed: int, items: int) -> tuple[list[int], list[int]]:
    """Frames and tokens as speech has them: talkers differ in speed."""
    rng = np.random.default_rng(seed)
    frames = np.clip(rng.lognormal(6.3, 0.6, items), 30, 3000)
    tokens = np.clip(frames / 30 * rng.lognormal(0, 0.35, items), 1, 300)
    return frames.astype(int).tolist(), tokens.astype(int).tolist()


def by_source_alone(sources: Sequence[int], most: int) -> list[list[int]]:
    """What sorting by one length gives."""
    made: list[list[int]] = [[]]
    for i in sorted(range(len(sources)), key=lambda i: sources[i]):
        if (len(made[-1]) + 1) * sources[i] > most:
            made.append([])
        made[-1].append(i)
    return made


@pytest.mark.parametrize("most", [3000, 8000, 20_000])
def test_padding_is_below_the_bound_on_both_sides(most: int) -> None:
    sources, targets = lengths_of(1, 5000)
    made = make_batches(sources, targets, max_frames=most)
    share = padding(made, sources, targets)
    assert max(share.source, share.target) <= 0.1
    plain = by_source_alone(sources, most)
    assert padding(plain, sources, targets).target > 0.15  # of every length alone, targets are padded
    assert len(made) < 1.25 * len(plain)
    assert str(share) == f"padding: {share.source:.1%} of source frames, {share.target:.1%} of target tokens"


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20)), max_size=60),
    st.integers(60, 400),
    st.none() | st.integers(20, 60),
    st.none() | st.integers(1, 9),
    st.sampled_from([0.02, 0.1, 0.4]),
)
def test_batches_hold_all_items_within_their_limits(
    items: list[tuple[int, int]], frames: int, tokens: int | None, count: int | None, most: float
) -> None:
    sources, targets = [each[0] for each in items], [each[1] for each in items]
    made = make_batches(
        sources, targets, max_frames=frames, max_tokens=tokens, max_sentences=count, most_padding=most
    )
    assert sorted(i for batch in made for i in batch) == [*range(len(items))]
    for batch in made:
        assert 1 <= len(batch) <= (count or len(items))
        assert len(batch) * max(sources[i] for i in batch) <= frames
        assert tokens is None or len(batch) * max(targets[i] for i in batch) <= tokens
    # By hand: positions of batches, less those that hold something.
    for lengths, found in zip(
        (sources, targets), vars(padding(made, sources, targets)).values(), strict=True
    ):
        positions = [max(lengths[i] for i in batch) - lengths[j] for batch in made for j in batch]
        whole = sum(len(batch) * max(lengths[i] for i in batch) for batch in made)
        assert found == pytest.approx(sum(positions) / max(whole, 1))
        assert found <= most + 1e-9


def test_batches_that_cannot_be_made_are_refused() -> None:
    with pytest.raises(LengthMismatchError, match="lengths of 1 targets, but of 2 sources"):
        make_batches([1, 2], [1], max_frames=9)
    with pytest.raises(InputTooLongError, match="an item of 10 > 9"):
        make_batches([1, 10], [1, 1], max_frames=9)
    with pytest.raises(InputTooLongError, match="max_tokens"):
        make_batches([1, 1], [1, 7], max_frames=9, max_tokens=6)
    with pytest.raises(UsageError, match="most_padding is 1"):
        make_batches([1], [1], max_frames=9, most_padding=1.0)
    with pytest.raises(UsageError, match="max_sentences is 0"):
        make_batches([1], [1], max_frames=9, max_sentences=0)


def test_stored_features_are_read_by_name(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        name: rng.normal(size=(n, 3)).astype(np.float32) for name, n in (("b", 4), ("a#1", 0), ("c", 9))
    }
    write_features(tmp_path / "joined.npz", arrays)
    np.savez(tmp_path / "apart.npz", **{name: each.astype(np.float64) for name, each in arrays.items()})
    for file in ("joined.npz", "apart.npz"):
        assert names(str(tmp_path / file)) == ["b", "a#1", "c"]
        for name in ("b", "c"):
            found = read_features(f"{tmp_path / file}#{name}")
            assert found.dtype == np.float32
            assert (found == arrays[name]).all()
    write_features(tmp_path / "joined.npz", {"b": arrays["c"]})  # a file that has changed is read again
    assert (read_features(f"{tmp_path / 'joined.npz'}#b") == arrays["c"]).all()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"PK\x03\x04 no zip", "cannot be read: not an .npz file"),
        (b"\x93NUMPY", "cannot be read: not an .npz file"),
        ({"x": np.zeros(3, np.float32)}, r"'x' is float32 \[3\], not numbers \[T, F\]"),
        ({"x": np.array([[1, 2]])}, r"'x' is int64 \[1, 2\], not numbers \[T, F\]"),
        ({"x": np.array([["a"]])}, "not numbers"),
        ({"x": np.array([[{}]], object)}, "cannot be read: Object arrays cannot be loaded"),
        ({"y": np.zeros((2, 2), np.float32)}, "has no features .*x"),
        ({"ids": np.array(["x"]), "offsets": np.array([0, 1])}, "one matrix of numbers"),
        (
            {"ids": np.array(["x"]), "offsets": np.array([0, 3]), "m": np.zeros((2, 2))},
            "offsets do not match",
        ),
        (
            {"ids": np.array(["x"]), "offsets": np.array([2, 0]), "m": np.zeros((2, 2))},
            "offsets do not match",
        ),
        (
            {"ids": np.array(["x"]), "offsets": np.array([0]), "m": np.zeros((2, 2))},
            "offsets do not match",
        ),
        ({"ids": np.array([1]), "offsets": np.array([0, 1]), "m": np.zeros((2, 2))}, "ids"),
    ],
)
def test_what_holds_no_features_is_named(tmp_path: Path, arrays: Any, message: str) -> None:
    path = tmp_path / "x.npz"
    if isinstance(arrays, bytes):
        path.write_bytes(arrays)
    elif arrays is not None:
        np.savez(path, **arrays)
    with pytest.raises(InputFileError, match=message):
        read_features(f"{path}#x")
    with pytest.raises(InputFileError, match="names no features"):
        read_features(str(path))


@pytest.mark.shared
def test_an4s_features_are_read(shared_data: Path) -> None:
    path = shared_data / "asr" / "an4_mfcc" / "an4_train.npz"
    with np.load(path) as file:
        ids, offsets, matrix = file["ids"].tolist(), file["offsets"], file["mfcc"]
    assert names(str(path)) == ids
    for row in (0, 7, 947):
        wanted = matrix[offsets[row] : offsets[row + 1]].astype(np.float32)
        assert (read_features(f"{path}#{ids[row]}") == wanted).all()


@pytest.mark.shared
def test_padding_of_an4_is_below_a_tenth(shared_data: Path) -> None:
    """Spelled words and dates: 948 utterances of 40 to 620 frames, 1 to 20 words."""
    with np.load(shared_data / "asr" / "an4_mfcc" / "an4_train.npz") as file:
        sources = np.diff(file["offsets"]).tolist()
        targets = [len(text.split()) + 1 for text in file["text"].tolist()]
    made = make_batches(sources, targets, max_frames=6000)
    share = padding(made, sources, targets)
    assert max(share.source, share.target) <= 0.1
    assert padding(by_source_alone(sources, 6000), sources, targets).target > 0.2


def test_statistics_are_plain_json(tmp_path: Path) -> None:
    Statistics(3, np.array([0.5, 1.0]), np.array([2.0, 0.25])).write(tmp_path / "a.json")
    wanted = {"frames": 3, "mean": [0.5, 1.0], "variance": [2.0, 0.25]}
    assert json.loads((tmp_path / "a.json").read_text()) == wanted


@pytest.mark.parametrize("sizes", [(16_000 * 10,), (100, 50, 60, 7, 40_000), (10**7,)])
def test_whispers_features_come_in_blocks(sizes: tuple[int, ...]) -> None:
    """Of 65 s that grow louder, so that a block's own floor would lie elsewhere; against a plain formula."""
    count = 65 * RATE + 77
    samples = (noise(count) * np.geomspace(1e-6, 1, count)).astype(np.float32)
    of = FeatureSettings(features="whisper", seconds=(count + 0.5) / RATE)
    whole = compute(samples, of)
    assert whole.shape == (6500, 80)
    padded = np.pad(samples.astype(np.float64), 200, mode="reflect")
    weights = mel_weights(80, rate=RATE, window=400, low=0, high=RATE / 2).astype(np.float64)
    windows = (padded[160 * t : 160 * t + 400] * np.hanning(401)[:400] for t in range(6500))
    power = np.stack([np.abs(np.fft.rfft(each)) ** 2 for each in windows])
    mel = np.log10(np.maximum(power @ weights, 1e-10))
    assert np.abs(whole - (np.maximum(mel, mel.max() - 8) + 4) / 4).max() < 1e-4
    ends = np.cumsum([*sizes, *[sizes[-1]] * (count // sizes[-1])])
    blocks = [each for each in np.split(samples, ends) if len(each)]
    log_mel, early = features.WhisperLogMel(of), features.WhisperLogMel(of)
    found = [*log_mel.frames(blocks)]
    assert max(map(len, found)) <= 3000
    assert log_mel.floored(np.concatenate(found)).tobytes() == whole.tobytes()
    # Known bad: a floor before the end is known.
    bad = np.concatenate([early.floored(each) for each in early.frames(blocks)])
    assert np.abs(bad - whole).max() > 0.1
