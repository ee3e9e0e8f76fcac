"""What every strategy is: options, limits, and the grouping of sentences into batches."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from nartk.hypothesis import Request, Result
from nartk.registry import option


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """Base of all strategies. `run` yields results as sentences finish; the order is not the input's.

    Attributes:
        helpers: Scorers of the other models that options name (`option(..., model=True)`), by option.
    """

    needs: ClassVar[type]
    promise: ClassVar[str]
    name: ClassVar[str]

    max_len: int = option(256, "longest output, tokens", low=1)
    max_ratio: float = option(2.0, "longest output per source token; ten tokens are added to it", low=0.0)
    exact: bool = option(True, "the same bits whatever the batch and the draft")
    helpers: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def promised(self) -> str:
        """What it promises with its options; `promise` is what it promises without any."""
        return self.promise

    def check_helpers(self) -> None:
        """Refuses helpers that are missing or of the wrong kind, before anything is decoded."""

    def for_run(self, scorer: Any) -> Strategy:
        """What decodes all batches of a run: itself, or a copy with what is learnt in the run."""
        return self

    def limit(self, source_len: int) -> int:
        """Longest output of a source of that many tokens (eos included in both)."""
        return min(self.max_len, int(min(self.max_ratio * source_len, self.max_len)) + 10)

    @torch.inference_mode()
    def run(
        self,
        scorer: Any,
        requests: Sequence[Request],
        *,
        batch_size: int,
        max_tokens: int | None = None,
        trace: bool = False,
    ) -> Iterator[Result]:
        """Decodes all requests, long sentences first.

        Args:
            batch_size: Most rows at a time.
            max_tokens: Most source tokens at a time, padding included; one row is always allowed.
            trace: Whether hypotheses carry one.
        """
        self.check_helpers()
        scorer = scorer.mode(exact=self.exact)
        strategy = self.for_run(scorer)
        groups: dict[Hashable, list[Request]] = {}
        for request in sorted(requests, key=lambda r: (-len(r.source), r.index)):
            groups.setdefault(scorer.bucket(len(request.source), request.max_len), []).append(request)
        for group in groups.values():
            rows = batch_size
            if max_tokens is not None:
                rows = max(1, min(rows, max_tokens // len(group[0].source)))
            yield from strategy.decode(scorer, group, rows, trace=trace)

    def decode(
        self, scorer: Any, requests: list[Request], batch_size: int, *, trace: bool
    ) -> Iterator[Result]:
        """Decodes requests of one bucket, at most `batch_size` at a time."""
        raise NotImplementedError
