"""recipes/speed/whisper_engines.py: shapes, outputs of all libraries, its page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.hf_folders import transformers
from support.recipe_scripts import imported

whisper = imported("speed", "whisper_engines.py")
LIBRARIES, PARTS, SIZES = whisper.LIBRARIES, whisper.PARTS, whisper.SIZES
config_of, main, page = whisper.config_of, whisper.main, whisper.page
save_random_whisper = whisper.save_random_whisper

SIZE = SIZES["test"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers()
    found = tmp_path_factory.mktemp("whisper") / "model"
    save_random_whisper(found, SIZE, seed=1, halves=True)
    return found


def frames(seed: int) -> Any:
    shape = SIZE.seconds * 100, SIZE.bins
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("engine", LIBRARIES)
def test_all_libraries_output_what_transformers_computes(engine: str, folder: Path) -> None:
    if engine == "ctranslate2":
        pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    model = transformers().WhisperForConditionalGeneration.from_pretrained(folder).eval()
    found = LIBRARIES[engine](folder, "fp32")
    seen = set()
    for seed in range(3):
        features = torch.from_numpy(frames(seed).T[None].copy())
        words = list(SIZE.prompt)
        for _ in range(9):  # the whole output anew for each word: no cache, no loop of a library
            with torch.inference_mode():
                logits = model(input_features=features, decoder_input_ids=torch.tensor([words])).logits
            words.append(int(logits[0, -1].argmax()))
        wanted = words[len(SIZE.prompt) :]
        for count in (1, 2, 3, 9):
            spent = found.run(frames(seed), SIZE.prompt, count)
            assert spent.tokens == wanted[:count]
            assert min(spent.encoder, spent.decoder) >= 0.0
        seen.add(tuple(wanted))
        assert max(wanted) < SIZE.text
        assert len(set(wanted)) > 1
    assert len(seen) == 3


# As the model cards of openai/whisper-tiny, -base and -small have them: millions of parameters.
@pytest.mark.parametrize(("name", "parameters"), [("tiny", 37.8), ("base", 72.6), ("small", 241.7)])
def test_shapes_are_the_published_ones(name: str, parameters: float) -> None:
    library, size = transformers(), SIZES[name]
    with torch.device("meta"):
        model = library.WhisperForConditionalGeneration(config_of(size))
    assert round(model.num_parameters() / 1e6, 1) == parameters
    # Of OpenAI's multilingual tokenizer.
    assert size.words == 51_865
    assert size.prompt == [50_258, 50_259, 50_359, 50_363]


@pytest.mark.parametrize("halves", [False, True])
def test_weights_may_be_fp16_numbers(halves: bool, tmp_path: Path) -> None:
    library = transformers()
    save_random_whisper(tmp_path, SIZE, seed=2, halves=halves)
    weights = library.WhisperForConditionalGeneration.from_pretrained(tmp_path).state_dict()
    are = [torch.equal(weight, weight.half().float()) for weight in weights.values()]
    assert all(are) if halves else not all(are)


def found(differ: int) -> dict[str, Any]:
    def engine(name: str, dtype: str, scale: float, differ: int | None) -> dict[str, Any]:
        seconds = {part: [scale * (i + 1), scale * (i + 2), scale * (i + 2)] for i, part in enumerate(PARTS)}
        over = {part: {"median": 2.0, "low": 1.5, "high": 2.25} for part in PARTS}
        return {"engine": name, "dtype": dtype, "seconds": seconds, "over_hf": over, "differ": differ}

    return {
        "command": ["python", "recipes/speed/whisper_engines.py", "--size", "tiny"],
        "environment": {"cpu": "A CPU", "load_average": 0.5, "versions": {"nartk": "1", "fairseq": None}},
        "rounds": 3,
        "tokens": 64,
        "cells": [
            {
                "size": "tiny",
                "sound": 30,
                "engines": [engine("nartk", "fp32", 0.5, differ), engine("nartk", "int8", 0.25, None)],
            }
        ],
    }


def test_the_page_by_hand() -> None:
    ratio = "2.00 (1.50-2.25)"
    assert page(found(0)).splitlines()[:11] == [
        "# Whisper with random weights",
        "- command: `python recipes/speed/whisper_engines.py --size tiny`",
        "- rounds: 3",
        "- time: of the CPU",
        "- hardware: A CPU, one thread",
        "- load average: 0.50 at the start",
        "- versions: nartk 1",
        "",
        "| size | engine | type | encoder ms | first ms | step ms | RTF encoder | RTF decoder | RTF whole "
        "| encoder x hf | first x hf | step x hf | decoder x hf | whole x hf | differ |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| tiny | nartk | fp32 | 1000 | 1500 | 2000.00 | 0.0333 | 0.0833 | 0.1000 "
        f"| {ratio} | {ratio} | {ratio} | {ratio} | {ratio} | 0 |",
    ]


@pytest.mark.parametrize("differ", [0, 3])
def test_outputs_that_differ_fail(
    differ: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(name: str, chosen: Any, **settings: Any) -> Any:
        assert (name, settings) == ("test", {"count": 5, "rounds": 1, "halves": False})
        assert chosen == [("nartk", "bf16"), ("hf", "fp32")]
        return found(differ)["cells"][0]

    monkeypatch.setattr(whisper, "measure", measured)
    flags = ["--size", "test", "--dtype", "bf16", "--peers", "--tokens", "5", "--rounds", "1"]
    files = ["--json", str(tmp_path / "json"), "--markdown", str(tmp_path / "md")]
    assert main([*flags, "--weights", "fp32", *files]) == (1 if differ else 0)
    shown = capsys.readouterr()
    assert shown.out == (tmp_path / "md").read_text()
    assert json.loads((tmp_path / "json").read_text())["cells"] == found(differ)["cells"]
    said = "tiny, nartk: 3 words are not those of transformers\n"
    assert shown.err == (said if differ else "")
