"""Whisper on nartk, transformers and CTranslate2, with greedy search in one thread: what recipes compare.

`run` outputs a given number of words for frames [T,F], and tells the time of the encoder and of the decoder;
`text` is the text of a recording, for which the other libraries get transformers' features [1,F,T].
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

import nartk
from nartk.adapters.ctranslate2 import TYPES, import_ctranslate2
from nartk.adapters.hf import import_transformers
from nartk.bench.turns import TimedCall
from nartk.protocols.hypothesis import Request
from nartk.protocols.passes import FeatureSource, FloatArray

SHIFT = 10.0  # ms between two frames


@dataclass(frozen=True)
class Spent:
    """CPU seconds of a run, and the words that it output behind the prompt."""

    encoder: float
    decoder: float
    tokens: list[int]


class NartkWhisper:
    """nartk's engine; its text is made of the sound file, the features included."""

    def __init__(self, folder: Path, dtype: str) -> None:
        self.model = nartk.load(folder, dtype=dtype, threads=1)
        self.encode = self.model.passes.encode

    def run(self, frames: FloatArray, prompt: Sequence[int], count: int) -> Spent:
        encoder = self.model.passes.encode = TimedCall(self.encode)
        greedy = self.model.strategy("greedy", {"max_len": count})
        request = Request(0, FeatureSource(frames, SHIFT), count)
        decoder = TimedCall(lambda: [*greedy.run(self.model.passes, [request], batch_size=1)])
        (result,) = decoder()
        return Spent(encoder.seconds, decoder.seconds - encoder.seconds, list(result.hypotheses[0].tokens))

    def text(self, path: Path, features: FloatArray) -> str:
        (found,) = self.model.decode([str(path)], "greedy", batch_size=1)
        return found.text


class TransformersWhisper:
    """transformers' eager model in fp32; `run` leaves out Whisper's windows around `generate`."""

    def __init__(self, folder: Path, dtype: str) -> None:
        torch.set_num_threads(1)
        self.folder, self.library = folder, import_transformers()
        load = self.library.WhisperForConditionalGeneration.from_pretrained
        self.model = load(folder, dtype="float32").eval()

    def run(self, frames: FloatArray, prompt: Sequence[int], count: int) -> Spent:
        features = torch.from_numpy(frames.T[None].copy())
        encode, generate = (
            TimedCall(self.model.get_encoder()),
            TimedCall(self.library.GenerationMixin.generate),
        )
        with torch.inference_mode():
            given = {"encoder_outputs": encode(features), "decoder_input_ids": torch.tensor([[*prompt]])}
            lengths = {"min_new_tokens": count, "max_new_tokens": count, "max_length": None}
            found = generate(self.model, **given, do_sample=False, **lengths)
        return Spent(encode.seconds, generate.seconds, found[0, len(prompt) :].tolist())

    @cached_property
    def tokenizer(self) -> Any:
        return self.library.WhisperTokenizerFast.from_pretrained(self.folder)

    def text(self, path: Path, features: FloatArray) -> str:
        with torch.inference_mode():
            found = self.model.generate(torch.from_numpy(features), do_sample=False, num_beams=1)
        return str(self.tokenizer.decode(found[0], skip_special_tokens=True))


class CTranslate2Whisper:
    """CTranslate2's `Whisper`, which faster-whisper calls.

    Args:
        folder: Its own, with a tokenizer.json for `text`, or Hugging Face's, which is converted.
    """

    def __init__(self, folder: Path, dtype: str) -> None:
        self.folder, self.library = folder, import_ctranslate2()
        settings = {"compute_type": TYPES[dtype], "inter_threads": 1, "intra_threads": 1}
        with tempfile.TemporaryDirectory() as scratch:
            if not (folder / "model.bin").exists():
                converter = self.library.converters.TransformersConverter(str(folder))
                folder = Path(scratch) / "model"
                converter.convert(str(folder), quantization=TYPES[dtype])
            self.model = self.library.models.Whisper(str(folder), device="cpu", **settings)

    def run(self, frames: FloatArray, prompt: Sequence[int], count: int) -> Spent:
        features = self.library.StorageView.from_array(np.ascontiguousarray(frames.T[None]))
        encode, generate = TimedCall(self.model.encode), TimedCall(self.model.generate)
        memory = encode(features, to_cpu=True)
        (found,) = generate(
            memory,
            [[*prompt]],
            beam_size=1,
            # With the prompt; an output has half at most.
            max_length=max(2 * count, count + len(prompt)),
            suppress_blank=False,
            suppress_tokens=[],
        )
        return Spent(encode.seconds, generate.seconds, found.sequences_ids[0][:count])

    @cached_property
    def tokenizer(self) -> Any:
        file = str(self.folder / "tokenizer.json")
        return import_transformers().WhisperTokenizerFast(tokenizer_file=file)

    def text(self, path: Path, features: FloatArray) -> str:
        prompt = self.tokenizer.convert_tokens_to_ids(["<|startoftranscript|>", "<|notimestamps|>"])
        memory = self.model.encode(self.library.StorageView.from_array(features))
        (found,) = self.model.generate(memory, [prompt], beam_size=1)
        return str(self.tokenizer.decode(found.sequences_ids[0], skip_special_tokens=True))


Library: TypeAlias = NartkWhisper | TransformersWhisper | CTranslate2Whisper
LIBRARIES: dict[str, Callable[[Path, str], Library]] = {
    "nartk": NartkWhisper,
    "hf": TransformersWhisper,
    "ctranslate2": CTranslate2Whisper,
}
