"""nartk-convert --to hf of Whisper: transformers loads it, and computes what it was made of."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from support import whisper_models as models
from support.hf_folders import transformers
from support.recipe_scripts import imported

from nartk.adapters.hf_whisper import TYPES
from nartk.checkpoints.loading import load_checkpoint
from nartk.cli.convert import main as convert
from nartk.engine import available
from nartk.models.reference import DTYPES

SECONDS = 1.0
needs_engine = pytest.mark.skipif(not available(), reason="the engine is not there")


def random_folder(folder: Path, seed: int, **fields: Any) -> Any:
    """Writes a random Whisper of transformers; the model."""
    settings = models.random_settings(random.Random(seed), seconds=SECONDS)
    model = models.random_model(settings, seed, ends=3.0, times=2.0, **fields)
    for name in fields.keys() & {"lang_to_id", "task_to_id"}:  # None: they are not there
        vars(model.generation_config).pop(name, None)
    models.save(model, folder)
    return model


def exported(model: Path, output: Path, *flags: str) -> Path:
    assert convert([str(model), "--to", "hf", "--output", str(output), "--quiet", *flags]) == 0
    return output


@pytest.fixture(autouse=True)
def library() -> Any:
    return transformers()


@pytest.mark.parametrize(
    ("seed", "fields"),
    [
        (0, {}),
        (1, {"language": "de", "task": "translate", "alignment_heads": [[0, 0]]}),
        (2, {"num_beams": 3, "length_penalty": 0.7}),
        (3, {"return_timestamps": True, "max_initial_timestamp_index": 5}),
        (4, {"is_multilingual": False, "lang_to_id": None, "task_to_id": None, "suppress_tokens": None}),
        (5, {"bad_words_ids": [[70, 71]], "no_repeat_ngram_size": 2, "max_length": 17}),
    ],
)
def test_a_folder_comes_back_as_it_was(
    seed: int, fields: dict[str, Any], tmp_path: Path, library: Any
) -> None:
    """Its weights bit for bit, what `generate` makes of sound, and what nartk reads of it."""
    theirs, own = tmp_path / "theirs", tmp_path / "own"
    model = random_folder(theirs, seed, **fields)
    assert convert([str(theirs), "--output", str(own), "--quiet"]) == 0
    back = exported(own, tmp_path / "back")
    found = library.AutoModelForSpeechSeq2Seq.from_pretrained(back).eval()
    wanted, weights = model.state_dict(), found.state_dict()
    assert weights.keys() == wanted.keys()
    for name, weight in wanted.items():
        assert torch.equal(weights[name], weight), name
    sources = models.random_frames(model, random.Random(seed), [100, 100])
    # What is to be done, which transformers leaves out of the prompt where nothing says it.
    asked = {} if "task_to_id" in fields or "task" in fields else {"task": "transcribe"}
    outputs = models.their_outputs(model, sources, **asked)
    assert models.their_outputs(found, sources) == outputs
    assert any(outputs)
    processor = library.AutoProcessor.from_pretrained(back)
    assert type(processor).__name__ == "WhisperProcessor"
    samples = np.random.default_rng(seed).normal(size=9000).astype(np.float32)
    extractor = library.WhisperFeatureExtractor.from_pretrained(theirs)
    given, made = (
        each(samples, sampling_rate=16000, return_tensors="np").input_features
        for each in (extractor, processor.feature_extractor)
    )
    np.testing.assert_array_equal(made, given)
    text = library.WhisperTokenizer.from_pretrained(theirs)
    assert processor.tokenizer.decode(outputs[0]) == text.decode(outputs[0])
    mine, again = (load_checkpoint(folder) for folder in (own, back))
    assert (again.settings, again.generation, again.output.prompts) == (
        mine.settings,
        mine.generation,
        mine.output.prompts,
    )
    for name, array in mine.tensors.items():
        np.testing.assert_array_equal(again.tensors[name], array, err_msg=name)


@pytest.mark.parametrize("dtype", TYPES)
def test_weights_are_of_the_type_that_is_asked_for(dtype: str, tmp_path: Path, library: Any) -> None:
    model = random_folder(tmp_path / "theirs", 6)
    back = exported(tmp_path / "theirs", tmp_path / "back", "--dtype", dtype)
    found = library.AutoModelForSpeechSeq2Seq.from_pretrained(back, dtype="auto")
    assert found.dtype == DTYPES[dtype]
    wanted = model.to(DTYPES[dtype]).state_dict()
    assert all(torch.equal(weight, wanted[name]) for name, weight in found.state_dict().items())


@pytest.mark.parametrize("quantization", ["float32", "float16", "int8"])
def test_a_folder_of_ctranslate2_becomes_what_it_was_made_of(quantization: str, tmp_path: Path) -> None:
    """Its weights in fp16 bit for bit; of int8 as close as 8 bits are, to a row's largest."""
    converters = pytest.importorskip("ctranslate2.converters", reason="ctranslate2 is not installed")
    whisper = imported("speed", "whisper_engines.py")
    theirs, converted = tmp_path / "theirs", tmp_path / "converted"
    whisper.save_random_whisper(theirs, whisper.SIZES["test"], seed=3, halves=True)
    converter = converters.TransformersConverter(str(theirs), copy_files=["tokenizer.json"])
    converter.convert(str(converted), quantization=quantization)
    back = exported(converted, tmp_path / "back")
    wanted, found = (load_file(folder / "model.safetensors") for folder in (theirs, back))
    wanted.pop("proj_out.weight", None)  # the embeddings
    assert found.keys() == wanted.keys()
    for name, weight in wanted.items():
        assert found[name].dtype == np.float32
        if quantization == "int8" and weight.ndim > 1:
            most = np.abs(weight).max(axis=tuple(range(1, weight.ndim)), keepdims=True)
            assert (np.abs(found[name] - weight) <= most / 127 * 0.501).all(), name
        else:
            np.testing.assert_array_equal(found[name], weight, err_msg=name)


@needs_engine
def test_weights_of_int8_are_written_as_what_they_stand_for(tmp_path: Path) -> None:
    random_folder(tmp_path / "theirs", 7)
    small = tmp_path / "small"
    assert convert([str(tmp_path / "theirs"), "--output", str(small), "--quantize", "int8", "--quiet"]) == 0
    back = exported(small, tmp_path / "back")
    wanted, found = (load_file(folder / "model.safetensors") for folder in (tmp_path / "theirs", back))
    for weights in (wanted, found):
        weights.pop("proj_out.weight", None)  # the embeddings
    assert found.keys() == wanted.keys()
    for name, weight in wanted.items():
        most = np.abs(weight).max(axis=tuple(range(1, weight.ndim)), keepdims=True)
        assert (np.abs(found[name] - weight) <= most / 127 * 0.501).all(), name
