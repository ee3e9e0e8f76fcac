"""Serves a Transformer to decoders: a static cache, per-row lengths, and exact mode.

Exact mode gives a row the same bits whatever shares its batch and however many tokens are fed at once:
source and cache have lengths that depend on the sentence alone, rows and queries come in the multiples that
the device needs (`models/linear.py`), and one code path serves a step and a verification.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from nartk.models.linear import attention as dot_attention
from nartk.models.serving import LENGTHS, Packed, Serving
from nartk.models.transformer import Attention, Cache
from nartk.rows import cat_rows
from nartk.scorer import Source, Tree

_FEW = 16  # rows of a linear layer that cost hardly more than one: reading the weights takes as long
_PIECE = 2**22  # bytes of keys and values that are copied at once where a cache keeps them near; else _PIECES
_PIECES = 2**28
_COPY = 8  # queries that take as long as a copy of a path's keys and values
_SORT = 100  # queries that take as long as finding those that are asked twice


@dataclass(frozen=True)
class TransformerState:
    """Keys and values of B rows. `lengths` says how many target tokens of each row count.

    Attributes:
        source_kv: Per layer, two of [B,H,S,D].
        source_mask: [B,1,1,S], 0 or minus infinity.
        target: Per layer, what it keeps of the target.
        lengths: [B] int64.
        branches: What `keep` chooses from; None unless a tree was fed.
    """

    source_kv: tuple[tuple[Tensor, Tensor], ...]
    source_mask: Tensor
    target: tuple[_Kept, ...]
    lengths: Tensor
    branches: _Branches | None = None

    @property
    def room(self) -> int:
        """Target tokens that a row may have."""
        return self.target[0].kv.shape[1] - 1


class _Kept:
    """The keys and values that a layer keeps of B rows with room for T tokens, and views of them.

    Attributes:
        kv: [B,T+1,2*H*D]; the last position takes what belongs nowhere.
        keys, values: [B,H,T,D].
    """

    def __init__(self, kv: Tensor, heads: int) -> None:
        self.kv = kv
        self.heads = heads
        parts = kv[:, :-1].unflatten(2, (2, heads, -1))  # [B,T,2,H,D]
        self.keys, self.values = parts.permute(2, 0, 3, 1, 4).unbind(0)

    @cached_property
    def places(self) -> Tensor:
        """A view of all positions of all rows, [B*(T+1),2*H*D]."""
        return self.kv.flatten(0, 1)


@dataclass(frozen=True)
class _Branches:
    """The keys and values of a tree's N tokens: per layer [N,2*H*D]; which of them [B,K] is whose."""

    kv: Sequence[Tensor]
    packed: Tensor


@dataclass(frozen=True)
class _Cache:
    """Writes each new token at its own row and position; see transformer.Cache."""

    kept: _Kept
    mask: Tensor  # [B,1,K,T]
    places: Tensor  # [N], of all positions of all rows
    layout: Packed

    def attend(self, attention: Attention, qkv: Tensor) -> Tensor:
        q, new = _apart(qkv)
        self.kept.places.index_copy_(0, self.places, new[: len(self.places)] if self.layout.padding else new)
        (q,) = attention.split(q, 1, self.layout)
        return attention.attend(q, self.kept.keys, self.kept.values, self.mask, layout=self.layout)


def _apart(qkv: Tensor) -> tuple[Tensor, Tensor]:
    """Queries [N,H*D], and keys and values [N,2*H*D], of [N,3*H*D]."""
    features = qkv.shape[1] // 3
    return qkv[:, :features], qkv[:, features:]


@dataclass(frozen=True)
class _PathCache:
    """Attends along each path as if there were no other: see `_Paths`."""

    kept: _Kept
    paths: _Paths
    layout: Packed
    fed: list[Tensor]  # takes the new tokens' keys and values [N,2*H*D]

    def attend(self, attention: Attention, qkv: Tensor) -> Tensor:
        paths, heads = self.paths, attention.heads
        q, new = _apart(qkv)
        self.fed.append(new)
        every = torch.cat([self.kept.places, new])
        room, size = self.kept.kv.shape[1:]
        found = []
        for places, tokens, mask in paths.pieces:
            own = _Kept(every.index_select(0, places).view(-1, room, size), heads)
            queries = q.index_select(0, tokens).view(len(own.kv), -1, heads, own.keys.shape[3])
            y = dot_attention(queries.transpose(1, 2), own.keys, own.values, mask, scale=attention.scale)
            found.append(y.transpose(1, 2).flatten(0, 1).flatten(1))  # [P,H,K,D] -> [P*K,H*D]
        y = torch.cat(found) if len(found) > 1 else found[0]
        return attention.out(y.index_select(0, paths.results))


@dataclass(frozen=True)
class _Paths:
    """Where the tokens of a tree stand, on each path to a leaf where greedy search would have them.

    Attributes:
        pieces: Of so many rows R at once, each a path or a part of one: [R*(T+1)], what stands on it, of the
            places of the cache of B rows and the N tokens that are fed; [R*K], which of the N ask; and the
            mask of what they see [R,1,K,T].
        results: [N], and one for each token that is added: which of all rows' R*K results is each token's.
    """

    pieces: Sequence[tuple[Tensor, Tensor, Tensor]]
    results: Tensor


@dataclass(frozen=True)
class _TreeCache:
    """Attends to cache and tree at once; the tokens come to stand otherwise than in greedy search."""

    kept: _Kept
    mask: Tensor  # [B,1,K,T+K]
    layout: Packed
    fed: list[Tensor]  # takes the new tokens' keys and values [N,2*H*D]

    def attend(self, attention: Attention, qkv: Tensor) -> Tensor:
        self.fed.append(_apart(qkv)[1])
        q, new_keys, new_values = attention.split(qkv, 3, self.layout)
        k, v = torch.cat([self.kept.keys, new_keys], 2), torch.cat([self.kept.values, new_values], 2)
        return attention.attend(q, k, v, self.mask, layout=self.layout)


class TransformerScorer(Serving):
    """Implements nartk.scorer.Seq2SeqScorer for a Transformer."""

    def bucket(self, source_len: int, max_len: int) -> Hashable:
        if not self.exact:
            return None
        return -(-source_len // LENGTHS), -(-max_len // LENGTHS)

    @torch.inference_mode()
    def encode(self, source: Source, max_len: int) -> TransformerState:
        batch = source.tokens.shape[0]
        room = -(-max_len // LENGTHS) * LENGTHS if self.exact else max_len
        memory = self.encode_source(source)
        source_kv = tuple(
            layer.source_kv(memory.packed, memory.layout) for layer in self.model.decoder.layers
        )
        heads, features = source_kv[0][0].shape[1::2]

        def empty() -> _Kept:
            # Zeros, not `empty`: a masked position still meets the values, and 0 * NaN is NaN.
            return _Kept(memory.packed.new_zeros(batch, room + 1, 2 * heads * features), heads)

        return TransformerState(
            source_kv=source_kv,
            source_mask=memory.mask,
            target=tuple(empty() for _ in source_kv),
            lengths=torch.zeros(batch, dtype=torch.int64, device=self.device),
        )

    @torch.inference_mode()
    def verify(
        self, tokens: Tensor, state: TransformerState, counts: Sequence[int] | None = None
    ) -> tuple[Tensor, TransformerState]:
        batch, width = tokens.shape
        room = state.room
        queries = width + (-width % self.floors.queries if self.exact else 0)
        every = counts is None or min(counts) == width
        wide = queries if every and batch * queries <= _FEW else width
        # A few rows are filled up to the shape at once; what is added lies behind the row's tokens, where
        # no query of theirs looks, and is overwritten by the next pass.
        layout, fed = self._pack(F.pad(tokens, (0, wide - width)) if wide > width else tokens, counts, every)
        reach = state.lengths[:, None] + self.columns(queries)  # [B,K]
        mask = self._unseen(reach, room)
        reach = reach[:, : layout.width].flatten() if every else reach[layout.rows, layout.columns]  # [N]
        positions = reach.clamp(max=room)
        places = positions if batch == 1 else positions + layout.rows * (room + 1)
        # What is added may lie past the last position that the model knows.
        last = self.config.max_target_len - 1
        known = positions if room <= last else positions.clamp(max=last)
        x = self.model.decoder.embedding(layout.pad(fed), layout.pad(known))
        source_mask = state.source_mask.expand(-1, -1, queries, -1)
        for layer, source_kv, kept in zip(
            self.model.decoder.layers, state.source_kv, state.target, strict=True
        ):
            x = layer(x, source_kv, source_mask, cache=_Cache(kept, mask, places, layout))
        logits = self._logits(x, layout)  # [N,V]
        if wide > width:
            logits = logits.unflatten(0, (batch, wide))[:, :width].flatten(0, 1)
        if counts is None:
            return logits.view(batch, width, -1), replace(state, lengths=state.lengths + width)
        fed_lengths = width if every else torch.tensor(counts, device=self.device)
        return logits, replace(state, lengths=state.lengths + fed_lengths)

    @torch.inference_mode()
    def verify_tree(
        self, tokens: Tensor, state: TransformerState, counts: Sequence[int], tree: Tree
    ) -> tuple[Tensor, TransformerState]:
        batch, width = tokens.shape
        every = min(counts) == width
        layout, fed = self._pack(tokens, counts, every)
        reach = state.lengths[:, None] + tree.depths  # [B,K]
        packed = self.columns(layout.rows.shape[0])
        if every:
            packed, known = packed.view(batch, width), reach.flatten()
        else:
            packed = torch.zeros_like(tokens).index_put_((layout.rows, layout.columns), packed)  # [B,K]
            known = reach[layout.rows, layout.columns]  # [N]
        known = known.clamp(max=self.config.max_target_len - 1)
        x = self.model.decoder.embedding(layout.pad(fed), layout.pad(known))
        queries = width + (-width % self.floors.queries if self.exact else 0)
        source_mask = state.source_mask.expand(-1, -1, queries, -1)
        kv: list[Tensor] = []
        make: Callable[[_Kept], Cache]
        if self.exact:
            paths = self._paths(state, layout, packed, reach, tree)

            def make(kept: _Kept) -> Cache:
                return _PathCache(kept, paths, layout, kv)
        else:
            past = (self.columns(state.room) >= state.lengths[:, None])[:, None].expand(-1, width, -1)
            mask = self.hide(torch.cat([past, ~tree.ancestors], 2)[:, None])

            def make(kept: _Kept) -> Cache:
                return _TreeCache(kept, mask, layout, kv)

        for layer, source_kv, kept in zip(
            self.model.decoder.layers, state.source_kv, state.target, strict=True
        ):
            x = layer(x, source_kv, source_mask, cache=make(kept))
        return self._logits(x, layout), replace(state, branches=_Branches(kv, packed))

    def _paths(
        self, state: TransformerState, layout: Packed, packed: Tensor, reach: Tensor, tree: Tree
    ) -> _Paths:
        """Where the N tokens at `packed` [B,K] stand, after so many others [B,K]."""
        room, (batch, width) = state.room, packed.shape
        paths, fed = len(tree.leaves), layout.rows.shape[0]
        size, rows = self._blocks(fed, paths, tree.depth)
        count = -(-tree.depth // size) * size
        on_way = tree.ancestors.flatten(0, 1).index_select(0, tree.leaves)  # [P,K]
        last = reach.flatten().index_select(0, tree.leaves)[:, None]  # [P,1]
        places = self.columns(batch * (room + 1)).view(batch, -1)
        if batch > 1:
            whose = tree.leaves // width
            packed, reach, places = (x.index_select(0, whose) for x in (packed, reach, places))
        packed = packed.expand(paths, -1)
        # A place more takes what is not on the way.
        positions = torch.where(on_way, reach.clamp(max=room), room)
        places = places.expand(paths, -1).scatter(1, positions, packed + batch * (room + 1))  # [P,T+1]
        # From its leaf on all of a path's tokens ask; behind the first stands what is no token, N.
        heights = torch.where(on_way, last - reach, count)
        asked = packed.new_full((paths, count + 1), fed).scatter_(1, heights, packed)[:, :count].flatten()
        seen = (last - self.columns(count)).clamp(min=0)  # [P,K]
        # A token's result is the same on any path: the first that asks it is taken.
        order = self.columns(paths * count)
        results = order.new_full((fed + max(layout.padding, 1),), paths * count - 1)
        results.scatter_reduce_(0, asked, order, "amin")
        if size < count:
            # Blocks of queries that are all asked before are left out: each path begins with its own.
            new = (results.index_select(0, asked) == order).view(-1, size).any(1)
            kept = new.sort(descending=True, stable=True).indices[:rows]
            moved = torch.zeros_like(new, dtype=torch.int64).scatter_(0, kept, self.columns(rows))
            results = moved.index_select(0, results // size) * size + results % size
            asked, seen = (x.view(-1, size).index_select(0, kept) for x in (asked, seen))
            places = places.index_select(0, kept // (count // size))
        asked, mask = asked.view(rows, size).clamp(max=fed - 1), self._unseen(seen, room)
        results = results[: fed + layout.padding]
        position = state.target[0].kv[0, 0]
        most = max(1, (_PIECE if self.device.type == "cpu" else _PIECES) // (position.nbytes * (room + 1)))
        if rows <= most:
            return _Paths([(places.flatten(), asked.flatten(), mask)], results)
        pieces = zip(*(x.split(most) for x in (places, asked, mask)), strict=True)
        return _Paths([(at.flatten(), who.flatten(), what) for at, who, what in pieces], results)

    def _blocks(self, fed: int, paths: int, depth: int) -> tuple[int, int]:
        """How many queries ask at once, all of a path or fewer, and how often, for tokens on paths."""
        least = self.floors.queries
        whole = -(-depth // least) * least
        best, lowest = (whole, paths), paths * (whole + _COPY) - _SORT
        for size in range(least, min(whole, 4 * least + 1), least):
            # A path has a block that is not full of its own tokens; what is no token is asked once, too.
            rows = min((fed + paths * (size - 1)) // size + 1, paths * -(-depth // size))
            if rows * (size + _COPY) < lowest:
                best, lowest = (size, rows), rows * (size + _COPY)
        return best

    @torch.inference_mode()
    def keep(self, state: TransformerState, way: Tensor, lengths: Tensor) -> TransformerState:
        assert state.branches is not None
        places, batch = state.room + 1, len(lengths)
        positions = state.lengths[:, None] + self.columns(way.shape[1])  # [B,D]
        positions = torch.where(positions < lengths[:, None], positions, places - 1)
        if batch > 1:
            positions = positions + self.columns(batch)[:, None] * places
        positions, tokens = positions.flatten(), way.clamp(min=0)
        tokens = state.branches.packed.gather(1, tokens).flatten()
        for kept, fed in zip(state.target, state.branches.kv, strict=True):
            kept.places.index_copy_(0, positions, fed.index_select(0, tokens))
        return replace(state, lengths=lengths, branches=None)

    def _logits(self, x: Tensor, layout: Packed) -> Tensor:
        """x [N,d_model], as the last layer leaves it -> [N,V] of the tokens that are somebody's."""
        if self.model.decoder.norm is not None:
            x = self.model.decoder.norm(x)
        logits = self.model.output(x)
        return logits[: len(logits) - layout.padding] if layout.padding else logits

    def _unseen(self, reach: Tensor, room: int) -> Tensor:
        """The additive mask [B,1,K,room] of what lies behind the last position that each query sees [B,K]."""
        return _triangle(room, self.dtype, self.device)[(room - 1 - reach).clamp(min=0)][:, None]

    def _pack(self, tokens: Tensor, counts: Sequence[int] | None, every: bool) -> tuple[Packed, Tensor]:
        batch, width = tokens.shape
        if every:
            return self.whole(batch, width), tokens.flatten()
        kept = torch.arange(width) < torch.tensor(counts)[:, None]
        rows, columns = kept.nonzero().to(self.device).unbind(1)
        return self.layout(rows, columns, batch, width), tokens[rows, columns]

    def step(self, tokens: Tensor, state: TransformerState) -> tuple[Tensor, TransformerState]:
        logits, state = self.verify(tokens[:, None], state)
        return logits[:, 0], state

    def truncate(self, state: TransformerState, lengths: Tensor) -> TransformerState:
        return replace(state, lengths=lengths)

    @torch.inference_mode()
    def select(self, state: TransformerState, rows: Tensor) -> TransformerState:
        branches = state.branches
        if branches is not None:
            branches = replace(branches, packed=branches.packed[rows])
        return TransformerState(
            source_kv=tuple((k[rows], v[rows]) for k, v in state.source_kv),
            source_mask=state.source_mask[rows],
            target=tuple(_Kept(kept.kv[rows], kept.heads) for kept in state.target),
            lengths=state.lengths[rows],
            branches=branches,
        )

    @torch.inference_mode()
    def join(self, first: TransformerState, second: TransformerState) -> TransformerState:
        # In fast mode two batches differ in length; the shorter one grows by masked positions.
        return TransformerState(
            source_kv=tuple(
                (cat_rows(k1, k2), cat_rows(v1, v2))
                for (k1, v1), (k2, v2) in zip(first.source_kv, second.source_kv, strict=True)
            ),
            source_mask=cat_rows(first.source_mask, second.source_mask, float("-inf")),
            target=tuple(
                _Kept(cat_rows(one.kv, two.kv), one.heads)
                for one, two in zip(first.target, second.target, strict=True)
            ),
            lengths=torch.cat([first.lengths, second.lengths]),
        )


@lru_cache(maxsize=64)
def _triangle(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[size+1,size]: row i is 0 but for minus infinity at its last i places. It is a view of one line."""
    line = torch.zeros(2 * size, dtype=dtype, device=device)
    line[size:] = float("-inf")
    return line.unfold(0, size, 1)
