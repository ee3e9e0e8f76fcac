"""Verification of drafts that the user gives: what another system, a person or an earlier run has said.

A draft need not be the output: after a mismatch the drafter looks, as `iad` does in the source, for the place
in each draft that the output has reached.
Symbols: B rows, N drafts a row, S tokens a draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from nartk.decoders.iad import CopyState, aligned_place, copy_state, following, spelling, suffix_lengths
from nartk.decoders.paced import Adaptive
from nartk.decoders.tensor_loop import Drafter, pad_rows
from nartk.decoders.tree import Draft, DraftTree
from nartk.hypothesis import Request
from nartk.registry import option, register_decoder
from nartk.scorer import Seq2SeqScorer, Source


@register_decoder("verify")
class VerifyDrafts(Adaptive):
    """Verifies drafts that are given with the sentences; equal to greedy search token for token."""

    promise = "identical to greedy"
    reads_drafts: ClassVar[bool] = True

    max_draft: int = option(0, "longest draft fed at once, tokens; 0: no bound", low=0)
    nodes: int = option(
        256, "most tokens fed at once of all drafts; 0: the best draft alone, without this bound", low=0
    )

    def make_drafter(self, scorer: Seq2SeqScorer) -> Drafter:
        return GivenDrafts(spelling(scorer.vocab).to(scorer.device), self.max_draft, self.nodes)


@dataclass(frozen=True)
class _Drafts:
    """Where each row stands in each of its drafts: `CopyState` with a dimension N after B.

    Attributes:
        text: [B,N,S+1].
        ahead: [B,N,4,S+1].
        sizes, cursor, seen: [B,N].
    """

    text: Tensor
    sizes: Tensor
    ahead: Tensor
    cursor: Tensor
    seen: Tensor


@dataclass(frozen=True)
class GivenDrafts(Drafter):
    """Proposes the rest of each draft, from the place on that the output has reached in it.

    The place is found by the aligned rule of `nartk.decoders.iad.SourceCopy`. Several drafts make a tree: no
    fewer tokens stand than of any of them. First comes the one whose suffix and alignment speak most, of
    equal ones the first; where the verifier reads no trees, it alone is fed.

    Args:
        spelling: [V+1,3] as `nartk.decoders.iad.spelling` makes it.
        max_draft: Longest draft, tokens; 0: no bound.
        nodes: Most tokens at once; 0: no tree, and no bound.
    """

    spelling: Tensor
    max_draft: int = 0
    nodes: int = 256

    def start(self, source: Source, requests: Sequence[Request]) -> _Drafts:
        most = max(1, *(len(request.drafts) for request in requests))
        padded = [[*request.drafts, *[()] * (most - len(request.drafts))] for request in requests]
        drafts = [draft for row in padded for draft in row]
        device = source.lengths.device
        words = pad_rows([draft or (-1,) for draft in drafts], -1).to(device)  # [B*N,S]
        words = torch.where((words >= 0) & (words < len(self.spelling) - 1), words, -1)
        sizes = torch.tensor([len(draft) for draft in drafts], device=device)
        state = copy_state(words, sizes, self.spelling)
        shape = (len(requests), most)
        return _Drafts(
            text=state.text.unflatten(0, shape),
            sizes=state.sizes.unflatten(0, shape),
            ahead=state.ahead.unflatten(0, shape),
            cursor=state.cursor.unflatten(0, shape),
            seen=state.seen.unflatten(0, shape),
        )

    def draft(self, state: Any, outputs: Tensor, lengths: Tensor, budget: Tensor) -> tuple[Draft, Any]:
        shape = state.sizes.shape  # [B,N] -> [B*N]
        flat = CopyState(
            text=state.text.flatten(0, 1),
            sizes=state.sizes.flatten(),
            ahead=state.ahead.flatten(0, 1),
            cursor=state.cursor.flatten(),
            seen=state.seen.flatten(),
        )
        outputs, seen = (x.repeat_interleave(shape[1], 0) for x in (outputs, lengths))
        matched = suffix_lengths(flat.text[:, :-1], outputs, seen)
        place, worth = aligned_place(matched, flat, self.spelling, outputs, seen)
        place = place * (seen > 0)
        worth = worth.gather(1, place[:, None]).squeeze(1) * (seen > 0)
        worth = torch.where(place < flat.sizes, worth, torch.iinfo(worth.dtype).min)
        order = worth.view(shape).sort(dim=1, descending=True, stable=True).indices
        tokens = following(flat.text, place, self.max_draft).unflatten(0, shape)  # [B,N,K]
        tokens = tokens.gather(1, order[:, :, None].expand_as(tokens))
        counts = (tokens >= 0).cumprod(2).sum(2)
        if not self.nodes:
            draft = Draft(tokens[:, 0], counts[:, 0])
        elif shape[1] == 1:
            draft = Draft(tokens[:, 0], counts[:, 0].clamp(max=self.nodes))
        else:
            draft = DraftTree.merge(tokens, counts, most=self.nodes)
        return draft, replace(state, cursor=place.view(shape), seen=seen.view(shape))
