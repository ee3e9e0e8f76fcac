"""Small random Whisper folders as transformers writes them, and what its `generate` makes of frames."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nartk.protocols.passes import FeatureSource
from support.hf_folders import ACTIVATIONS, transformers

WORDS = 259  # of text: bytes, and three merges
LANGUAGES = ("en", "de", "fr")
SPECIAL = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    *(f"<|{code}|>" for code in LANGUAGES),
    *(f"<|{name}|>" for name in ("translate", "transcribe", "startoflm", "startofprev", "nospeech")),
    "<|notimestamps|>",
)
EOS, START = WORDS, WORDS + 1
NO_TIMESTAMPS = WORDS + SPECIAL.index("<|notimestamps|>")
BEGIN = NO_TIMESTAMPS + 1


def id_of(name: str) -> int:
    return WORDS + SPECIAL.index(f"<|{name}|>")


def tokenizer(seconds: float) -> Any:
    """A tokenizer with Whisper's special tokens and the times up to so many seconds."""
    from tokenizers import AddedToken
    from tokenizers.pre_tokenizers import ByteLevel

    vocab = {word: id for id, word in enumerate(sorted(ByteLevel.alphabet()))}
    merges = [("t", "h"), ("th", "e"), ("Ġ", "a")]
    for first, second in merges:
        vocab[first + second] = len(vocab)
    made = transformers().WhisperTokenizer(vocab=vocab, merges=merges)
    made.add_tokens(
        [AddedToken(word, special=True, normalized=False) for word in SPECIAL[1:]], special_tokens=True
    )
    times = (f"<|{step * 0.02:.2f}|>" for step in range(round(seconds * 50) + 1))
    made.add_tokens([AddedToken(word, special=False, normalized=False) for word in times])
    return made


def random_settings(rng: random.Random, *, seconds: float) -> dict[str, Any]:
    """Every setting that changes what a model computes, drawn."""
    heads = [rng.choice([1, 2, 3, 4]) for _ in range(2)]
    settings: dict[str, Any] = {
        "vocab_size": BEGIN + round(seconds * 50) + 1,
        "num_mel_bins": rng.choice([8, 16, 80, 128]),
        "d_model": math.lcm(2, *heads) * rng.choice([4, 5, 8]),
        "max_source_positions": round(seconds * 50),
        "max_target_positions": rng.randint(24, 40),
        "activation_function": rng.choice(ACTIVATIONS),
        "tie_word_embeddings": rng.random() < 0.7,
        "pad_token_id": EOS,
        "bos_token_id": EOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": START,
    }
    for side, count in zip(("encoder", "decoder"), heads, strict=True):
        settings |= {
            f"{side}_layers": rng.randint(1, 3),
            f"{side}_ffn_dim": rng.randint(8, 60),
            f"{side}_attention_heads": count,
        }
    return settings


def generation_config(**fields: Any) -> dict[str, Any]:
    """What generation_config.json has, as published checkpoints have it."""
    return {
        "pad_token_id": EOS,
        "bos_token_id": EOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": START,
        "no_timestamps_token_id": NO_TIMESTAMPS,
        "is_multilingual": True,
        "lang_to_id": {f"<|{code}|>": id_of(code) for code in LANGUAGES},
        "task_to_id": {name: id_of(name) for name in ("transcribe", "translate")},
        "begin_suppress_tokens": [220, EOS],
        "suppress_tokens": [1, 2, 7, *range(START, NO_TIMESTAMPS)],
        "max_initial_timestamp_index": 20,
        "return_timestamps": False,
        "max_length": 448,
        **fields,
    }


def random_model(
    settings: dict[str, Any], seed: int, *, ends: float = 0.0, times: float = 0.0, **fields: Any
) -> Any:
    """A model in which every weight counts, in evaluation mode.

    Args:
        ends, times: About what is added to the logits of eos and of timestamps.
        fields: Of generation_config.json.
    """
    library = transformers()
    config = library.WhisperConfig(**settings)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        model = library.WhisperForConditionalGeneration(config).eval()
        for name, weight in model.named_parameters():
            noise = torch.randn_like(weight)
            if weight.dim() == 1:
                weight.add_(0.2 * noise)
            elif weight.shape[0] == config.vocab_size:
                weight.copy_(noise)
            else:
                weight.copy_(noise * 1.5 / math.sqrt(weight[0].numel()))
            if name.endswith("encoder.layer_norm.weight"):
                weight.mul_(3.0)  # so that outputs depend on the sound
        rows = model.proj_out.weight
        directions = rows / rows.square().sum(1, keepdim=True)
        raised = ends * directions[EOS] + times * directions[BEGIN:].sum(0)
        model.model.decoder.layer_norm.bias.add_(raised)
    model.generation_config = library.GenerationConfig(**generation_config(**fields))
    return model


def save(model: Any, folder: Path) -> Path:
    """Writes the model with its tokenizer and the settings of its feature extractor."""
    seconds = model.config.max_source_positions / 50
    model.save_pretrained(folder)
    tokenizer(seconds).save_pretrained(folder)
    transformers().WhisperFeatureExtractor(
        feature_size=model.config.num_mel_bins, chunk_length=round(seconds)
    ).save_pretrained(folder)
    return folder


def random_frames(model: Any, rng: random.Random, lengths: Sequence[int]) -> list[FeatureSource]:
    """Sources of so many frames."""
    numbers = np.random.default_rng(rng.getrandbits(32))
    bins = model.config.num_mel_bins
    return [FeatureSource(numbers.normal(size=(length, bins)).astype(np.float32), 10.0) for length in lengths]


def features_of(sources: Sequence[FeatureSource]) -> dict[str, Any]:
    """Sources as transformers reads them: [B,F,T], zeros behind each, and which frames count."""
    longest = max(map(len, sources))
    padded = [np.pad(source.frames, ((0, longest - len(source)), (0, 0))) for source in sources]
    mask = [[1] * len(source) + [0] * (longest - len(source)) for source in sources]
    return {
        "input_features": torch.tensor(np.stack(padded)).transpose(1, 2),
        "attention_mask": torch.tensor(mask),
    }


def their_outputs(model: Any, sources: Sequence[FeatureSource], **fields: Any) -> list[list[int]]:
    """What `generate` outputs, without eos and padding."""
    with torch.inference_mode():
        found = model.generate(**features_of(sources), **fields)
    return [[word for word in row if word != EOS] for row in found.tolist()]


def their_log_probs(model: Any, source: FeatureSource, target: Sequence[int]) -> torch.Tensor:
    """[T,V] after each token of a target, of a source of the longest length."""
    with torch.inference_mode():
        found = model(
            input_features=features_of([source])["input_features"], decoder_input_ids=torch.tensor([target])
        )
    return found.logits[0].log_softmax(-1)
