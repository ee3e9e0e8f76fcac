"""Base of the strategies over tensors: groups sentences into batches that their scorer can share."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from nartk.decoders.strategy import Strategy
from nartk.hypothesis import Request, Result


@dataclass(frozen=True, kw_only=True)
class TensorStrategy(Strategy):
    """Base of strategies whose scorers have modes and buckets."""

    exact: ClassVar[bool] = True  # there is no other mode

    def for_run(self, scorer: Any) -> TensorStrategy:
        """What decodes all batches of a run: itself, or a copy with what is learnt in the run."""
        return self

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
