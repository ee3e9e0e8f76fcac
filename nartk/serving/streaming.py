"""Speech as it comes: a text after every chunk of sound, the best there is by then.

A chunk is decoded when its look-ahead is there, in one buffer with what came before
(`nartk.serving.long_form`); its words stay. Words of the look-ahead are shown too, before it is a chunk
itself, and may be revised then.
Symbols: T frames, F features of a frame.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, takewhile
from time import perf_counter
from typing import IO, TYPE_CHECKING, cast

import numpy as np

from nartk.errors import StrategyMismatchError, named
from nartk.protocols.fires import Window
from nartk.protocols.hypothesis import Hypothesis
from nartk.protocols.outputs import NO_TEXT, Output
from nartk.protocols.parallel import FrameScorer, always_banned, silent_words
from nartk.protocols.passes import FeatureSource, FloatArray, Want
from nartk.protocols.reading import log_softmax
from nartk.serving.activity import Levels, is_speech
from nartk.serving.buffers import Buffers
from nartk.serving.long_form import carried_fires, kept_fires, positions_of, require_positions

if TYPE_CHECKING:
    from nartk.decoders.graphs.hotwords import Hotwords
    from nartk.decoders.hotwords import WithHotwords
    from nartk.serving.model import Model

CHUNK_MS, LEFT_MS, LOOK_AHEAD_MS = 640.0, 2560.0, 320.0  # of `stream`, where nothing else is said
_FOREVER = 2**62  # positions of a recording whose end has not come
_Spoken = list[tuple[int, int]]  # labels, or words, with the position of each


@dataclass(frozen=True)
class Partial:
    """The text of what has been heard so far.

    Attributes:
        tokens: Target ids, without eos.
        stable: Number of them, from the first on, that will not change.
        revised: Tokens at the end of the text before that are no longer in it; 0: it is a prefix of this one.
        audio_ms: Sound that has been read.
        seconds: Taken since the text before.
        is_last: True if the recording has ended.
        output: Form in which the tokens are written.
    """

    tokens: tuple[int, ...]
    stable: int
    revised: int
    audio_ms: float
    seconds: float
    is_last: bool
    output: Output = NO_TEXT

    @property
    def text(self) -> str:
        """The output as text."""
        return str(self.output)


@dataclass
class StreamStats:
    """Statistics of a stream.

    Attributes:
        audio_ms: Sound that was read.
        seconds: Computing time, without features and without waiting for sound, a number for each text.
        partials: Texts that were given.
        revised: Tokens that were taken back, in all of them.
        latencies_ms: Latency of each token, when the recording has ended: sound that was read after the
            position in which it begins, until it was first shown as it stayed. What computing takes comes on
            top, in `seconds`.
    """

    audio_ms: float = 0.0
    partials: int = 0
    revised: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def add(self, other: StreamStats) -> None:
        """Adds what another stream took."""
        for name in ("audio_ms", "partials", "revised", "latencies_ms", "seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def mean_latency_ms(self) -> float:
        return sum(self.latencies_ms) / len(self.latencies_ms) if self.latencies_ms else 0.0

    @property
    def real_time_factor(self) -> float:
        return 1000 * sum(self.seconds) / self.audio_ms if self.audio_ms else 0.0


class FrameStream:
    """Decodes a recording that comes bit by bit, by the likeliest labels of its frames.

    Args:
        scorer: Scorer of CTC, or of a Paraformer that tells where its words fire (`FireScorer`).
        buffers: Buffers that the recording is cut into; `Buffers.right` is the look-ahead.
        shift: Time from one frame to the next, ms.
        padding: Frames that come before the sound, and as many behind it.
        words, prompt: Word ids beside the frames of each buffer, same as in `FeatureSource`.
        stats: Statistics so far, which it updates.
        levels: Levels of frames, by which chunks without speech are left out; None: none is.
        hotwords: Words and phrases that are favoured, also where chunks meet.
    """

    def __init__(
        self,
        scorer: FrameScorer,
        buffers: Buffers,
        *,
        shift: float,
        padding: int = 0,
        words: tuple[int, ...] = (),
        prompt: tuple[int, ...] = (),
        stats: StreamStats | None = None,
        levels: Levels | None = None,
        hotwords: Hotwords | None = None,
    ) -> None:
        self.levels, self._hotwords = levels, hotwords
        self._hot = 0  # state of the hotwords after the words that stay
        self.scorer, self.buffers, self.shift = scorer, buffers, shift
        self.stats = StreamStats() if stats is None else stats
        self.padding = padding
        self._beside = words, prompt
        self._silent = silent_words(scorer.vocab, scorer.blank)
        self._carried = carried_fires(scorer) if scorer.blank is None else None
        self._frames: FloatArray | None = None  # from the frame `_dropped` on
        self._dropped = self._number = 0
        self._words: _Spoken = []  # that stay
        self._last_label = -1 if scorer.blank is None else scorer.blank  # of the frames that stay
        self._shown: list[int] = []
        self._stable = 0  # of them, will not change
        self._since: list[float] = []  # of each token that is shown, the sound read when it was first shown

    def accept(self, frames: FloatArray, *, is_sound: bool = True) -> Iterator[Partial]:
        """Reads frames [T,F] fp32, which are sound or padding; yields a text for each chunk they complete."""
        self._frames = frames if self._frames is None else np.concatenate([self._frames, frames])
        self.stats.audio_ms += len(frames) * self.shift * is_sound
        while True:
            window = self.buffers.window(self._number, _FOREVER)
            # At least a position is left for the last chunk, which `finish` reads.
            needed = Window(window.begin, max(window.end, window.last + 1), window.first, window.last)
            if self._dropped + len(self._frames) < self.buffers.frames_of(needed).stop:
                return
            yield self._advance(window)

    def finish(self) -> Iterator[Partial]:
        """Yields a text for each chunk that is left; the last one is of the whole recording."""
        total = self._dropped + (0 if self._frames is None else len(self._frames))
        count = self.buffers.positions(total)
        while (window := self.buffers.window(self._number, count)).last < count:
            yield self._advance(window)
        begun = perf_counter()
        if window.last > window.first:
            words, _ = self._read(window, is_last=True)
            self._words = self._joined(words)
        spoken = [word for word, _ in self._words]
        if self.scorer.blank is None:  # the first eos ends it
            eos = self.scorer.vocab.eos
            self._words = self._words[: len([*takewhile(lambda word: word != eos, spoken)])]
        yield self._partial([], begun, is_last=True)

    def _advance(self, window: Window) -> Partial:
        begun = perf_counter()
        kept, ahead = self._read(window, is_last=False)
        self._words = self._joined(kept)
        if self._hotwords is not None:
            labels = [label for label, _ in kept]
            _, self._hot = self._hotwords.bonus(
                labels, blank=self.scorer.blank, state=self._hot, last=self._last_label
            )
        if self.scorer.blank is not None:  # of a chunk that is left out nothing is kept
            self._last_label = kept[-1][0] if kept else self.scorer.blank
        self._number += 1
        following = self.buffers.window(self._number, _FOREVER).begin * self.buffers.subsampling
        if self._frames is not None:
            self._frames = self._frames[following - self._dropped :].copy()
        self._dropped = following
        return self._partial(ahead, begun, is_last=False)

    def _read(self, window: Window, *, is_last: bool) -> tuple[_Spoken, _Spoken]:
        """The labels or words of a chunk, and those of its look-ahead, with their positions."""
        assert self._frames is not None
        scorer, part = self.scorer, self.buffers.frames_of(window)
        frames = self._frames[part.start - self._dropped : part.stop - self._dropped]
        memory = scorer.encode([FeatureSource(np.ascontiguousarray(frames), self.shift, *self._beside)])
        try:
            if self._carried is None:
                (positions,) = positions_of(scorer, memory, [window])
                wanted = Want(banned=always_banned(self._silent, len(positions)))
                scores = scorer.read_frames(memory, wanted)
            else:
                of = self._carried.scorer
                (encoded,), (weights,) = of.encoded(memory), of.weights(memory)
                fires, positions = self._carried.fires(encoded, weights, window, is_last=is_last)
                wanted = Want(banned=always_banned(self._silent, len(fires)))
                scores = of.read_fires(memory, [fires], wanted)
            best = scores.best.copy()
            if self._hotwords is not None:
                is_own = positions >= window.first
                if scorer.blank is None and not is_last:  # an end that is none is no word between two
                    is_own &= best != scorer.vocab.eos
                own = np.flatnonzero(is_own)
                best[own] = self._favoured(scores.rows(own.astype(np.int32)))
        finally:
            scorer.free(memory)
        if scorer.blank is None:
            shown = Window(0, 0, window.first, window.end)
            index = kept_fires(best, positions, shown, scorer.vocab.eos, is_last=is_last)
        else:
            index = np.flatnonzero(positions >= window.first)
        if self.levels is not None and not is_speech(self.levels(frames)):
            index = index[:0]
        spoken = [*zip(best[index].tolist(), positions[index].tolist(), strict=True)]
        kept = [each for each in spoken if each[1] < window.last]
        return kept, spoken[len(kept) :]

    def _favoured(self, logits: FloatArray) -> list[int]:
        """The labels or words [N] of a chunk and its look-ahead, by logits [N,V], that hotwords favour."""
        assert self._hotwords is not None
        log_probs = log_softmax(logits)
        if self.scorer.blank is None:
            words, _ = self._hotwords.best(log_probs, eos=None, silent=self._silent, state=self._hot)
            return words
        labels, _ = self._hotwords.best_labels(
            log_probs, blank=self.scorer.blank, silent=self._silent, state=self._hot, last=self._last_label
        )
        return labels

    def _joined(self, spoken: _Spoken) -> _Spoken:
        """The words that stay with those of further labels."""
        blank = self.scorer.blank
        if blank is None:
            return [*self._words, *spoken]
        before = [self._last_label, *(label for label, _ in spoken)]
        return [
            *self._words,
            *(each for last, each in zip(before, spoken, strict=False) if each[0] not in (last, blank)),
        ]

    def _partial(self, ahead: _Spoken, begun: float, *, is_last: bool) -> Partial:
        stats, words = self.stats, self._joined(ahead)
        tokens = [word for word, _ in words]
        pairs = zip(self._shown[self._stable :], tokens[self._stable :], strict=False)
        common = self._stable + len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])
        revised = len(self._shown) - common
        self._since[common:] = [stats.audio_ms] * (len(tokens) - common)
        position, lead = self.shift * self.buffers.subsampling, self.padding * self.shift
        # A word that is shown again, but of sound that had not come, is another one.
        for i in range(self._stable, common):
            if self._since[i] < words[i][1] * position - lead:
                self._since[i] = stats.audio_ms
        self._shown, self._stable = tokens, len(tokens) if is_last else len(self._words)
        stats.partials += 1
        stats.revised += revised
        stats.seconds.append(perf_counter() - begun)
        if is_last:
            pairs_of = zip(self._since, words, strict=True)
            stats.latencies_ms = [since - (at * position - lead) for since, (_, at) in pairs_of]
        return Partial(
            tuple(tokens), self._stable, revised, stats.audio_ms, stats.seconds[-1], is_last=is_last
        )


def buffers_of(
    model: Model,
    *,
    chunk_ms: float = CHUNK_MS,
    left_ms: float = LEFT_MS,
    look_ahead_ms: float = LOOK_AHEAD_MS,
) -> Buffers:
    """Buffers that a model's recordings are cut into while they come; arguments and errors as in `stream`."""
    if not isinstance(model.passes, FrameScorer) or model.sound is None:
        raise StrategyMismatchError(
            "streaming needs a FrameScorer of sound, this model is none",
            fix="name a CTC model or a Paraformer of speech",
        )
    require_positions(model)
    if model.sound is not None and model.sound.fill:
        raise StrategyMismatchError(
            f"chunks with a model that reads {model.sound.fill:g} s of sound at a time",
            fix=f"decode whole recordings, long ones with {named('long_form', f'{model.sound.fill:g}')}",
        )
    buffers = Buffers.of_time(
        chunk_ms=chunk_ms,
        left_ms=left_ms,
        look_ahead_ms=look_ahead_ms,
        shift_ms=model.sound.settings.shift_ms,
        subsampling=model.config.subsampling,  # type: ignore[attr-defined]
        is_whole=False,
        covers=model.config.covers_frames,  # type: ignore[attr-defined]
    )
    buffers.require_fit(model.passes)
    return buffers


def stream(
    model: Model,
    sound: str | os.PathLike[str] | IO[bytes] | Iterable[FloatArray],
    *,
    chunk_ms: float = CHUNK_MS,
    left_ms: float = LEFT_MS,
    look_ahead_ms: float = LOOK_AHEAD_MS,
    strategy: WithHotwords | None = None,
    stats: StreamStats | None = None,
) -> Iterator[Partial]:
    """Yields texts of a recording while it is read; the last one is of all of it.

    Args:
        model: Model of CTC, or a Paraformer.
        sound: A path or line as `Model.decode` takes it, an open file such as ``sys.stdin.buffer``, of which
            nothing has been read, or blocks of features [T,F] as the model reads them.
        chunk_ms: Sound between two texts, whole positions of the model's encoder.
        left_ms: Sound before a chunk that the model sees with it.
        look_ahead_ms: Sound behind it that the model waits for.
        strategy: Result of `Model.strategy`; its hotwords are favoured, also where chunks meet. None: no
            words are.
        stats: Statistics, which it updates.

    Raises:
        StrategyMismatchError: The model has no frames that can be read by themselves.
        UsageError: A time is no whole number of positions, a buffer is too long for the model, or the
            features need the whole sound.
        InputFileError: The sound cannot be read, or is too short for the model.
    """
    buffers = buffers_of(model, chunk_ms=chunk_ms, left_ms=left_ms, look_ahead_ms=look_ahead_ms)
    reader, size = model.sound, buffers.subsampling  # frames of a position
    assert reader is not None  # else there are no buffers
    line, padding = "", 0
    if isinstance(sound, str | os.PathLike):
        line = os.fspath(sound)
        blocks, padding = reader.stream(line), reader.padding
    elif hasattr(sound, "read"):
        file = cast("IO[bytes]", sound)
        blocks, padding = reader.stream_open(file, size * reader.settings.shift_ms / 1000), reader.padding
    else:
        blocks = iter(sound)
    words, prompt = reader.beside(line)
    decoding = FrameStream(
        model.passes,
        buffers,
        shift=reader.settings.shift_ms,
        padding=padding,
        words=words,
        prompt=prompt,
        stats=stats,
        levels=model.levels,
        hotwords=None if strategy is None else strategy.automaton(model.passes.vocab),
    )
    # Padding comes in blocks of its own, of zeros. A file is read many seconds at a time: its sound is as
    # late as if it came by itself.
    parts = (
        decoding.accept(frames[begin : begin + size], is_sound=not padding or bool(frames.any()))
        for frames in blocks
        for begin in range(0, len(frames), size)
    )
    for found in chain(chain.from_iterable(parts), decoding.finish()):
        yield replace(found, output=model.checkpoint.output.write(Hypothesis(found.tokens)))
