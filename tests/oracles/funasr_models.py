"""Writes funasr_models.npz: what whole Paraformers of FunASR's give of sounds, with random weights.

    pip install --target /tmp/funasr --no-deps funasr==1.4.16 kaldiio hydra-core omegaconf \\
        antlr4-python3-runtime
    PYTHONPATH=/tmp/funasr:tests python tests/oracles/funasr_models.py tests/oracles/funasr_models.npz

Of each model in tests/support/funasr_models.py and each of its sounds, alone: ``features`` [T,mF] of
`WavFrontend` (frames side by side, normalised), ``memory`` [S,D], ``alphas`` [S+1] of the predictor with its
tail behind them, ``counts``, the number of fires, ``scores`` [N,V], log-probabilities by FunASR's ids, and
``tokens`` and ``text``, what `inference` makes of it. ``batch`` are the scores of all sounds as one batch.
``shapes`` is JSON of the tensors of the state dict by name. ``texts`` are lists of words, and what
`sentence_postprocess` makes of them, and ``lfr m n T`` the frames that `apply_lfr` puts side by side, of T
that are their numbers. torchaudio is not installed, so that FunASR computes the filterbank by
kaldi-native-fbank; librosa is not needed.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

sys.modules.setdefault("librosa", ModuleType("librosa"))

import funasr.models.bicif_paraformer.cif_predictor  # noqa: E402
import funasr.models.bicif_paraformer.model  # noqa: E402
import funasr.models.paraformer.cif_predictor  # noqa: E402
import funasr.models.paraformer.decoder  # noqa: E402
import funasr.models.paraformer.model  # noqa: E402
import funasr.models.sanm.encoder  # noqa: E402, F401
from funasr.frontends.wav_frontend import apply_lfr  # noqa: E402
from funasr.register import tables  # noqa: E402
from funasr.tokenizer.char_tokenizer import CharTokenizer  # noqa: E402
from funasr.utils.postprocess_utils import sentence_postprocess  # noqa: E402
from support.funasr_models import (  # noqa: E402
    MODELS,
    STACKS,
    TOKENS,
    config_of,
    mvn_of,
    sounds,
    weights_of,
)

TEXTS = [
    ["你", "好", "hel@@", "lo", "你", "们"],
    ["hel@@", "lo", "word", "a", "b", "word", "a"],
    ["a", "b", "c", "你", "7", "i", "7"],
    ["<s>", "你", "<unk>", "word", "</s>"],
    ["don't", "word", "x@@", "y@@", "z", "好"],
    ["word", ",", "word", "好", "."],
    ["a", "b"],
    [],
]


def build(name: str) -> tuple[Any, Any, dict[str, tuple[int, ...]]]:
    """The model of a case with its weights, its front end, and the shapes of the weights."""
    values = config_of(name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "am.mvn"
        path.write_text(mvn_of(name))
        frontend = tables.frontend_classes[values["frontend"]](cmvn_file=str(path), **values["frontend_conf"])
    parts = {key: values[key] for key in ("encoder", "decoder", "predictor")}
    parts |= {f"{key}_conf": values[f"{key}_conf"] for key in parts}
    parts["encoder_conf"].pop("pos_enc_class")
    model = tables.model_classes[values["model"]](
        **parts, **values["model_conf"], vocab_size=len(TOKENS), input_size=frontend.output_size()
    )
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    model.load_state_dict({key: torch.from_numpy(value) for key, value in weights_of(name, shapes).items()})
    return model.eval(), frontend, shapes


def scores_of(model: Any, frontend: Any, batch: list[torch.Tensor]) -> dict[str, Any]:
    """Features, memory, weights, counts and log-probabilities of sounds."""
    lengths = torch.tensor([len(each) for each in batch])
    padded = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)
    features, sizes = frontend(padded, lengths)
    memory, sizes = model.encode(features, sizes)
    fires, counts, alphas, _ = model.calc_predictor(memory, sizes)[:4]
    counts = counts.round().long()
    found = {"features": features, "memory": memory, "alphas": alphas, "counts": counts}
    if int(counts.max()) > 0:
        found["scores"], _ = model.cal_decoder_with_predictor(memory, sizes, fires, counts)
    return found


def main(file: str) -> None:
    torch.set_grad_enabled(False)
    results: dict[str, Any] = {
        "texts": np.array(json.dumps([[words, sentence_postprocess(words)[0]] for words in TEXTS]))
    }
    for stack in STACKS:
        for count in range(1, 31):
            found = apply_lfr(torch.arange(count)[:, None].float(), *stack)
            results[f"lfr {stack[0]} {stack[1]} {count}"] = found.numpy().astype(np.int8)
    for name in MODELS:
        model, frontend, shapes = build(name)
        given = [torch.from_numpy(each) for each in sounds()]
        tokenizer = CharTokenizer(token_list=TOKENS, unk_symbol="<unk>")
        for i, sound in enumerate(given):
            found = scores_of(model, frontend, [sound])
            results |= {f"{name} {i} {key}": value[0].numpy() for key, value in found.items()}
            settings = {"key": ["x"], "frontend": frontend, "device": "cpu"}
            said = model.inference([sound.numpy()], **settings)
            texts = model.inference([sound.numpy()], tokenizer=tokenizer, **settings)
            results[f"{name} {i} tokens"] = np.array(said[0][0]["token_int"] if said else [], np.int64)
            results[f"{name} {i} text"] = np.array(texts[0][0]["text"] if texts else "")
        found = scores_of(model, frontend, given)
        results[f"{name} batch"] = found["scores"].numpy()
        results[f"{name} batch counts"] = found["counts"].numpy()
        results[f"{name} shapes"] = np.array(json.dumps(shapes))
    np.savez_compressed(file, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
