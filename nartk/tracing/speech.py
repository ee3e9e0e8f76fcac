"""Alignment of tokens to a recording: posteriors or weights under the spectrogram, with the tokens.

Of a DA-Transformer's graph the vertices, which are at no time of the recording, lie evenly under it.

Symbols: T frames, F features of a frame, S positions of the encoder, N tokens, V words.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from nartk.errors import StrategyMismatchError, UsageError
from nartk.files import JsonObject
from nartk.protocols.parallel import FireScorer, FrameScorer
from nartk.protocols.passes import FeatureSource, FloatArray, Want
from nartk.protocols.sources import Given
from nartk.protocols.timestamps import cif_times, position_seconds
from nartk.tracing.plot import make_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from nartk.serving.model import Model

_Times = npt.NDArray[np.float64]
# Okabe and Ito's colours, which colour-blind readers tell apart; blank and what is not output are grey.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9")
_SECOND = 2.2  # inches of a second of sound
_MOST_SECONDS = 60.0
_LONG = 4  # letters of a token, from which on they are written aslant
_SHOWN = (2.0, 99.5)  # percentiles of the features that are drawn white and black


@dataclass(frozen=True)
class Alignment:
    """A recording, and what a model made of it.

    Attributes:
        frames: [T,F], the features that it read.
        seconds: Length of the recording, and `position` that of a position.
        tokens: N recognised pieces, and `times` [N,2] when each begins and ends, seconds.
        probs: [S,V] of each position's labels, blank among them; None: of a model of fires.
        words: Ids of the tokens [N].
        blank: Id of the blank label.
        weights: [S] of a predictor of fires; None: of CTC.
        graph: The key `graph` of a trace, in place of tokens, probs and weights.
    """

    frames: FloatArray
    seconds: float
    position: float
    tokens: tuple[str, ...]
    times: _Times
    words: tuple[int, ...]
    probs: FloatArray | None = None
    blank: int | None = None
    weights: FloatArray | None = None
    graph: JsonObject | None = None

    @property
    def spoken(self) -> list[int]:
        """The different words of the tokens, in the order in which they come first."""
        return [*dict.fromkeys(self.words)]

    @property
    def other_probs(self) -> _Times:
        """Probability [S] of words that are not output, by position."""
        assert self.probs is not None
        assert self.blank is not None
        others: _Times = 1.0 - self.probs[:, [*self.spoken, self.blank]].sum(1, dtype=np.float64)
        return others

    @property
    def sums(self) -> _Times:
        """The weights' running sum [S]: a word fires whenever it has grown by 1."""
        assert self.weights is not None
        return np.cumsum(self.weights, dtype=np.float64)

    @property
    def fires(self) -> npt.NDArray[np.int64]:
        """The positions of the fires, ascending."""
        return np.flatnonzero(np.diff(np.floor(self.sums), prepend=0.0) > 0)


def align(model: Model, line: Given, tokens: Sequence[int], graph: JsonObject | None = None) -> Alignment:
    """Reads a recording once more, and finds where in it tokens were spoken.

    Those of CTC are aligned to its posteriors; those of a model of fires lie where its weights say.

    Args:
        line: The recording, or its path.
        tokens: Ids of an output, with eos or without; of CTC any words that the frames can say.
        graph: The key `graph` of the output's trace, where it has one.

    Raises:
        StrategyMismatchError: There is no graph, and the model has no frames, or tells not where they are.
        UsageError: There are more tokens than positions.
    """
    scorer = model.passes
    source = model.encode(line)  # type: ignore[arg-type]  # a recording in memory, too
    is_drawn = graph is not None or isinstance(scorer, FrameScorer)
    if not isinstance(source, FeatureSource) or not is_drawn:
        raise StrategyMismatchError(
            "a picture of speech needs a speech model with CTC or CIF, or the trace of a graph",
            fix="name a CTC model, a Paraformer, one with a CTC head, or trace a strategy of graphs",
        )
    config = model.config
    position = position_seconds(source, config.subsampling, config.labels_per_position)  # type: ignore[attr-defined]
    seconds = len(source) * source.shift / 1000
    if graph is not None:
        return Alignment(source.frames, seconds, position, (), np.zeros((0, 2)), (), graph=graph)
    vocab = scorer.vocab
    silent = {vocab.bos, vocab.pad, vocab.eos}
    words = tuple(token for token in tokens if token not in silent)
    probs = weights = None
    memory = scorer.encode([source])
    try:
        if scorer.blank is None:
            if not isinstance(scorer, FireScorer):
                raise StrategyMismatchError("the model has neither CTC nor CIF, so its words have no times")
            weights = scorer.weights(memory)[0].copy()
            times = cif_times(weights, len(words), position, margin=0.1)
        else:
            count = int(scorer.frames(memory)[0])
            logits = scorer.read_frames(memory, Want()).rows(range(count)).astype(np.float64)
            log_probs = logits - np.logaddexp.reduce(logits, 1, keepdims=True)
            times = aligned_times(log_probs, words, scorer.blank) * position
            probs = np.exp(log_probs).astype(np.float32)
    finally:
        scorer.free(memory)
    pieces = tuple(vocab.to_words(words))
    return Alignment(source.frames, seconds, position, pieces, times, words, probs, scorer.blank, weights)


def aligned_times(log_probs: _Times, words: Sequence[int], blank: int) -> _Times:
    """Spans of words [N] in the likeliest labelling: first position and the one after the last, [N,2].

    The Viterbi alignment of CTC (Graves et al. 2006, section 4.1, with a maximum in place of the sum).

    Args:
        log_probs: [S,V].

    Raises:
        UsageError: The positions are too few for the words.
    """
    states = [blank]
    for word in words:
        states += [word, blank]
    found = np.array(states)
    skips = np.zeros(len(states), bool)  # a blank between two words that differ
    skips[3::2] = found[3::2] != found[1:-2:2]
    score = np.full(len(states), -np.inf)
    score[0] = 0.0
    begin = score
    came = np.zeros((len(log_probs), len(states)), np.int64)
    for t, row in enumerate(log_probs):
        stay, step = begin, np.concatenate([[-np.inf], begin[:-1]])
        skip = np.where(skips, np.concatenate([[-np.inf, -np.inf], begin[:-2]])[: len(states)], -np.inf)
        options = np.stack([stay, step, skip if t else np.full(len(states), -np.inf)])
        came[t] = options.argmax(0)
        begin = options.max(0) + row[found]
    last = len(states) - 1
    if len(states) > 1 and begin[last - 1] > begin[last]:
        last -= 1
    if begin[last] == -np.inf:
        raise UsageError(f"{len(words)} tokens in {len(log_probs)} positions, too few to align them")
    times = np.zeros((len(words), 2))
    times[:, 0] = len(log_probs)
    for t in range(len(log_probs) - 1, -1, -1):
        if last % 2:
            times[last // 2] = min(times[last // 2, 0], t), max(times[last // 2, 1], t + 1)
        last -= int(came[t, last])
    return times


def plot_speech(found: Alignment, path: Path, form: str) -> None:
    """Draws the spectrogram with the tokens, and below it posteriors, weights or a graph: as png or svg.

    Raises:
        UsageError: The recording is longer than a minute.
    """
    require_short(found.seconds)
    figure = make_figure(max(6.0, 1.5 + _SECOND * found.seconds), 5.2)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.15, 1))
    _draw_spectrogram(above, found)
    if found.graph is not None:
        _draw_graph(below, found.graph, found.seconds)
    elif found.weights is not None:
        _draw_weights(below, found)
    else:
        _draw_probs(below, found)
    below.set_xlabel("seconds")
    below.set_xlim(0, found.seconds)
    save_figure(figure, path, form)


def for_page(found: Alignment) -> JsonObject:
    """The same as values for JSON, of which the page of a trace draws it.

    Keys: ``seconds`` of the recording and ``position`` of a position; ``bands`` F; ``image``, the spectrogram
    as a PNG in base64; ``tokens``, of each its text, begin and end, seconds, and ``spoken``'s index of its
    word; of CTC ``probs``, the posteriors [S] of each word of ``spoken``, with ``blank`` and ``other``; of
    fires ``weights`` [S], their ``sums`` since the last fire [S], and the positions of the ``fires``. Of a
    graph, which the page has, there is nothing more.

    Raises:
        UsageError: The recording is longer than a minute.
    """
    require_short(found.seconds)
    spoken = found.spoken
    times = np.round(found.times, 3).tolist()
    values: JsonObject = {
        "seconds": found.seconds,
        "position": found.position,
        "bands": found.frames.shape[1],
        "image": base64.b64encode(png(_shades(found.frames).T[::-1])).decode(),
        "tokens": [
            [piece, *time, spoken.index(word)]
            for piece, time, word in zip(found.tokens, times, found.words, strict=True)
        ],
    }
    if found.weights is not None:
        return values | {
            "weights": np.round(found.weights.astype(np.float64), 3).tolist(),
            "sums": np.round(found.sums % 1.0, 3).tolist(),
            "fires": found.fires.tolist(),
        }
    if found.graph is not None:
        return values
    assert found.probs is not None
    probs = np.round(found.probs.astype(np.float64).T, 3)
    return values | {
        "probs": probs[spoken].tolist(),
        "blank": probs[found.blank].tolist(),
        "other": np.round(found.other_probs, 3).tolist(),
    }


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Shades of grey [H,W], 0 black, as a PNG (ISO/IEC 15948)."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    height, width = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)  # 8 bits of grey
    rows = np.pad(pixels, ((0, 0), (1, 0)))  # before each row its filter: none
    data = zlib.compress(rows.tobytes(), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def _shades(frames: FloatArray) -> npt.NDArray[np.uint8]:
    """Features [T,F] as shades of grey, the loud ones dark."""
    low, high = _range(frames)
    loudness = (frames - low) / max(high - low, 1e-9)
    return np.round(255 * (1 - loudness.clip(0, 1))).astype(np.uint8)


def _range(frames: FloatArray) -> tuple[float, float]:
    """Values drawn white and black, without digital silence, which lies far below all sound."""
    sound = frames[frames > frames.min(0)]
    low, high = np.percentile(sound if sound.size else frames, _SHOWN)
    return float(low), float(high)


def require_short(seconds: float) -> None:
    """Raises UsageError for a recording that is too long for a picture."""
    if seconds > _MOST_SECONDS:
        raise UsageError(f"a picture of {seconds:.0f} s of sound", fix=f"draw {_MOST_SECONDS:.0f} s at most")


def _colour(found: Alignment, word: int) -> str:
    """Words that are neighbours differ."""
    return _COLOURS[found.spoken.index(word) % len(_COLOURS)]


def _draw_spectrogram(axes: Axes, found: Alignment) -> None:
    low, high = _range(found.frames)
    axes.imshow(
        found.frames.T,
        origin="lower",
        aspect="auto",
        cmap="Greys",
        vmin=low,
        vmax=high,
        extent=(0, found.seconds, 0, found.frames.shape[1]),
        interpolation="nearest",
        rasterized=True,
    )
    axes.set_ylabel("mel band")
    is_level = max(map(len, found.tokens), default=0) < _LONG
    for word, piece, (begin, end) in zip(found.words, found.tokens, found.times, strict=True):
        colour = _colour(found, word)
        axes.axvspan(begin, end, color=colour, alpha=0.25, linewidth=0)
        axes.axvline(begin, color=colour, linewidth=1)
        axes.annotate(
            piece.replace("$", r"\$"),
            ((begin + end) / 2, 1.02),
            xycoords=("data", "axes fraction"),
            ha="center" if is_level else "left",
            va="bottom",
            rotation=0 if is_level else 40,
            rotation_mode="anchor",
            fontsize="small",
            color=colour,
        )


def _draw_probs(axes: Axes, found: Alignment) -> None:
    assert found.probs is not None
    assert found.blank is not None
    centers = (np.arange(len(found.probs)) + 0.5) * found.position
    axes.plot(centers, found.probs[:, found.blank], color="#999999", linewidth=1, label="blank")
    for word in found.spoken:
        axes.fill_between(centers, found.probs[:, word], color=_colour(found, word), alpha=0.3, linewidth=0)
        axes.plot(centers, found.probs[:, word], color=_colour(found, word), linewidth=1.2)
    axes.plot(centers, found.other_probs, color="#999999", linewidth=1, linestyle=":", label="other words")
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("CTC posterior")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize="small")


def _draw_weights(axes: Axes, found: Alignment) -> None:
    assert found.weights is not None
    centers = (np.arange(len(found.weights)) + 0.5) * found.position
    axes.bar(centers, found.weights, found.position, color=_COLOURS[0], alpha=0.7, label="weight")
    axes.plot(centers, found.sums % 1.0, color="#999999", linewidth=1, label="sum since the last fire")
    axes.vlines(centers[found.fires], 0, 1.05, color=_COLOURS[4], linewidth=1, linestyle="--", label="fire")
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("CIF weight")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize="small")


def _draw_graph(axes: Axes, graph: JsonObject, seconds: float) -> None:
    """Draws a graph: the path's vertices with their words above, the others below, links between them."""
    from matplotlib.patches import FancyArrowPatch

    path = set(graph["path"])
    pairs = [*pairwise(graph["path"])]
    points = {
        vertex: ((vertex + 0.5) / graph["size"] * seconds, float(vertex in path))
        for vertex in graph["vertices"]
    }
    for begin, end, lprob in graph["links"]:
        is_step = (begin, end) in pairs
        level = points[begin][1] == points[end][1] and not is_step
        bend = (0.3 if points[begin][1] else -0.3) if level else 0.0
        axes.add_patch(
            FancyArrowPatch(
                points[begin],
                points[end],
                connectionstyle=f"arc3,rad={bend}",
                arrowstyle="-",
                color=_COLOURS[2] if is_step else "#999999",
                alpha=1.0 if is_step or lprob is None else max(0.15, math.exp(lprob)),
                linewidth=2.5 if is_step else 1.0,
                label="path" if is_step else "link",
            )
        )
    for on, colour, label in ((True, _COLOURS[2], "vertex of the path"), (False, "#999999", "other vertex")):
        chosen = [at for vertex, at in points.items() if (vertex in path) == on]
        if chosen:
            across, up = zip(*chosen, strict=True)
            axes.scatter(across, up, s=14, color=colour, label=label, zorder=3)
    for vertex, word in zip(graph["path"][1:], graph["emitted"], strict=True):
        axes.annotate(
            word.replace("$", r"\$"),
            points[vertex],
            (0, 7),
            textcoords="offset points",
            rotation=40,
            rotation_mode="anchor",
            fontsize="small",
        )
    axes.set_ylim(-0.5, 1.9)
    axes.set_yticks([])
    axes.set_ylabel(f"graph of {graph['size']} vertices")
    shown = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))  # each label once
    axes.legend(
        shown.values(), shown, loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize="small"
    )
