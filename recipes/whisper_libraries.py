"""Whisper on nartk and in other libraries, with greedy search in one thread: what recipes compare.

`run` outputs a given number of words for frames [T,F], and tells the time of the encoder and of the decoder;
`texts` are those of recordings of up to 30 s, without times, from the files on: CTranslate2 and transformers
read the features that transformers' extractor computes, nartk and faster-whisper have their own.
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
from nartk.data.audio.sounds import read_sound
from nartk.protocols.hypothesis import Request
from nartk.protocols.passes import FeatureSource, FloatArray

SHIFT = 10.0  # ms between two frames
RATE = 16000


@dataclass(frozen=True)
class Spent:
    """CPU seconds of a run, and the words that it output behind the prompt."""

    encoder: float
    decoder: float
    tokens: list[int]


def extracted(extractor: Any, paths: Sequence[Path]) -> FloatArray:
    """Features [N,F,T] of sound files, as transformers' extractor computes them."""
    samples = [read_sound(str(path), rate=RATE) for path in paths]
    found: FloatArray = extractor(samples, sampling_rate=RATE, return_tensors="np").input_features
    return found


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

    def texts(self, paths: Sequence[Path]) -> list[str]:
        found = self.model.decode([*map(str, paths)], "greedy", batch_size=len(paths))
        return [each.text.strip() for each in found]


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

    @cached_property
    def extractor(self) -> Any:
        return self.library.WhisperFeatureExtractor.from_pretrained(self.folder)

    def texts(self, paths: Sequence[Path]) -> list[str]:
        features = torch.from_numpy(extracted(self.extractor, paths))
        with torch.inference_mode():
            found = self.model.generate(features, do_sample=False, num_beams=1)
        return [self.tokenizer.decode(each, skip_special_tokens=True).strip() for each in found]


class CTranslate2Whisper:
    """CTranslate2's `Whisper`, which faster-whisper calls.

    Args:
        folder: Its own, with a tokenizer.json for `texts`, or Hugging Face's, which is converted.
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

    @cached_property
    def extractor(self) -> Any:
        return import_transformers().WhisperFeatureExtractor(feature_size=self.model.n_mels)

    def texts(self, paths: Sequence[Path]) -> list[str]:
        ids = self.tokenizer.convert_tokens_to_ids
        start, transcribe, without = ids(["<|startoftranscript|>", "<|transcribe|>", "<|notimestamps|>"])
        memory = self.model.encode(self.library.StorageView.from_array(extracted(self.extractor, paths)))
        prompts = [[start, without]] * len(paths)
        if self.model.is_multilingual:
            detected = (languages[0][0] for languages in self.model.detect_language(memory))
            prompts = [[start, *ids([language]), transcribe, without] for language in detected]
        found = self.model.generate(memory, prompts, beam_size=1)
        return [
            self.tokenizer.decode(each.sequences_ids[0], skip_special_tokens=True).strip() for each in found
        ]


class FasterWhisper:
    """faster-whisper's `WhisperModel`, with one window a file: what it has besides is switched off.

    Args:
        folder: CTranslate2's.
    """

    def __init__(self, folder: Path, dtype: str) -> None:
        from faster_whisper import WhisperModel

        settings = {"compute_type": TYPES[dtype], "cpu_threads": 1, "num_workers": 1}
        self.model = WhisperModel(str(folder), device="cpu", **settings)

    def texts(self, paths: Sequence[Path]) -> list[str]:
        found = []
        for path in paths:  # it decodes several windows of one file together, but no several files
            segments, _ = self.model.transcribe(
                str(path),
                beam_size=1,
                temperature=0.0,
                without_timestamps=True,
                condition_on_previous_text=False,
                no_speech_threshold=None,
            )
            found.append("".join(segment.text for segment in segments).strip())
        return found


Library: TypeAlias = NartkWhisper | TransformersWhisper | CTranslate2Whisper | FasterWhisper
LIBRARIES: dict[str, Callable[[Path, str], NartkWhisper | TransformersWhisper | CTranslate2Whisper]] = {
    "nartk": NartkWhisper,
    "hf": TransformersWhisper,
    "ctranslate2": CTranslate2Whisper,
}
