"""Serves a Transformer to decoders: a static cache, per-row lengths, and exact mode.

Exact mode gives a row the same bits whatever shares its batch and however many tokens are fed at once:
source and cache have lengths that depend on the sentence alone, rows and queries come in the multiples that
the device needs (`models/linear.py`), and one code path serves a step and a verification.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from nartk.models.linear import Floors, ServingLinear, measure_floors, serve
from nartk.models.transformer import Attention, Transformer
from nartk.scorer import Source
from nartk.vocab import Vocab

_ALIGNED = 16  # features of a head come in multiples of this, which is 64 bytes in fp32
_FEW = 16  # rows of a linear layer that cost hardly more than one: reading the weights takes as long
_LENGTHS = 32  # lengths of source and cache are multiples of this in exact mode, tokens


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
class _Packed:
    """N tokens of B rows in one row, `rows` and `columns` saying whose and which; see transformer.Layout."""

    rows: Tensor
    columns: Tensor
    batch: int
    width: int
    dense: bool  # every row has `width` tokens
    padding: int  # tokens at the end that belong to no row

    def unpack(self, x: Tensor) -> Tensor:
        real = x[0, :, : x.shape[2] - self.padding]  # [H,N,D]
        if self.dense:
            return real.unflatten(1, (self.batch, self.width)).transpose(0, 1)
        out = x.new_zeros(self.batch, self.width, x.shape[1], x.shape[3])
        out[self.rows, self.columns] = real.transpose(0, 1)
        return out.transpose(1, 2)

    def pack(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2)  # [B,K,H,D]
        real = x.flatten(0, 1) if self.dense else x[self.rows, self.columns]
        return self.pad(real.flatten(1))[None]

    def pad(self, x: Tensor) -> Tensor:
        """[N,...] -> the same with zeros for the tokens that belong to no row."""
        return x if self.padding == 0 else F.pad(x, (0, 0) * (x.dim() - 1) + (0, self.padding))


@dataclass(frozen=True)
class _Cache:
    """Writes each new token at its own row and position; see transformer.Cache."""

    keys: Tensor  # [B,T+1,H,D]
    values: Tensor
    positions: Tensor  # [N]
    layout: _Packed

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        rows, positions, count = self.layout.rows, self.positions, self.positions.shape[0]
        self.keys[rows, positions] = keys[0, :, :count].transpose(0, 1)
        self.values[rows, positions] = values[0, :, :count].transpose(0, 1)
        return self.keys[:, :-1].transpose(1, 2), self.values[:, :-1].transpose(1, 2)


class TransformerScorer:
    """Implements nartk.scorer.Seq2SeqScorer for a Transformer.

    Args:
        model: Left as it is; a converted copy is served.
        dtype: Of weights and activations: float32, bfloat16 or float16.
        source_vocab: Where it differs from the target's `vocab`.
    """

    def __init__(
        self,
        model: Transformer,
        vocab: Vocab,
        *,
        source_vocab: Vocab | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.config = model.config
        self.vocab = vocab
        self.dtype = dtype
        self.device = torch.device(device)
        served = copy.deepcopy(model).eval().requires_grad_(False)
        for module in served.modules():
            if isinstance(module, Attention):
                _align_heads(module)
        served = served.to(self.device, dtype)
        self.model: Transformer = serve(served, dtype)  # type: ignore[assignment]
        mapped = range(len(vocab)) if source_vocab in (None, vocab) else source_vocab.map_to(vocab)
        self.source_to_target = torch.tensor(mapped, device=self.device)
        self.exact = True
        self.floors = self._measure()

    def _measure(self) -> Floors:
        linears = [module for module in self.model.modules() if isinstance(module, ServingLinear)]
        attentions = [module for module in self.model.modules() if isinstance(module, Attention)]
        floors = measure_floors(linears, [(a.heads, a.out.in_features // a.heads) for a in attentions])
        for layer in linears:
            layer.chunk = floors.chunk
        return floors

    def mode(self, *, exact: bool) -> TransformerScorer:
        other = copy.copy(self)
        other.exact = exact
        return other

    def bucket(self, source_len: int, max_len: int) -> Hashable:
        if not self.exact:
            return None
        return -(-source_len // _LENGTHS), -(-max_len // _LENGTHS)

    @torch.inference_mode()
    def encode(self, source: Source, max_len: int) -> TransformerState:
        tokens, room = source.tokens, max_len
        if self.exact:
            tokens = F.pad(tokens, (0, -tokens.shape[1] % _LENGTHS), value=self.config.pad)
            room = -(-max_len // _LENGTHS) * _LENGTHS
        batch, length = tokens.shape
        hidden = torch.arange(length, device=self.device) >= source.lengths[:, None]
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device)
        mask = mask.masked_fill(hidden, float("-inf"))[:, None, None, :]
        rows, columns = (~hidden).nonzero().unbind(1)
        layout = self._layout(rows, columns, batch, length)
        memory = self.model.encode_masked(
            layout.pad(tokens[rows, columns])[None],
            layout.pad(columns)[None],
            mask,
            layout,
        )
        source_kv = tuple(layer.source_kv(memory, layout) for layer in self.model.decoder_layers)
        heads, features = source_kv[0][0].shape[1::2]
        shape = (batch, room + 1, heads, features)
        return TransformerState(
            source_kv=source_kv,
            source_mask=mask,
            # Zeros, not `empty`: a masked position still meets the values, and 0 * NaN is NaN.
            target_kv=tuple((memory.new_zeros(shape), memory.new_zeros(shape)) for _ in source_kv),
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
        reach = state.lengths[:, None] + torch.arange(queries, device=self.device)  # [B,K]
        hidden = torch.arange(room, device=self.device) > reach[:, None, :, None]
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device)
        mask.masked_fill_(hidden, float("-inf"))
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

    def _pack(self, tokens: Tensor, counts: Sequence[int] | None, every: bool) -> tuple[_Packed, Tensor]:
        batch, width = tokens.shape
        if every:
            index = torch.arange(batch * width, device=self.device)
            return self._layout(index // width, index % width, batch, width), tokens.flatten()
        kept = torch.arange(width) < torch.tensor(counts)[:, None]
        rows, columns = kept.nonzero().to(self.device).unbind(1)
        return self._layout(rows, columns, batch, width), tokens[rows, columns]

    def _layout(self, rows: Tensor, columns: Tensor, batch: int, width: int) -> _Packed:
        count = rows.shape[0]
        return _Packed(rows, columns, batch, width, count == batch * width, -count % self.floors.rows)

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


def _align_heads(attention: Attention) -> None:
    """Fills heads of odd sizes up with zeros, in place, which changes no result.

    A matrix product may treat rows that begin at an aligned address otherwise than others: with heads of 9
    or 10 features a query got other bits at another place among the queries.
    """
    heads = attention.heads
    features = attention.out.in_features // heads
    missing = -features % _ALIGNED
    if missing == 0:
        return

    def filled(weight: Tensor) -> Tensor:  # [parts*H*D, ...] -> [parts*H*(D+missing), ...]
        rows = weight.unflatten(0, (-1, features))
        return F.pad(rows, (0, 0) * (rows.dim() - 2) + (0, missing)).flatten(0, 1)

    for name, layer in attention.named_children():
        weight, bias = layer.weight, layer.bias
        if name == "out":
            weight = filled(weight.t()).t().contiguous()
        else:
            weight, bias = filled(weight), filled(bias)
        wider = torch.nn.Linear(1, 1)
        wider.out_features, wider.in_features = weight.shape
        wider.weight, wider.bias = torch.nn.Parameter(weight, False), torch.nn.Parameter(bias, False)
        setattr(attention, name, wider)
