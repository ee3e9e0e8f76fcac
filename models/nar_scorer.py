"""The base of the scorers of non-autoregressive models: one pass over all places, in exact mode's shapes.

Symbols: B rows, S source positions, T places of the decoder, D features of the model, V words.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nartk.models.nar import NonAutoregressive
from nartk.models.serving import LENGTHS, Packed, Serving
from nartk.rows import cat_rows
from nartk.scorer import Source


@dataclass(frozen=True)
class NarState:
    """The encoded sources of B rows.

    Attributes:
        tokens: [B,S] source ids, padded on the right.
        lengths: [B] int64, eos included.
        memory: [B,S,D], zeros where nothing is.
        source_kv: Per decoder layer, two of [B,H,S,features of a head].
        source_mask: [B,1,1,S], 0 or minus infinity.
    """

    tokens: Tensor
    lengths: Tensor
    memory: Tensor
    source_kv: tuple[tuple[Tensor, Tensor], ...]
    source_mask: Tensor


class NarScorer(Serving):
    """Serves a `NonAutoregressive` network; subclasses add the protocol of their decoders."""

    model: NonAutoregressive

    def bucket(self, source_len: int, max_len: int) -> Hashable:
        return -(-source_len // LENGTHS) if self.exact else None

    @torch.inference_mode()
    def read(self, source: Source) -> NarState:
        """Encodes the source."""
        found = self.encode_source(source)
        layout = found.layout
        tokens = source.tokens
        if tokens.shape[1] < layout.width:
            tokens = F.pad(tokens, (0, layout.width - tokens.shape[1]), value=self.config.pad)
        memory = layout.unpack(found.packed)
        source_kv = tuple(layer.source_kv(found.packed, layout) for layer in self.model.decoder.layers)
        return NarState(tokens, source.lengths, memory, source_kv, found.mask)

    @torch.inference_mode()
    def select(self, state: NarState, rows: Tensor) -> NarState:
        """The state of rows [N], which may repeat or leave out rows."""
        return NarState(
            tokens=state.tokens[rows],
            lengths=state.lengths[rows],
            memory=state.memory[rows],
            source_kv=tuple((k[rows], v[rows]) for k, v in state.source_kv),
            source_mask=state.source_mask[rows],
        )

    @torch.inference_mode()
    def join(self, first: NarState, second: NarState) -> NarState:
        """The rows of `first`, then those of `second`."""
        return NarState(
            tokens=cat_rows(first.tokens, second.tokens, self.config.pad),
            lengths=torch.cat([first.lengths, second.lengths]),
            memory=cat_rows(first.memory, second.memory),
            source_kv=tuple(
                (cat_rows(k1, k2), cat_rows(v1, v2))
                for (k1, v1), (k2, v2) in zip(first.source_kv, second.source_kv, strict=True)
            ),
            source_mask=cat_rows(first.source_mask, second.source_mask, float("-inf")),
        )

    @torch.inference_mode()
    def decode(self, x: Tensor, lengths: Tensor, state: NarState) -> Tensor:
        """The decoder over placed inputs x [B,T,D], of which lengths [B] count -> features [B,T,D].

        In exact mode rows are computed together whose lengths round up to the same multiple of `LENGTHS`.
        """
        out = x.new_zeros(x.shape)
        for rows, width in self._groups(lengths):
            some, inside, count = state, x, lengths
            if rows is not None:
                some, inside, count = self.select(state, rows), x[rows], lengths[rows]
            layout, kept = self.counted(count, width)
            every = kept is None and width == x.shape[1]
            y = layout.pad(inside.flatten(0, 1) if every else inside[layout.rows, layout.columns])
            mask = None if kept is None else self.hide(~kept)[:, None, None, :]
            for layer, source_kv in zip(self.model.decoder.layers, some.source_kv, strict=True):
                y = layer(y, source_kv, some.source_mask, mask, causal=False, layout=layout)
            if self.model.decoder.norm is not None:
                y = self.model.decoder.norm(y)
            if every:
                return layout.unpack(y)
            at = layout.rows if rows is None else rows[layout.rows]
            out[at, layout.columns] = y[: at.shape[0]]
        return out

    def counted(self, lengths: Tensor, width: int) -> tuple[Packed, Tensor | None]:
        """The layout of the first places of each row, of as many as lengths [B] say, and which these are.

        Args:
            width: Of all places; in fast mode the largest length.

        Returns:
            Beside the layout, [B,width] bool; None in fast mode if all places count. In exact mode rows are
            always computed with a mask.
        """
        if not self.exact and len(lengths) == 1:
            return self.whole(1, width), None
        kept = self.columns(width) < lengths[:, None]
        rows, columns = kept.nonzero().unbind(1)
        layout = self.layout(rows, columns, len(lengths), width)
        return layout, kept if self.exact or not layout.dense else None

    def _groups(self, lengths: Tensor) -> Iterator[tuple[Tensor | None, int]]:
        """Rows (None: all) and the width they are computed at."""
        if not self.exact:
            yield None, int(lengths.max())
            return
        widths = -(-lengths.clamp(min=1) // LENGTHS) * LENGTHS
        found = widths.unique().tolist()
        for width in found:
            yield (None if len(found) == 1 else (widths == width).nonzero().squeeze(1)), width

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [N,V] of features [N,D]; a row's do not depend on the others."""
        return self.linear(self.model.output, hidden)

    @torch.inference_mode()
    def fill_inputs(
        self, x: Tensor, lengths: Tensor, state: NarState, places: Tensor | None = None
    ) -> Tensor:
        """Logits [B,T,V] at placed inputs x [B,T,D], of which lengths [B] count; 0 at the others.

        With `places` [B,T] bool, the logits [N,V] of these alone, row after row.
        """
        hidden = self.decode(x, lengths, state)
        if places is not None:
            return self.logits(hidden[places])
        kept = self.columns(x.shape[1]) < lengths[:, None]
        if bool(kept.all()):
            return self.logits(hidden.flatten(0, 1)).view(*x.shape[:2], -1)
        words = self.logits(hidden[kept])  # [n,V]
        logits = words.new_zeros(*x.shape[:2], words.shape[1])
        logits[kept] = words
        return logits

    def linear(self, layer: torch.nn.Linear, x: Tensor) -> Tensor:
        """A linear layer of the model over rows x [N,D], filled up to the floor -> [N,out features]."""
        count = x.shape[0]
        if count == 0:
            return x.new_zeros(0, layer.out_features)
        missing = -count % self.floors.rows
        filled = torch.cat([x, x.new_zeros(missing, x.shape[1])]) if missing else x
        return layer(filled)[:count]
