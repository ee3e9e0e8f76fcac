"""Token recycling (Luo et al. 2024, arXiv:2408.08696): the verifier's own candidates are the next drafts.

Every pass ranks the words that may follow each token that is fed, accepted or not. What was ranked best after
a token is a guess at what follows it elsewhere.
Symbols: N tokens fed in all, V words, k candidates a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nartk.decoders.learning import Learning
from nartk.decoders.loop import Draft, Drafter, Fed
from nartk.hypothesis import Request
from nartk.registry import option, register_decoder
from nartk.scorer import Seq2SeqScorer, Source


@register_decoder("recycling")
class TokenRecycling(Learning):
    """Drafts with the words that the verifier ranked best after the same tokens; equal to greedy search."""

    promise = "identical to greedy"

    k: int = option(
        8, "candidates kept after each word; the best that the draft does not yet hold is taken", low=1
    )
    max_draft: int = option(6, "longest draft, tokens; 0: none", low=0)

    def new_drafter(self, scorer: Seq2SeqScorer) -> Drafter:
        return Recycler(len(scorer.vocab), scorer.vocab.eos, self.k, self.max_draft, scorer.device)


@dataclass(frozen=True)
class _Last:
    """The token [B] that each row feeds first in the next pass."""

    token: Tensor


class Recycler(Drafter):
    """Follows the candidates of the last token, one after the other; the matrix is all rows' own.

    Args:
        words: V.
        first: The token that every output begins after.
        k: Candidates a word.
        max_draft: Longest draft, tokens.

    Attributes:
        candidates: [V+1,min(k,V)] int64, best first; -1 where the word was never fed, and in the last row,
            which is the successor of -1.
    """

    def __init__(self, words: int, first: int, k: int, max_draft: int, device: Any) -> None:
        self.first, self.max_draft = first, max_draft
        self.candidates = torch.full((words + 1, min(k, words)), -1, device=device)
        self._newest = torch.zeros(words, dtype=torch.int64, device=device)

    def start(self, source: Source, requests: Sequence[Request]) -> _Last:
        return _Last(torch.full_like(source.lengths, self.first))

    def draft(self, state: Any, outputs: Tensor, lengths: Tensor, budget: Tensor) -> tuple[Draft, Any]:
        newest = outputs.gather(1, (lengths - 1).clamp(min=0)[:, None]).squeeze(1)
        token = torch.where(lengths > 0, newest, self.first)
        chain = [token]
        for _ in range(self.max_draft):  # each depends on the one before
            candidates = self.candidates[chain[-1]]  # [B,k]
            # A chain that comes back to a word goes round and round.
            fresh = (candidates[:, :, None] != torch.stack(chain, 1)[:, None]).all(2)
            best = fresh.int().argmax(1)  # the first of equals
            found = candidates.gather(1, best[:, None]).squeeze(1)
            chain.append(torch.where(fresh.any(1), found, -1))
        tokens = torch.stack(chain, 1)[:, 1:]  # [B,K]
        return Draft(tokens, torch.full_like(lengths, self.max_draft)), replace(state, token=token)

    def observe(self, state: Any, logits: Tensor, fed: Fed) -> Any:
        # What was fed at a place is what was drafted at the place before it, or the row's last token.
        fed_tokens = fed.drafted.roll(1)
        begins = fed.rows != fed.rows.roll(1)
        begins[0] = True
        fed_tokens = torch.where(begins, state.token[fed.rows], fed_tokens)
        best = logits.topk(self.candidates.shape[1], -1).indices
        # Of a word that was fed several times the last place counts, whatever order the device writes in.
        places = torch.arange(len(fed_tokens), device=logits.device)
        self._newest.scatter_reduce_(0, fed_tokens, places, "amax", include_self=False)
        self.candidates[fed_tokens] = best[self._newest[fed_tokens]]
        return state
