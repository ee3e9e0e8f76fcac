"""What all non-autoregressive models share: a decoder that sees all its positions at once, and its training.

Symbols: B rows, S source positions, T positions of the decoder, V words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nartk.architectures.transformer import setting
from nartk.errors import UsageError
from nartk.models.glancing import STRATEGIES, Schedule
from nartk.models.transformer import EncoderDecoder, Transformer, count_positions


@dataclass(frozen=True)
class NarTraining:
    """How a non-autoregressive model is trained. The options of `--criterion nartk_nar` derive from it.

    Raises:
        UsageError: A value is out of its bounds.
    """

    label_smoothing: float = setting(
        0.1, "probability mass spread over all words, in [0, 1); CTC and DA-Transformer do not use it"
    )
    length_factor: float = setting(0.1, "weight of the length predictor's loss beside the words'")
    glancing: str = setting(
        "0",
        "share of the wrong words that training shows (Qian et al. 2021): a number, or START:END@UPDATES, "
        "such as 0.5:0.3@300k; 0: none",
    )
    glancing_strategy: str = setting(
        "number-random",
        "number-random: so many as the first pass had wrong, times the share; fixed: that share of all "
        "words; cmlm: a number drawn evenly, whatever the share",
        choices=STRATEGIES,
    )
    no_force_emit: bool = setting(
        False, "DA-Transformer: what is shown may be emitted anywhere, not at its vertex alone"
    )
    ngram_order: int = setting(
        0,
        "DA-Transformer: train for n-grams of this length that outputs and target have in common, in place "
        "of the likelihood, with which a model begins (Ma et al. 2023, and --finetune-from-model); 0: the "
        "likelihood",
    )
    schedule: Schedule = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0.0 <= self.label_smoothing < 1.0:
            raise UsageError(f"`label_smoothing` is {self.label_smoothing}, not in [0, 1)")
        if self.length_factor < 0.0:
            raise UsageError(f"`length_factor` is {self.length_factor}, below 0")
        if self.ngram_order < 0:
            raise UsageError(f"`ngram_order` is {self.ngram_order}, below 0")
        if self.glancing_strategy not in STRATEGIES:
            raise UsageError(
                f"`glancing_strategy` is {self.glancing_strategy!r}",
                fix=f"choose from {', '.join(STRATEGIES)}",
            )
        object.__setattr__(self, "schedule", Schedule.parse(self.glancing))


@dataclass(frozen=True)
class Losses:
    """The loss of a batch.

    Attributes:
        total: What training minimises, nats, summed over the target's tokens.
        tokens: How many these are.
        parts: Means worth logging, such as ``words`` (nats a token), ``length`` (nats a sentence), and the
            share of the target that was shown (``shown``).
    """

    total: Tensor
    tokens: Tensor
    parts: Mapping[str, Tensor]


class ParallelDecoding(EncoderDecoder):
    """A network whose decoder attends in both directions. Subclasses build its input."""

    def fill(self, x: Tensor, kept: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        """The decoder over x [B,T,d_model] -> features [B,T,d_model].

        Args:
            kept: [B,T] bool, positions that count.
            memory: [B,S,d_model], the encoded source, and its `mask`, as `encode` gives them.
        """
        every = None if bool(kept.all()) else kept[:, None, None, :]
        for layer in self.decoder.layers:
            x = layer(x, layer.source_kv(memory), mask, every, causal=False)
        return self.decoder.finish(x)

    def embed_words(self, tokens: Tensor) -> Tensor:
        """Decoder inputs of words [B,T] at their positions -> [B,T,d_model]."""
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        return self.decoder.embedding(tokens, positions)

    def embed_vectors(self, x: Tensor) -> Tensor:
        """Decoder inputs of vectors [B,T,d_model], of the size of scaled embeddings, at their positions."""
        positions = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
        return self.decoder.embedding.add_positions(x, positions)


class NonAutoregressive(ParallelDecoding, Transformer):
    """A Transformer whose decoder attends in both directions. A subclass names its loss in `losses`."""

    def losses(self, src_tokens: Tensor, target: Tensor, *, training: NarTraining, update: int) -> Losses:
        """The training loss of sources [B,S], padded on either side, and targets [B,T] with eos.

        Args:
            update: Training steps so far, which schedules go by.
        """
        raise NotImplementedError


def align_left(tokens: Tensor, pad: int) -> Tensor:
    """Moves the padding of tokens [B,S] to the right; fairseq's sources have it on the left."""
    kept = tokens.ne(pad)
    out = torch.full_like(tokens, pad)
    rows = torch.arange(tokens.shape[0], device=tokens.device)[:, None].expand_as(tokens)
    out[rows[kept], count_positions(tokens, pad)[kept]] = tokens[kept]
    return out


def uniform_copy(source: Tensor, source_lengths: Tensor, lengths: Tensor, width: int) -> Tensor:
    """The vector of source [B,S,D] at the same share of the length as each position -> [B,width,D].

    The first position gets the first vector, the last the last; in between the nearest, of two the later (Gu
    et al. 2018, section 3.1). Lengths [B] say how much of source and canvas counts.
    """
    position = torch.arange(width, device=source.device)
    last = (lengths - 1).clamp(min=1)[:, None]
    nearest = (2 * position * (source_lengths - 1)[:, None] + last).div(2 * last, rounding_mode="floor")
    at = nearest.clamp(max=source.shape[1] - 1)  # what does not count may lie behind
    return source.gather(1, at[:, :, None].expand(-1, -1, source.shape[2]))


def wide(x: Tensor) -> Tensor:
    """In fp32, or wider if it is."""
    return x if x.dtype == torch.float64 else x.float()
