"""Writes espnet_models.npz: what whole models of ESPnet's give of a sound, with random weights.

    pip install --target /tmp/espnet --no-deps espnet==202511 'typeguard<3' humanfriendly torch_complex \\
        librosa lazy_loader audioread pooch soxr decorator scipy numba llvmlite
    PYTHONPATH=/tmp/espnet:tests python tests/oracles/espnet_models.py tests/oracles/espnet_models.npz

Of each model in tests/support/espnet_models.py, in fp64 but for the Fourier transform: ``features`` [T,F]
before and ``normalized`` [T,F] after normalisation, ``memory`` [S,d_model], the log-probabilities ``ctc``
[S,V], and ``decoder`` [U+1,V] behind <sos/eos> and each word of `TARGET`, both by ESPnet's ids; and
``greedy``, the words of its search with one hypothesis. ``shapes`` is JSON of the tensors of the state dict
by name, without the table of mel bins. torchaudio, which ESPnet imports for beamforming alone, is not needed.
"""

from __future__ import annotations

import json
import sys
import tempfile
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

sys.modules.setdefault("torchaudio", ModuleType("torchaudio"))

from espnet.nets.beam_search import BeamSearch  # noqa: E402
from espnet2.asr.ctc import CTC  # noqa: E402
from espnet2.asr.decoder.transformer_decoder import TransformerDecoder  # noqa: E402
from espnet2.asr.encoder.conformer_encoder import ConformerEncoder  # noqa: E402
from espnet2.asr.encoder.e_branchformer_encoder import EBranchformerEncoder  # noqa: E402
from espnet2.asr.espnet_model import ESPnetASRModel  # noqa: E402
from espnet2.asr.frontend.default import DefaultFrontend  # noqa: E402
from espnet2.layers.global_mvn import GlobalMVN  # noqa: E402
from support.espnet_models import LONGEST, MODELS, TARGET, config_of, sound_of, weights_of  # noqa: E402

MELMAT = "frontend.logmel.melmat"


def build(name: str) -> Any:
    """The model of a case, with its weights."""
    values = SimpleNamespace(**config_of(name))
    words = len(values.token_list)
    frontend = DefaultFrontend(**values.frontend_conf)
    normalize = None
    if values.normalize:
        with tempfile.NamedTemporaryFile(suffix=".npz") as file:
            zeros = np.zeros(frontend.output_size(), np.float32)
            np.savez(file.name, count=1, sum=zeros, sum_square=zeros + 1)  # weights take their place
            normalize = GlobalMVN(**{**values.normalize_conf, "stats_file": file.name})
    encoders = {"conformer": ConformerEncoder, "e_branchformer": EBranchformerEncoder}
    encoder = encoders[values.encoder](input_size=frontend.output_size(), **values.encoder_conf)
    decoder = TransformerDecoder(
        vocab_size=words, encoder_output_size=encoder.output_size(), **values.decoder_conf
    )
    model = ESPnetASRModel(
        vocab_size=words,
        token_list=values.token_list,
        frontend=frontend,
        specaug=None,
        normalize=normalize,
        preencoder=None,
        encoder=encoder,
        postencoder=None,
        decoder=decoder,
        ctc=CTC(odim=words, encoder_output_size=encoder.output_size()),
        joint_network=None,
        **values.model_conf,
    )
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items() if key != MELMAT}
    state = {key: torch.from_numpy(value) for key, value in weights_of(name, shapes).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert (missing, unexpected) == ([MELMAT], []), (missing, unexpected)
    return model.double().eval(), shapes


def greedy(model: Any, memory: torch.Tensor) -> list[int]:
    """The words of ESPnet's beam search with one hypothesis and its decoder alone, at most `LONGEST`."""
    words = len(model.token_list)
    search = BeamSearch(
        {"decoder": model.decoder}, {"decoder": 1.0}, 1, words, model.sos, model.eos, token_list=None
    )
    best = search(memory, maxlenratio=-LONGEST)[0]
    return [int(word) for word in best.yseq[1:]]


def narrow(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float32) if value.dtype == np.float64 else value


def main(file: str) -> None:
    torch.set_grad_enabled(False)
    results = {}
    for name in MODELS:
        model, shapes = build(name)
        sound = torch.from_numpy(sound_of(name)).double()[None]
        length = torch.tensor([sound.shape[1]])
        features, _ = model._extract_feats(sound, length)
        normalized = features if model.normalize is None else model.normalize(features.clone(), None)[0]
        encoded, lengths = model.encode(sound, length)
        memory = encoded[0] if isinstance(encoded, tuple) else encoded
        found = {"features": features, "normalized": normalized, "memory": memory}
        found["ctc"] = model.ctc.log_softmax(memory)
        if model.decoder is not None:
            read = torch.tensor([[model.sos, *TARGET]])
            logits, _ = model.decoder(memory, lengths, read, torch.tensor([read.shape[1]]))
            found["decoder"] = logits.log_softmax(-1)
            found["greedy"] = torch.tensor([greedy(model, memory[0])])
        results |= {f"{name} {key}": narrow(value[0].numpy()) for key, value in found.items()}
        results[f"{name} shapes"] = np.array(json.dumps(shapes))
    np.savez_compressed(file, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
