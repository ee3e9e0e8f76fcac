"""The base of the native decoders of non-autoregressive models: batch after batch, all places at once.

Symbols: B sentences, T tokens of an output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from time import perf_counter
from typing import Any

from nartk.decoders.strategy import Strategy
from nartk.errors import UsageError
from nartk.protocols.hypothesis import GraphTrace, Hypothesis, Request, Result, TokenTrace
from nartk.protocols.parallel import Graph, MelScorer
from nartk.protocols.passes import FloatArray, IntArray
from nartk.protocols.runs import Batching, BatchRun, Run


@dataclass(frozen=True)
class NativeOutput:
    """One output of a sentence, eos at its end.

    Attributes:
        tokens: [T].
        score: Natural logarithm; what it is, the strategy says.
        log_probs: [T] of each token; None where the strategy has none.
        passes_at: [T], the pass that settled each token, from 1; None: the last.
        margins: [T], nats between the best and the second best word of each place; None: not known.
        spans: [T-1], where each token but eos begins and ends, positions of the encoder; None: not known.
        vertices: [T], the vertex of the graph that each token is at, of equal ones output as one the first;
            None: there is no graph, or no one path.
    """

    tokens: Sequence[int]
    score: float
    log_probs: Sequence[float] | None = None
    passes_at: Sequence[int] | None = None
    margins: Sequence[float] | None = None
    spans: Sequence[tuple[float, float]] | None = None
    vertices: Sequence[int] | None = None


@dataclass(frozen=True)
class Found:
    """Outputs that were found for a sentence.

    Attributes:
        outputs: Best first.
        passes: Passes of the model that it took part in.
        graph: The graph that they were found in, of whose features speech is made; None: there is none.
        trace: Gives what a trace shows of that graph.
    """

    outputs: Sequence[NativeOutput]
    passes: int = 1
    graph: Graph | None = None
    trace: Callable[[], GraphTrace] | None = None


@dataclass(frozen=True, kw_only=True)
class WholeOutputs(Strategy):
    """Base of the strategies that give whole outputs, a batch at a time.

    A subclass implements `decode`. What it gives may not depend on the batch.
    """

    def decode(self, scorer: Any, requests: Sequence[Request]) -> Iterator[Result]:
        """Yields the result of each request of a batch."""
        raise NotImplementedError

    def begin(self, scorer: Any, batching: Batching) -> Run:
        return BatchRun(partial(self.decode, scorer), batching, self._check)

    def _check(self, request: Request) -> None:
        if request.prefix:
            raise UsageError(
                f"strategy {self.name!r} cannot be made to begin with given words",
                fix="leave the prefix out, or use a strategy that decodes from left to right",
            )


@dataclass(frozen=True, kw_only=True)
class Native(WholeOutputs):
    """Base of the strategies that ask a non-autoregressive model for a whole output. They are approximate.

    A subclass implements `search` for a batch.
    """

    def search(self, scorer: Any, memory: IntArray, requests: Sequence[Request]) -> Sequence[Found]:
        """Finds outputs of B sentences, encoded as memory [B]; what is too long is cut by the caller."""
        raise NotImplementedError

    def decode(self, scorer: Any, requests: Sequence[Request]) -> Iterator[Result]:
        start = perf_counter()
        memory = scorer.encode([request.source for request in requests])
        try:
            found = self.search(scorer, memory, requests)
        finally:
            scorer.free(memory)
        mels = spectrograms_of(scorer, requests, found) if isinstance(scorer, MelScorer) else repeat(None)
        seconds = perf_counter() - start
        for request, each in zip(requests, found, strict=True):
            trace = request.trace
            hypotheses = (
                replace(_hypothesis(output, request.max_len, each.passes, trace), mel=next(mels))
                for output in each.outputs
            )
            graph = None if each.trace is None or not trace else each.trace()
            yield Result(request.index, tuple(hypotheses), seconds, passes=each.passes, graph=graph)


def spectrograms_of(
    scorer: MelScorer, requests: Sequence[Request], found: Sequence[Found]
) -> Iterator[FloatArray | None]:
    """The spectrogram of each output of each sentence, in one call; None of an output without a path.

    The features are those of its tokens' vertices, of equal ones output as one the first, and behind them
    those of the last vertex, eos's, as in training. The authors' Viterbi keeps the last and leaves eos out.
    """
    paths: list[FloatArray | None] = []
    for request, each in zip(requests, found, strict=True):
        for output in each.outputs:
            if each.graph is None or output.vertices is None:
                paths.append(None)
                continue
            last = len(each.graph) - 1
            vertices = [vertex for vertex in output.vertices[: request.max_len] if vertex != last]
            paths.append(each.graph.features_of([*vertices, last]))
    made = iter(scorer.spectrograms([path for path in paths if path is not None]))
    return (None if path is None else next(made) for path in paths)


def _hypothesis(output: NativeOutput, longest: int, passes: int, trace: bool) -> Hypothesis:
    count = min(len(output.tokens), longest)
    traced = None
    if trace:
        passes_at = [passes] * count if output.passes_at is None else output.passes_at
        margins = [None] * count if output.margins is None else output.margins
        traced = tuple(TokenTrace("model", passes_at[i], margins[i]) for i in range(count))
    return Hypothesis(
        tokens=tuple(output.tokens[:count]),
        score=output.score,
        positional_scores=None if output.log_probs is None else tuple(output.log_probs[:count]),
        trace=traced,
        spans=None if output.spans is None else tuple(output.spans[:count]),
        vertices=None if output.vertices is None else tuple(output.vertices[:count]),
    )
