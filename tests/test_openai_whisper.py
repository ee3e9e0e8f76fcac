"""OpenAI's own files of Whisper become models that say the same as its network."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.openai_whisper import SIZES, TOKENS, frames, weight_of
from support.whisper_models import generation_config, tokenizer
from torch import Tensor

import nartk
from nartk.checkpoints.loading import load_checkpoint
from nartk.cli.convert import main as convert
from nartk.engine import available
from nartk.protocols.passes import FeatureSource
from nartk.serving.scorers import load_network

ORACLE = np.load(Path(__file__).parent / "oracles" / "openai_whisper.npz")


def weights() -> dict[str, Tensor]:
    shapes = json.loads(str(ORACLE["shapes"]))
    return {name: torch.from_numpy(weight_of(name, shape)) for name, shape in shapes.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of transformers of the model, without weights."""
    made = tmp_path / "transformers"
    tokenizer(1.0).save_pretrained(made)
    (made / "generation_config.json").write_text(json.dumps(generation_config()))
    return made


def stored(path: Path, state: dict[str, Tensor], **sizes: Any) -> Path:
    torch.save({"dims": SIZES | sizes, "model_state_dict": state}, path)
    return path


def test_memory_and_logits_are_openais(tmp_path: Path, folder: Path) -> None:
    path = stored(tmp_path / "small.pt", weights())
    files = ["--tokenizer", str(folder), "--output", str(tmp_path / "model"), "--quiet"]
    assert convert([str(path), *files]) == 0
    checkpoint = load_checkpoint(tmp_path / "model")
    network = load_network(checkpoint).eval()
    with torch.no_grad():
        encoded = network.encoder.read([FeatureSource(frames(), 10.0)])
        logits = network.output(network.features(encoded, torch.tensor([TOKENS])))
    assert np.abs(encoded.memory[0].numpy() - ORACLE["memory"]).max() < 1e-5
    assert np.abs(logits[0].numpy() - ORACLE["logits"]).max() < 1e-5
    assert len({*ORACLE["logits"].argmax(1).tolist()}) > 2
    # Bounds tell models apart: queries in place of keys break them.
    with torch.no_grad():
        fused = network.encoder.layers[1].self_attention.qkv.weight
        fused.copy_(torch.cat([fused[12:24], fused[:12], fused[24:]]))
        other = network.encoder.read([FeatureSource(frames(), 10.0)]).memory
    assert np.abs(other[0].numpy() - ORACLE["memory"]).max() > 1e-3


@pytest.mark.skipif(not available(), reason="no engine")
@pytest.mark.filterwarnings("ignore:.* holds no speech")
def test_it_decodes_sound(tmp_path: Path, folder: Path) -> None:
    """The folder beside the file is taken where none is named; int8 is written too."""
    path = stored(folder / "small.pt", {name: weight.half() for name, weight in weights().items()})
    assert convert([str(path), "--output", str(tmp_path / "model"), "--quiet"]) == 0
    assert convert([str(path), "--quantize", "int8", "--output", str(tmp_path / "int8"), "--quiet"]) == 0
    samples = np.random.default_rng(2).standard_normal(16000).astype(np.float32) * 0.1
    for name in ("model", "int8"):
        found = nartk.load(tmp_path / name).decode([(samples, 16000)], "greedy", max_len=10)
        assert found[0].error is None
        assert len(found[0].tokens) > 0


def lost(state: dict[str, Tensor], sizes: dict[str, Any]) -> None:
    del state["encoder.blocks.1.attn.out.bias"]


def more(state: dict[str, Tensor], sizes: dict[str, Any]) -> None:
    state["decoder.blocks.0.extra.weight"] = torch.zeros(2)


def shorter(state: dict[str, Tensor], sizes: dict[str, Any]) -> None:
    sizes["n_text_layer"] = 1


def not_a_number(state: dict[str, Tensor], sizes: dict[str, Any]) -> None:
    sizes["n_mels"] = "80"


def two_widths(state: dict[str, Tensor], sizes: dict[str, Any]) -> None:
    sizes["n_text_state"] = 16


def other_words(state: dict[str, Tensor], sizes: dict[str, Any]) -> None:
    sizes["n_vocab"] = 300


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lost, "tensor 'encoder.layers.1.self_attn.out_proj.bias' is missing"),
        (more, "'decoder.layers.0.extra.weight' is not in the configuration"),
        (shorter, "is not in the configuration"),
        (not_a_number, "'n_mels' of 'dims' is '80', no number"),
        (two_widths, "12 features of sound, 16 of text"),
        (other_words, "300"),
    ],
)
def test_damaged_files_are_named(
    change: Callable[[dict[str, Tensor], dict[str, Any]], None],
    message: str,
    tmp_path: Path,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    state, sizes = weights(), dict[str, Any](SIZES)
    change(state, sizes)
    path = stored(tmp_path / "small.pt", state, **sizes)
    assert convert([str(path), "--tokenizer", str(folder), "--output", str(tmp_path / "model")]) == 5
    assert message in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


def test_a_missing_tokenizer_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = stored(tmp_path / "small.pt", weights())
    assert convert([str(path), "--output", str(tmp_path / "model")]) == 5
    error = capsys.readouterr().err
    assert "has no tokenizer.json, and small.pt holds no words" in error
    assert (
        "give --tokenizer with the folder of transformers of this model, or of openai/whisper-tiny" in error
    )


def test_a_tokenizer_of_fairseq_is_one_of_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"a": torch.zeros(2)}, tmp_path / "other.pt")
    assert convert([str(tmp_path / "other.pt"), "--tokenizer", "mose", "--output", str(tmp_path / "m")]) == 2
    assert "choose from moses, none" in capsys.readouterr().err
