"""Writes contrastive.npz: a small BART with random weights, and what transformers 4.46.3 outputs of it.

    pip install transformers==4.46.3
    python tests/oracles/contrastive.py tests/oracles/contrastive.npz

`generate` with `penalty_alpha` and `top_k` is contrastive search in that version. `outputs` has a row of each
setting and source, filled with -1.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch
from transformers import BartConfig, BartForConditionalGeneration

CONFIG: dict[str, Any] = {
    "vocab_size": 30,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "max_position_embeddings": 24,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
    "tie_word_embeddings": False,
}
SETTINGS = [(0.6, 4), (0.3, 6), (0.9, 3)]
LONGEST, SOURCES = 16, 12


def main(path: str) -> None:
    torch.manual_seed(3)
    model = BartForConditionalGeneration(BartConfig(**CONFIG)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0.0, 1.0 if "embed" in name or "shared" in name else 0.5)
            else:
                weight.add_(0.2 * torch.randn_like(weight))
    draw = np.random.default_rng(3)
    sources = np.full((SOURCES, 9), -1)
    for row in sources:
        size = draw.integers(1, 9)
        row[: size + 1] = [*draw.integers(3, 30, size), 2]
    outputs = np.full((len(SETTINGS), SOURCES, LONGEST), -1)
    for found, (alpha, k) in zip(outputs, SETTINGS, strict=True):
        for row, source in zip(found, sources, strict=True):
            given = torch.tensor([source[source >= 0].tolist()])
            options = {"penalty_alpha": alpha, "top_k": k, "max_length": LONGEST + 1, "do_sample": False}
            words = model.generate(given, **options)[0, 1:].tolist()
            words = words[: words.index(2) + 1] if 2 in words else words
            row[: len(words)] = words
    weights = {f"weights/{name}": tensor.numpy() for name, tensor in model.state_dict().items()}
    config = json.dumps({**CONFIG, "model_type": "bart", "architectures": ["BartForConditionalGeneration"]})
    np.savez_compressed(
        path,
        config=np.array(config),
        settings=np.array(SETTINGS),
        sources=sources,
        outputs=outputs,
        **weights,
    )


if __name__ == "__main__":
    main(sys.argv[1])
