"""Writes predictors.npz: what FunASR's two predictors of fires give, with random weights.

    pip install --target /tmp/funasr --no-deps funasr
    PYTHONPATH=/tmp/funasr python tests/oracles/funasr_predictors.py tests/oracles/predictors.npz

Of each class, with l_order and r_order 1 and the tail threshold of the AISHELL recipe: the weights, and of
two utterances, each alone, ``hidden`` [T,D], ``alphas`` [T+1] with the tail behind the last position, and
``embeds`` [N,D].
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from funasr.models.paraformer.cif_predictor import CifPredictor, CifPredictorV2

FEATURES, LENGTHS, TAIL = 12, (23, 40), 0.45


def main(file: str) -> None:
    torch.manual_seed(1)
    found = {}
    for kind in (CifPredictor, CifPredictorV2):
        module = kind(idim=FEATURES, l_order=1, r_order=1, threshold=1.0, tail_threshold=TAIL).eval()
        for weight in module.parameters():
            weight.data.normal_(std=0.5)
        module.cif_output.bias.data.fill_(-0.8)
        for name, weight in module.state_dict().items():
            found[f"{kind.__name__}.{name}"] = weight.numpy()
        for i, length in enumerate(LENGTHS):
            hidden = torch.randn(1, length, FEATURES)
            with torch.no_grad():
                embeds, _, alphas, _ = module(hidden, mask=torch.ones(1, 1, length))
            for name, value in (("hidden", hidden), ("alphas", alphas), ("embeds", embeds)):
                found[f"{kind.__name__}.{i}.{name}"] = value[0].numpy()
    np.savez_compressed(file, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
