"""Token recycling (Luo et al. 2024, arXiv:2408.08696): the verifier's own candidates are the next drafts.

Every pass ranks the words that may follow each token that is fed, accepted or not. What was ranked best after
a token is a guess at what follows it elsewhere.
Symbols: B rows, W nodes of a level, D levels, N tokens fed in all, V words, k candidates a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nartk.decoders.learning import Learning
from nartk.decoders.tensor_loop import Draft, Drafter, Fed
from nartk.decoders.tree import parse_shape
from nartk.hypothesis import Request
from nartk.registry import option, register_decoder
from nartk.scorer import Seq2SeqScorer, Source


@register_decoder("recycling")
class TokenRecycling(Learning):
    """Drafts with the words that the verifier ranked best after the same tokens; equal to greedy search."""

    promise = "identical to greedy"

    k: int = option(8, "candidates kept after each word; the best that the draft does not yet hold", low=1)
    max_draft: int = option(6, "longest draft, tokens; 0: none", low=0)
    tree: str = option(
        "",
        "how many of them are drafted at each level, such as 4x3x2, and the best further on: fewer passes, "
        "each of which feeds more, which costs a CPU more than it saves; '': the best alone",
    )

    def __post_init__(self) -> None:
        if self.tree:
            parse_shape(self.tree)

    def new_drafter(self, scorer: Seq2SeqScorer) -> Drafter:
        vocab, shape = scorer.vocab, parse_shape(self.tree) if self.tree else ()
        return Recycler(len(vocab), vocab.eos, self.k, self.max_draft, scorer.device, shape=shape)


class Recycler(Drafter):
    """Follows the candidates of the last token, one after the other; the matrix is all rows' own.

    After a token its first candidates are tried that do not yet lie on the way to it. The best of them are
    followed up to `max_draft` tokens, the others as far as the shape goes.

    Args:
        words: V.
        first: The token that every output begins after.
        k: Candidates a word.
        max_draft: Longest draft, tokens.
        shape: How many candidates are tried at each level; of further ones the best.

    Attributes:
        candidates: [V+1,min(k,V)] int64, best first; -1 where the word was never fed, and in the last row,
            which is the successor of -1.
    """

    def __init__(
        self, words: int, first: int, k: int, max_draft: int, device: Any, *, shape: Sequence[int] = ()
    ) -> None:
        self.first, self.max_draft, self.shape = first, max_draft, shape
        self.candidates = torch.full((words + 1, min(k, words)), -1, device=device)
        self._newest = torch.zeros(words, dtype=torch.int64, device=device)

    def start(self, source: Source, requests: Sequence[Request]) -> None:
        """There is nothing to remember of a row."""

    def draft(self, state: Any, outputs: Tensor, lengths: Tensor, budget: Tensor) -> tuple[Draft, Any]:
        newest = outputs.gather(1, (lengths - 1).clamp(min=0)[:, None])
        newest = torch.where(lengths[:, None] > 0, newest, self.first)  # [B,1]
        shape = self.shape[: self.max_draft]
        if not shape:
            tokens = self._follow(newest, self.max_draft)
            return Draft(tokens, torch.full_like(lengths, self.max_draft)), state
        ways = newest[:, :, None]  # [B,W,D]
        above = torch.full_like(newest[:1], -1)  # [1,W], the node of each way
        levels, parents, size = [], [], 0
        for branches in shape:
            candidates = self.candidates[ways[:, :, -1]]  # [B,W,k]
            fresh = (candidates[..., None] != ways[:, :, None]).all(3)
            best = fresh.int().sort(dim=2, descending=True, stable=True).indices[:, :, :branches]
            tokens = candidates.masked_fill(~fresh, -1).gather(2, best)  # [B,W,C]
            branches = tokens.shape[2]
            ways = ways.repeat_interleave(branches, 1)
            ways = torch.cat([ways, tokens.flatten(1)[:, :, None]], 2)  # [B,W,D] -> [B,W*C,D+1]
            levels.append(tokens.flatten(1))
            parents.append(above.repeat_interleave(branches, 1))
            above = size + torch.arange(ways.shape[1], device=outputs.device)[None]
            size += ways.shape[1]
        rest = self.max_draft - len(shape)
        levels.append(self._follow(ways[:, 0], rest))
        chain = torch.arange(size, size + rest, device=outputs.device)[None]
        parents.append(torch.cat([above[:, :1], chain], 1)[:, :rest])
        tokens = torch.cat(levels, 1)
        draft = Draft(
            tokens,
            torch.full_like(lengths, size + rest),
            parents=torch.cat(parents, 1).expand_as(tokens),
        )
        return draft, state

    def _follow(self, way: Tensor, count: int) -> Tensor:
        """The best candidates on from ways [B,D], one after the other: [B,count]."""
        begun = way.shape[1]
        for _ in range(count):  # each depends on the one before
            candidates = self.candidates[way[:, -1]]  # [B,k]
            # A way that comes back to a word goes round and round.
            fresh = (candidates[:, :, None] != way[:, None]).all(2)
            some, first = fresh.max(1, keepdim=True)
            way = torch.cat([way, torch.where(some, candidates.gather(1, first), -1)], 1)
        return way[:, begun:]

    def observe(self, state: Any, logits: Tensor, fed: Fed) -> Any:
        assert fed.tokens is not None
        best = logits.topk(self.candidates.shape[1], -1).indices
        # Of a word that was fed several times the last place counts, whatever order the device writes in.
        places = torch.arange(len(fed.tokens), device=logits.device)
        self._newest.scatter_reduce_(0, fed.tokens, places, "amax", include_self=False)
        self.candidates[fed.tokens] = best[self._newest[fed.tokens]]
        return state
