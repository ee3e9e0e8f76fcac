"""An n-gram cache over tensors: `nartk.decoders.drafters.ngram_cache` for the loop over tensors.

Symbols: B rows, K tokens, n words of an n-gram, N the largest n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from nartk.decoders.tensor_loop import Draft, Drafter, target_words
from nartk.hypothesis import Request
from nartk.scorer import Source

_CELLS = 1 << 18  # tokens of text that are remembered: 2 MiB
_SLOTS = 1 << 19  # n-grams of it that can be found: 4 MiB
_FACTORS = (0x2545F4914F6CDD1D, 0x5851F42D4C957F2D)  # odd, of xorshift* and of Knuth's MMIX generator


@dataclass(frozen=True)
class _Places:
    """Where each row writes.

    Attributes:
        salts: [B,2] what is added to the hashes of n-grams of all rows, and to those of the row's own.
        start: [B] address of its output's first token.
        seen: [B] output tokens that are written.
    """

    salts: Tensor
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
        self.max_draft, self.cells = max_draft, cells
        device = source_to_target.device
        self.text = torch.full((cells + 1,), -1, device=device)  # the last cell takes what belongs nowhere
        self.table = torch.zeros(slots, dtype=torch.int64, device=device)
        self.end = 0  # the first address that no sentence has
        # No more is new than the last draft and the verifier's token; if it has paused, what was put out
        # before the suffix that is looked up is not remembered.
        self._recent = torch.arange(-(max_draft + max_ngram + 1), 1, device=device)  # the last is yet to come
        self._ahead = torch.arange(max_draft, device=device)
        self._back = torch.arange(1, max_ngram + 1, device=device)
        weights = [_signed(_FACTORS[0] ** n) for n in range(1, max_ngram + 1)]
        self._weights = torch.tensor(weights, device=device)
        # From the shortest n-gram to the longest, that of all rows before the row's own: [2N].
        sizes = self._back.repeat_interleave(2)
        self._ranks = torch.arange(1, 2 * max_ngram + 1, device=device)
        self._outside = self._back > sizes[:, None]  # [2N,N], which words are not the n-gram's

    def start(self, source: Source, requests: Sequence[Request]) -> _Places:
        words, lengths = target_words(source, self.source_to_target)  # [B,S]
        device = words.device
        # nothing, `first`, source, nothing, `first`, output
        sizes = [len(request.source) + 3 + request.max_len for request in requests]
        ends = list(accumulate(sizes, initial=self.end))
        fresh = torch.arange(ends[0], min(ends[-1], ends[0] + self.cells), device=device)
        self.end = ends[-1]
        begins = torch.tensor(ends[:-1], device=device)
        salts = [(0, _signed((1 + request.index) * _FACTORS[1])) for request in requests]
        state = _Places(
            salts=torch.tensor(salts, device=device),
            start=begins + lengths + 4,
            seen=torch.zeros_like(lengths),
        )
        self.text[self._cell(fresh)] = -1
        self.text[self._cell(torch.cat([begins + 1, state.start - 1]))] = self.first
        addresses = (begins + 2)[:, None] + torch.arange(words.shape[1], device=device)
        self._write(addresses, words, words >= 0, state.salts)
        return state

    def draft(self, state: Any, outputs: Tensor, lengths: Tensor, budget: Tensor) -> tuple[Draft, Any]:
        columns = lengths[:, None] + self._recent  # [B,K]
        new = (columns >= state.seen[:, None]) & (self._recent < 0)
        addresses = state.start[:, None] + columns
        tokens = outputs.gather(1, columns.clamp(0, outputs.shape[1] - 1))
        suffixes, keys = self._write(addresses, tokens, new, state.salts)
        place, found = self._lookup(suffixes[:, -1], keys[:, -1])
        tokens = self.text[self._cell(place + self._ahead)]  # [B,K]; -1 or `first` ends a draft
        return Draft(tokens, found.squeeze(1) * self.max_draft), replace(state, seen=lengths)

    def _write(self, addresses: Tensor, tokens: Tensor, new: Tensor, salts: Tensor) -> tuple[Tensor, Tensor]:
        """Writes those of tokens [B,K] that are new to their addresses, and what they follow into the table.

        Returns:
            The text before the addresses [B,K,N] and its keys [B,K,2N].
        """
        self.text[torch.where(new, self._cell(addresses), self.cells)] = tokens
        before = self._before(addresses)
        keys = self._keys(before, salts)
        known = (before >= 0).cummin(-1).values & new[..., None]  # a text has n words before its n-th one
        values = torch.where(known, addresses[..., None], 0).repeat_interleave(2, -1)
        self.table.scatter_reduce_(0, keys.flatten(), values.flatten(), "amax")
        return before, keys

    def _lookup(self, suffix: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """The address [B,1] of what followed a suffix [B,N] with keys [B,2N]; whether one was found [B,1]."""
        place = self.table[keys]
        # Nothing is equal to what stands before a text.
        same = self._before(place) == suffix.masked_fill(suffix < 0, -2)[:, None]  # [B,2N,N]
        found = (same | self._outside).all(-1) & (place > 0)
        rank, best = (found * self._ranks).max(1, keepdim=True)
        return place.gather(1, best), rank > 0

    def _cell(self, addresses: Tensor) -> Tensor:
        return addresses & (self.cells - 1)

    def _before(self, addresses: Tensor) -> Tensor:
        """The text before addresses [...], nearest first: [...,N]."""
        return self.text[self._cell(addresses[..., None] - self._back)]

    def _keys(self, before: Tensor, salts: Tensor) -> Tensor:
        """The slots [B,K,2N] of the n-grams that end a text [B,K,N], in the order of `_ranks`."""
        hashed = ((before + 1) * self._weights).cumsum(-1)
        mixed = _mix((hashed[..., None] + salts[:, None, None]).flatten(2))
        return (mixed >> 20) & (len(self.table) - 1)


def _mix(x: Tensor) -> Tensor:
    """Spreads int64 over all bits, modulo 2**64."""
    x = (x ^ (x >> 32)) * _FACTORS[0]
    return (x ^ (x >> 29)) * _FACTORS[1]


def _signed(x: int) -> int:
    """x modulo 2**64 as int64."""
    return (x + 2**63) % 2**64 - 2**63
