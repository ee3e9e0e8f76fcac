"""Small random model folders as transformers writes them, and what transformers says of them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from nartk.adapters.hf import import_transformers
from nartk.errors import MissingDependencyError
from support.hugging_face_text import train_pieces
from support.tiny import SENTENCES

LONGEST = 12  # tokens of an output, and of a source
# Of each family the names that transformers' classes begin with, and the class of the whole model.
CLASSES = {
    "bart": ("Bart", "BartForConditionalGeneration"),
    "m2m_100": ("M2M100", "M2M100ForConditionalGeneration"),
    "marian": ("Marian", "MarianMTModel"),
    "mbart": ("MBart", "MBartForConditionalGeneration"),
    "mt5": ("MT5", "MT5ForConditionalGeneration"),
    "pegasus": ("Pegasus", "PegasusForConditionalGeneration"),
    "t5": ("T5", "T5ForConditionalGeneration"),
}
T5 = ("t5", "mt5")
ACTIVATIONS = ("relu", "silu", "swish", "gelu", "gelu_python", "gelu_new", "gelu_fast", "gelu_accurate")
ACTIVATIONS += ("gelu_pytorch_tanh", "gelu_python_tanh")


def transformers() -> Any:
    """The library; the test is skipped where it is not installed."""
    try:
        return import_transformers()
    except MissingDependencyError:
        pytest.skip("transformers is not installed")


def config_class(family: str) -> Any:
    return getattr(transformers(), f"{CLASSES[family][0]}Config")


def random_settings(family: str, rng: random.Random) -> dict[str, Any]:
    """Every setting of a family that changes what a model computes, drawn."""
    heads = [rng.choice([1, 2, 3, 4]) for _ in range(2)]
    words = rng.randint(12, 60)
    pad, eos, start = rng.sample(range(words), 3)
    if rng.random() < 0.5:
        start = pad
    settings = {
        "vocab_size": words,
        "pad_token_id": pad,
        "eos_token_id": eos,
        "decoder_start_token_id": start,
        "d_model": math.lcm(*heads) * rng.choice([4, 5, 8]),
    }
    if family in T5:
        settings |= {
            "d_kv": rng.choice([3, 8, 16, 20]),
            "d_ff": rng.randint(8, 60),
            "num_layers": rng.randint(1, 3),
            "num_decoder_layers": rng.choice([None, 1, 2, 3]),
            "num_heads": heads[0],
            "relative_attention_num_buckets": rng.choice([4, 6, 8, 32]),
            "relative_attention_max_distance": rng.choice([20, 32, 128]),
            "layer_norm_epsilon": rng.choice([1e-6, 1e-3, 0.1]),
            "feed_forward_proj": rng.choice(["", "gated-"]) + rng.choice(ACTIVATIONS),
            "tie_word_embeddings": rng.random() < 0.5,
        }
        return settings
    for side, count in zip(("encoder", "decoder"), heads, strict=True):
        settings |= {
            f"{side}_layers": rng.randint(1, 3),
            f"{side}_ffn_dim": rng.randint(8, 60),
            f"{side}_attention_heads": count,
        }
    settings |= {
        "activation_function": rng.choice(ACTIVATIONS),
        "scale_embedding": rng.random() < 0.5,
        "max_position_embeddings": rng.randint(LONGEST + 1, 30),
        "tie_word_embeddings": rng.random() < 0.6,
    }
    if family == "m2m_100":
        settings |= {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": rng.choice([0, 2, 5])}
    if family == "marian" and rng.random() < 0.5:
        settings |= {
            "share_encoder_decoder_embeddings": False,
            "decoder_vocab_size": words + rng.randint(1, 9),
        }
    return settings


def random_model(family: str, settings: dict[str, Any], seed: int, *, biased: bool = True) -> Any:
    """A model in which every weight counts, in evaluation mode."""
    library = transformers()
    config = config_class(family)(**settings)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        model = getattr(library, CLASSES[family][1])(config).eval()
        computed = family in ("marian", "pegasus")
        for name, weight in model.named_parameters():
            if computed and "embed_positions" in name:
                continue
            noise = torch.randn_like(weight)
            if weight.dim() == 1:
                weight.add_(0.2 * noise)
            elif weight.shape[0] in (config.vocab_size, getattr(config, "decoder_vocab_size", None)):
                weight.copy_(noise * (0.3 if settings.get("scale_embedding") or family in T5 else 1.0))
            else:
                weight.copy_(noise * 1.5 / math.sqrt(weight.shape[1]))
            if name.endswith("Attention.q.weight"):
                weight.mul_(settings["d_kv"] ** -0.5)  # where scores are not divided
        if biased and hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_()
    model.generation_config = library.GenerationConfig(
        **{name: settings.get(name) for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id")}
    )
    return model


def random_texts(model: Any, rng: random.Random, count: int) -> tuple[list[list[int]], list[list[int]]]:
    """Sources that end in eos, and target prefixes that begin with the start token; without padding."""
    config = model.config
    start = model.generation_config.decoder_start_token_id
    targets = getattr(config, "decoder_vocab_size", None) or config.vocab_size

    def text(words: int) -> list[int]:
        ids = [word for word in range(words) if word not in (config.pad_token_id, config.eos_token_id)]
        return rng.choices(ids, k=rng.randint(1, LONGEST - 2))

    sources = [[*text(config.vocab_size), config.eos_token_id] for _ in range(count)]
    return sources, [[start, *text(targets)] for _ in range(count)]


def their_log_probs(model: Any, source: Sequence[int], target: Sequence[int]) -> torch.Tensor:
    """[T,V] after each token of a target."""
    with torch.inference_mode():
        found = model(
            input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([target]), return_dict=True
        )
    return found.logits[0].log_softmax(-1)


def their_outputs(
    model: Any, sources: Sequence[Sequence[int]], *, longest: int = LONGEST, **fields: Any
) -> list[list[int]]:
    """What `generate` outputs, up to the first eos and with it; with fields of a search by beams."""
    outputs = []
    for source in sources:
        given = {"do_sample": False, "num_beams": 1, "max_new_tokens": longest, "max_length": None, **fields}
        with torch.inference_mode():
            row = model.generate(torch.tensor([source]), **given)[0].tolist()
        eos = model.generation_config.eos_token_id
        row = row[1:]
        outputs.append(row[: row.index(eos) + 1] if eos in row else row)
    return outputs


def save(model: Any, folder: Path, **settings: Any) -> Path:
    model.save_pretrained(folder, **settings)
    return folder


def text_folder(folder: Path, *, seed: int = 0, **settings: Any) -> Any:
    """Writes a random Marian with its tokenizer, which reads `SENTENCES`; the model."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = train_pieces(folder / "source.spm", SENTENCES * 4, bos_id=-1, unk_id=1, eos_id=0)
    (folder / "target.spm").write_bytes((folder / "source.spm").read_bytes())
    words = [*pieces, "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({word: id for id, word in enumerate(words)}))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "MarianTokenizer"}')
    pad = len(pieces)
    ids = {"vocab_size": len(words), "pad_token_id": pad, "eos_token_id": 0, "decoder_start_token_id": pad}
    sizes = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    sizes |= {"d_model": 16, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 40}
    model = random_model("marian", {**ids, **sizes, **settings}, seed)
    model.save_pretrained(folder)
    return model
