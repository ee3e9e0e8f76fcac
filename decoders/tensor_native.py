"""The base of the native decoders over tensors: batch after batch, all places at once.

Symbols: B rows, N outputs a row, T tokens of an output.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nartk.decoders.tensor_strategy import TensorStrategy
from nartk.errors import UsageError
from nartk.hypothesis import GraphTrace, Hypothesis, Request, Result, TokenTrace
from nartk.passes import texts_of
from nartk.rows import pad_rows
from nartk.scorer import Source


@dataclass(frozen=True)
class Found:
    """N outputs of each of B rows, best first.

    Attributes:
        tokens: [B,N,T] int64, eos at the end of each output.
        lengths: [B,N] int64, tokens that count; negative where a row has no further output.
        scores: [B,N] fp32, natural logarithm; what they are, the strategy says.
        positional: [B,N,T] fp32, log-probability of each token; None where the strategy has none.
        passes: How many times the model ran; [B] int64 where rows differ.
        passes_at: [B,N,T] int64, the pass that settled each token; None: the last.
        margins: [B,N,T] fp32, nats between the best and the second best word of each place.
    """

    tokens: Tensor
    lengths: Tensor
    scores: Tensor
    positional: Tensor | None
    passes: int | Tensor = 1
    passes_at: Tensor | None = None
    margins: Tensor | None = None

    def graphs(self, scorer: Any) -> Sequence[GraphTrace | None]:
        """What a trace shows of the graph of each row; None: there is none."""
        return [None] * len(self.lengths)


@dataclass(frozen=True)
class Asked(Source):
    """The sources of B requests.

    Attributes:
        requests: [B] int64, the index of each Request, which unlike its row does not depend on the batch.
    """

    requests: Tensor


@dataclass(frozen=True, kw_only=True)
class TensorNative(TensorStrategy):
    """Base of the strategies that ask a non-autoregressive model for a whole output. They are approximate.

    A subclass implements `search` for a batch. What it finds may not depend on the batch.
    """

    def search(self, scorer: Any, source: Asked, limits: Tensor) -> Found:
        """The outputs of sources; those longer than limits [B] tokens are cut by the caller."""
        raise NotImplementedError

    def decode(
        self, scorer: Any, requests: list[Request], batch_size: int, *, trace: bool
    ) -> Iterator[Result]:
        for request in requests:
            if request.prefix:
                raise UsageError(
                    f"strategy {self.name!r} cannot be made to begin with given words",
                    fix="leave the prefix out, or use a strategy that decodes from left to right",
                )
        for at in range(0, len(requests), batch_size):
            yield from self._batch(scorer, requests[at : at + batch_size], trace=trace)

    def _batch(self, scorer: Any, requests: list[Request], *, trace: bool) -> Iterator[Result]:
        start = time.perf_counter()
        device = scorer.device
        tokens = pad_rows(texts_of([request.source for request in requests]), scorer.vocab.pad).to(device)
        lengths = torch.tensor([len(request.source) for request in requests], device=device)
        limits = torch.tensor([request.max_len for request in requests], device=device)
        indices = torch.tensor([request.index for request in requests], device=device)
        found = self.search(scorer, Asked(tokens, lengths, indices), limits)
        counts, scores = found.lengths.tolist(), found.scores.tolist()
        words = found.tokens.tolist()
        positional = None if found.positional is None else found.positional.tolist()
        margins, passes_at = (
            None if values is None or not trace else values.tolist()
            for values in (found.margins, found.passes_at)
        )
        passes = found.passes.tolist() if isinstance(found.passes, Tensor) else [found.passes] * len(requests)
        seconds = time.perf_counter() - start
        graphs = found.graphs(scorer) if trace else [None] * len(requests)
        for i, request in enumerate(requests):
            hypotheses = []
            for j, count in enumerate(counts[i]):
                if count < 0:
                    break
                count = min(count, request.max_len)
                hypotheses.append(
                    Hypothesis(
                        tokens=tuple(words[i][j][:count]),
                        score=scores[i][j],
                        positional_scores=None if positional is None else tuple(positional[i][j][:count]),
                        trace=tuple(
                            TokenTrace(
                                "model",
                                passes[i] if passes_at is None else passes_at[i][j][k],
                                None if margins is None else margins[i][j][k],
                            )
                            for k in range(count)
                        )
                        if trace
                        else None,
                    )
                )
            yield Result(request.index, tuple(hypotheses), seconds, passes=passes[i], graph=graphs[i])
