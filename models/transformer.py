"""Encoders and decoders, and the encoder-decoder Transformer (Vaswani et al. 2017).

Symbols: B rows, S source positions, T target positions, K target tokens at once, H heads, D features
a head, V words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nartk.architectures import imported
from nartk.architectures.decoders import Decoder
from nartk.architectures.encoders import TextEncoder
from nartk.architectures.settings import JOINT, TARGET_WORDS
from nartk.models.layers import (
    DecoderLayer,
    Embedding,
    EncoderLayer,
    count_positions,
    init_linears,
    pad_lists,
)
from nartk.models.losses import Losses, Training, label_smoothed_cross_entropy, with_encoder_ctc
from nartk.models.parts import AnyNorm, DistancesModule, PartModule, layer_of
from nartk.protocols.contexts import check_sources
from nartk.protocols.passes import FloatArray, Source, texts_of


@dataclass(frozen=True)
class Encoded:
    """An encoded batch of sources: all that decoders and losses see of them.

    Attributes:
        memory: [B,S,d_model].
        kept: [B,S] bool, which positions count; each row counts from its beginning on, at least one.
        tokens: [B,S] the source's words; None: it has none.
        intermediate: Logits [B,S,V] of each intermediate CTC of the encoder, if they were asked for.
    """

    memory: Tensor
    kept: Tensor
    tokens: Tensor | None = None
    intermediate: list[Tensor] = field(default_factory=list)

    @property
    def lengths(self) -> Tensor:
        """[B], positions that count."""
        return self.kept.sum(1)

    @property
    def mask(self) -> Tensor | None:
        """[B,1,1,S], as attention takes it; None where all positions count."""
        return None if bool(self.kept.all()) else self.kept[:, None, None, :]

    def rows(self, which: Tensor) -> Encoded:
        """Those of the rows [B] bool."""
        tokens = None if self.tokens is None else self.tokens[which]
        return Encoded(
            self.memory[which], self.kept[which], tokens, [each[which] for each in self.intermediate]
        )


class SourceEncoder(PartModule):
    """Base of encoders, whatever they read: what serves a model calls nothing but `read`.

    Attributes:
        inputs: Names of what `forward` reads of a batch.
        ctc: Predicts words of what is encoded; None: there is no such head.
    """

    inputs: ClassVar[tuple[str, ...]]
    ctc: nn.Linear | None

    def read(self, sources: Sequence[Source]) -> Encoded:
        """Encodes sources, at least one.

        Raises:
            PassError: A source is empty, too long, or holds what the model does not know.
            SourceMismatchError: It is text where features are read, or the reverse.
        """
        raise NotImplementedError


class TextEncoderModule(SourceEncoder):
    """Maps source words to the memory that a decoder attends to."""

    inputs: ClassVar[tuple[str, ...]] = ("src_tokens",)

    embedding: Embedding
    layers: Sequence[EncoderLayer]
    relative: DistancesModule | None
    norm: AnyNorm | None

    def __init__(self, config: TextEncoder, embedding: Embedding) -> None:
        super().__init__(config.tree["encoder"], config, embedding=embedding)
        self.pad, self.longest = config.pad, config.max_source_len

    def forward(self, src_tokens: Tensor) -> Encoded:
        """Encodes src_tokens [B,S], padded on either side, with the padding moved to the right."""
        kept = src_tokens.ne(self.pad)
        if not bool(kept[:, 0].all()):
            src_tokens = align_left(src_tokens, self.pad)
            kept = src_tokens.ne(self.pad)
        mask = None if bool(kept.all()) else kept[:, None, None, :]
        memory = self.encode_masked(src_tokens, count_positions(src_tokens, self.pad), mask)
        return Encoded(memory, kept, src_tokens)

    def read(self, sources: Sequence[Source]) -> Encoded:
        """Encodes texts."""
        texts = texts_of(sources)
        check_sources(texts, longest=self.longest, words=self.embedding.words.num_embeddings)
        tokens, kept = pad_lists(texts, self.embedding.words.weight.device)
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        return Encoded(self.encode_masked(tokens, positions, kept[:, None, None]), kept, tokens)

    def encode_masked(self, src_tokens: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        """Encodes src_tokens [B,S] at the given positions and mask [B,1,1,S] -> memory [B,S,d_model]."""
        x = self.embedding(src_tokens, positions)
        if self.relative is not None:
            columns = torch.arange(src_tokens.shape[1], device=src_tokens.device)
            kept = torch.ones_like(src_tokens[:1, None], dtype=torch.bool) if mask is None else mask[:, 0]
            mask = self.relative.mask(columns, kept)
        for layer in self.layers:
            x = layer(x, mask)
        memory: Tensor = x if self.norm is None else self.norm(x)
        return memory


def pad_frames(frames: Sequence[FloatArray], like: Tensor) -> tuple[Tensor, Tensor]:
    """Frames [T,F] of sources as [B,T,F] of the type of `like`, zeros behind them, and the lengths [B]."""
    lengths = torch.tensor([len(each) for each in frames], device=like.device)
    padded = nn.utils.rnn.pad_sequence([torch.tensor(each) for each in frames], batch_first=True)
    return padded.to(like.device, like.dtype), lengths


def align_left(tokens: Tensor, pad: int) -> Tensor:
    """Moves the padding of tokens [B,S] to the right; fairseq's sources have it on the left."""
    kept = tokens.ne(pad)
    out = torch.full_like(tokens, pad)
    rows = torch.arange(tokens.shape[0], device=tokens.device)[:, None].expand_as(tokens)
    out[rows[kept], count_positions(tokens, pad)[kept]] = tokens[kept]
    return out


class DecoderModule(PartModule):
    """Maps the target so far and a memory, whatever it was encoded from, to features of the next words."""

    embedding: Embedding
    layers: Sequence[DecoderLayer]
    relative: DistancesModule | None
    norm: AnyNorm | None

    def __init__(self, config: Decoder, embedding: Embedding) -> None:
        tree = config.tree
        super().__init__(tree["decoder"], config, embedding=embedding)
        self.pad = config.pad
        self.scale: float = tree["output"].scale

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

    @property
    def recurs(self) -> bool:
        """True if its layers are recurrent, without self-attention."""
        return any(layer.recurrence is not None for layer in self.layers)

    def finish(self, x: Tensor) -> Tensor:
        """Inputs of the output layer: the features [...,d_model] of the last layer, normed and scaled."""
        x = x if self.norm is None else self.norm(x)
        return x if self.scale == 1.0 else x * self.scale


class Network(nn.Module):
    """Base of the networks: an encoder, and what reads its memory."""

    encoder: Any  # a SourceEncoder, of text a TextEncoderModule

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    def encode(self, *sources: Tensor, **named: Tensor) -> Encoded:
        """Encodes a batch, which is as the encoder's `forward` has it."""
        found: Encoded = self.encoder(*sources, **named)
        return found


class EncoderDecoder(Network):
    """The encoder that a configuration names, a decoder, and the output layer to logits [...,V].

    In a state dict the names of the encoder's weights begin with ``encoder_``, the decoder's with
    ``decoder_``, as in `nartk.architectures.settings.Config.parts`.
    """

    decoder_class: ClassVar[Any] = DecoderModule

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        make, tree = imported(config.encoder), config.tree
        source_words: Any = None
        if config.reads_text:
            source = tree["encoder"]["embedding"]
            source_words = layer_of(source["words"], config)
        target = tree["decoder"]["embedding"]
        joint = config.share_embeddings in JOINT
        target_words = source_words if joint else layer_of(target["words"], config)
        if source_words is not None:
            make = partial(make, embedding=Embedding(source, config, words=source_words))
        embedding = Embedding(target, config, words=target_words)
        self.encoder = make(config)
        self.decoder = self.decoder_class(config, embedding)
        self.output = layer_of(tree["output"], config)
        init_linears(self, but="output")
        if TARGET_WORDS[1] in config.shared_weights():
            self.output.weight = self.decoder.embedding.words.weight
        name_weights(self)

    def losses(
        self,
        source: Encoded,
        target: Tensor,
        *,
        training: Training,
        update: int,
        transcript: Tensor | None = None,
    ) -> Losses:
        """The training loss of encoded sources and targets [B,T] with eos, padded on the right.

        That of the decoder, and of the encoder's CTC head if it has one.

        Args:
            update: Training steps so far, which schedules go by.
            transcript: [B,U] what is said in sources of speech, if it is known and not the target.
        """
        losses = self.decoder_losses(source, target, training=training, update=update)
        return with_encoder_ctc(losses, self.encoder, source, target, training=training, pad=self.config.pad)

    def decoder_losses(self, source: Encoded, target: Tensor, *, training: Training, update: int) -> Losses:
        """The decoder's part of `losses`."""
        raise NotImplementedError


HEADS = ("ctc", "condition")  # of an encoder of speech, which configurations name without it


def name_weights(network: nn.Module) -> None:
    """Has a state dict name the weights as configurations do: ``encoder_``, ``decoder_``, and heads bare."""

    def stored(module: nn.Module, state: dict[str, Tensor], prefix: str, metadata: object) -> None:
        sides = {f"{side}.": f"{side}_" for side in ("encoder", "decoder")}
        _rename(state, prefix, {**{f"encoder.{head}.": f"{head}." for head in HEADS}, **sides})

    def held(module: nn.Module, state: dict[str, Tensor], prefix: str, *_: object) -> None:
        sides = {f"{side}_": f"{side}." for side in ("encoder", "decoder")}
        _rename(state, prefix, {**{f"{head}.": f"encoder.{head}." for head in HEADS}, **sides})

    network.register_state_dict_post_hook(stored)
    network.register_load_state_dict_pre_hook(held)


def _rename(state: dict[str, Tensor], prefix: str, beginnings: Mapping[str, str]) -> None:
    def renamed(name: str) -> str:
        for old, new in beginnings.items():
            if name.startswith(prefix + old):
                return prefix + new + name.removeprefix(prefix + old)
        return name

    named = [(renamed(name), state[name]) for name in state]
    named.sort(key=lambda item: item[0].startswith(tuple(f"{prefix}{head}." for head in HEADS)))
    state.clear()
    state.update(named)  # in their order, heads last: of those that are shared, the first name is stored


class Transformer(EncoderDecoder):
    """Maps a source and the target so far to the next words' logits."""

    def forward(self, *inputs: Tensor) -> Tensor:
        """Teacher forcing: what the encoder reads, and tokens [B,T] padded right -> logits [B,T,V]."""
        *sources, previous = inputs
        logits: Tensor = self.output(self.features(self.encode(*sources), previous))
        return logits

    def features(self, source: Encoded, prev_output_tokens: Tensor) -> Tensor:
        """Inputs of the output layer behind each token [B,T] -> [B,T,d_model]."""
        found: Tensor = self.decoder(prev_output_tokens, source.memory, source.mask)
        return found

    def decoder_losses(self, source: Encoded, target: Tensor, *, training: Training, update: int) -> Losses:
        """Cross-entropy of targets [B,U] with eos, each read behind eos, summed."""
        pad = self.config.pad
        previous = F.pad(target, (1, -1), value=0)
        ends = target.ne(pad).sum(1, keepdim=True) - 1
        previous[:, :1] = target.gather(1, ends)  # eos
        previous = previous.masked_fill(target.eq(pad), pad)
        smoothed, nll, tokens = label_smoothed_cross_entropy(
            self.output(self.features(source, previous)), target, epsilon=training.label_smoothing, pad=pad
        )
        return Losses(smoothed, tokens, {"words": nll.detach() / tokens})
