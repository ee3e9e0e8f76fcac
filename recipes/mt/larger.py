"""Makes a verifier of another size with the distribution of MODEL, to measure what drafters would give it.

    python recipes/mt/larger.py MODEL --output DIR [--d-model 512] [--layers 6] [--words 32000]
    nartk-bench DIR FILE --strategies greedy,gad:drafter=DAG --costs
    python recipes/mt/larger.py LIGHT --verifier DIR --output DRAFTER

It has each of MODEL's features several times: weights that read them are divided by their number, so that
sums remain, and positions are stored as they were. Layers that are added output zero. So a pass costs what it
costs at that size, and of each draft as much is accepted as with MODEL. Words that are added have the weights
of the first one, <s>, which no model that was trained outputs; of equal words the first is the likeliest.
LIGHT, a light drafter of MODEL, becomes one of DIR that drafts the same: its size remains, and it reads the
features that DIR encodes and has its words.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nartk.architectures.positions import sinusoids
from nartk.architectures.settings import JOINT
from nartk.architectures.transformer import TransformerConfig
from nartk.checkpoints.checkpoint import Checkpoint
from nartk.checkpoints.loading import load_checkpoint
from nartk.checkpoints.names import TARGET_TOKENIZER, TOKENIZER, WORD_COUNTS
from nartk.checkpoints.saving import save_checkpoint
from nartk.processors.encoded import NAME as ENCODED
from nartk.processors.text import TextInput
from nartk.vocab import Vocab, padding_word

HEAD = 64  # features of a head, as large models have them
OF_WORDS = ("words", "output")  # modules whose weights have a row a word
IntArray = npt.NDArray[np.int64]


class Larger:
    """A verifier of `times` times as many features, so many layers each side, and so many words.

    Attributes:
        config: Its shape.
        features: [d_model] the feature of MODEL that each feature is a copy of.
    """

    def __init__(self, model: Checkpoint, times: int, layers: int, words: int) -> None:
        self.old = TransformerConfig.from_dict(model.settings)
        # By name; those that share memory under each of theirs.
        self.weights = {name: torch.from_numpy(array).float() for name, array in model.tensors.items()}
        self.times, d = times, self.old.d_model
        if not (self.old.encoder_norm_first and self.old.decoder_norm_first):
            raise SystemExit("larger.py: the model's norms come last: train it with --encoder-norm-first")
        if layers < max(self.old.encoder_layers, self.old.decoder_layers):
            raise SystemExit(f"larger.py: --layers {layers} is less than the model has")
        # Heads grow to HEAD features by copies within, and are copied whole beyond that.
        own = d // self.old.decoder_heads
        self.within = math.gcd(times, max(1, HEAD // own))
        heads = self.old.decoder_heads * times // self.within
        self.config = replace(
            self.old,
            src_vocab=words if self.old.share_embeddings in JOINT else self.old.src_vocab,
            tgt_vocab=words,
            d_model=d * times,
            encoder_layers=layers,
            decoder_layers=layers,
            encoder_ffn=self.old.encoder_ffn * times,
            decoder_ffn=self.old.decoder_ffn * times,
            encoder_heads=heads,
            decoder_heads=heads,
            **{
                key: "learned" if getattr(self.old, key) == "sinusoidal" else getattr(self.old, key)
                for key in ("encoder_positions", "decoder_positions")
            },
        )
        self.features = np.tile(np.arange(d), times)
        by_head = np.arange(d).reshape(-1, own).repeat(self.within, axis=1)  # [H,D] -> [H,D*within]
        self.head_features = np.tile(by_head, (times // self.within, 1)).reshape(-1)

    def tensors(self) -> dict[str, Tensor]:
        """Its weights by name."""
        rng = torch.Generator().manual_seed(1)
        found: dict[str, Tensor] = {}
        shared = self.config.shared_weights()
        for name, shape in self.config.weight_shapes().items():
            if name in shared:
                found[name] = found[shared[name]]
            elif name in self.weights:
                found[name] = with_words(name, self._copied(name), shape[0])
            elif name.endswith("positions.weight"):
                table = torch.from_numpy(sinusoids(shape[0], self.old.d_model).copy())
                found[name] = table[:, self.features]
            elif name.endswith(("out.weight", "down.weight", "bias")):
                found[name] = torch.zeros(shape)
            else:  # of an added layer, whose output is zero
                found[name] = torch.randn(shape, generator=rng) / math.sqrt(shape[-1])
        return found

    def _copied(self, name: str) -> Tensor:
        old, times, d = self.weights[name], self.times, self.old.d_model
        module = name.rpartition(".")[0].rpartition(".")[2]
        if module in OF_WORDS:
            # They are multiplied by the square root of d_model where they are read.
            return old[:, self.features] / (math.sqrt(times) if self.old.scale_embedding else 1.0)
        if module == "positions":
            return old[:, self.features]
        rows: IntArray
        if module in ("qkv", "q", "kv"):
            parts = len(old) // d
            rows = np.concatenate([self.head_features + part * d for part in range(parts)])
        else:
            rows = np.tile(np.arange(len(old)), times)
        new = old[rows]
        if module in ("qkv", "q"):  # scores have `within` as many summands, and are divided by the root of it
            new[: d * times] /= math.sqrt(self.within)
        if module == "decoder_norm":  # logits have `times` as many summands
            new = new / (math.sqrt(times) if self.old.scale_embedding else times)
        if old.dim() == 1:
            return new
        inner = np.tile(np.arange(old.shape[1]), times)
        return new[:, self.head_features if module == "out" else inner] / times


def with_words(name: str, weight: Tensor, count: int) -> Tensor:
    """The weight; if it is of words, with the first one's row again until there are so many."""
    is_of_words = name.rpartition(".")[0].rpartition(".")[2] in OF_WORDS
    return torch.cat([weight, weight[:1].repeat(count - len(weight), 1)]) if is_of_words else weight


def longer(vocab: Vocab | None, count: int) -> Vocab | None:
    """The words, and behind them unused ones, so many in all."""
    if vocab is None:
        return None
    return replace(vocab, words=(*vocab.words, *map(padding_word, range(len(vocab), count))))


def copy(model: Checkpoint, output: Path, settings: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Writes a folder with MODEL's words and tokenizers."""
    pieces = [model.folder / name for name in (TOKENIZER, TARGET_TOKENIZER)]
    own, target = (path if path.is_file() else None for path in pieces)
    reads_text = isinstance(model.input, TextInput)
    save_checkpoint(
        output,
        architecture=model.architecture,
        settings=settings,
        tensors=tensors,
        source_vocab=longer(model.source_vocab, settings["src_vocab"]) if reads_text else None,
        target_vocab=longer(model.target_vocab, settings["tgt_vocab"]),
        tokenizer=own,
        target_tokenizer=target,
        input=None if reads_text else {"name": ENCODED},
        others={name: path for name, path in model.files.items() if name == WORD_COUNTS},
        card=f"# The distribution of {model.fingerprint} at another size, to measure speed\n",
    )


def copies(wanted: int, model: Checkpoint) -> int:
    """Times that each of MODEL's features is among so many."""
    own = model.settings["d_model"]
    if wanted % own or not wanted:
        raise SystemExit(f"larger.py: --d-model {wanted} is no multiple of the model's {own}")
    return wanted // own


def drafter_of(light: Checkpoint, verifier: Checkpoint) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Settings and weights of a light drafter that reads copies of the features that it was trained on."""
    width = verifier.settings["d_model"]
    times = copies(width, light)
    tensors = {name: torch.from_numpy(array).float() for name, array in light.tensors.items()}
    words = verifier.settings["tgt_vocab"]
    for name, weight in tensors.items():
        if name.endswith(".cross_attention.kv.weight"):
            tensors[name] = weight.repeat(1, times) / times
        else:
            tensors[name] = with_words(name, weight, words)
    shape = {"d_model": width, "tgt_vocab": words, "drafts_for": verifier.fingerprint}
    return light.settings | shape, tensors


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a model folder, or a light drafter's")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    parser.add_argument(
        "--d-model", type=int, default=512, help="features, a multiple of the model's (default: %(default)s)"
    )
    parser.add_argument("--layers", type=int, default=6, help="of encoder and of decoder (default: 6)")
    parser.add_argument("--words", type=int, help="in all, special ones included (default: the model's)")
    parser.add_argument("--verifier", help="of a light drafter: the larger verifier that it shall draft for")
    args = parser.parse_args()

    model = load_checkpoint(args.model)
    if args.verifier:
        copy(model, args.output, *drafter_of(model, load_checkpoint(args.verifier)))
        return
    known = model.settings["tgt_vocab"]
    if args.words is not None and args.words < known:
        raise SystemExit(f"larger.py: --words {args.words} is less than the model's {known}")
    larger = Larger(model, copies(args.d_model, model), args.layers, args.words or known)
    copy(model, args.output, asdict(larger.config), larger.tensors())


if __name__ == "__main__":
    main()
