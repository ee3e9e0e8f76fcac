"""The outputs of recordings: no words where nobody speaks, and the times of words."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nartk.protocols.hypothesis import Hypothesis, Result, without_words
from nartk.protocols.passes import FeatureSource, FloatArray
from nartk.protocols.prompts import Prompted
from nartk.serving.activity import is_speech, levels_of
from nartk.serving.transcripts import placed, with_words, within

ENGLISH = "en"  # which models of one language speak: no prompt names it

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
    padding = 0 if reader is None else reader.padding
    frames = len(source) - 2 * padding if source.sound is None else source.sound
    seconds = (frames if source.kept is None else source.kept.frames) * source.shift / 1000
    if is_silent:
        return replace(result, hypotheses=(replace(without_words(best, vocab.eos), seconds=seconds),))
    if is_timed:
        result = _timed(model, source, result, levels, padding)
    output, found = model.checkpoint.output, result.hypotheses
    if isinstance(output, Prompted) and not output.prompts.languages:
        result = replace(result, hypotheses=tuple(replace(each, language=ENGLISH) for each in found))
    if getattr(strategy, "word_timestamps", False):
        result = _with_words(model, source, result, strategy)
    found = result.hypotheses
    if source.kept is not None:
        found = tuple(placed(each, source.kept, source.shift / 1000) for each in found)
    return replace(result, hypotheses=tuple(within(each, seconds) for each in found))


def _with_words(model: Model, source: FeatureSource, result: Result, strategy: Any) -> Result:
    """The result, with the words of the best output's segments by the model's attention."""
    from nartk.serving.word_times import WordAligner, words_of

    output: Any = model.checkpoint.output
    best, *others = result.hypotheses
    codes = {id: code for code, id in output.prompts.languages.items()}
    language = next((codes[token] for token in result.prompt if token in codes), best.language)
    aligner = WordAligner(
        model.passes,
        output.prompts.asking(language if codes else "", strategy.task),
        layers=model.config.decoder_layers,  # type: ignore[attr-defined]
        heads=model.config.decoder_heads,  # type: ignore[attr-defined]
        spell=output.spelled,
        language=language,
    )
    segments = aligner.timed(source, best.segments)
    best = replace(best, segments=segments, words=words_of(segments), language=language)
    return replace(result, hypotheses=(best, *others))


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
        hypothesis = replace(hypothesis, times=tuple((float(a), float(b)) for a, b in times))
        return with_words(hypothesis, model.checkpoint.output)

    return replace(result, hypotheses=tuple(map(timed, result.hypotheses)))
