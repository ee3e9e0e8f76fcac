"""What the scorers of all models share: a served copy of the network, packed rows, and exact mode's shapes.

Exact mode gives a row the same bits whatever shares its batch: lengths depend on the sentence alone, rows
and queries come in the multiples that the device needs (`models/linear.py`).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from nartk.models.linear import Floors, ServingLinear, measure_floors, serve
from nartk.models.transformer import Attention, Transformer
from nartk.rows import steps
from nartk.scorer import Source
from nartk.vocab import Vocab

LENGTHS = 32  # lengths of source, cache and canvas are multiples of this in exact mode, tokens
_ALIGNED = 16  # features of a head come in multiples of this, which is 64 bytes in fp32

S = TypeVar("S", bound="Serving")


@dataclass(frozen=True)
class Packed:
    """N tokens of B rows behind each other, `rows` and `columns` [N] saying whose and which they are.

    See transformer.Layout.
    """

    rows: Tensor
    columns: Tensor
    batch: int
    width: int
    dense: bool  # every row has `width` tokens
    padding: int  # tokens at the end that belong to no row

    @cached_property
    def places(self) -> Tensor:
        """[N], which of B*K each is."""
        return self.columns if self.batch == 1 else self.rows * self.width + self.columns

    @cached_property
    def _filled(self) -> Tensor:
        """`places`, and one of them for each token that belongs to no row."""
        return F.pad(self.places, (0, self.padding))

    def unpack(self, x: Tensor) -> Tensor:
        """[N,W] -> [B,K,W], whatever the W features are."""
        return self._spread(x).view(self.batch, self.width, -1)

    def _spread(self, x: Tensor) -> Tensor:
        """[N,W] -> [B*K,W]."""
        if self.padding:
            x = x[: x.shape[0] - self.padding]
        if self.dense:
            return x
        return x.new_zeros(self.batch * self.width, x.shape[1]).index_copy_(0, self.places, x)

    def split(self, x: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
        x = self._spread(x)
        if parts == 1:
            return (x.view(self.batch, self.width, heads, -1).transpose(1, 2),)
        return x.view(self.batch, self.width, parts, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)

    def pack(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2).reshape(self.batch * self.width, -1)  # [B,H,K,D] -> [B*K,H*D]
        return x if self.dense and not self.padding else x.index_select(0, self._filled)

    def pad(self, x: Tensor) -> Tensor:
        """[N,...] -> the same with zeros for the tokens that belong to no row."""
        return x if self.padding == 0 else F.pad(x, (0, 0) * (x.dim() - 1) + (0, self.padding))


@dataclass(frozen=True)
class Memory:
    """The encoded source of B rows.

    Attributes:
        packed: [N,d_model], the tokens of all rows.
        layout: Whose they are.
        mask: [B,1,1,S], 0 or minus infinity.
    """

    packed: Tensor
    layout: Packed
    mask: Tensor


class Serving:
    """A network ready to serve.

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

    @property
    def numerics(self) -> str:
        """What a signature says of how it computes."""
        return f"floors:{self.floors}|torch:{torch.__version__}"

    def _measure(self) -> Floors:
        linears = [module for module in self.model.modules() if isinstance(module, ServingLinear)]
        attentions = [module for module in self.model.modules() if isinstance(module, Attention)]
        floors = measure_floors(linears, [(a.heads, a.out.in_features // a.heads) for a in attentions])
        for layer in linears:
            layer.chunk = floors.chunk
        return floors

    def mode(self: S, *, exact: bool) -> S:
        """This scorer in exact mode or in fast mode."""
        other = copy.copy(self)
        other.exact = exact
        return other

    def encode_source(self, source: Source) -> Memory:
        """Encodes the source; in exact mode its length is a multiple of `LENGTHS`."""
        tokens = source.tokens
        if self.exact:
            tokens = F.pad(tokens, (0, -tokens.shape[1] % LENGTHS), value=self.config.pad)
        batch, length = tokens.shape
        kept = self.columns(length) < source.lengths[:, None]
        rows, columns = kept.nonzero().unbind(1)
        layout = self.layout(rows, columns, batch, length)
        mask = self.hide(~kept)[:, None, None, :]
        packed = self.model.encoder.encode_masked(
            layout.pad(tokens[rows, columns]), layout.pad(columns), mask, layout
        )
        return Memory(packed, layout, mask)

    def layout(self, rows: Tensor, columns: Tensor, batch: int, width: int) -> Packed:
        """The layout of the tokens at `rows` and `columns` [N] of [batch, width], filled up to the floor."""
        count = rows.shape[0]
        return Packed(rows, columns, batch, width, count == batch * width, -count % self.floors.rows)

    def whole(self, batch: int, width: int) -> Packed:
        """The layout of all tokens of [batch, width]."""
        return _whole(batch, width, self.floors.rows, self.device)

    def columns(self, width: int) -> Tensor:
        """[width]: 0, 1, 2, ..."""
        return steps(width, self.device)

    def hide(self, hidden: Tensor) -> Tensor:
        """An additive mask: minus infinity where `hidden`, else 0."""
        return torch.zeros(hidden.shape, dtype=self.dtype, device=self.device).masked_fill_(
            hidden, float("-inf")
        )


@lru_cache(maxsize=256)
def _whole(batch: int, width: int, multiple: int, device: torch.device) -> Packed:
    count = batch * width
    places = steps(count, device)
    return Packed(places // width, places % width, batch, width, True, -count % multiple)


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
        assert isinstance(layer, torch.nn.Linear)
        weight: Tensor = layer.weight
        bias: Tensor = layer.bias
        if name == "out":
            weight = filled(weight.t()).t().contiguous()
        else:
            weight, bias = filled(weight), filled(bias)
        wider = torch.nn.Linear(1, 1)
        wider.out_features, wider.in_features = weight.shape
        wider.weight, wider.bias = torch.nn.Parameter(weight, False), torch.nn.Parameter(bias, False)
        setattr(attention, name, wider)
