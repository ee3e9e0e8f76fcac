"""Writes openai_whisper.npz: what OpenAI's network gives, with random weights.

    pip install --target /tmp/whisper openai-whisper==20250625
    PYTHONPATH=/tmp/whisper:tests python tests/oracles/openai_whisper.py tests/oracles/openai_whisper.npz

Of the network in tests/support/openai_whisper.py, in fp32: ``memory`` [S,D], ``logits`` [T,V] of its tokens,
and ``shapes``, JSON, the shape of each weight by its name.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import torch
from support.openai_whisper import SIZES, TOKENS, frames, weight_of
from whisper.model import ModelDimensions, Whisper


def main(path: str) -> None:
    model = Whisper(ModelDimensions(**SIZES)).eval()
    shapes = {name: [*weight.shape] for name, weight in model.state_dict().items()}
    model.load_state_dict({name: torch.from_numpy(weight_of(name, shape)) for name, shape in shapes.items()})
    with torch.no_grad():
        memory = model.encoder(torch.from_numpy(frames().T[None].copy()))
        logits = model.decoder(torch.tensor([TOKENS]), memory)
    np.savez_compressed(path, memory=memory[0], logits=logits[0], shapes=json.dumps(shapes))


if __name__ == "__main__":
    main(*sys.argv[1:])
