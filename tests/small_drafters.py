"""Small autoregressive models that draft in tests: near the verifier, or garbage."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from scripted import ScriptedScorer, ScriptedState, TableScorer, over_tensors
from torch import Tensor

from nartk.models.transformer import Transformer


def drafting(name: str, drafter: Any, **options: Any) -> Any:
    """The strategy `name` with a drafter."""
    return dataclasses.replace(over_tensors(name, options), helpers={"drafter": drafter})


class Near(ScriptedScorer):
    """Says what a table says, with some noise from another one."""

    def __init__(self, table: TableScorer, *, seed: int, noise: float) -> None:
        super().__init__(len(table.vocab), width=table.width, device=table.device)
        self.table, self.noise = table, noise
        self.other = copy.copy(table)
        self.other.seed = seed

    def state_scores(self, state: ScriptedState, rows: Tensor, lengths: Tensor) -> Tensor:
        scores, other = (each.state_scores(state, rows, lengths) for each in (self.table, self.other))
        return scores + self.noise * other

    def scores(self, *state: Tensor) -> Tensor:
        return self.table.scores(*state) + self.noise * self.other.scores(*state)

    def scores_by_hand(self, source: Sequence[int], prefix: Sequence[int]) -> list[float]:
        scores, other = (each.scores_by_hand(source, prefix) for each in (self.table, self.other))
        return [a + self.noise * b for a, b in zip(scores, other, strict=True)]


GARBAGE: dict[str, Callable[[Tensor], Tensor]] = {
    "NaN": lambda scores: torch.full_like(scores, float("nan")),
    "now and then NaN": lambda scores: torch.where(scores == scores.amax(1, keepdim=True), torch.nan, scores),
    "minus infinity": lambda scores: torch.full_like(scores, float("-inf")),
    "infinity": lambda scores: torch.full_like(scores, float("inf")),
    "pad": lambda scores: 99.0 * (torch.arange(scores.shape[1], device=scores.device) == 1).expand_as(scores),
    "eos": lambda scores: 99.0 * (torch.arange(scores.shape[1], device=scores.device) == 2).expand_as(scores),
    "the opposite": lambda scores: -scores,
}


class Garbage(Near):
    """Says something else than a table: see `GARBAGE`."""

    def __init__(self, table: TableScorer, kind: str) -> None:
        super().__init__(table, seed=0, noise=0.0)
        self.kind = kind

    def state_scores(self, state: ScriptedState, rows: Tensor, lengths: Tensor) -> Tensor:
        return GARBAGE[self.kind](super().state_scores(state, rows, lengths).float())


def shaken(model: Transformer, seed: int, amount: float) -> Transformer:
    """A copy whose weights are off by a share `amount` of their spread."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in other.parameters():
            spread = float(weight.std()) if weight.numel() > 1 else 0.0
            weight += amount * spread * torch.randn(weight.shape, generator=generator)
    return other
