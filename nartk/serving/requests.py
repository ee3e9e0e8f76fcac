"""Makes requests of sentences: source, prefix, drafts and targets in the model's words."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nartk.errors import InputFormatError, InputTooLongError, named
from nartk.processors.text import unknown_words
from nartk.protocols.hypothesis import Request
from nartk.protocols.passes import FeatureSource, Source
from nartk.protocols.sources import Given
from nartk.registry import reads_any_length, reads_sound_alone

if TYPE_CHECKING:
    from nartk.data.audio.voice import Detector
    from nartk.decoders.strategy import Decoding
    from nartk.serving.model import Model


def made_request(
    model: Model,
    index: int,
    line: Given,
    strategy: Decoding,
    *,
    prefix: str = "",
    drafts: Sequence[str] = (),
    targets: Sequence[str] = (),
    truncate: bool = False,
    trace: bool = False,
) -> Request:
    """Makes a decoder's request for a sentence as the model reads it.

    Raises:
        InputTooLongError: The sentence, or a target, has more tokens than the model has positions.
        InputFormatError: The model cannot write the prefix.
    """
    most = sys.maxsize if reads_any_length(strategy) else model.config.max_source_len
    reader, vad = model.sound, getattr(strategy, "vad", "")
    source: Source
    if vad and isinstance(line, FeatureSource):
        raise InputFormatError(f"features with {named('vad', vad)}, which hears sound", fix="give sound")
    if model.reads_text and not isinstance(line, str):
        raise InputFormatError(f"the source is {line}, but the model reads text", fix="give text")
    if isinstance(line, FeatureSource):
        source = _features(model, line, most if model.buffers is None else sys.maxsize)
    elif reader is None:
        if not isinstance(line, str):
            raise InputFormatError(f"the source is {line}, but the model reads features", fix="give these")
        source = model.checkpoint.input.read(line, longest=most, truncate=truncate)
    elif model.buffers is None and reads_sound_alone(strategy):
        source = reader.read_sound(line, _detector(vad))
    elif model.buffers is None:
        source = reader.read(line, longest=most, truncate=truncate)
    else:
        from nartk.serving.long_form import read_long

        source = read_long(reader, line, model.buffers)
    if model.buffers is None:
        longest = min(strategy.limit(len(source)), model.max_target_len)
    else:
        longest = len(source) + 1  # an output of buffers has any length
    write = model.checkpoint.output.encode
    begin = strategy.beginning

    def begun(text: str) -> tuple[int, ...]:
        return *begin, *write(text)

    forced = begun(prefix)[:longest] if prefix else ()
    if model.checkpoint.target_vocab.unk in forced:
        unwritten = ", ".join(map(repr, unknown_words(model.checkpoint.output, prefix)))
        raise InputFormatError(
            f"the prefix holds {unwritten}, which the model cannot write",
            fix="take it out of the prefix",
        )
    # What lies beyond the output's longest end is hardly ever reached. The order is kept.
    drafted = dict.fromkeys(begun(draft)[:longest] for draft in drafts if draft)
    scored = tuple((*begun(target), model.checkpoint.target_vocab.eos) for target in targets)
    for number, target in enumerate(scored, start=1):
        if len(target) > longest:
            which = f"output {number} has " if len(scored) > 1 else "the output has "
            raise InputTooLongError(
                f"{which}{len(target) - 1} tokens > {longest - 1}",
                fix="split the line and its output, or leave both out",
            )
    after: tuple[int, ...] = ()
    if prefix.endswith(" ") and forced and not model.checkpoint.output.decode(forced).endswith(" "):
        after = model.inside_words
    drafted_words = tuple(filter(None, drafted))
    listens = model.vad and reads_any_length(strategy)
    return Request(index, source, longest, forced, drafted_words, scored, listens, after, trace)


def _detector(name: str) -> Detector | None:
    if not name:
        return None
    from nartk.data.audio.voice import detector

    return detector(name)


def _features(model: Model, source: FeatureSource, most: int) -> FeatureSource:
    """Features that a user gave, as the model reads them."""
    bins = model.config.input_features  # type: ignore[attr-defined]
    if source.frames.ndim != 2 or source.frames.shape[1] != bins:
        raise InputFormatError(
            f"features of shape {source.frames.shape}, the model reads [frames, {bins}]",
            fix="compute them as the model's config.json says",
        )
    if len(source) > most:
        raise InputTooLongError(f"{len(source)} frames > {most}", fix="split the recording")
    return source
