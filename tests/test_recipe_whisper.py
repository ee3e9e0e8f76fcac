"""recipes/asr/whisper_tiny.py undoes what CTranslate2's own converter does to a Whisper."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.recipe_scripts import imported, script

whisper = imported("speed", "whisper_engines.py")
SIZES, save_random_whisper = whisper.SIZES, whisper.save_random_whisper
# What OpenAI's models have otherwise than random ones.
CONFIGS = {
    "config.json": "begin_suppress_tokens bos_token_id suppress_tokens",
    "generation_config.json": "alignment_heads bos_token_id is_multilingual max_initial_timestamp_index "
    "return_timestamps",
    "preprocessor_config.json": "processor_class",
}


def test_a_folder_of_ctranslate2_becomes_what_it_was_made_of(tmp_path: Path) -> None:
    converters = pytest.importorskip("ctranslate2.converters", reason="ctranslate2 is not installed")
    theirs, converted, back = (tmp_path / name for name in ("theirs", "converted", "back"))
    save_random_whisper(theirs, SIZES["test"], seed=3, halves=True)
    converter = converters.TransformersConverter(str(theirs), copy_files=["tokenizer.json"])
    converter.convert(str(converted), quantization="float16")
    script("asr", "whisper_tiny.py", "--source", str(converted), "--output", str(back))
    wanted, found = (load_file(folder / "model.safetensors") for folder in (theirs, back))
    wanted.pop("proj_out.weight", None)  # the embeddings
    assert found.keys() == wanted.keys()
    for name, weight in wanted.items():
        assert found[name].dtype == np.float32
        np.testing.assert_array_equal(found[name], weight.astype(np.float16).astype(np.float32), err_msg=name)
    for file, other in CONFIGS.items():
        mine, original = (
            json.loads((folder / file).read_text(encoding="utf-8")) for folder in (back, theirs)
        )
        assert {key for key, value in mine.items() if original.get(key) != value} == set(other.split())


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"\x05\x00\x00\x00\x02\x00A\x00\x01\x00\x00\x00")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        script("asr", "whisper_tiny.py", "--source", str(tmp_path), "--output", str(tmp_path / "new"))
    assert refused.value.stderr.endswith("version 5 of 'A', this script reads version 6 of 'WhisperSpec'\n")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("quantization", ["int8", "int8_float16", "int16", "bfloat16"])
def test_weights_of_other_types_are_refused(quantization: str, tmp_path: Path) -> None:
    converters = pytest.importorskip("ctranslate2.converters", reason="ctranslate2 is not installed")
    theirs, converted, new = (tmp_path / name for name in ("theirs", "converted", "new"))
    save_random_whisper(theirs, SIZES["test"], seed=3, halves=True)
    converter = converters.TransformersConverter(str(theirs), copy_files=["tokenizer.json"])
    converter.convert(str(converted), quantization=quantization)
    with pytest.raises(subprocess.CalledProcessError) as refused:
        script("asr", "whisper_tiny.py", "--source", str(converted), "--output", str(new))
    (line,) = refused.value.stderr.splitlines()
    assert f" in {quantization.split('_')[0]}, this script reads float32 and float16. Fix: " in line
    assert not new.exists()
