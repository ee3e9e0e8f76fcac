"""What a model of speech heard where: its posteriors and weights under the spectrogram, with the tokens.

Symbols: T frames, F features of a frame, S positions of the encoder, N tokens, V words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from nartk.errors import StrategyMismatchError, UsageError
from nartk.parallel import FireScorer, FrameScorer
from nartk.passes import FeatureSource, FloatArray, Want
from nartk.timestamps import cif_times, position_seconds
from nartk.tracing.plot import make_figure, save_figure

if TYPE_CHECKING:
    from nartk.pipeline import Model

_Times = npt.NDArray[np.float64]
# Okabe and Ito's colours, which colour-blind readers tell apart; blank and what is not output are grey.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9")
_SECOND = 2.2  # inches of a second of sound
_MOST_SECONDS = 60.0
_LONG = 4  # letters of a token, from which on they are written aslant


@dataclass(frozen=True)
class Heard:
    """A recording, and what a model made of it.

    Attributes:
        frames: [T,F], the features that it read.
        seconds: Of the recording, and `position` of a position.
        tokens: N recognised pieces, and `times` [N,2] when each begins and ends, seconds.
        probs: [S,V] of each position's labels, blank among them; None: of a model of fires.
        words: Ids of the tokens [N].
        blank: Of the labels.
        weights: [S] of a predictor of fires; None: of CTC.
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


def heard(model: Model, line: str, tokens: Sequence[int]) -> Heard:
    """Reads a recording once more, and finds where in it tokens were spoken.

    Those of CTC are aligned to its posteriors; those of a model of fires lie where its weights say.

    Args:
        line: Names the recording, as `Model.decode` takes it.
        tokens: Ids of an output, with eos or without; of CTC any words that the frames can say.

    Raises:
        StrategyMismatchError: The model has no frames, or does not tell where they are.
        UsageError: There are more tokens than positions.
    """
    scorer: Any = model.passes
    source = model.encode(line)
    if not isinstance(scorer, FrameScorer) or not isinstance(source, FeatureSource):
        raise StrategyMismatchError(
            "a picture of speech needs a FrameScorer of sound, this model is none",
            fix="name a CTC model, a Paraformer, or one with a CTC head",
        )
    vocab = scorer.vocab
    silent = {vocab.bos, vocab.pad, vocab.eos}
    words = tuple(token for token in tokens if token not in silent)
    position = position_seconds(source, model.config.subsampling)  # type: ignore[attr-defined]
    probs = weights = None
    memory = scorer.encode([source])
    try:
        if scorer.blank is None:
            if not isinstance(scorer, FireScorer):
                raise StrategyMismatchError("the model does not tell where its words are")
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
    seconds, blank = len(source) * source.shift / 1000, scorer.blank
    return Heard(source.frames, seconds, position, pieces, times, words, probs, blank, weights)


def aligned_times(log_probs: _Times, words: Sequence[int], blank: int) -> _Times:
    """Where the likeliest labelling of words [N] has each: first position and the one behind the last, [N,2].

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
        raise UsageError(f"{len(words)} tokens in {len(log_probs)} positions, which are too few for them")
    times = np.zeros((len(words), 2))
    times[:, 0] = len(log_probs)
    for t in range(len(log_probs) - 1, -1, -1):
        if last % 2:
            times[last // 2] = min(times[last // 2, 0], t), max(times[last // 2, 1], t + 1)
        last -= int(came[t, last])
    return times


def plot_speech(found: Heard, path: Path, form: str) -> None:
    """Draws the spectrogram with the tokens, and below it posteriors or weights, as `form`, png or svg.

    Raises:
        UsageError: The recording is longer than a minute.
    """
    if found.seconds > _MOST_SECONDS:
        raise UsageError(
            f"a picture of {found.seconds:.0f} s of sound", fix=f"draw {_MOST_SECONDS:.0f} s at most"
        )
    figure = make_figure(max(6.0, 1.5 + _SECOND * found.seconds), 5.2)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.15, 1))
    _draw_spectrogram(above, found)
    if found.weights is not None:
        _draw_weights(below, found)
    else:
        _draw_probs(below, found)
    below.set_xlabel("seconds")
    below.set_xlim(0, found.seconds)
    save_figure(figure, path, form)


def _colour(found: Heard, word: int) -> str:
    """Words that are neighbours differ."""
    return _COLOURS[[*dict.fromkeys(found.words)].index(word) % len(_COLOURS)]


def _draw_spectrogram(axes: Any, found: Heard) -> None:
    low, high = np.percentile(found.frames, (2, 99.5))
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


def _draw_probs(axes: Any, found: Heard) -> None:
    assert found.probs is not None
    assert found.blank is not None
    centers = (np.arange(len(found.probs)) + 0.5) * found.position
    axes.plot(centers, found.probs[:, found.blank], color="#999999", linewidth=1, label="blank")
    spoken = [*dict.fromkeys(found.words)]
    for word in spoken:
        axes.fill_between(centers, found.probs[:, word], color=_colour(found, word), alpha=0.3, linewidth=0)
        axes.plot(centers, found.probs[:, word], color=_colour(found, word), linewidth=1.2)
    rest = 1 - found.probs[:, [*spoken, found.blank]].sum(1)
    axes.plot(centers, rest, color="#999999", linewidth=1, linestyle=":", label="other words")
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("CTC posterior")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize="small")


def _draw_weights(axes: Any, found: Heard) -> None:
    assert found.weights is not None
    centers = (np.arange(len(found.weights)) + 0.5) * found.position
    sums = np.cumsum(found.weights, dtype=np.float64)
    axes.bar(centers, found.weights, found.position, color=_COLOURS[0], alpha=0.7, label="weight")
    axes.plot(centers, sums % 1.0, color="#999999", linewidth=1, label="sum since the last fire")
    fires = np.flatnonzero(np.diff(np.floor(sums), prepend=0.0) > 0)
    axes.vlines(centers[fires], 0, 1.05, color=_COLOURS[4], linewidth=1, linestyle="--", label="fire")
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("CIF weight")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize="small")
