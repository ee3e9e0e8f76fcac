"""Pictures of what a model of speech heard: where tokens lie, against all labellings, and what is drawn."""

from __future__ import annotations

import base64
import io
import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.labellings import collapsed
from support.speech_models import random_speeches, save_random_speech

import nartk
from nartk.cli.decode import main as decode
from nartk.cli.trace import main as trace
from nartk.errors import StrategyMismatchError, UsageError
from nartk.serving.long_form import buffers_for
from nartk.serving.streaming import buffers_of
from nartk.tracing import speech
from nartk.tracing.speech import align, aligned_times, for_page, plot_speech, png

BLANK = 0


def best_labelling(log_probs: np.ndarray, words: Sequence[int]) -> list[list[int]]:
    """First position of each word and the one behind its last, by enumeration of all labellings."""
    best, found = -np.inf, None
    for labels in itertools.product({BLANK, *words}, repeat=len(log_probs)):
        if collapsed(labels, BLANK) == tuple(words):
            score = sum(log_probs[t, label] for t, label in enumerate(labels))
            if score > best:
                best, found = score, labels
    assert found is not None
    times, at = [], 0
    for label, run in itertools.groupby(found):
        size = len([*run])
        times += [[at, at + size]] if label != BLANK else []
        at += size
    return times


def test_tokens_lie_where_their_likeliest_labelling_has_them() -> None:
    for seed in range(25):
        rng = np.random.default_rng(seed)
        words = rng.integers(1, 4, size=seed % 4).tolist()
        repeats = sum(a == b for a, b in itertools.pairwise(words))
        size = len(words) + repeats + int(rng.integers(0, 3))
        logits = rng.normal(scale=2, size=(size, 4))
        log_probs = logits - np.logaddexp.reduce(logits, 1, keepdims=True)
        found = aligned_times(log_probs, words, BLANK).tolist()
        assert found == (best_labelling(log_probs, words) if size else [])


def test_without_blanks_between_equal_words_they_lie_elsewhere() -> None:
    log_probs = np.log([[0.1, 0.8, 0.1], [0.1, 0.8, 0.1], [0.3, 0.6, 0.1]])
    assert aligned_times(log_probs, [1, 1], BLANK).tolist() == [[0, 1], [2, 3]]
    with pytest.raises(UsageError, match="2 tokens in 2 positions, too few"):
        aligned_times(log_probs[:2], [1, 1], BLANK)


@pytest.fixture(scope="module", params=["owsm_ctc", "paraformer", "conformer"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model, and stored features beside it."""
    folder = tmp_path_factory.mktemp("speech")
    save_random_speech(folder / "model", request.param, 5, features="stored")
    np.savez(folder / "all.npz", **{f"u{i}": s.frames for i, s in enumerate(random_speeches(2, (120, 61)))})
    return folder


def strategy_of(model: nartk.Model) -> str:
    return "paraformer" if model.passes.blank is None else "ctc-greedy"


def test_what_was_heard_is_what_the_model_read(model: Path) -> None:
    loaded = nartk.load(model / "model")
    line = str(model / "all.npz#u0")
    (best,) = loaded.decode([line], strategy_of(loaded))
    found = align(loaded, line, best.tokens)
    assert found.seconds == 1.2
    assert found.position == 0.04
    assert found.tokens == tuple(piece for piece in best.pieces if piece not in ("</s>", "<pad>", "<s>"))
    assert (found.times[:, 0] <= found.times[:, 1]).all()
    assert (np.diff(found.times[:, 0]) >= 0).all()
    assert found.times.max(initial=0.0) <= found.seconds
    source: Any = loaded.encode(line)
    memory = loaded.passes.encode([source])
    if found.weights is not None:
        assert found.weights.tolist() == loaded.passes.weights(memory)[0].tolist()
    else:
        # The labels of ctc-greedy are the likeliest labelling of what they say.
        labels = np.where([False, True, True, *[False] * 6], 0, found.probs).argmax(1)  # neither pad nor eos
        for word, (begin, end) in zip(found.words, found.times / 0.04, strict=True):
            assert set(labels[round(begin) : round(end)].tolist()) == {word}
    loaded.passes.free(memory)


def test_the_picture_shows_the_spectrogram_the_tokens_and_the_curves(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    loaded = nartk.load(model / "model")
    line = str(model / "all.npz#u0")
    (best,) = loaded.decode([line], strategy_of(loaded))
    found = align(loaded, line, best.tokens)
    drawn: list[Any] = []
    save = speech.save_figure
    monkeypatch.setattr(
        speech, "save_figure", lambda figure, *rest: (drawn.append(figure), save(figure, *rest))
    )
    plot_speech(found, tmp_path / "x.svg", "svg")
    above, below = drawn[0].axes
    (image,) = above.images
    assert (image.get_array() == found.frames.T).all()
    assert [text.get_text() for text in above.texts] == list(found.tokens)
    curves = {curve.get_label(): curve.get_ydata() for curve in below.lines}
    if found.weights is None:
        assert (curves["blank"] == found.probs[:, 0]).all()
        assert len(below.lines) == 2 + len({*found.words})
    else:
        assert [bar.get_height() for bar in below.patches] == found.weights.tolist()
        (fires,) = (each for each in below.collections if each.get_label() == "fire")
        assert len(fires.get_segments()) == int(np.cumsum(found.weights, dtype=np.float64)[-1])
    assert (tmp_path / "x.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_the_command_draws_a_line_of_a_trace(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    loaded = nartk.load(model / "model")
    traced, picture = tmp_path / "trace.jsonl", tmp_path / "heard.png"
    name = strategy_of(loaded)
    lines = tmp_path / "in.txt"
    lines.write_text(f"{model}/all.npz#u0\n{model}/all.npz#u1\n", encoding="utf-8")
    arguments = [str(model / "model"), str(lines), "--strategy", name, "--quiet"]
    assert decode([*arguments, "--trace", str(traced), "--output", str(tmp_path / "out.txt")]) == 0
    assert json.loads(traced.read_text(encoding="utf-8").splitlines()[1])["line"] == 2
    drawing = [str(traced), "--model", str(model / "model"), "--png", str(picture), "--quiet"]
    assert trace([*drawing, "--line", "2"]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert trace(drawing) == 2


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (80, 301)])
def test_pictures_are_read_by_another_program(shape: tuple[int, int]) -> None:
    image = pytest.importorskip("matplotlib.image", reason="reading PNG needs nartk[plot]")
    pixels = np.random.default_rng(7).integers(0, 256, shape, np.uint8)
    assert (np.round(255 * image.imread(io.BytesIO(png(pixels)))) == pixels).all()


def test_a_page_gets_what_was_heard(model: Path) -> None:
    image = pytest.importorskip("matplotlib.image", reason="reading PNG needs nartk[plot]")
    loaded = nartk.load(model / "model")
    line = str(model / "all.npz#u0")
    (best,) = loaded.decode([line], strategy_of(loaded))
    found = align(loaded, line, best.tokens)
    values = json.loads(json.dumps(for_page(found)))
    shades = image.imread(io.BytesIO(base64.b64decode(values["image"])))
    assert shades.shape == (values["bands"], 120) == (16, 120)
    # The louder, the darker, with the lowest band at the bottom.
    order = np.argsort(found.frames.T[::-1].ravel(), kind="stable")
    assert (np.diff(shades.ravel()[order]) <= 0).all()
    assert shades.min() == 0.0
    assert shades.max() == 1.0
    assert [piece for piece, *_ in values["tokens"]] == list(found.tokens)
    assert [times for _, *times, _ in values["tokens"]] == found.times.round(3).tolist()
    if found.weights is None:
        spoken = [*dict.fromkeys(best.tokens[:-1])]
        assert [spoken[index] for *_, index in values["tokens"]] == list(best.tokens[:-1])
        assert values["probs"] == pytest.approx(found.probs[:, spoken].T, abs=1e-3)
        assert values["blank"] == pytest.approx(found.probs[:, BLANK], abs=1e-3)
        sums = np.sum(values["probs"], 0) + values["blank"] + values["other"]
        assert sums == pytest.approx(np.ones(len(found.probs)), abs=1e-2)
    else:
        assert values["weights"] == pytest.approx(found.weights, abs=1e-3)
        total, fires = 0.0, []  # by hand
        for t, weight in enumerate(found.weights.tolist()):
            total += weight
            assert values["sums"][t] == pytest.approx(total % 1.0, abs=1e-3)
            fires += [t] if int(total) > int(total - weight) else []
        assert values["fires"] == fires
        assert len(fires) > 0


def test_digital_silence_takes_no_shade_from_the_sound() -> None:
    loud = np.random.default_rng(3).normal(size=(60, 8)).astype(np.float32)
    silent = np.full((140, 8), -16.0, np.float32)
    heard_in = [
        speech.Alignment(
            frames, len(frames) / 100, 0.04, (), np.zeros((0, 2)), (), weights=np.zeros(9, np.float32)
        )
        for frames in (loud, np.concatenate([loud, silent]))
    ]
    alone, beside = (speech._shades(each.frames)[:60].astype(int) for each in heard_in)
    assert np.abs(alone - beside).max() < 12


def test_the_command_writes_a_page_of_what_was_heard(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = nartk.load(model / "model")
    lines, traced, page = (tmp_path / name for name in ("in.txt", "trace.jsonl", "heard.html"))
    lines.write_text(
        "".join(f"{model}/all.npz#{name}\n" for name in ("u0", "nothing", "u1")), encoding="utf-8"
    )
    arguments = [str(model / "model"), str(lines), "--strategy", strategy_of(loaded), "--quiet"]
    assert decode([*arguments, "--trace", str(traced), "--output", str(tmp_path / "out.txt")]) == 3
    drawing = [str(traced), "--model", str(model / "model"), "--html", str(page), "--quiet"]

    def shown() -> list[Any]:
        (data,) = re.findall(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
        return [line.get("speech") for line in json.loads(data)["lines"]]

    assert trace(drawing) == 0
    wanted = []
    for traced_line in map(json.loads, traced.read_text(encoding="utf-8").splitlines()):
        if "error" in traced_line:
            wanted.append(None)
            continue
        tokens = loaded.checkpoint.target_vocab.ids(traced_line["output"])
        found = align(loaded, traced_line["source_text"], tokens)
        wanted.append(json.loads(json.dumps(for_page(found))))
    assert shown() == wanted
    assert trace([*drawing, "--line", "3"]) == 0
    assert shown() == wanted[2:]
    # A recording that is gone leaves the others.
    text = traced.read_text(encoding="utf-8")
    traced.write_text(text.replace("all.npz#u1", "gone.npz#u1"), encoding="utf-8")
    capsys.readouterr()
    assert trace(drawing) == 3
    assert "error[E201 InputFile] line 3:" in capsys.readouterr().err
    assert shown() == [wanted[0], None, None]
    assert trace([*drawing[:3], "--quiet"]) == 2
    assert "--model, but nothing is drawn. Fix: give --html, --png or --svg." in capsys.readouterr().err


def test_models_that_hear_nothing_and_long_recordings_are_refused(tmp_path: Path) -> None:
    text = nartk.load()
    with pytest.raises(StrategyMismatchError, match="needs a speech model with CTC or CIF"):
        align(text, "She go home .", [5])
    frames = np.zeros((6100, 8), np.float32)
    long = speech.Alignment(frames, 61.0, 0.04, (), np.zeros((0, 2)), ())
    with pytest.raises(UsageError, match=r"a picture of 61 s of sound\. Fix: draw 60 s at most"):
        plot_speech(long, tmp_path / "x.png", "png")
    with pytest.raises(UsageError, match=r"a picture of 61 s of sound"):
        for_page(long)


def test_labels_of_a_decoder_lie_where_its_frames_are(tmp_path: Path) -> None:
    """Two labels a position of 40 ms: 20 ms each."""
    save_random_speech(tmp_path / "model", "speech_ctc", 0, features="stored", upsample=2)
    np.savez(tmp_path / "all.npz", u0=random_speeches(3, (120,))[0].frames)
    loaded, line = nartk.load(tmp_path / "model"), f"{tmp_path}/all.npz#u0"
    (best,) = loaded.decode([line], "ctc-greedy")
    found = align(loaded, line, best.tokens)
    assert found.position == 0.02
    assert found.probs is not None
    assert len(found.probs) == 2 * 29
    labels = np.where([False, True, True, *[False] * 6], 0, found.probs).argmax(1)
    runs, at = [], 0
    for label, run in itertools.groupby(labels.tolist()):
        size = len([*run])
        runs += [(at * 0.02, (at + size) * 0.02)] if label != BLANK else []
        at += size
    assert len(runs) > 2
    np.testing.assert_allclose(found.times, runs, atol=1e-9)
    with pytest.raises(StrategyMismatchError, match="buffers of 2 labels a position"):
        buffers_for(loaded)
    with pytest.raises(StrategyMismatchError, match="buffers of 2 labels a position"):
        buffers_of(loaded)


def test_a_graph_lies_evenly_under_the_spectrogram(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    save_random_speech(
        tmp_path / "model", "speech_dag", 5, features="stored", upsample_scale="0.5", link_heads=2
    )
    np.savez(tmp_path / "all.npz", u0=random_speeches(2, (80,))[0].frames)
    (tmp_path / "in.txt").write_text(f"{tmp_path}/all.npz#u0\n", encoding="utf-8")
    traced, model = tmp_path / "trace.jsonl", str(tmp_path / "model")
    arguments = [model, str(tmp_path / "in.txt"), "--strategy", "dag-lookahead", "--quiet", "--no-vad"]
    assert decode([*arguments, "--trace", str(traced), "--output", str(tmp_path / "out.txt")]) == 0
    graph = json.loads(traced.read_text(encoding="utf-8"))["graph"]
    assert graph["size"] == 9  # of 19 positions
    drawn: list[Any] = []
    monkeypatch.setattr(speech, "save_figure", lambda figure, path, form: drawn.append(figure))
    assert trace([str(traced), "--model", model, "--line", "1", "--png", "x.png", "--quiet"]) == 0
    above, below = drawn[0].axes
    assert above.images[0].get_array().shape == (16, 80)
    places = {
        each.get_label(): each.get_offsets().tolist()
        for each in below.collections
        if each.get_label()[0] != "_"
    }
    seconds = {vertex: (vertex + 0.5) * 0.8 / 9 for vertex in graph["vertices"]}
    assert places["vertex of the path"] == pytest.approx(
        np.array([(seconds[vertex], 1) for vertex in graph["vertices"] if vertex in graph["path"]])
    )
    others = [(seconds[vertex], 0) for vertex in graph["vertices"] if vertex not in graph["path"]]
    assert places.get("other vertex", []) == pytest.approx(np.array(others).reshape(-1, 2))
    assert [text.get_text() for text in below.texts] == graph["emitted"]
    labels = [each.get_label() for each in below.patches]
    assert labels.count("path") == len(graph["path"]) - 1
    assert len(labels) == len(graph["links"])
    # The page has the graph from the trace.
    found = align(nartk.load(model), f"{tmp_path}/all.npz#u0", (), graph)
    assert for_page(found).keys() == {"seconds", "position", "bands", "image", "tokens"}
    page = tmp_path / "t.html"
    assert trace([str(traced), "--model", model, "--html", str(page), "--quiet"]) == 0
    assert '"speech"' in page.read_text(encoding="utf-8")
    # Without the trace of a graph there is nothing to draw.
    with pytest.raises(StrategyMismatchError, match="or the trace of a graph"):
        align(nartk.load(model), f"{tmp_path}/all.npz#u0", ())
