"""Outputs that are dictated token by token, so that a random model's cost what a real one's would.

A prefix would not do: it is read in one pass. Symbols: n scored tokens of a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np

from nartk.protocols.passes import CopiesSource, IntArray, Pass, PassScorer, Replicable, Source, Want
from nartk.protocols.wrapped import WrappedPasses, WrappedScores


class ForcedPasses(WrappedPasses):
    """A model whose best word is another one than it finds. Implements `nartk.protocols.passes.PassScorer`.

    Log-probabilities are those of the words that the model finds.

    Args:
        scorer: The model's scorer; it copies sources if that does.
        outputs: Output of each source, with eos; eos follows it.
    """

    def __init__(self, scorer: PassScorer, outputs: Mapping[tuple[int, ...], Sequence[int]]) -> None:
        super().__init__(scorer)
        if isinstance(scorer, CopiesSource):
            self.source_to_target = scorer.source_to_target
        self.outputs = outputs
        self._words: dict[int, IntArray] = {}  # by handles of sources

    def encode(self, sources: Sequence[Source]) -> IntArray:
        memory = super().encode(sources)
        for handle, source in zip(memory.tolist(), sources, strict=True):
            self._words[handle] = np.array(self.outputs[tuple(source)], np.int32)  # type: ignore[arg-type]
        return memory

    def free(self, memory: Sequence[int] | IntArray) -> None:
        super().free(memory)
        for handle in memory:
            del self._words[int(handle)]

    def run(self, work: Pass, want: Want) -> WrappedScores:
        scores = WrappedScores(self.scorer.run(work, want))
        only = slice(None) if want.only is None else want.only
        words = np.full(len(scores.best), self.vocab.eos, np.int32)
        for i, (memory, at) in enumerate(
            zip(work.memory[only].tolist(), work.positions[only].tolist(), strict=True)
        ):
            if at < len(self._words[memory]):
                words[i] = self._words[memory][at]
        scores.best = words
        if scores.top is not None:
            top, log_probs = scores.top.copy(), scores.top_log_probs.copy()
            top[:, 0], log_probs[:, 1:] = words, -np.inf
            scores.top, scores.top_log_probs = top, log_probs
        if scores.drawn is not None:
            scores.drawn = words
        return scores

    def replica(self, stopped: Callable[[], bool]) -> ForcedPasses:
        """Returns a replica, as `nartk.protocols.passes.Replicable` has it."""
        return ForcedPasses(cast(Replicable, self.scorer).replica(stopped), self.outputs)
