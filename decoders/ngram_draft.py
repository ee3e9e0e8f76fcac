"""Drafts from an n-gram cache: what followed the output's last words before is likely to follow them again.

The cache holds the sources, as target words, and the outputs of all sentences of a run, finished or running.
It needs no training (the idea of prompt lookup, Saxena 2023, and of REST, He et al. 2023, arXiv:2311.08252,
with the run itself as the store).
Symbols: B rows, K tokens, n words of an n-gram, N the largest n, M n-grams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from nartk.decoders.learning import Learning
from nartk.decoders.loop import Draft, Drafter, target_words
from nartk.hypothesis import Request
from nartk.registry import option, register_decoder
from nartk.scorer import Seq2SeqScorer, Source

_CELLS = 1 << 18  # tokens of text that are remembered: 2 MiB
_SLOTS = 1 << 19  # n-grams of it that can be found: 4 MiB
_FACTORS = (0x2545F4914F6CDD1D, 0x5851F42D4C957F2D)  # odd, of xorshift* and of Knuth's MMIX generator


@register_decoder("ngram")
class NgramDrafts(Learning):
    """Drafts with what followed the same words before, in this sentence or others; equal to greedy search."""

    promise = "identical to greedy"

    max_ngram: int = option(4, "longest suffix of the output that is looked up, tokens", low=1)
    max_draft: int = option(10, "longest draft, tokens; 0: none", low=0)

    def new_drafter(self, scorer: Seq2SeqScorer) -> Drafter:
        return NgramCache(
            scorer.source_to_target,
            len(scorer.vocab),
            self.max_ngram,
            self.max_draft,
        )


@dataclass(frozen=True)
class _Places:
    """Where each row writes.

    Attributes:
        owner: [B] what tells the row's n-grams from those of others.
        start: [B] address of its output's first token.
        seen: [B] output tokens that are written.
    """

    owner: Tensor
    start: Tensor
    seen: Tensor


class NgramCache(Drafter):
    """Proposes what followed the most recent occurrence of the output's longest suffix that occurred before.

    Of two suffixes the longer one counts, of equal ones that in the row's own source or output. An occurrence
    is more recent if its sentence was begun later, or stands further on in it.

    The text is a ring of cells; each sentence takes as many as its source and its longest output need, and an
    address that grows for ever, modulo their number, is its cell. Every n-gram that something followed has
    the address of this something in a hash table, twice: under a key of its row and under one of all. Where
    two n-grams share a slot the more recent one has it; what is found is compared with the text.

    Args:
        source_to_target: As Seq2SeqScorer has it.
        words: V.
        max_ngram: N.
        max_draft: Longest draft, tokens.
        cells, slots: Sizes of the ring and of the table, powers of two.
    """

    def __init__(
        self,
        source_to_target: Tensor,
        words: int,
        max_ngram: int,
        max_draft: int,
        *,
        cells: int = _CELLS,
        slots: int = _SLOTS,
    ) -> None:
        self.source_to_target, self.first = source_to_target, words  # `first` stands before a text
        self.max_ngram, self.max_draft = max_ngram, max_draft
        device = source_to_target.device
        self.cells = cells
        self.text = torch.full((cells + 1,), -1, device=device)  # the last cell takes what belongs nowhere
        self.table = torch.zeros(slots, dtype=torch.int64, device=device)
        self.end = 0  # the first address that no sentence has

    def start(self, source: Source, requests: Sequence[Request]) -> _Places:
        words, lengths = target_words(source, self.source_to_target)  # [B,S]
        device = words.device
        # nothing, `first`, source, nothing, `first`, output
        sizes = [len(request.source) + 3 + request.max_len for request in requests]
        ends = list(accumulate(sizes, initial=self.end))
        fresh = torch.arange(ends[0], min(ends[-1], ends[0] + self.cells), device=device)
        self.end = ends[-1]
        begins = torch.tensor(ends[:-1], device=device)
        state = _Places(
            owner=1 + torch.tensor([request.index for request in requests], device=device),
            start=begins + lengths + 4,
            seen=torch.zeros_like(lengths),
        )
        self.text[fresh % self.cells] = -1
        self.text[(begins + 1) % self.cells] = self.first
        self.text[(state.start - 1) % self.cells] = self.first
        columns = torch.arange(words.shape[1], device=device)
        self._write((begins + 2)[:, None] + columns, words, columns < lengths[:, None], state.owner)
        return state

    def draft(self, state: Any, outputs: Tensor, lengths: Tensor, budget: Tensor) -> tuple[Draft, Any]:
        # No more is new than the last draft and the verifier's token; if it has paused, what was put out
        # before the suffix that is looked up is not remembered.
        columns = torch.arange(self.max_draft + self.max_ngram + 1, device=outputs.device)
        columns = state.seen.maximum(lengths - len(columns))[:, None] + columns
        tokens = outputs.gather(1, columns.clamp(max=outputs.shape[1] - 1))
        self._write(state.start[:, None] + columns, tokens, columns < lengths[:, None], state.owner)
        place, found = self._lookup(state.start + lengths, state.owner)
        ahead = torch.arange(self.max_draft, device=outputs.device)
        tokens = self.text[(place[:, None] + ahead) % self.cells]  # [B,K]; -1 or `first` ends a draft
        return Draft(tokens, found * self.max_draft), replace(state, seen=lengths)

    def _write(self, addresses: Tensor, tokens: Tensor, counts: Tensor, owner: Tensor) -> None:
        """Writes those of tokens [B,K] that count to their addresses, and what they follow into the table."""
        self.text[torch.where(counts, addresses % self.cells, self.cells)] = tokens
        keys, whole = self._keys(self._before(addresses), owner[:, None])  # [B,K,2,N], [B,K,N]
        known = whole & (counts & (tokens >= 0))[..., None]
        values = torch.where(known, addresses[..., None], 0)[:, :, None].expand_as(keys)
        self.table.scatter_reduce_(0, keys.flatten(), values.flatten(), "amax")

    def _lookup(self, addresses: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
        """The address [B] of what followed the suffix before each address [B], and whether one was found."""
        suffix = self._before(addresses)  # [B,N]
        keys, whole = self._keys(suffix, owner)
        place = self.table[keys]  # [B,2,N]
        same = (self._before(place) == suffix[:, None, None]).cummin(-1).values  # [B,2,N,N]: the last n words
        found = same.diagonal(dim1=-2, dim2=-1) & whole[:, None] & (place > 0)
        # From the longest to the shortest, the row's own before that of all: [B,2,N] -> [B,2N]
        place, found = (x.flip(2).transpose(1, 2).flatten(1) for x in (place, found))
        best = found.int().argmax(1)  # the first of equals
        return place.gather(1, best[:, None]).squeeze(1), found.any(1)

    def _before(self, addresses: Tensor) -> Tensor:
        """The text before addresses [...], nearest first: [...,N]."""
        back = torch.arange(1, self.max_ngram + 1, device=addresses.device)
        return self.text[(addresses[..., None] - back) % self.cells]

    def _keys(self, before: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
        """The slots [...,2,N] of the n-grams that end a text [...,N], and whether each is one [...,N].

        The first half is the owner's [...], the second all rows'.
        """
        hashed = [torch.zeros_like(before[..., 0])]
        for n in range(self.max_ngram):
            hashed.append(_mix(hashed[-1] + before[..., n] + 1))
        of_all = torch.stack(hashed[1:], -1)
        of_owner = _mix(of_all + owner[..., None] * _FACTORS[1])
        keys = torch.stack([of_owner, of_all], -2)
        return (keys >> 20) & (len(self.table) - 1), (before >= 0).cummin(-1).values


def _mix(x: Tensor) -> Tensor:
    """Spreads int64 over all bits, modulo 2**64."""
    x = (x ^ (x >> 32)) * _FACTORS[0]
    return (x ^ (x >> 29)) * _FACTORS[1]
