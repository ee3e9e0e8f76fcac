"""The outputs of recordings: no words where nobody speaks, and the times of words."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from nartk.protocols.hypothesis import Hypothesis, Result, without_words
from nartk.protocols.passes import FeatureSource, FloatArray
from nartk.serving.activity import is_speech, levels_of

if TYPE_CHECKING:
    from nartk.decoders.strategy import Decoding
    from nartk.serving.model import Model


def spoken(model: Model, source: FeatureSource, result: Result, name: str, strategy: Decoding) -> Result:
    """The result with times; without words, which is told, where nobody speaks in that recording."""
    reader = model.sound
    best, vocab = result.hypotheses[0], model.checkpoint.target_vocab
    is_timed = any(each.spans is not None for each in result.hypotheses)
    is_whole = model.levels is not None and model.buffers is None  # else buffer by buffer
    levels = None
    if reader is not None and (is_timed or is_whole):
        levels = levels_of(source.frames, reader.levels)
    words = [i for i, token in enumerate(best.tokens) if token not in vocab.ends]
    # CTC's score of the end is that of all pauses.
    scores = None if getattr(strategy, "fuses_scores", False) else best.positional_scores
    log_probs = None if scores is None else [scores[i] for i in words]
    is_silent = is_whole and not is_speech(levels, log_probs)
    is_known = model.levels is not None and (levels is not None or model.buffers is not None)
    if reader is not None and is_known and (is_silent or not words):
        reader.tell(f"{name!r} holds no speech")
    if is_silent:
        return replace(result, hypotheses=(without_words(best, vocab.eos),))
    padding = 0 if reader is None else reader.padding
    return _timed(model, source, result, levels, padding) if is_timed else result


def _timed(
    model: Model, source: FeatureSource, result: Result, levels: FloatArray | None, padding: int
) -> Result:
    """The result, with the times of its tokens where a strategy found out where they are.

    Args:
        levels: [T] of the source's frames, dB; None: they are not known.
        padding: Frames before the sound, and as many behind it.
    """
    from nartk.protocols.timestamps import position_seconds, word_times

    seconds = position_seconds(source, model.config.subsampling)  # type: ignore[attr-defined]
    # Times are those of the sound, which begins behind the padding.
    shift = source.shift / 1000
    before = padding * shift
    longest = len(source.frames) * shift - 2 * before

    def timed(hypothesis: Hypothesis) -> Hypothesis:
        if hypothesis.spans is None:
            return hypothesis
        times = np.array(hypothesis.spans, np.float64).reshape(-1, 2) * seconds
        if levels is not None:
            times = word_times(times, levels, shift)
        if padding:
            times = np.clip(times - before, [0.0, shift], [max(0.0, longest - shift), longest])
        return replace(hypothesis, times=tuple((float(a), float(b)) for a, b in times))

    return replace(result, hypotheses=tuple(map(timed, result.hypotheses)))
