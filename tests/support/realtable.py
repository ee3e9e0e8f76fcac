"""A network whose scores do not tie, for strategies that add scores up or draw from them."""

from __future__ import annotations

import torch

from nartk.architectures.transformer import TransformerConfig
from nartk.models.transformer import Transformer

BOS, PAD, EOS, UNK = 0, 1, 2, 3


def random_transformer(seed: int, words: int) -> Transformer:
    """A random model that ends its outputs, and never says pad, bos or unk."""
    config = TransformerConfig(
        src_vocab=words,
        tgt_vocab=words,
        d_model=32,
        encoder_layers=1,
        decoder_layers=2,
        encoder_ffn=48,
        decoder_ffn=48,
        encoder_heads=2,
        decoder_heads=2,
        share_embeddings="none",
        dropout=0.0,
        max_source_len=64,
        max_target_len=64,
    )
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        model = Transformer(config).eval()
        for weights in model.parameters():
            if weights.dim() > 1:
                weights.mul_(3.0)
        # What the norm gives has mean 0; with a bias of 1, the mean of an output row is a bias of its word.
        assert model.decoder.norm is not None
        model.decoder.norm.bias.fill_(1.0)
        rows = model.output.weight
        rows -= rows.mean(1, keepdim=True)
        bias = torch.zeros(words)
        bias[[BOS, PAD, UNK]], bias[EOS] = -100.0, 4.0
        rows += bias[:, None] / config.d_model
    return model
