"""Base of the strategies whose drafter learns from the sentences of a run as they are decoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from nartk.decoders.loop import Drafter
from nartk.decoders.paced import Adaptive
from nartk.hypothesis import Request, Result
from nartk.scorer import Seq2SeqScorer


@dataclass(frozen=True, kw_only=True)
class Learning(Adaptive):
    """One drafter serves all batches of a run. What it has learnt changes the drafts, never the output.

    Attributes:
        drafter: That of the run.
    """

    drafter: Drafter | None = field(default=None, repr=False, compare=False)

    def new_drafter(self, scorer: Seq2SeqScorer) -> Drafter:
        """One that has learnt nothing."""
        raise NotImplementedError

    def run(
        self,
        scorer: Seq2SeqScorer,
        requests: Sequence[Request],
        *,
        batch_size: int,
        max_tokens: int | None = None,
        trace: bool = False,
    ) -> Iterator[Result]:
        learner = replace(self, drafter=self.new_drafter(scorer))
        yield from super(Learning, learner).run(
            scorer, requests, batch_size=batch_size, max_tokens=max_tokens, trace=trace
        )

    def make_drafter(self, scorer: Seq2SeqScorer) -> Drafter | None:
        return self.drafter
