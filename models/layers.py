"""The layers of Transformers: embeddings, attention, feed-forward networks, and what they make up.

Symbols: B rows, S source positions, T target positions, K target tokens at once, H heads, D features
a head, V words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nartk.architectures.parts import Group, Positions
from nartk.architectures.settings import Config
from nartk.models import training
from nartk.models.parts import AnyNorm, PartModule
from nartk.models.training import Dropout

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


class Cache(Protocol):
    """Keys and values of the tokens that one decoder layer has seen."""

    def attend(self, attention: Attention, qkv: Tensor) -> Tensor:
        """Stores keys and values of the new tokens, each of which attends to those before it and to itself.

        Args:
            qkv: [B,K,3*H*D], the attention's projections of the tokens.

        Returns:
            What the attention gives, [B,K,d_model].
        """


def init_linears(network: nn.Module, but: str | None = None) -> None:
    """Initialises linear layers: weights by Glorot's uniform rule, `but` for one by name, biases by zeros."""
    for name, module in network.named_modules():
        if isinstance(module, nn.Linear):
            if name != but:
                nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def count_positions(tokens: Tensor, pad: int) -> Tensor:
    """Counts the tokens of each row that are no padding, from 0: [B,S], on whichever side it is padded."""
    return (tokens.ne(pad).cumsum(1) - 1).clamp(min=0)


class Embedding(PartModule):
    """Words plus positions: tokens [...] and positions [...] -> [...,d_model]."""

    words: nn.Embedding
    positions: nn.Embedding | None
    norm: AnyNorm | None
    table: Tensor | None  # [max_len,d_model], where positions are sinusoidal

    def __init__(self, part: Group, config: Config, **given: nn.Module) -> None:
        super().__init__(part, config, **given)
        self.scale: float = part.settings["scale"]
        positions, table = part.parts.get("positions"), None
        if isinstance(positions, Positions) and positions.type != "learned":
            table = torch.from_numpy(positions.table.copy())
        self.register_buffer("table", table, persistent=False)
        self.dropout = Dropout(config.dropout)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return self.add_positions(self.vectors(tokens), positions)

    def vectors(self, tokens: Tensor) -> Tensor:
        """Words without positions: [...] -> [...,d_model]."""
        vectors: Tensor = self.words(tokens) * self.scale
        return vectors

    def add_positions(self, x: Tensor, positions: Tensor) -> Tensor:
        """Adds positions [...] to vectors x [...,d_model] of words, or of whatever stands for them."""
        if self.positions is not None:
            x = x + self.positions(positions)
        elif self.table is not None:
            x = x + self.table[positions].to(x.dtype)
        if self.norm is not None:
            x = self.norm(x)
        return self.dropout(x)


class Attention(PartModule):
    """Multi-head attention whose projections are fused: one matrix for q, k, v, or q apart from k, v."""

    qkv: nn.Linear
    q: nn.Linear
    kv: nn.Linear
    out: nn.Linear

    def __init__(self, part: Group, config: Config) -> None:
        super().__init__(part, config)
        self.heads: int = part.settings["heads"]
        self.scale: float = part.settings["scale"]
        self.dropout = config.attention_dropout

    def split(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        """[B,K,parts*H*D] -> `parts` times [B,H,K,D]."""
        b, k, width = x.shape
        x = x.view(b, k, parts, self.heads, width // parts // self.heads)
        return x.permute(2, 0, 3, 1, 4).unbind(0)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool = False) -> Tensor:
        """Attends and projects: q [B,H,K,D], k and v [B,H,T,D] -> [B,K,d_model].

        A mask [B,1 or H,K or 1,T] tells which keys are seen, or is added to the scores.
        """
        if self.training:
            y = training.attention(q, k, v, mask, dropout=self.dropout, causal=causal, scale=self.scale)
        else:
            y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=self.scale)
        projected: Tensor = self.out(y.transpose(1, 2).flatten(2))  # [B,H,K,D] -> [B,K,H*D]
        return projected


class Recurrence(PartModule):
    """A simpler simple recurrent unit in place of self-attention (Kim et al. 2019, section 3.1).

    With y the input of a token, sigma the logistic function and c the state, 0 before the first token:
    f = sigma(W_f y + b_f), c' = f c + (1 - f) W y, and relu(c') is what it gives.
    """

    project: nn.Linear

    def split(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Candidates and logits of the forget gate: y [...,d_model] -> two of the same shape."""
        candidates, forget = self.project(y).chunk(2, -1)
        return candidates, forget

    def advance(self, state: Tensor, candidates: Tensor, forget: Tensor) -> Tensor:
        """States behind tokens of the states before them, all [...,d_model]."""
        return forget.sigmoid() * state + (-forget).sigmoid() * candidates

    def forward(self, y: Tensor) -> Tensor:
        """A whole target [B,T,d_model] -> the same shape."""
        candidates, forget = self.split(y)
        states = [torch.zeros_like(y[:, 0])]
        for t in range(y.shape[1]):
            states.append(self.advance(states[-1], candidates[:, t], forget[:, t]))
        return F.relu(torch.stack(states[1:], 1))


class FeedForward(PartModule):
    gate: nn.Linear | None
    up: nn.Linear
    norm: AnyNorm | None
    down: nn.Linear

    def __init__(self, part: Group, config: Config) -> None:
        super().__init__(part, config)
        self.activation = ACTIVATIONS[part.settings["activation"]]
        self.dropout = Dropout(config.activation_dropout)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            y = self.activation(self.up(x))
        else:
            y = self.activation(self.gate(x)) * self.up(x)
        y = self.dropout(y)
        out: Tensor = self.down(y if self.norm is None else self.norm(y))
        return out


class _Layer(PartModule):
    self_attention: Attention
    self_norm: AnyNorm
    ffn: FeedForward
    ffn_norm: AnyNorm

    def __init__(self, part: Group, config: Config) -> None:
        super().__init__(part, config)
        self.norm_first: bool = part.settings["norm_first"]
        self.dropout = Dropout(config.dropout)


class EncoderLayer(_Layer):
    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x [B,S,d_model] -> the same shape."""

        def attend(y: Tensor) -> Tensor:
            q, k, v = self.self_attention.split(self.self_attention.qkv(y), 3)
            return self.self_attention.attend(q, k, v, mask)

        x = _sublayer(x, attend, self.self_norm, self.dropout, self.norm_first)
        return _sublayer(x, self.ffn, self.ffn_norm, self.dropout, self.norm_first)


class DecoderLayer(_Layer):
    recurrence: Recurrence | None  # in place of self-attention, which such a layer lacks
    cross_attention: Attention
    cross_norm: AnyNorm

    def source_kv(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the encoded source: memory [B,S,d_model] -> two of [B,H,S,D]."""
        k, v = self.cross_attention.split(self.cross_attention.kv(memory), 2)
        return k, v

    def forward(
        self,
        x: Tensor,
        source_kv: tuple[Tensor, Tensor],
        source_mask: Tensor | None,
        mask: Tensor | None = None,
        cache: Cache | None = None,
        *,
        causal: bool = True,
    ) -> Tensor:
        """x [B,K,d_model] -> the same shape.

        Without a cache, x is a whole target: attention is causal and knows no mask, or sees what the mask
        [B,1 or H,1 or K,K] lets it.
        """

        def attend(y: Tensor) -> Tensor:
            if self.recurrence is not None:
                state: Tensor = self.recurrence(y)
                return state
            qkv = self.self_attention.qkv(y)
            if cache is not None:
                return cache.attend(self.self_attention, qkv)
            q, k, v = self.self_attention.split(qkv, 3)
            return self.self_attention.attend(q, k, v, mask, causal=causal)

        def attend_source(y: Tensor) -> Tensor:
            (q,) = self.cross_attention.split(self.cross_attention.q(y), 1)
            return self.cross_attention.attend(q, *source_kv, source_mask)

        return self.around(x, attend, attend_source)

    def around(
        self,
        x: Tensor,
        attend: Callable[[Tensor], Tensor] | None,
        attend_source: Callable[[Tensor], Tensor] | None,
        *,
        has_ffn: bool = True,
    ) -> Tensor:
        """The layer around two functions [B,K,d_model] -> the same, which attend to target and to source.

        A function that is None gives zeros; so does the feed-forward network without `has_ffn`.
        """
        x = _sublayer(x, attend, self.self_norm, self.dropout, self.norm_first)
        x = _sublayer(x, attend_source, self.cross_norm, self.dropout, self.norm_first)
        ffn = self.ffn if has_ffn else None
        return _sublayer(x, ffn, self.ffn_norm, self.dropout, self.norm_first)


def _sublayer(
    x: Tensor, f: Callable[[Tensor], Tensor] | None, norm: nn.Module, dropout: Dropout, norm_first: bool
) -> Tensor:
    if f is None:
        return x if norm_first else norm(x)
    if norm_first:
        return x + dropout(f(norm(x)))
    out: Tensor = norm(x + dropout(f(x)))
    return out


def pad_lists(lists: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Lists of numbers, none empty, as [N,T] int64, and which of these they hold, [N,T] bool.

    A list is padded with its own last number: a masked cell still meets the values, and another token's
    might be NaN.
    """
    lengths = torch.tensor([len(each) for each in lists])[:, None]
    flat, columns = torch.tensor([*chain.from_iterable(lists)]), torch.arange(int(lengths.max()))
    padded = flat[lengths.cumsum(0) - lengths + torch.minimum(columns, lengths - 1)]
    return padded.to(device), (columns < lengths).to(device)
