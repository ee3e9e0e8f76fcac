"""Serves a Transformer to decoders: a static cache, per-row lengths, and exact mode.

Exact mode gives a row the same bits whatever shares its batch and however many tokens are fed at once:
source and cache have lengths that depend on the sentence alone, rows and queries come in the multiples that
the device needs (`models/linear.py`), and one code path serves a step and a verification.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from nartk.models.serving import LENGTHS, Packed, Serving
from nartk.scorer import Source

_FEW = 16  # rows of a linear layer that cost hardly more than one: reading the weights takes as long


@dataclass(frozen=True)
class TransformerState:
    """Keys and values of B rows. `lengths` says how many target tokens of each row count.

    Attributes:
        source_kv: Per layer, two of [B,H,S,D].
        source_mask: [B,1,1,S], 0 or minus infinity.
        target_kv: Per layer, two of [B,T+1,H,D]; the last position takes what belongs nowhere.
        lengths: [B] int64.
    """

    source_kv: tuple[tuple[Tensor, Tensor], ...]
    source_mask: Tensor
    target_kv: tuple[tuple[Tensor, Tensor], ...]
    lengths: Tensor


@dataclass(frozen=True)
class _Cache:
    """Writes each new token at its own row and position; see transformer.Cache."""

    keys: Tensor  # [B,T+1,H,D]
    values: Tensor
    positions: Tensor  # [N]
    layout: Packed

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        rows, positions, count = self.layout.rows, self.positions, self.positions.shape[0]
        self.keys[rows, positions] = keys[0, :, :count].transpose(0, 1)
        self.values[rows, positions] = values[0, :, :count].transpose(0, 1)
        return self.keys[:, :-1].transpose(1, 2), self.values[:, :-1].transpose(1, 2)


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
            x = layer(x, source_kv, source_mask, mask, _Cache(keys, values, positions, layout))
        if self.model.decoder_norm is not None:
            x = self.model.decoder_norm(x)
        logits = self.model.output(x)[0, :real]  # [N,V]
        if wide > width:
            logits = logits.unflatten(0, (batch, wide))[:, :width].flatten(0, 1)
        if counts is None:
            return logits.view(batch, width, -1), replace(state, lengths=state.lengths + width)
        fed_lengths = torch.tensor(counts, device=self.device)
        return logits, replace(state, lengths=state.lengths + fed_lengths)

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
        return TransformerState(
            source_kv=tuple((k[rows], v[rows]) for k, v in state.source_kv),
            source_mask=state.source_mask[rows],
            target_kv=tuple((k[rows], v[rows]) for k, v in state.target_kv),
            lengths=state.lengths[rows],
        )

    @torch.inference_mode()
    def join(self, first: TransformerState, second: TransformerState) -> TransformerState:
        def cat(a: Tensor, b: Tensor, dim: int, value: float = 0.0) -> Tensor:
            # In fast mode two batches differ in length; the shorter one grows by masked positions.
            size = max(a.shape[dim], b.shape[dim])
            grown = [
                x
                if x.shape[dim] == size
                else F.pad(x, (0, 0) * (x.dim() - 1 - dim) + (0, size - x.shape[dim]), value=value)
                for x in (a, b)
            ]
            return torch.cat(grown)

        def cat_layers(one: tuple, two: tuple, dim: int) -> tuple:
            return tuple(
                (cat(k1, k2, dim), cat(v1, v2, dim)) for (k1, v1), (k2, v2) in zip(one, two, strict=True)
            )

        return TransformerState(
            source_kv=cat_layers(first.source_kv, second.source_kv, 2),
            source_mask=cat(first.source_mask, second.source_mask, 3, float("-inf")),
            target_kv=cat_layers(first.target_kv, second.target_kv, 1),
            lengths=torch.cat([first.lengths, second.lengths]),
        )
