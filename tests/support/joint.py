"""Scripted models that speak two protocols: a table that scores passes, and frames of the same sources."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nartk.decoders.ctc_draft import CtcDraft
from nartk.protocols.passes import FloatArray, IntArray, Scores, Want
from nartk.protocols.runs import Batching, Run
from support.parallel_drafters import KnowingFrames, LogitScores
from support.real_passes import RealPasses

BLANK = 0
LM = """\\data\\
ngram 1=6
ngram 2=3

\\1-grams:
-1.1 <s> -0.3
-0.9 </s>
-1.4 <unk>
-0.5 w0 -0.2
-0.8 w1 -0.6
-2.0 w2 -0.1

\\2-grams:
-0.3 <s> w0
-0.2 w0 w1
-0.6 w1 </s>

\\end\\
"""


class JointPasses(RealPasses):
    """Implements PassScorer and FrameScorer; frames are random, but the same for a source.

    Args:
        frames: Gives how many frames a source has.

    Attributes:
        read: How many sources each call of `read_frames` was given.
    """

    blank: int | None = BLANK

    def __init__(self, words: int, *, seed: int, frames: Callable[[int], int] = lambda size: size) -> None:
        super().__init__(words, seed=seed)
        self.seed, self.count = seed, frames
        self.read: list[int] = []

    def frames(self, memory: Sequence[int] | IntArray) -> IntArray:
        return np.array([self.count(len(self.sources[int(handle)])) for handle in memory], np.int32)

    def frame_logits(self, source: Sequence[int]) -> FloatArray:
        """[T,V] of a source's frames."""
        rng = np.random.default_rng([self.seed, *source])
        return rng.normal(scale=2, size=(self.count(len(source)), len(self.vocab))).astype(np.float32)

    def read_frames(self, memory: Sequence[int] | IntArray, want: Want) -> Scores:
        self.read.append(len(memory))
        logits = [self.frame_logits(self.sources[int(handle)]) for handle in memory]
        return LogitScores(np.concatenate(logits), want)


class WithHead:
    """A verifier, with the frames of a scripted model of its own as its CTC head.

    Args:
        head: Knows outputs by source.
    """

    def __init__(self, scorer: Any, head: KnowingFrames) -> None:
        self.scorer, self.head, self.blank = scorer, head, head.blank
        self._sources: dict[int, Any] = {}  # by handle

    def __getattr__(self, name: str) -> Any:
        return getattr(self.scorer, name)

    def encode(self, sources: Sequence[Any]) -> IntArray:
        memory: IntArray = self.scorer.encode(sources)
        self._sources |= {
            handle: tuple(source) for handle, source in zip(memory.tolist(), sources, strict=True)
        }
        return memory

    def frames(self, memory: Sequence[int] | IntArray) -> IntArray:
        return self._in_head(memory, self.head.frames)

    def read_frames(self, memory: Sequence[int] | IntArray, want: Want) -> Scores:
        return self._in_head(memory, lambda own: self.head.read_frames(own, want))

    def _in_head(self, memory: Sequence[int] | IntArray, read: Callable[[IntArray], Any]) -> Any:
        own = self.head.encode([self._sources[int(handle)] for handle in memory])
        try:
            return read(own)
        finally:
            self.head.free(own)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WithOwnHead(CtcDraft):
    """`ctc-draft` with a verifier that has no CTC head, and is given one for the test."""

    head: Any

    def begin(self, scorer: Any, batching: Batching) -> Run:
        return super().begin(WithHead(scorer, self.head), batching)


def with_own_head(words: int, answers: Mapping[tuple[int, ...], Sequence[int]], **options: Any) -> Any:
    """`ctc-draft` with a head that knows these outputs by source."""
    return WithOwnHead(head=KnowingFrames(words, answers), adaptive=False, **options)
