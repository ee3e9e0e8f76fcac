"""Random models as Marian stores them, and a twin in NumPy that computes what its program does.

The twin has the names, order of layers and equations of browsermt/marian-dev (``src/models/
transformer.h``, ``src/rnn/cells.h``, ``src/layers/generic.cpp``), in fp64, a whole prefix at a time. Files
are laid out as its ``src/common/binary.cpp`` and ``src/tensors/cpu/expression_graph_packable.h`` write them.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from support.tiny import SENTENCES

Arrays = dict[str, np.ndarray]
EOS, UNK = 0, 1  # as Marian trains its sentencepiece models
D, HEADS, FFN, LAYERS = 24, 3, 40, (2, 2)
FLOAT32, INT8, INTGEMM8 = 0x404, 0x101, 0x4101

SETTINGS: dict[str, Any] = {
    "bert-type-vocab-size": "2",
    "dec-cell": "ssru",
    "dec-depth": str(LAYERS[1]),
    "dim-emb": str(D),
    "dim-rnn": "1024",
    "enc-cell": "gru",
    "enc-depth": str(LAYERS[0]),
    "enc-type": "bidirectional",
    "input-types": [],
    "layer-normalization": "false",
    "output-omit-bias": "false",
    "right-left": "false",
    "skip": "false",
    "tied-embeddings": "false",
    "tied-embeddings-all": "true",
    "tied-embeddings-src": "false",
    "transformer-decoder-autoreg": "rnn",
    "transformer-dim-ffn": str(FFN),
    "transformer-ffn-activation": "relu",
    "transformer-ffn-depth": "2",
    "transformer-heads": str(HEADS),
    "transformer-no-projection": "false",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": '""',
    "transformer-preprocess": '""',
    "transformer-tied-layers": [],
    "type": "transformer",
    "version": "v1.9.56 94aeaa46 2021-04-28 00:28:35 +0100",
}
PRE_NORM = {
    "transformer-preprocess": "n",
    "transformer-postprocess": "da",
    "transformer-postprocess-top": "n",
}


def yaml(settings: Mapping[str, Any]) -> str:
    """Settings as yaml-cpp writes them."""
    lines = []
    for key, value in settings.items():
        if value == []:
            lines.append(f"{key}: []")
        elif isinstance(value, list):
            lines += [f"{key}:", *(f"  - {each}" for each in value)]
        else:
            lines.append(f"{key}: {value}")
    return "\n".join(lines)


def pieces(path: Path, sentences: Sequence[str] = SENTENCES) -> int:
    """Writes a sentencepiece model with Marian's special ids; the number of its pieces."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*sentences] * 4),
        model_writer=model,
        vocab_size=80,
        hard_vocab_limit=False,
        bos_id=-1,
        eos_id=EOS,
        unk_id=UNK,
        minloglevel=2,
    )
    path.write_bytes(model.getvalue())
    return len(sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()))


def weights(rng: np.random.Generator, settings: Mapping[str, Any], words: tuple[int, int]) -> Arrays:
    """Random tensors of a model under Marian's names, for so many source and target words."""

    def matrix(*shape: int, by: float = 4.0) -> np.ndarray:
        return rng.normal(size=shape, scale=by * shape[0] ** -0.5).astype(np.float32)

    def vector(size: int, mean: float = 0.0) -> np.ndarray:
        return rng.normal(mean, 0.2, size=(1, size)).astype(np.float32)

    found: Arrays = {}

    def norm(prefix: str) -> None:
        suffix = "_pre" if settings["transformer-preprocess"] == "n" and not prefix.endswith("_top") else ""
        found[f"{prefix}_ln_scale{suffix}"] = vector(D, 1.0)
        found[f"{prefix}_ln_bias{suffix}"] = vector(D)

    def attention(prefix: str) -> None:
        for each in "qkvo":
            found[f"{prefix}_W{each}"], found[f"{prefix}_b{each}"] = matrix(D, D), vector(D)
        norm(f"{prefix}_Wo")

    def tied(ending: str) -> bool:
        return bool(settings[f"tied-embeddings{ending}"] == "true")

    if tied("-all") or tied("-src"):
        found["Wemb"] = matrix(words[0], D, by=1.0)
    else:
        found["encoder_Wemb"], found["decoder_Wemb"] = matrix(words[0], D), matrix(words[1], D)
    if not (tied("-all") or tied("")):
        found["decoder_ff_logit_out_Wt"] = matrix(words[1], D, by=2.0)
    found["decoder_ff_logit_out_b"] = vector(words[1])
    for side, count in zip(("encoder", "decoder"), LAYERS, strict=True):
        for i in range(1, count + 1):
            layer = f"{side}_l{i}"
            if side == "encoder" or settings["transformer-decoder-autoreg"] == "self-attention":
                attention(f"{layer}_self")
            else:
                rnn = f"{layer}_rnn"
                found |= {
                    f"{rnn}_W": matrix(D, D, by=10.0),
                    f"{rnn}_Wf": matrix(D, D),
                    f"{rnn}_bf": vector(D),
                }
                norm(rnn if settings["transformer-preprocess"] == "n" else f"{rnn}_ffn")
            if side == "decoder":
                attention(f"{layer}_context")
            found |= {f"{layer}_ffn_W1": matrix(D, FFN), f"{layer}_ffn_b1": vector(FFN)}
            found |= {f"{layer}_ffn_W2": matrix(FFN, D), f"{layer}_ffn_b2": vector(D)}
            norm(f"{layer}_ffn_ffn")
        if settings["transformer-postprocess-top"] == "n":
            norm(f"{side}_top")
    return found


class Twin:
    """Log-probabilities of a model, computed from its tensors as Marian does, in fp64."""

    def __init__(self, arrays: Arrays, settings: Mapping[str, Any]) -> None:
        self.w = {name: array.astype(np.float64) for name, array in arrays.items()}
        self.settings = settings

    def embed(self, table: np.ndarray, words: Sequence[int | None]) -> np.ndarray:
        """None is the start of an output, whose vector is 0."""
        rows = np.array([np.zeros(D) if word is None else table[word] for word in words])
        count = D / 2
        rates = np.exp(np.arange(count) * -(np.log(10000.0) / (count - 1)))
        angles = np.arange(len(words))[:, None] * rates
        return rows * np.sqrt(D) + np.concatenate([np.sin(angles), np.cos(angles)], 1)

    def norm(self, x: np.ndarray, prefix: str, suffix: str = "") -> np.ndarray:
        centred = x - x.mean(1, keepdims=True)
        normed = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-6)
        return normed * self.w[f"{prefix}_ln_scale{suffix}"] + self.w[f"{prefix}_ln_bias{suffix}"]

    def sublayer(self, x: np.ndarray, before: str, after: str, function: Any) -> np.ndarray:
        """preProcess, a function, and postProcess, whose operations are letters."""
        y = x
        for op in self.settings["transformer-preprocess"].strip('"'):
            y = self.norm(y, before, "_pre") if op == "n" else y
        y = function(y)
        for op in self.settings["transformer-postprocess"]:
            y = y + x if op == "a" else self.norm(y, after) if op == "n" else y
        return y

    def attend(self, prefix: str, x: np.ndarray, keys: np.ndarray, mask: np.ndarray) -> np.ndarray:
        def heads(name: str, y: np.ndarray) -> np.ndarray:
            projected = y @ self.w[f"{prefix}_W{name}"] + self.w[f"{prefix}_b{name}"]
            return projected.reshape(len(y), HEADS, -1).swapaxes(0, 1)

        q, k, v = heads("q", x), heads("k", keys), heads("v", keys)
        scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[2]) + np.where(mask, 0.0, -np.inf)
        weights = np.exp(scores - scores.max(2, keepdims=True))
        mixed = (weights / weights.sum(2, keepdims=True)) @ v
        joined = mixed.swapaxes(0, 1).reshape(len(x), -1)
        return joined @ self.w[f"{prefix}_Wo"] + self.w[f"{prefix}_bo"]

    def ssru(self, prefix: str, x: np.ndarray) -> np.ndarray:
        """Kim et al. 2019, section 3.1: highway(c, x, f), and relu."""
        state, outputs = np.zeros(D), []
        for y in x:
            forget = 1.0 / (1.0 + np.exp(-(y @ self.w[f"{prefix}_Wf"] + self.w[f"{prefix}_bf"][0])))
            state = forget * state + (1.0 - forget) * (y @ self.w[f"{prefix}_W"])
            outputs.append(np.maximum(state, 0.0))
        return np.array(outputs)

    def ffn(self, prefix: str, x: np.ndarray) -> np.ndarray:
        inner = x @ self.w[f"{prefix}_W1"] + self.w[f"{prefix}_b1"]
        if self.settings["transformer-ffn-activation"] == "swish":
            inner = inner / (1.0 + np.exp(-inner))
        else:
            inner = np.maximum(inner, 0.0)
        return inner @ self.w[f"{prefix}_W2"] + self.w[f"{prefix}_b2"]

    def top(self, side: str, x: np.ndarray) -> np.ndarray:
        return self.norm(x, f"{side}_top") if self.settings["transformer-postprocess-top"] == "n" else x

    def encode(self, source: Sequence[int]) -> np.ndarray:
        x = self.embed(self.w["Wemb"] if "Wemb" in self.w else self.w["encoder_Wemb"], source)
        every = np.ones((len(x), len(x)), bool)
        for i in range(1, LAYERS[0] + 1):
            name = f"encoder_l{i}"
            wo = f"{name}_self_Wo"
            x = self.sublayer(x, wo, wo, lambda y, name=name: self.attend(f"{name}_self", y, y, every))
            ffn = f"{name}_ffn_ffn"
            x = self.sublayer(x, ffn, ffn, lambda y, name=name: self.ffn(f"{name}_ffn", y))
        return self.top("encoder", x)

    def log_probs(self, source: Sequence[int], output: Sequence[int]) -> np.ndarray:
        """[len(output)+1,V], behind the start and each word of an output."""
        memory = self.encode(source)
        table = self.w["Wemb"] if "Wemb" in self.w else self.w["decoder_Wemb"]
        x = self.embed(table, [None, *output])
        causal, all_ = np.tri(len(x), dtype=bool), np.ones((len(x), len(memory)), bool)
        for i in range(1, LAYERS[1] + 1):
            name = f"decoder_l{i}"
            if self.settings["transformer-decoder-autoreg"] == "rnn":
                rnn = f"{name}_rnn"
                x = self.sublayer(x, rnn, f"{rnn}_ffn", lambda y, rnn=rnn: self.ssru(rnn, y))
            else:
                wo = f"{name}_self_Wo"
                x = self.sublayer(x, wo, wo, lambda y, name=name: self.attend(f"{name}_self", y, y, causal))
            wo = f"{name}_context_Wo"
            x = self.sublayer(x, wo, wo, lambda y, name=name: self.attend(f"{name}_context", y, memory, all_))
            ffn = f"{name}_ffn_ffn"
            x = self.sublayer(x, ffn, ffn, lambda y, name=name: self.ffn(f"{name}_ffn", y))
        x = self.top("decoder", x)
        tied = "true" in (self.settings["tied-embeddings"], self.settings["tied-embeddings-all"])
        logits = (
            x @ (table if tied else self.w["decoder_ff_logit_out_Wt"]).T + self.w["decoder_ff_logit_out_b"]
        )
        most = logits.max(1, keepdims=True)
        return logits - most - np.log(np.exp(logits - most).sum(1, keepdims=True))

    def greedy(self, source: Sequence[int], longest: int) -> list[int]:
        """Of equal words the first; Marian suppresses unknown words."""
        output: list[int] = []
        while len(output) < longest:
            last = self.log_probs(source, output)[-1]
            last[UNK] = -np.inf
            word = int(last.argmax())
            if word == EOS:
                break
            output.append(word)
        return output


def write_npz(path: Path, arrays: Arrays, settings: Mapping[str, Any]) -> None:
    text = np.frombuffer(f"{yaml(settings)}\n\0".encode(), np.int8)
    with path.open("wb") as file:
        np.savez(file, **arrays, **{"special:model.yml": text})


def quantised(array: np.ndarray) -> tuple[np.ndarray, np.float32]:
    """Whole numbers of intgemm, and what they were multiplied by."""
    multiplier = np.float32(127.0) / np.abs(array).max()
    return np.rint(array * multiplier).astype(np.int8), multiplier


def is_quantised(name: str) -> bool:
    return "Wemb" in name or (len(name) > 2 and ("_W" in (name[-3:-1], name[-2:])))


def write_bin(path: Path, arrays: Arrays, settings: Mapping[str, Any], *, int8: bool = False) -> None:
    """The binary file; int8: matrices are intgemm's, with factors of activations beside them."""
    items: list[tuple[str, int, tuple[int, ...], bytes]] = []
    for name, array in arrays.items():
        if int8 and is_quantised(name):
            numbers, multiplier = quantised(array)
            laid = numbers if "Wemb" in name else np.ascontiguousarray(numbers.T)
            raw = laid.tobytes() + struct.pack("<f", multiplier)
            items.append((name, INTGEMM8, array.shape, raw + b"\0" * (-len(raw) % 256)))
            items.append((f"{name}_QuantMultA", FLOAT32, (1, 1), struct.pack("<f", 20.0) + b"\0" * 252))
        else:
            items.append((name, FLOAT32, array.shape, array.astype("<f4").tobytes()))
    text = f"{yaml(settings)}\n\0".encode()
    items.append(("special:model.yml", INT8, (len(text),), text))
    head = struct.pack("<2Q", 1, len(items))
    for name, type, shape, raw in items:
        head += struct.pack("<4Q", len(name) + 1, type, len(shape), len(raw))
    head += b"".join(name.encode() + b"\0" for name, *_ in items)
    head += b"".join(struct.pack(f"<{len(shape)}i", *shape) for _, _, shape, _ in items)
    padding = ((len(head) + 8) // 256 + 1) * 256 - len(head) - 8
    head += struct.pack("<Q", padding) + b"\0" * padding
    path.write_bytes(head + b"".join(raw for *_, raw in items))


def model(
    folder: Path, seed: int, *, form: str = "npz", two: bool = False, **changed: Any
) -> tuple[Path, Twin]:
    """A folder with a random model, and its twin.

    Args:
        form: npz, bin, or int8, a binary file with whole numbers.
        two: True for a vocabulary of each side.
        changed: Settings of the model, with ``_`` for ``-``.
    """
    folder.mkdir(parents=True)
    settings = {**SETTINGS, **{name.replace("_", "-"): value for name, value in changed.items()}}
    if two:
        source = pieces(folder / "srcvocab.spm")
        target = pieces(folder / "trgvocab.spm", [each.upper()[:40] for each in SENTENCES])
    else:
        source = target = pieces(folder / "vocab.spm")
    arrays = weights(np.random.default_rng(seed), settings, (source, target))
    if form == "npz":
        write_npz(folder / "model.npz", arrays, settings)
    else:
        write_bin(folder / "model.xxyy.intgemm.alphas.bin", arrays, settings, int8=form == "int8")
    if form == "int8":
        for name, array in arrays.items():
            if is_quantised(name):
                numbers, multiplier = quantised(array)
                arrays[name] = numbers * (np.float32(1.0) / multiplier)
    return folder, Twin(arrays, settings)
