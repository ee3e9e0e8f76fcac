"""Passes through recurrent layers: a cell holds the state behind its token, in place of keys and values.

So what a token reads of its context is the last cell before it, or that of its parent in the pass, and
contexts are forked, truncated and kept as those of attention are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nartk.models.layers import Recurrence


class Step(NamedTuple):
    """Tokens of a pass of which none follows another.

    Attributes:
        tokens: [n], their indices in the pass.
        before: [n], cells of the tokens that they follow; None: they are the first of their contexts.
    """

    tokens: Tensor
    before: Tensor | None


def order_of(seen: Tensor, depths: Tensor) -> list[Step]:
    """Orders the tokens of a pass: each is behind the one that it follows.

    Args:
        seen: [N,T], cells that each sees, its own last.
        depths: [N], place of its own cell among them.
    """
    found = []
    for depth in depths.unique().tolist():
        tokens = (depths == depth).nonzero()[:, 0]
        found.append(Step(tokens, seen[tokens, depth - 1] if depth else None))
    return found


def recur(recurrence: Recurrence, states: Tensor, cells: Tensor, order: Sequence[Step], x: Tensor) -> Tensor:
    """Writes the states behind tokens to their cells, and gives what the layer reads of them.

    Args:
        states: [cells,d_model], by cell; they are written to.
        cells: [N], those of the tokens.
        x: [N,1,d_model], inputs of the tokens.
    """
    candidates, forget = recurrence.split(x[:, 0])
    for tokens, before in order:
        state = torch.zeros_like(candidates[tokens]) if before is None else states[before]
        states[cells[tokens]] = recurrence.advance(state, candidates[tokens], forget[tokens])
    return F.relu(states[cells])[:, None]
