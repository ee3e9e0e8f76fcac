"""Scores models of speech with the engine: passes (`protocols.passes`) and frames (`protocols.parallel`).

Symbols: B sources, T frames, F features of a frame, S positions of the encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nartk.engine.base import OnEngine
from nartk.engine.parallel_scorer import COPIED
from nartk.engine.scorer import PassEngine
from nartk.engine.speech_weights import depthwise
from nartk.engine.weights import Arrays, Weights
from nartk.errors import PassError
from nartk.protocols.passes import FloatArray, IntArray, Scores, Source, Want, features_of
from nartk.protocols.timestamps import fire_spans, frame_spans
from nartk.vocab import MASK, Vocab


class _SpeechEngine(OnEngine):
    """A model on the engine that reads frames."""

    def __init__(self, config: Any, arrays: Arrays, vocab: Vocab, **settings: Any) -> None:
        super().__init__(config, arrays, vocab, **settings)
        self._config = config

    def encode(self, sources: Sequence[Source]) -> IntArray:
        frames = features_of(sources, self._config.input_features)
        beside = [self._beside_frames(i, source) for i, source in enumerate(sources)]
        return self._engine.encode_speech(
            frames, [words for words, _ in beside], [prompt for _, prompt in beside]
        )

    def _beside_frames(self, index: int, source: Any) -> tuple[Sequence[int], Sequence[int]]:
        """The words in front of a source's frames and its prompt, as the engine reads them."""
        if source.words or source.prompt:
            raise PassError(f"source {index} has words beside its frames, which the model does not read")
        return (), ()

    @property
    def memories_in_use(self) -> int:
        """Encoded sources that were not freed."""
        return self._engine.memories_in_use


class WhisperEngine(_SpeechEngine, PassEngine):
    """Implements `nartk.protocols.passes.PassScorer` for a `nartk.models.whisper.Whisper`."""


class _CtcEngine(_SpeechEngine):
    """The CTC head of an encoder: implements `nartk.protocols.parallel.FrameScorer`."""

    blank: int | None = MASK

    def frames(self, memory: Sequence[int] | IntArray) -> IntArray:
        return self._engine.source_lengths(memory)

    def read_frames(self, memory: Sequence[int] | IntArray, want: Want) -> Scores:
        self._require_running()
        return self._engine.read_encoded(memory, want)

    def spans(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        return frame_spans(self.frames(memory), [0] * len(memory))


class ConformerEngine(_CtcEngine, PassEngine):
    """Implements `PassScorer` and `FrameScorer`, over one encoded source.

    For a `nartk.models.conformer.Conformer`.
    """


class OwsmCtcEngine(_CtcEngine):
    """Implements `nartk.protocols.parallel.FrameScorer` for a `nartk.models.owsm_ctc.OwsmCtc`."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._words: dict[int, int] = {}  # in front of the frames of each encoded source

    def replica(self, stopped: Callable[[], bool]) -> OwsmCtcEngine:
        other = super().replica(stopped)
        other._words = {}
        return other

    def encode(self, sources: Sequence[Source]) -> IntArray:
        memory = super().encode(sources)
        rows: Any = zip(memory.tolist(), sources, strict=True)
        self._words |= {handle: len(source.words) for handle, source in rows}
        return memory

    def free(self, memory: Sequence[int] | IntArray) -> None:
        super().free(memory)
        for handle in memory:
            del self._words[int(handle)]

    def spans(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        return frame_spans(self.frames(memory), [self._words[int(handle)] for handle in memory])

    def _beside_frames(self, index: int, source: Any) -> tuple[Sequence[int], Sequence[int]]:
        config = self._config
        if (source.words and not config.words_in_front) or (source.prompt and not config.prompt_layers):
            return super()._beside_frames(index, source)
        return source.words, (MASK, *source.prompt) if config.prompt_layers else ()


class ParaformerEngine(_SpeechEngine):
    """Implements `nartk.protocols.parallel.FrameScorer` for a `nartk.models.paraformer.Paraformer`.

    Its frames are the predictor's fires, each of which says a word.
    """

    blank: int | None = None

    @property
    def tail(self) -> float:
        found: float = self._config.tail_threshold
        return found

    def _beside(self, config: Any, arrays: Arrays) -> dict[str, Any]:
        weights = Weights(arrays, "fp32")
        if config.predictor == "depthwise":
            taps = {"fire_depthwise": depthwise(weights, "cif.conv")}
        else:
            taps = {"fire_taps": weights.convolution("cif.conv")}
        return taps | {
            "copied": "fires",
            "frames": 1,
            "temperature": 1.0,
            "fire_out": weights.linear("cif.out"),
            "tail": config.tail_threshold,
        }

    def frames(self, memory: Sequence[int] | IntArray) -> IntArray:
        return self._engine.fires(memory)

    def read_frames(self, memory: Sequence[int] | IntArray, want: Want) -> Scores:
        self._require_running()
        counts = self.frames(memory)
        return self._engine.fill(memory, counts, np.full(counts.sum(), COPIED, np.int32), want)

    def read_fires(self, memory: Sequence[int] | IntArray, fires: Sequence[FloatArray], want: Want) -> Scores:
        self._require_running()
        counts = np.array([len(each) for each in fires], np.int32)
        words = np.full(counts.sum(), COPIED, np.int32)
        return self._engine.fill(memory, counts, words, want, np.concatenate([*fires]))

    def encoded(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        return [self._engine.output(int(handle)) for handle in memory]

    def spans(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        return fire_spans(self.weights(memory), self.frames(memory))

    def weights(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        """The weights [S] of each source's positions, whose running sum fires at whole numbers."""
        return [self._engine.fire_weights(int(handle)) for handle in memory]
