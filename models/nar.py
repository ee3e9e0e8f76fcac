"""Base of all networks whose decoder sees all its positions at once.

Symbols: B rows, S source positions, T positions of the decoder.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nartk.models.transformer import Encoded, EncoderDecoder


class ParallelDecoding(EncoderDecoder):
    """A network whose decoder attends in both directions. Subclasses build its input."""

    def fill(self, x: Tensor, kept: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        """The decoder over x [B,T,d_model] -> features [B,T,d_model].

        Args:
            kept: [B,T] bool, positions that count.
            memory: [B,S,d_model], the encoded source, and its `mask`, as `Encoded` has them.
        """
        every = None if bool(kept.all()) else kept[:, None, None, :]
        for layer in self.decoder.layers:
            x = layer(x, layer.source_kv(memory), mask, every, causal=False)
        features: Tensor = self.decoder.finish(x)
        return features

    def embed_words(self, tokens: Tensor) -> Tensor:
        """Decoder inputs of words [B,T] at their positions -> [B,T,d_model]."""
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        found: Tensor = self.decoder.embedding(tokens, positions)
        return found

    def source_vectors(self, source: Encoded) -> Tensor:
        """Vectors of a source [B,S,d_model] that a decoder copies: its words', or its encoding."""
        if source.tokens is None:
            return source.memory
        found: Tensor = self.encoder.embedding.vectors(source.tokens)
        return found

    def embed_vectors(self, x: Tensor) -> Tensor:
        """Decoder inputs of vectors [B,T,d_model], of the size of scaled embeddings, at their positions."""
        positions = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
        found: Tensor = self.decoder.embedding.add_positions(x, positions)
        return found


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
