"""A drafter that reads the verifier's own hidden states, as somebody writes it outside the package.

Head k maps the features behind the last computed token to those that the token k + 1 after it is read from
(Cai et al. 2024, arXiv:2401.10774). A row's state is the features of its last pass, drafts or not.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from nartk.decoders.loop.drafter import Draft, DrafterOptions, PlainDrafter
from nartk.decoders.loop.loop import AdaptiveDrafts
from nartk.protocols.passes import PassScorer, Want
from nartk.registry import option


@dataclass(frozen=True, kw_only=True)
class DraftHeads(DrafterOptions, AdaptiveDrafts):
    """Drafts with linear heads on hidden states; equal to greedy search token for token."""

    name: ClassVar[str] = "heads"
    needs: ClassVar[type] = PassScorer
    heads: int = option(3, "tokens of a draft", low=1)
    matrices: ClassVar[list[np.ndarray]] = []

    def make_drafter(self, scorer):
        return Heads(scorer, self.matrices[: self.heads])


class Heads(PlainDrafter):
    want = Want(hidden=True)

    def __init__(self, scorer, matrices):
        self.scorer, self.matrices = scorer, matrices

    def draft(self, rows, budgets):
        features = np.stack([row.state @ matrix for row in rows for matrix in self.matrices])
        words = self.scorer.words(features, Want()).best.reshape(len(rows), -1).tolist()
        return [Draft(found[:budget]) for found, budget in zip(words, budgets, strict=True)]

    def observe(self, rows, verdicts, verified):
        for row, verdict in zip(rows, verdicts, strict=True):
            last = row.node + (verdict.accepted[-1] + 1 if verdict.accepted else 0)
            row.state = verified.scores.hidden[last]
