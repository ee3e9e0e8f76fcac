"""Scores given outputs under a model by teacher forcing, without decoding."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import ClassVar

from nartk.decoders.rerank import teacher_forced
from nartk.decoders.strategy import Decoding
from nartk.protocols.guarantee import Guarantee, Promise
from nartk.protocols.hypothesis import Hypothesis, Request, Result
from nartk.protocols.passes import PassScorer
from nartk.protocols.runs import Batching, BatchRun, Run


@dataclass(frozen=True, kw_only=True)
class Scoring(Decoding):
    """Gives each of a request's targets the log-probability of an autoregressive model, by teacher forcing.

    It runs in a strategy's place and has no options. The targets of a batch share passes of up to a thousand
    tokens. On the engine an output of greedy search has greedy search's scores, bit for bit, in any batch.

    Attributes:
        begins: The tokens that the model's outputs are forced to begin with, which count 0, as in greedy
            search.
    """

    name: ClassVar[str] = "score"
    needs: ClassVar[type | tuple[type, ...]] = PassScorer
    promise: ClassVar[Promise] = Promise(Guarantee.IDENTICAL, "greedy search's scores of its own outputs")

    begins: tuple[int, ...] = ()

    @property
    def beginning(self) -> tuple[int, ...]:
        return self.begins

    def limit(self, source_len: int) -> int:
        """Longest output of a source: the model's own bound alone."""
        return sys.maxsize

    def begin(self, scorer: PassScorer, batching: Batching) -> Run:
        """Begins a run, whose hypotheses are the targets in their order."""
        return BatchRun(partial(self._batch, scorer), batching)

    def _batch(self, scorer: PassScorer, requests: Sequence[Request]) -> Iterator[Result]:
        start = perf_counter()
        owners = [i for i, request in enumerate(requests) for _ in request.targets]
        targets = [target for request in requests for target in request.targets]
        found = iter(teacher_forced(scorer, [request.source for request in requests], owners, targets))
        seconds = perf_counter() - start
        for request in requests:
            scored = [(target, self._unforced(next(found).tolist())) for target in request.targets]
            hypotheses = tuple(Hypothesis(target, math.fsum(each), each) for target, each in scored)
            yield Result(request.index, hypotheses, seconds, passes=1)

    def _unforced(self, log_probs: list[float]) -> tuple[float, ...]:
        count = len(self.begins)
        return (*[0.0] * count, *log_probs[count:])
