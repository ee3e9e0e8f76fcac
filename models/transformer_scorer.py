"""Serves a Transformer to decoders: a static cache, per-row lengths, and exact mode.

Exact mode gives a row the same bits whatever shares its batch and however many tokens are fed at once:
source and cache have lengths that depend on the sentence alone, rows and queries come in the multiples that
the device needs (`models/linear.py`), and one code path serves a step and a verification.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from nartk.models.linear import attention as dot_attention
from nartk.models.serving import LENGTHS, Packed, Serving
from nartk.models.transformer import Attention, Cache
from nartk.rows import cat_rows
from nartk.scorer import Source, Tree

_FEW = 16  # rows of a linear layer that cost hardly more than one: reading the weights takes as long


@dataclass(frozen=True)
class TransformerState:
    """Keys and values of B rows. `lengths` says how many target tokens of each row count.

    Attributes:
        source_kv: Per layer, two of [B,H,S,D].
        source_mask: [B,1,1,S], 0 or minus infinity.
        target_kv: Per layer, two of [B,T+1,H,D]; the last position takes what belongs nowhere.
        lengths: [B] int64.
        branches: What `keep` chooses from; None unless a tree was fed.
    """

    source_kv: tuple[tuple[Tensor, Tensor], ...]
    source_mask: Tensor
    target_kv: tuple[tuple[Tensor, Tensor], ...]
    lengths: Tensor
    branches: _Branches | None = None


@dataclass(frozen=True)
class _Branches:
    """The keys and values of a tree's N tokens: per layer two of [N,H*D]; which of them [B,K] is whose."""

    kv: Sequence[tuple[Tensor, Tensor]]
    packed: Tensor


@dataclass(frozen=True)
class _Cache:
    """Writes each new token at its own row and position; see transformer.Cache."""

    keys: Tensor  # [B,T+1,H,D]
    values: Tensor
    mask: Tensor  # [B,1,K,T]
    positions: Tensor  # [N]
    layout: Packed

    def attend(self, attention: Attention, qkv: Tensor) -> Tensor:
        rows, positions, count = self.layout.rows, self.positions, self.positions.shape[0]
        q, _, _ = attention.split(self.layout.unpack(qkv), 3)
        _, keys, values = attention.split(qkv, 3)
        self.keys[rows, positions] = keys[0, :, :count].transpose(0, 1)
        self.values[rows, positions] = values[0, :, :count].transpose(0, 1)
        k, v = self.keys[:, :-1].transpose(1, 2), self.values[:, :-1].transpose(1, 2)
        return attention.attend(q, k, v, self.mask, layout=self.layout)


@dataclass(frozen=True)
class _PathCache:
    """Attends path by path, each written where greedy search would have its tokens: see `_Paths`."""

    keys: Tensor  # [B,T+1,H,D]
    values: Tensor
    paths: _Paths
    layout: Packed
    fed: list[tuple[Tensor, Tensor]]  # takes the new tokens' keys and values

    def attend(self, attention: Attention, qkv: Tensor) -> Tensor:
        paths, heads = self.paths, attention.heads
        q, new_keys, new_values = qkv[0].unflatten(1, (3, -1)).unbind(1)  # [N,H*D]
        self.fed.append((new_keys, new_values))
        keys, values = (x.flatten(2).flatten(0, 1) for x in (self.keys, self.values))  # views [B*(T+1),H*D]
        k, v = self.keys[:, :-1].transpose(1, 2), self.values[:, :-1].transpose(1, 2)
        queries = q[paths.queries].unflatten(3, (heads, -1)).transpose(2, 3)  # [P,B,H,K,D]
        found = []
        for path_keys, path_values, q in zip(
            new_keys[paths.tokens], new_values[paths.tokens], queries, strict=True
        ):
            keys.index_copy_(0, paths.places, path_keys)
            values.index_copy_(0, paths.places, path_values)
            found.append(dot_attention(q, k, v, paths.mask, scale=attention.scale))
        y = torch.stack(found).transpose(2, 3)[paths.owners, self.layout.rows, paths.depths]  # [N,H,D]
        return attention.out(self.layout.pad(y.flatten(1))[None])


@dataclass(frozen=True)
class _Paths:
    """Where the tokens of a tree stand: P paths of up to D of the N tokens that are fed.

    Attributes:
        tokens: [P,B*D], which of the N.
        places: [B*D], where they are written in a cache of B rows.
        queries: [P,B,K], which of the N ask.
        mask: [B,1,K,T], what they see, whatever the path.
        owners, depths: [N], the path that each token's result is taken from, and where on it.
    """

    tokens: Tensor
    places: Tensor
    queries: Tensor
    mask: Tensor
    owners: Tensor
    depths: Tensor


@dataclass(frozen=True)
class _TreeCache:
    """Attends to cache and tree at once; the tokens come to stand otherwise than in greedy search."""

    keys: Tensor  # [B,T+1,H,D]
    values: Tensor
    mask: Tensor  # [B,1,K,T+K]
    layout: Packed
    fed: list[tuple[Tensor, Tensor]]  # takes the new tokens' keys and values

    def attend(self, attention: Attention, qkv: Tensor) -> Tensor:
        self.fed.append(qkv[0].unflatten(1, (3, -1)).unbind(1)[1:])
        q, new_keys, new_values = attention.split(self.layout.unpack(qkv), 3)
        k, v = (
            torch.cat([old[:, :-1].transpose(1, 2), new], 2)
            for old, new in ((self.keys, new_keys), (self.values, new_values))
        )
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
            layer.source_kv(memory.packed, memory.layout) for layer in self.model.decoder_layers
        )
        heads, features = source_kv[0][0].shape[1::2]
        # Zeros, not `empty`: a masked position still meets the values, and 0 * NaN is NaN.
        empty = memory.packed.new_zeros(batch, room + 1, heads, features)
        return TransformerState(
            source_kv=source_kv,
            source_mask=memory.mask,
            target_kv=tuple((empty.clone(), empty.clone()) for _ in source_kv),
            lengths=torch.zeros(batch, dtype=torch.int64, device=self.device),
        )

    @torch.inference_mode()
    def verify(
        self, tokens: Tensor, state: TransformerState, counts: Sequence[int] | None = None
    ) -> tuple[Tensor, TransformerState]:
        batch, width = tokens.shape
        room = state.target_kv[0][0].shape[1] - 1
        queries = width + (-width % self.floors.queries if self.exact else 0)
        every = counts is None or min(counts) == width
        wide = queries if every and batch * queries <= _FEW else width
        # A few rows are filled up to the shape at once; what is added lies behind the row's tokens, where
        # no query of theirs looks, and is overwritten by the next pass.
        layout, fed = self._pack(F.pad(tokens, (0, wide - width)) if wide > width else tokens, counts, every)
        real = layout.rows.shape[0]
        positions = (state.lengths[layout.rows] + layout.columns).clamp(max=room)  # [N]
        # What is added may lie past the last position that the model knows.
        known = positions.clamp(max=self.config.max_target_len - 1)
        x = self.model.decoder_embedding(layout.pad(fed)[None], layout.pad(known)[None])
        reach = state.lengths[:, None] + self.columns(queries)  # [B,K]
        mask = self.hide(self.columns(room) > reach[:, None, :, None])
        source_mask = state.source_mask.expand(-1, -1, queries, -1)
        for layer, source_kv, (keys, values) in zip(
            self.model.decoder_layers, state.source_kv, state.target_kv, strict=True
        ):
            cache = _Cache(keys, values, mask, positions, layout)
            x = layer(x, source_kv, source_mask, cache=cache)
        logits = self._logits(x)[:real]  # [N,V]
        if wide > width:
            logits = logits.unflatten(0, (batch, wide))[:, :width].flatten(0, 1)
        if counts is None:
            return logits.view(batch, width, -1), replace(state, lengths=state.lengths + width)
        fed_lengths = torch.tensor(counts, device=self.device)
        return logits, replace(state, lengths=state.lengths + fed_lengths)

    @torch.inference_mode()
    def verify_tree(
        self, tokens: Tensor, state: TransformerState, counts: Sequence[int], tree: Tree
    ) -> tuple[Tensor, TransformerState]:
        width = tokens.shape[1]
        layout, fed = self._pack(tokens, counts, min(counts) == width)
        rows, columns, real = layout.rows, layout.columns, layout.rows.shape[0]
        packed = torch.zeros_like(tokens).index_put_((rows, columns), self.columns(real))  # [B,K]
        depths = tree.depths[rows, columns]  # [N]
        known = (state.lengths[rows] + depths).clamp(max=self.config.max_target_len - 1)
        x = self.model.decoder_embedding(layout.pad(fed)[None], layout.pad(known)[None])
        queries = width + (-width % self.floors.queries if self.exact else 0)
        source_mask = state.source_mask.expand(-1, -1, queries, -1)
        kv: list[tuple[Tensor, Tensor]] = []
        make: Callable[[Tensor, Tensor], Cache]
        if self.exact:
            paths = self._paths(state, layout, packed, depths, tree.paths)

            def make(keys: Tensor, values: Tensor) -> Cache:
                return _PathCache(keys, values, paths, layout, kv)
        else:
            room = state.target_kv[0][0].shape[1] - 1
            past = (self.columns(room) >= state.lengths[:, None])[:, None].expand(-1, width, -1)
            mask = self.hide(torch.cat([past, ~tree.ancestors], 2)[:, None])

            def make(keys: Tensor, values: Tensor) -> Cache:
                return _TreeCache(keys, values, mask, layout, kv)

        for layer, source_kv, (keys, values) in zip(
            self.model.decoder_layers, state.source_kv, state.target_kv, strict=True
        ):
            x = layer(x, source_kv, source_mask, cache=make(keys, values))
        return self._logits(x)[:real], replace(state, branches=_Branches(kv, packed))

    def _paths(
        self, state: TransformerState, layout: Packed, packed: Tensor, depths: Tensor, lines: Tensor
    ) -> _Paths:
        """Where the tokens on `lines` [B,P,D] stand; see `Tree.paths`."""
        room = state.target_kv[0][0].shape[1] - 1
        batch, count, depth = lines.shape
        # Behind a path's end stands any token: none of the path's queries looks there.
        tokens = packed[:, None].expand(-1, count, -1).gather(2, lines.clamp(min=0)).transpose(0, 1)
        queries = depth + -depth % self.floors.queries
        reach = state.lengths[:, None] + self.columns(queries)  # [B,K]
        places = (state.lengths[:, None] + self.columns(depth)).clamp(max=room)
        places = places + self.columns(batch)[:, None] * (room + 1)  # [B,D]
        on_path = (lines[:, :, :, None] == self.columns(packed.shape[1])).any(2)  # [B,P,K]
        return _Paths(
            tokens=tokens.flatten(1),
            places=places.flatten(),
            queries=F.pad(tokens, (0, queries - depth)),
            mask=self.hide(self.columns(room) > reach[:, None, :, None]),
            owners=on_path.long().argmax(1)[layout.rows, layout.columns],
            depths=depths,
        )

    @torch.inference_mode()
    def keep(self, state: TransformerState, way: Tensor, lengths: Tensor) -> TransformerState:
        assert state.branches is not None
        places, batch = state.target_kv[0][0].shape[1], len(lengths)
        positions = state.lengths[:, None] + self.columns(way.shape[1])  # [B,D]
        positions = positions.masked_fill((positions >= lengths[:, None]) | (way < 0), places - 1)
        positions = (positions + self.columns(batch)[:, None] * places).flatten()
        tokens = state.branches.packed.gather(1, way.clamp(min=0)).flatten()
        for cached, fed in zip(state.target_kv, state.branches.kv, strict=True):
            for to, new in zip(cached, fed, strict=True):
                to.flatten(2).flatten(0, 1).index_copy_(0, positions, new[tokens])
        return replace(state, lengths=lengths, branches=None)

    def _logits(self, x: Tensor) -> Tensor:
        """x [1,N,d_model], as the last layer leaves it -> [N,V]."""
        if self.model.decoder_norm is not None:
            x = self.model.decoder_norm(x)
        return self.model.output(x)[0]

    def _pack(self, tokens: Tensor, counts: Sequence[int] | None, every: bool) -> tuple[Packed, Tensor]:
        batch, width = tokens.shape
        if every:
            index = torch.arange(batch * width, device=self.device)
            return self.layout(index // width, index % width, batch, width), tokens.flatten()
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
            target_kv=tuple((k[rows], v[rows]) for k, v in state.target_kv),
            lengths=state.lengths[rows],
            branches=branches,
        )

    @torch.inference_mode()
    def join(self, first: TransformerState, second: TransformerState) -> TransformerState:
        # In fast mode two batches differ in length; the shorter one grows by masked positions.
        def cat_layers(one: tuple, two: tuple) -> tuple:
            return tuple(
                (cat_rows(k1, k2), cat_rows(v1, v2)) for (k1, v1), (k2, v2) in zip(one, two, strict=True)
            )

        return TransformerState(
            source_kv=cat_layers(first.source_kv, second.source_kv),
            source_mask=cat_rows(first.source_mask, second.source_mask, float("-inf")),
            target_kv=cat_layers(first.target_kv, second.target_kv),
            lengths=torch.cat([first.lengths, second.lengths]),
        )
