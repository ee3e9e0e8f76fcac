"""Writes owsm_ctc.npz: what ESPnet's OWSM-CTC, of random weights, gives of sounds with words beside them.

    pip install --target /tmp/espnet --no-deps espnet==202511 'typeguard<3' humanfriendly torch_complex \\
        librosa lazy_loader audioread pooch soxr decorator scipy numba llvmlite msgpack
    PYTHONPATH=/tmp/espnet:tests python tests/oracles/owsm_ctc.py tests/oracles/owsm_ctc.npz

Of each model in tests/support/owsm_ctc_models.py and each case, by `ESPnetS2TCTCModel` and
`Speech2TextGreedySearch` in fp64 but for the Fourier transform: the log-probabilities ``ctc`` [S,V] behind
the last layer and ``ctc 1`` and so on behind those with intermediate CTC, by ESPnet's ids, of sound filled
up with silence; ``greedy``, the ids of its output, and ``text`` without symbols. ``features`` [T,F] are
what the encoder reads in the first case. Of a sound that is longer, ``long`` has the ids of each buffer's
positions that `batch_decode` keeps, and ``long text`` is what it gives. ``shapes`` is JSON of the tensors
of the state dict by name, without the table of mel bins. torchaudio and editdistance, which it imports for
others, are not needed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
import tempfile
from argparse import Namespace
from types import ModuleType, SimpleNamespace
from typing import Any

import librosa
import numpy as np
import torch

with contextlib.suppress(ImportError):
    import transformers.utils.import_utils  # noqa: F401  # which looks for torchaudio itself


class Unused(ModuleType):
    """A module of which nothing is called: ESPnet's texts and beamformers import it."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


for absent in ("torchaudio", "editdistance", "h5py", "jamo", "jaconv", "inflect", "g2p_en", "pypinyin"):
    if importlib.util.find_spec(absent) is None:
        sys.modules[absent] = Unused(absent)
for absent in ("tacotron_cleaner", "jaraco"):
    for inner in (absent, f"{absent}.cleaners", f"{absent}.functools"):
        sys.modules.setdefault(inner, Unused(inner)).__path__ = []

from espnet2.bin.s2t_inference_ctc import Speech2TextGreedySearch  # noqa: E402
from espnet2.tasks.s2t_ctc import S2TTask  # noqa: E402
from espnet2.text.token_id_converter import TokenIDConverter  # noqa: E402
from support.owsm_ctc_models import (  # noqa: E402
    CASES,
    LONG,
    MODELS,
    RATE,
    SECONDS,
    TOKENS,
    config_of,
    sound_of,
    weights_of,
)

MELMAT = "frontend.logmel.melmat"


class Joined:
    """Takes ids for a text, and joins pieces to one."""

    def text2tokens(self, text: str) -> list[str]:
        return text.split()

    def tokens2text(self, tokens: list[str]) -> str:
        return " ".join(tokens)


def build(name: str) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """The program of a case, with its weights."""
    values = {"init": None, **config_of(name)}
    with tempfile.NamedTemporaryFile(suffix=".npz") as file:
        if values["normalize"] == "global_mvn":
            zeros = np.zeros(values["frontend_conf"]["n_mels"], np.float32)
            np.savez(file.name, count=1, sum=zeros, sum_square=zeros + 1)  # weights take their place
            values["normalize_conf"] = {"stats_file": file.name}
        model: Any = S2TTask.build_model(Namespace(**values))
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items() if key != MELMAT}
    state = {key: torch.from_numpy(value) for key, value in weights_of(name, shapes).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert (missing, unexpected) == ([MELMAT], []), (missing, unexpected)
    program = object.__new__(Speech2TextGreedySearch)  # whose files would be read by its __init__
    program.s2t_model = model.double().eval()
    program.s2t_train_args = SimpleNamespace(preprocessor_conf=values["preprocessor_conf"])
    program.converter = TokenIDConverter(token_list=TOKENS)
    program.tokenizer = Joined()
    program.device, program.dtype, program.generate_interctc_outputs = "cpu", "float64", False
    program.lang_sym, program.task_sym = "<nolang>", "<asr>"
    program.sample_rate = RATE
    program.frames_per_sec = RATE / values["frontend_conf"]["hop_length"] / 8
    return program, shapes


def text_of(prompt: tuple[int, ...]) -> str:
    return " ".join(TOKENS[id] for id in prompt) or "<na>"


def scored(model: Any, sound: np.ndarray, prompt: list[int], front: list[int]) -> dict[str, torch.Tensor]:
    """What the encoder reads of a sound, and the log-probabilities of all CTC."""
    read: list[torch.Tensor] = []
    hook = model.encoder.register_forward_pre_hook(lambda _, given: read.append(given[0]))
    (memory, layers), _ = model.encode(
        torch.from_numpy(sound)[None],
        torch.tensor([len(sound)]),
        torch.tensor([prompt]),
        torch.tensor([len(prompt)]),
        torch.tensor([front]),
        torch.tensor([len(front)]),
    )
    hook.remove()
    found = {"features": read[0], "ctc": model.ctc.log_softmax(memory)}
    return found | {f"ctc {layer}": model.ctc.log_softmax(out) for layer, out in layers}


def decoded(program: Any, sound: np.ndarray, asked: dict[str, str]) -> tuple[str, torch.Tensor]:
    """The text of a long sound, and the labels of each buffer's positions that are kept."""
    ctc, labels = program.s2t_model.ctc, []
    argmax = ctc.argmax

    def noted(memory: torch.Tensor) -> torch.Tensor:
        labels.append(argmax(memory))
        return labels[-1]

    ctc.argmax = noted
    context = SECONDS * 2 / 15  # 4 s of 30
    # So little more that a chunk of 2.4 - 0.64 s, which in floats is shorter, does not lose a sample.
    program.s2t_train_args.preprocessor_conf = {"speech_length": SECONDS + 1e-9}
    text = program.batch_decode(sound, context_len_in_secs=context, **asked)
    ctc.argmax = argmax
    size, edge = (int(program.frames_per_sec * each) for each in (SECONDS, context))
    return text, torch.cat(labels)[:, edge : size - edge]


def main(file: str) -> None:
    torch.set_grad_enabled(False)
    results: dict[str, np.ndarray] = {}
    for name in MODELS:
        program, shapes = build(name)
        results[f"{name} shapes"] = np.array(json.dumps(shapes))
        for case, (seconds, language, task, prompt) in CASES.items():
            sound = librosa.util.fix_length(sound_of(seconds), size=int(RATE * SECONDS)).astype(np.float64)
            asked = {"text_prev": text_of(prompt), "lang_sym": language, "task_sym": task}
            ((_, _, ids, text, _),) = program(sound, **asked)
            front = [TOKENS.index(language), TOKENS.index(task)]
            found = scored(program.s2t_model, sound, [*prompt] or [program.s2t_model.na], front)
            for key, value in found.items():
                if key != "features" or case == "plain":
                    results[f"{name} {case} {key}"] = value[0].numpy().astype(np.float32)
            results[f"{name} {case} greedy"] = np.array(ids)
            results[f"{name} {case} text"] = np.array(text)
        seconds, language, task, prompt = LONG
        asked = {"text_prev": text_of(prompt), "lang_sym": language, "task_sym": task}
        text, labels = decoded(program, sound_of(seconds).astype(np.float64), asked)
        results[f"{name} long text"], results[f"{name} long"] = np.array(text), labels.numpy()
    np.savez_compressed(file, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
