"""Scores given outputs: what a model thinks of them, instead of what it says."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, ClassVar

from nartk.decoders.native import in_batches
from nartk.decoders.rerank import teacher_forced
from nartk.protocols.guarantee import Guarantee, Promise
from nartk.protocols.hypothesis import Hypothesis, Request, Result
from nartk.protocols.passes import PassScorer


@dataclass(frozen=True)
class Scoring:
    """Gives each of a request's targets the log-probability of an autoregressive model, by teacher forcing.

    It runs in a strategy's place and has no options. The targets of a batch share passes of up to a thousand
    tokens. On the engine an output of greedy search has greedy search's scores, bit for bit, in any batch.

    Attributes:
        beginning: What the model's outputs are forced to begin with, which counts 0, as in greedy search.
    """

    name: ClassVar[str] = "score"
    needs: ClassVar[type] = PassScorer
    promised: ClassVar[Promise] = Promise(Guarantee.IDENTICAL, "greedy search's scores of its own outputs")

    beginning: tuple[int, ...] = ()
    auxiliary: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def limit(self, source_len: int) -> int:
        """Longest output of a source: the model's own bound alone."""
        return sys.maxsize

    def run(
        self,
        scorer: PassScorer,
        requests: Sequence[Request],
        *,
        batch_size: int,
        max_tokens: int | None = None,
        trace: bool = False,
    ) -> Iterator[Result]:
        """Yields results, whose hypotheses are the targets in their order; arguments as `Strategy.run`."""
        for batch in in_batches(requests, batch_size, max_tokens):
            start = perf_counter()
            owners = [i for i, request in enumerate(batch) for _ in request.targets]
            targets = [target for request in batch for target in request.targets]
            found = iter(teacher_forced(scorer, [request.source for request in batch], owners, targets))
            seconds = perf_counter() - start
            for request in batch:
                scored = [(target, self._unforced(next(found).tolist())) for target in request.targets]
                hypotheses = tuple(Hypothesis(target, math.fsum(each), each) for target, each in scored)
                yield Result(request.index, hypotheses, seconds, passes=1)

    def _unforced(self, log_probs: list[float]) -> tuple[float, ...]:
        count = len(self.beginning)
        return (*[0.0] * count, *log_probs[count:])
