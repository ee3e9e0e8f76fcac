"""Small random models of speech, and a plain NumPy twin of their encoders from the papers' equations.

The twin is Gulati et al. 2020 (figures 1 to 4), Kim et al. 2022 (equations 1 to 6), Dai et al. 2019 (section
3.3) and Nozaki and Komatsu 2021 (equations 8 to 10), of one utterance, in fp64 and with loops.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nartk.architectures import architecture
from nartk.checkpoints.saving import save_checkpoint
from nartk.protocols.passes import FeatureSource
from nartk.vocab import SPECIALS, Vocab
from support.transformers_small import check_slope

Array = np.ndarray
SMALL = {
    "d_model": 12,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_heads": 2,
    "decoder_heads": 2,
    "encoder_ffn": 20,
    "decoder_ffn": 18,
    "input_features": 16,
    "subsampling_channels": 3,
    "conv_kernel": 5,
    "merge_kernel": 3,
    "cgmlp_features": 16,
    "max_source_len": 200,
    "max_target_len": 24,
    "share_embeddings": "none",
    "dropout": 0.0,
}


def random_speech(name: str, seed: int = 0, *, words: int = 9, **changes: Any) -> Any:
    """A small model of the architecture, in evaluation, whose words depend on all that it reads."""
    settings: dict[str, Any] = {**SMALL, "tgt_vocab": words, **changes}
    found = architecture(name)
    torch.manual_seed(seed)
    model = found.network(found.config.from_dict(settings)).eval().requires_grad_(False)
    for key, weight in model.state_dict(keep_vars=True).items():
        if key.endswith("running_var"):
            weight.uniform_(0.5, 2.0)
        elif key.endswith("norm.weight"):
            weight.normal_(1.0, 0.2)
        elif weight.dim() == 1 or "bias_" in key:
            weight.normal_(std=0.3)
        else:
            fan = weight[0].numel()
            loud = key in ("ctc.weight", "output.weight") or ("cross" in key and key.startswith("decoder"))
            weight.normal_(std=(4.0 if loud else 1.3) / math.sqrt(fan))
    return model


def save_random_speech(
    folder: Path,
    name: str,
    seed: int,
    *,
    words: int = 9,
    names: Sequence[str] | None = None,
    features: str = "fbank",
    strategy: str | None = None,
    **changes: Any,
) -> None:
    """Writes a `random_speech` that reads files of sound, or stored features, as a model folder.

    Args:
        names: The words that it knows, besides those of every vocabulary; None: w0, w1 and so on.
        strategy: The one that it names for `nartk-decode`.
    """
    if names is None:
        names = [f"w{i}" for i in range(words - len(SPECIALS))]
    network = random_speech(name, seed, words=len(SPECIALS) + len(names), **changes)
    save_checkpoint(
        folder,
        architecture=name,
        settings=asdict(network.config),
        tensors=network.state_dict(),
        source_vocab=None,
        target_vocab=Vocab.from_words([*names]),
        card="# Random\n",
        input={"name": "audio", "features": features, "bins": SMALL["input_features"]},
        generation={} if strategy is None else {"strategy": strategy},
    )


def random_speeches(seed: int, lengths: Sequence[int], features: int = 16) -> list[FeatureSource]:
    """Sources of so many frames."""
    rng = np.random.default_rng(seed)
    return [FeatureSource(rng.standard_normal((n, features)).astype(np.float32), 10.0) for n in lengths]


def random_settings(rng: random.Random) -> dict[str, Any]:
    """What encoders of speech may differ in, sizes aside."""
    block = rng.choice(["conformer", "e-branchformer"])
    conditioned = rng.random() < 0.5
    drawn = {
        "encoder_block": block,
        "encoder_positions": rng.choice(["transformer-xl", "transformer-xl", "sinusoidal", "none"]),
        "conv_norm": rng.choice(["batch", "layer"]),
        "head_features": rng.choice([0, 7]),
        "scale_attention": rng.random() < 0.7,
        "intermediate_ctc": "1" if conditioned else "",
        "self_conditioning": conditioned,
        "norm_eps": rng.choice([1e-5, 1e-3]),
        "gated_ffn": rng.random() < 0.5,
        "activation": rng.choice(["relu", "gelu"]),
    }
    other = random.Random(str(drawn))  # what rng draws next is the caller's
    return drawn | {
        "batch_norm_eps": other.choice([0.0, 0.1]),
        "intermediate_norm": other.random() < 0.5,
    }


class EncoderTwin:
    """Encodes one utterance.

    Args:
        far: What a query's position less its key's is multiplied by; 1 is right.
    """

    def __init__(self, model: Any, far: int = 1) -> None:
        self.w = {name: value.double().numpy() for name, value in model.state_dict().items()}
        self.config, self.far = model.config, far

    def norm(self, x: Array, name: str) -> Array:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + self.config.norm_eps)
        return x * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def linear(self, x: Array, name: str) -> Array:
        y: Array = x @ self.w[f"{name}.weight"].T
        return y + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else y

    def sinusoid(self, position: int) -> Array:
        d = self.config.d_model
        waves = [(math.sin, math.cos)[i % 2](position / 10000 ** (i // 2 * 2 / d)) for i in range(d)]
        return np.array(waves)

    def subsample(self, frames: Array) -> Array:
        maps = frames.astype(np.float64)[None]  # [C,T,F]
        for i in range({4: 2, 8: 3}[self.config.subsampling]):
            kernel, bias = (self.w[f"encoder_subsample.conv.{i}.{part}"] for part in ("weight", "bias"))
            length, width = ((size - 3) // 2 + 1 for size in maps.shape[1:])
            made = np.empty((len(kernel), length, width))
            for t in range(length):
                for f in range(width):
                    seen = maps[:, 2 * t : 2 * t + 3, 2 * f : 2 * f + 3]
                    made[:, t, f] = (kernel * seen).sum((1, 2, 3)) + bias
            maps = made.clip(min=0)
        return self.linear(maps.transpose(1, 0, 2).reshape(maps.shape[1], -1), "encoder_subsample.out")

    def convolve(self, x: Array, name: str) -> Array:
        kernel = self.w[f"{name}.weight"][:, 0]
        half = kernel.shape[1] // 2
        wide = np.pad(x, ((half, half), (0, 0)))
        rows = [(wide[t : t + kernel.shape[1]].T * kernel).sum(1) for t in range(len(x))]
        return np.stack(rows) + self.w[f"{name}.bias"]

    def feed_forward(self, x: Array, name: str) -> Array:
        y = self.linear(x, f"{name}.up")
        return self.linear(y / (1 + np.exp(-y)), f"{name}.down")

    def attend(self, x: Array, name: str) -> Array:
        config = self.config
        q, k, v = np.split(self.linear(x, f"{name}.qkv"), 3, 1)
        size, heads = config.attention_features("encoder"), config.encoder_heads
        out = np.zeros_like(q)
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            scores = np.empty((len(x), len(x)))
            for i in range(len(x)):
                for j in range(len(x)):
                    if config.encoder_positions == "transformer-xl":
                        u, w = (self.w[f"{name}.{bias}"][head] for bias in ("bias_u", "bias_v"))
                        away = self.linear(self.sinusoid(self.far * (i - j)), f"{name}.positions")
                        scores[i, j] = (q[i, part] + u) @ k[j, part] + (q[i, part] + w) @ away[part]
                    else:
                        scores[i, j] = q[i, part] @ k[j, part]
            scores = scores / math.sqrt(size) if config.scale_attention else scores
            share = np.exp(scores - scores.max(1, keepdims=True))
            out[:, part] = share / share.sum(1, keepdims=True) @ v[:, part]
        return self.linear(out, f"{name}.out")

    def convolution(self, x: Array, name: str) -> Array:
        one, gate = np.split(self.linear(x, f"{name}.up"), 2, 1)
        y = self.convolve(one / (1 + np.exp(-gate)), f"{name}.depthwise")
        if self.config.conv_norm == "batch":
            mean, var = (self.w[f"{name}.norm.running_{each}"] for each in ("mean", "var"))
            y = (y - mean) / np.sqrt(var + (self.config.batch_norm_eps or self.config.norm_eps))
            y = y * self.w[f"{name}.norm.weight"] + self.w[f"{name}.norm.bias"]
        else:
            y = self.norm(y, f"{name}.norm")
        return self.linear(y / (1 + np.exp(-y)), f"{name}.down")

    def gating(self, x: Array, name: str) -> Array:
        y = self.linear(x, f"{name}.up")
        y = 0.5 * y * (1 + np.vectorize(math.erf)(y / math.sqrt(2)))
        gated, gate = np.split(y, 2, 1)
        return self.linear(
            gated * self.convolve(self.norm(gate, f"{name}.norm"), f"{name}.depthwise"), f"{name}.down"
        )

    def layer(self, x: Array, i: int, prompt: Array | None) -> Array:
        at = f"encoder_layers.{i}"
        x = x + 0.5 * self.feed_forward(self.norm(x, f"{at}.ffn1_norm"), f"{at}.ffn1")
        attended = self.attend(self.norm(x, f"{at}.self_norm"), f"{at}.self_attention")
        if self.config.encoder_block == "conformer":
            x = x + attended
            x = x + self.convolution(self.norm(x, f"{at}.conv_norm"), f"{at}.conv")
        else:
            gated = self.gating(self.norm(x, f"{at}.cgmlp_norm"), f"{at}.cgmlp")
            both = np.concatenate([attended, gated], 1)
            x = x + self.linear(both + self.convolve(both, f"{at}.merge.depthwise"), f"{at}.merge.out")
        x = x + 0.5 * self.feed_forward(self.norm(x, f"{at}.ffn2_norm"), f"{at}.ffn2")
        if f"{at}.cross_norm.weight" in self.w:
            assert prompt is not None
            x = x + self.read(self.norm(x, f"{at}.cross_norm"), prompt, f"{at}.cross_attention")
        return self.norm(x, f"{at}.final_norm")

    def read(self, x: Array, prompt: Array, name: str) -> Array:
        q = self.linear(x, f"{name}.q")
        k, v = np.split(self.linear(prompt, f"{name}.kv"), 2, 1)
        size = self.config.attention_features("encoder")
        out = np.zeros_like(q)
        for head in range(self.config.encoder_heads):
            part = slice(head * size, (head + 1) * size)
            scores = q[:, part] @ k[:, part].T
            scores = scores / math.sqrt(size) if self.config.scale_attention else scores
            share = np.exp(scores - scores.max(1, keepdims=True))
            out[:, part] = share / share.sum(1, keepdims=True) @ v[:, part]
        return self.linear(out, f"{name}.out")

    def encode(
        self, frames: Array, before: Array | None = None, prompt: Array | None = None
    ) -> tuple[Array, list[Array]]:
        """What is encoded of frames [T,F], and the log-probabilities of all CTC heads, the last one last.

        Args:
            before: Vectors [P,d] in front of the frames, and the encoded `prompt` [W,d].
        """
        config = self.config
        x = self.subsample(frames)
        if config.encoder_positions != "none":
            x = x * math.sqrt(config.d_model)
        if before is not None:
            x = np.concatenate([before, x])
        if config.encoder_positions == "sinusoidal":
            x = x + np.stack([self.sinusoid(t) for t in range(len(x))])
        heads = []
        for i in range(config.encoder_layers):
            x = self.layer(x, i, prompt)
            if i + 1 in config.intermediate_layers:
                heads.append(self.ctc(x, config.intermediate_norm))
                if config.self_conditioning:
                    x = x + self.linear(np.exp(heads[-1]), "condition")
        return self.norm(x, "encoder_norm"), [*heads, self.ctc(x)]

    def ctc(self, x: Array, normed: bool = True) -> Array:
        logits = self.linear(self.norm(x, "encoder_norm") if normed else x, "ctc")
        return logits - np.logaddexp.reduce(logits, 1)[:, None]


def assert_slope(model: Any, loss: Callable[[], torch.Tensor]) -> None:
    """As `check_slope`, of a loss without gradients yet, which reach every weight."""
    loss().backward()
    assert all(p.grad is not None for p in model.parameters())
    check_slope(model, loss, rel=1e-4)
