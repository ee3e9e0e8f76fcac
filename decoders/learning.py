"""Base of the strategies whose drafter learns from the sentences of a run as they are decoded."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from nartk.decoders.paced import Adaptive
from nartk.decoders.tensor_loop import Drafter
from nartk.decoders.tensor_strategy import TensorStrategy
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

    def for_run(self, scorer: Seq2SeqScorer) -> TensorStrategy:
        return replace(self, drafter=self.new_drafter(scorer))

    def make_drafter(self, scorer: Seq2SeqScorer) -> Drafter | None:
        return self.drafter
