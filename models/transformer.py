"""The encoder-decoder Transformer (Vaswani et al. 2017), for training and for serving.

Symbols: B rows, S source positions, T target positions, K target tokens at once, H heads, D features
a head, V words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nartk.architectures.transformer import (
    JOINT,
    TARGET_WORDS,
    TransformerConfig,
    sinusoids,
)
from nartk.models import training
from nartk.models.training import Dropout
from nartk.protocols.contexts import check_sources
from nartk.protocols.passes import Source, texts_of

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


class Cache(Protocol):
    """Where one decoder layer keeps the keys and values of the tokens it has seen."""

    def attend(self, attention: Attention, qkv: Tensor) -> Tensor:
        """Stores keys and values of the new tokens, each of which attends to those before it and to itself.

        Args:
            qkv: [B,K,3*H*D], the attention's projections of the tokens.

        Returns:
            What the attention gives, [B,K,d_model].
        """


def count_positions(tokens: Tensor, pad: int) -> Tensor:
    """Counts the tokens of each row that are no padding, from 0: [B,S], on whichever side it is padded."""
    return (tokens.ne(pad).cumsum(1) - 1).clamp(min=0)


class Embedding(nn.Module):
    """Words plus positions: tokens [...] and positions [...] -> [...,d_model]."""

    table: Tensor  # [max_len,d_model], where positions are sinusoidal

    def __init__(self, config: TransformerConfig, words: nn.Embedding, positions: str, max_len: int) -> None:
        super().__init__()
        self.words = words
        self.scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.positions: nn.Embedding | None = None
        if positions == "learned":
            self.positions = nn.Embedding(max_len, config.d_model)
            nn.init.normal_(self.positions.weight, std=config.d_model**-0.5)
        elif positions == "sinusoidal":
            table = torch.from_numpy(sinusoids(max_len, config.d_model).copy())
            self.register_buffer("table", table, persistent=False)
        self.position_type = positions
        self.norm = make_norm(config) if config.norm_embedding else None
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
        elif self.position_type == "sinusoidal":
            x = x + self.table[positions].to(x.dtype)
        if self.norm is not None:
            x = self.norm(x)
        return self.dropout(x)


def make_norm(config: TransformerConfig) -> Any:
    """A layer norm, or an RMSNorm, over features [...,d_model]."""
    norm = nn.LayerNorm if config.norm == "layer" else nn.RMSNorm
    return norm(config.d_model, config.norm_eps)


class RelativePositions(nn.Embedding):
    """Biases of attention scores by how far a key is from its query, for each head (Raffel et al. 2020)."""

    table: Tensor  # buckets of the distances from -farthest to farthest

    def __init__(self, config: TransformerConfig, side: str) -> None:
        super().__init__(config.relative_buckets, getattr(config, f"{side}_heads"))
        nn.init.normal_(self.weight, std=config.d_model**-0.5)
        self.farthest = config.relative_distance
        self.register_buffer("table", torch.from_numpy(config.distance_buckets(side)), persistent=False)

    def mask(self, queries: Tensor, kept: Tensor) -> Tensor:
        """What is added to scores: minus infinity at the keys that are not seen.

        Args:
            queries: [...,K], positions of queries; those of keys are 0 to T - 1.
            kept: [...,K or 1,T] bool, which keys a query sees.

        Returns:
            [...,H,K,T].
        """
        distances = torch.arange(kept.shape[-1], device=kept.device) - queries[..., None]
        at = distances.clamp(-self.farthest, self.farthest) + self.farthest
        biases = self(self.table[at]).movedim(-1, -3)  # [...,K,T,H] -> [...,H,K,T]
        return biases.masked_fill(~kept.unsqueeze(-3), -math.inf)


def relative_positions(config: TransformerConfig, side: str) -> RelativePositions | None:
    """The biases by distance of the side, ``encoder`` or ``decoder``, if it has any."""
    return RelativePositions(config, side) if getattr(config, f"{side}_positions") == "relative" else None


class Attention(nn.Module):
    """Multi-head attention whose projections are fused: one matrix for q, k, v, or q apart from k, v."""

    def __init__(self, config: TransformerConfig, side: str, *, over_source: bool = False) -> None:
        super().__init__()
        self.heads: int = getattr(config, f"{side}_heads")
        features = config.attention_features(side)
        self.scale = features**-0.5 if config.scale_attention else 1.0
        self.dropout = config.attention_dropout
        d_model, width = config.d_model, self.heads * features
        if over_source:
            self.q = nn.Linear(d_model, width, config.bias)
            self.kv = nn.Linear(d_model, 2 * width, config.bias)
        else:
            self.qkv = nn.Linear(d_model, 3 * width, config.bias)
        self.out = nn.Linear(width, d_model, config.bias)

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
        return self.out(y.transpose(1, 2).flatten(2))  # [B,H,K,D] -> [B,K,H*D]


class FeedForward(nn.Module):
    def __init__(self, config: TransformerConfig, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(config.d_model, inner, config.bias) if config.gated_ffn else None
        self.up = nn.Linear(config.d_model, inner, config.bias)
        self.down = nn.Linear(inner, config.d_model, config.bias)
        self.activation = ACTIVATIONS[config.activation]
        self.dropout = Dropout(config.activation_dropout)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            y = self.activation(self.up(x))
        else:
            y = self.activation(self.gate(x)) * self.up(x)
        return self.down(self.dropout(y))


class EncoderLayer(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm_first = config.encoder_norm_first
        self.self_attention = Attention(config, "encoder")
        self.self_norm = make_norm(config)
        self.ffn = FeedForward(config, config.encoder_ffn)
        self.ffn_norm = make_norm(config)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x [B,S,d_model] -> the same shape."""

        def attend(y: Tensor) -> Tensor:
            q, k, v = self.self_attention.split(self.self_attention.qkv(y), 3)
            return self.self_attention.attend(q, k, v, mask)

        x = _sublayer(x, attend, self.self_norm, self.dropout, self.norm_first)
        return _sublayer(x, self.ffn, self.ffn_norm, self.dropout, self.norm_first)


class DecoderLayer(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm_first = config.decoder_norm_first
        self.self_attention = Attention(config, "decoder")
        self.self_norm = make_norm(config)
        self.cross_attention = Attention(config, "decoder", over_source=True)
        self.cross_norm = make_norm(config)
        self.ffn = FeedForward(config, config.decoder_ffn)
        self.ffn_norm = make_norm(config)
        self.dropout = Dropout(config.dropout)

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
            qkv = self.self_attention.qkv(y)
            if cache is not None:
                return cache.attend(self.self_attention, qkv)
            q, k, v = self.self_attention.split(qkv, 3)
            return self.self_attention.attend(q, k, v, mask, causal=causal)

        def attend_source(y: Tensor) -> Tensor:
            (q,) = self.cross_attention.split(self.cross_attention.q(y), 1)
            return self.cross_attention.attend(q, *source_kv, source_mask)

        x = _sublayer(x, attend, self.self_norm, self.dropout, self.norm_first)
        x = _sublayer(x, attend_source, self.cross_norm, self.dropout, self.norm_first)
        return _sublayer(x, self.ffn, self.ffn_norm, self.dropout, self.norm_first)


def _sublayer(x: Tensor, f: Any, norm: nn.Module, dropout: Dropout, norm_first: bool) -> Tensor:
    if norm_first:
        return x + dropout(f(norm(x)))
    return norm(x + dropout(f(x)))


class SourceEncoder(nn.Module):
    """Base of encoders, whatever they read: what serves a model calls nothing but `read`."""

    def read(self, sources: Sequence[Source]) -> tuple[Tensor, Tensor]:
        """Encodes sources, at least one: memory [B,S,d_model] and which positions count, [B,S] bool.

        Each row counts from its beginning on, at least one position.

        Raises:
            PassError: A source is empty, too long, or holds what the model does not know.
            SourceMismatchError: It is text where features are read, or the reverse.
        """
        raise NotImplementedError


class Encoder(SourceEncoder):
    """Maps source words to the memory that a decoder attends to."""

    def __init__(self, config: TransformerConfig, embedding: Embedding) -> None:
        super().__init__()
        self.pad, self.longest = config.pad, config.max_source_len
        self.embedding = embedding
        # A ModuleList is a sequence, but does not say of what.
        self.layers: Sequence[EncoderLayer] = nn.ModuleList(  # type: ignore[assignment]
            EncoderLayer(config) for _ in range(config.encoder_layers)
        )
        self.relative = relative_positions(config, "encoder")
        self.norm = make_norm(config) if config.encoder_norm_first else None

    def forward(self, src_tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """Encodes src_tokens [B,S]: memory [B,S,d_model] and its mask [B,1,1,S], None if none is padded."""
        kept = src_tokens.ne(self.pad)
        mask = None if bool(kept.all()) else kept[:, None, None, :]
        return self.encode_masked(src_tokens, count_positions(src_tokens, self.pad), mask), mask

    def read(self, sources: Sequence[Source]) -> tuple[Tensor, Tensor]:
        """Encodes texts."""
        texts = texts_of(sources)
        check_sources(texts, longest=self.longest, words=self.embedding.words.num_embeddings)
        tokens, kept = pad_lists(texts, self.embedding.words.weight.device)
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        return self.encode_masked(tokens, positions, kept[:, None, None]), kept

    def encode_masked(self, src_tokens: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        """Encodes src_tokens [B,S] at the given positions and mask [B,1,1,S] -> memory [B,S,d_model]."""
        x = self.embedding(src_tokens, positions)
        if self.relative is not None:
            columns = torch.arange(src_tokens.shape[1], device=src_tokens.device)
            kept = torch.ones_like(src_tokens[:1, None], dtype=torch.bool) if mask is None else mask[:, 0]
            mask = self.relative.mask(columns, kept)
        for layer in self.layers:
            x = layer(x, mask)
        return x if self.norm is None else self.norm(x)


class Decoder(nn.Module):
    """Maps the target so far and a memory, whatever it was encoded from, to features of the next words."""

    def __init__(self, config: TransformerConfig, embedding: Embedding) -> None:
        super().__init__()
        self.pad = config.pad
        self.embedding = embedding
        self.layers: Sequence[DecoderLayer] = nn.ModuleList(  # type: ignore[assignment]
            DecoderLayer(config) for _ in range(config.decoder_layers)
        )
        self.relative = relative_positions(config, "decoder")
        self.norm = make_norm(config) if config.decoder_norm_first else None
        self.scale = config.d_model**-0.5 if config.scale_output else 1.0

    def forward(self, prev_output_tokens: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        """A whole target [B,T] padded right, memory [B,S,d_model] and its mask -> [B,T,d_model]."""
        x = self.embedding(prev_output_tokens, count_positions(prev_output_tokens, self.pad))
        before = None
        if self.relative is not None:
            columns = torch.arange(x.shape[1], device=x.device)
            before = self.relative.mask(columns, columns <= columns[:, None])[None]
        for layer in self.layers:
            x = layer(x, layer.source_kv(memory), mask, before, causal=before is None)
        return self.finish(x)

    def finish(self, x: Tensor) -> Tensor:
        """What the output layer reads: the features [...,d_model] of the last layer, normed and scaled."""
        x = x if self.norm is None else self.norm(x)
        return x if self.scale == 1.0 else x * self.scale


def pad_lists(lists: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Lists of numbers, none empty, as [N,T] int64, and which of these they hold, [N,T] bool.

    A list is padded with its own last number: a masked cell still meets the values, and another token's
    might be NaN.
    """
    longest = max(len(each) for each in lists)
    padded = [[*each, *[each[-1]] * (longest - len(each))] for each in lists]
    lengths = torch.tensor([len(each) for each in lists])
    kept = torch.arange(longest) < lengths[:, None]
    return torch.tensor(padded, device=device), kept.to(device)


class EncoderDecoder(nn.Module):
    """An encoder of any sources, a decoder, and the output layer: features [...,d_model] -> logits [...,V].

    In a state dict the names of the encoder's weights begin with ``encoder_``, the decoder's with
    ``decoder_``, as in `TransformerConfig.weight_shapes`.
    """

    encoder: SourceEncoder

    def __init__(self, config: TransformerConfig, encoder: SourceEncoder, decoder: Decoder) -> None:
        super().__init__()
        self.config = config
        self.encoder = encoder
        self.decoder = decoder
        self.output = nn.Linear(config.d_model, config.tgt_vocab, config.output_bias)
        nn.init.normal_(self.output.weight, std=config.d_model**-0.5)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                if name != "output":
                    nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        if TARGET_WORDS[1] in config.shared_weights():
            self.output.weight = decoder.embedding.words.weight
        self.register_state_dict_post_hook(_name_as_stored)
        self.register_load_state_dict_pre_hook(_name_as_held)


def _name_as_stored(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    for side in ("encoder", "decoder"):
        _rename(state, f"{prefix}{side}.", f"{prefix}{side}_")


def _name_as_held(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for side in ("encoder", "decoder"):
        _rename(state, f"{prefix}{side}_", f"{prefix}{side}.")


def _rename(state: dict[str, Any], old: str, new: str) -> None:
    named = [(new + name.removeprefix(old) if name.startswith(old) else name, state[name]) for name in state]
    state.clear()
    state.update(named)  # in their order: of those that are shared, the first name is stored


class Transformer(EncoderDecoder):
    """Maps a source and the target so far to the next words' logits."""

    encoder: Encoder

    def __init__(self, config: TransformerConfig) -> None:
        source_words = target_words = word_embedding(config.src_vocab, config)
        if config.share_embeddings not in JOINT:
            target_words = word_embedding(config.tgt_vocab, config)
        source = Embedding(config, source_words, config.encoder_positions, config.max_source_len)
        target = Embedding(config, target_words, config.decoder_positions, config.target_positions)
        super().__init__(config, Encoder(config, source), Decoder(config, target))

    def encode(self, src_tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """Encodes src_tokens [B,S]: memory [B,S,d_model] and its mask [B,1,1,S], None if none is padded."""
        memory, mask = self.encoder(src_tokens)
        return memory, mask

    def forward(self, src_tokens: Tensor, prev_output_tokens: Tensor) -> Tensor:
        """Teacher forcing: src_tokens [B,S], prev_output_tokens [B,T] padded right -> logits [B,T,V]."""
        return self.output(self.features(src_tokens, prev_output_tokens))

    def features(self, src_tokens: Tensor, prev_output_tokens: Tensor) -> Tensor:
        """As `forward`, before the output layer: [B,T,d_model]."""
        return self.decoder(prev_output_tokens, *self.encode(src_tokens))


def word_embedding(count: int, config: TransformerConfig) -> nn.Embedding:
    """Vectors of so many words, random but for the padding's."""
    words = nn.Embedding(count, config.d_model, padding_idx=config.pad)
    nn.init.normal_(words.weight, std=config.d_model**-0.5)
    nn.init.zeros_(words.weight[config.pad])
    return words


def label_smoothed_cross_entropy(
    logits: Tensor, target: Tensor, *, epsilon: float, pad: int, weights: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums the training loss over the target's tokens (Szegedy et al. 2016, in fairseq's form).

    A share `epsilon` of the probability mass is spread evenly over all words but the right one, which keeps
    1 - epsilon + epsilon / V of it in fairseq's count; this is the same arithmetic.

    Args:
        logits: [B,T,V], any float type; the loss is computed in fp32 or wider.
        target: [B,T] int64.
        epsilon: Mass that is spread, in [0, 1).
        pad: Target id that does not count.
        weights: [B,T], what each token's loss counts; None: 1.

    Returns:
        The smoothed and weighted loss, the plain negative log-likelihood (both summed, nats) and the number
        of tokens.
    """
    # Padding is masked, not taken out: the gradient of a choice of rows costs more than their softmax.
    kept = target.ne(pad).flatten()
    wide = torch.float32 if logits.dtype in (torch.float16, torch.bfloat16) else logits.dtype
    lprobs = F.log_softmax(logits.flatten(0, 1), -1, dtype=wide)  # [B,T,V] -> [BT,V]
    losses = F.nll_loss(lprobs, target.flatten(), ignore_index=pad, reduction="none")
    nll = losses.sum()
    if epsilon > 0.0:
        spread = epsilon / (logits.shape[-1] - 1)
        losses = (1.0 - epsilon - spread) * losses - spread * lprobs.sum(-1).where(kept, 0.0)
    if weights is not None:
        losses = losses * weights.flatten()
    return losses.sum(), nll, kept.sum()


def edited(src_tokens: Tensor, prev_output_tokens: Tensor, target: Tensor, *, pad: int) -> Tensor:
    """Which target tokens [B,T] do not copy the source: their pair with the token before is not in it.

    Args:
        src_tokens: [B,S], padded on either side.
        prev_output_tokens: [B,T], the target behind one eos, which stands for the source's beginning too.
    """
    first = prev_output_tokens[:, :1]
    before = torch.cat([first, src_tokens[:, :-1]], 1)
    before = torch.where(before == pad, first, before)
    pairs = (target[:, :, None] == src_tokens[:, None]) & (prev_output_tokens[:, :, None] == before[:, None])
    return ~pairs.any(2)  # [B,T,S] -> [B,T]
