"""Frame scorers over features that see only so far, so that buffers with enough context change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nartk.protocols.contexts import Handles
from nartk.protocols.passes import (
    FeatureSource,
    FloatArray,
    IntArray,
    Limits,
    Scores,
    Source,
    Want,
    features_of,
)
from nartk.protocols.timestamps import fire_spans
from nartk.vocab import Vocab
from support.parallel_drafters import LogitScores

FEATURES = 6
SHIFT = 10.0
EOS = 2


class LocalFrames:
    """Implements FrameScorer as CTC: positions by convolutions without padding, and a linear layer.

    Args:
        sees: Positions to either side that the labels of one depend on; beyond a source there are zeros.
        longest: Frames of a source, at most.

    Attributes:
        sizes: Frames of each source that was encoded.
    """

    blank: int | None = 0
    numerics = "local"

    def __init__(
        self, *, sees: int, subsampling: int = 4, words: int = 12, seed: int = 0, longest: int = 4000
    ) -> None:
        rng = np.random.default_rng(seed)
        self.vocab = Vocab.from_words([f"w{i}" for i in range(words - 4)])
        self.limits = Limits(longest, longest, words)
        self.sees, self.subsampling = sees, subsampling
        self.kernel = rng.normal(size=(2 * subsampling - 1, FEATURES))
        self.labels = rng.normal(size=(2 * sees + 1, words)) * 2
        self.sources: Handles[FeatureSource] = Handles("memory")
        self.sizes: list[int] = []

    def encode(self, sources: Sequence[Source]) -> IntArray:
        for frames in features_of(sources, FEATURES):
            assert 2 * self.subsampling - 1 <= len(frames) <= self.limits.source
            self.sizes.append(len(frames))
        return self.sources.add(sources)  # type: ignore[arg-type]

    def free(self, memory: Sequence[int] | IntArray) -> None:
        self.sources.remove(memory)

    @property
    def memories_in_use(self) -> int:
        return len(self.sources)

    def positions(self, source: FeatureSource) -> FloatArray:
        """[S] a number for each position."""
        size, s = len(self.kernel), self.subsampling
        windows = np.lib.stride_tricks.sliding_window_view(source.frames, size, axis=0)[::s]  # [S,F,size]
        return np.einsum("sfk,kf->s", windows, self.kernel).astype(np.float32)

    def logits(self, source: FeatureSource) -> FloatArray:
        """[S,V]."""
        padded = np.pad(self.positions(source), self.sees)
        seen = np.lib.stride_tricks.sliding_window_view(padded, 2 * self.sees + 1)
        logits = np.einsum("sk,kv->sv", seen, self.labels)
        if self.blank is not None:
            logits[:, self.blank] += 4
        words = np.zeros((len(source.words), len(self.vocab)))
        words[np.arange(len(words)), list(source.words)] = 99
        return np.concatenate([words, logits]).astype(np.float32)

    def of(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        """The logits of each source."""
        return [self.logits(self.sources[int(handle)]) for handle in memory]

    def frames(self, memory: Sequence[int] | IntArray) -> IntArray:
        return np.array([len(each) for each in self.of(memory)], np.int32)

    def read_frames(self, memory: Sequence[int] | IntArray, want: Want) -> Scores:
        return LogitScores(np.concatenate(self.of(memory)), want)


class LocalFires(LocalFrames):
    """Implements FireScorer as a Paraformer does whose weights are 0 or 1.

    Eos follows the last word, at the last position, and now and then a word in the middle.
    """

    blank = None

    def alphas(self, source: FeatureSource) -> FloatArray:
        """[S]."""
        found = (self.positions(source) > 1.0).astype(np.float32)
        found[-1] = 1.0
        return found

    def weights(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        return [self.alphas(self.sources[int(handle)]) for handle in memory]

    tail = 0.0

    def spans(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        return fire_spans(self.weights(memory), self.frames(memory))

    def encoded(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        """The logits of each position, which those of a fire are sums of."""
        found = []
        for handle in memory:
            logits = super().logits(self.sources[int(handle)])
            logits[:, EOS] = -9
            logits[-1, EOS] = 99
            found.append(logits)
        return found

    def of(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        rows = zip(self.encoded(memory), self.weights(memory), strict=True)
        return [logits[alphas > 0] for logits, alphas in rows]

    def read_fires(self, memory: Sequence[int] | IntArray, fires: Sequence[FloatArray], want: Want) -> Scores:
        return LogitScores(np.concatenate([*fires]), want)


class FractionalFires(LocalFires):
    """The same with weights between 0 and 1, as a Paraformer has: a word takes several."""

    tail = 0.4

    def alphas(self, source: FeatureSource) -> FloatArray:
        return (1 / (1 + np.exp(-self.positions(source) / 4))).astype(np.float32)

    def of(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        rows = zip(self.encoded(memory), self.weights(memory), strict=True)
        return [integrated(logits, alphas, self.tail) for logits, alphas in rows]


def integrated(encoded: FloatArray, weights: FloatArray, tail: float) -> FloatArray:
    """Continuous integrate-and-fire position by position, as FunASR's loop has it -> [N,D], N at least 1."""
    rows = [
        *zip(encoded.astype(np.float64), weights.tolist(), strict=True),
        (np.zeros(encoded.shape[1]), tail),
    ]
    weight, frame, found = 0.0, np.zeros(encoded.shape[1]), []
    for hidden, alpha in rows:
        if weight + alpha < 1.0 - 1e-9:
            weight, frame = weight + alpha, frame + alpha * hidden
        else:
            found.append(frame + (1.0 - weight) * hidden)
            weight = weight + alpha - 1.0
            frame = weight * hidden
    return np.array(found or [frame], np.float32)


def recording(seed: int, frames: int) -> FeatureSource:
    rng = np.random.default_rng(seed)
    return FeatureSource(rng.normal(size=(frames, FEATURES)).astype(np.float32), SHIFT)


def requests_of(sources: Sequence[FeatureSource]) -> list[Any]:
    from nartk.protocols.hypothesis import Request

    return [Request(i, source, 10**6) for i, source in enumerate(sources)]
