"""int8 folders: their numbers against a NumPy twin, and that they decode as --dtype int8 does, bitwise."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import struct
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support import fairseq_host
from support.engine import ISAS
from support.folders import sign
from support.random_transformers import random_config, shape_of, vocabulary
from support.scorers import BlockwiseEngine, CtcEngine, DagEngine, NatEngine, TransformerEngine
from support.tiny import WORDS, corrector, random_model

import nartk
from nartk.architectures import architecture
from nartk.architectures.settings import POSITIONS
from nartk.checkpoints.checkpoint import Checkpoint, read_config
from nartk.checkpoints.loading import load_checkpoint
from nartk.checkpoints.names import CARD, CONFIG, WEIGHTS, model_folder
from nartk.checkpoints.quantized import packed_sizes, restored
from nartk.checkpoints.saving import save_checkpoint
from nartk.cli.convert import main as convert
from nartk.cli.decode import main as decode
from nartk.cli.verify import main as verify
from nartk.errors import CheckpointError, UnsupportedCheckpointError, UsageError
from nartk.protocols.parallel import Canvas
from nartk.protocols.passes import Pass, Want
from nartk.serving.scorers import load_network

KINDS = ("transformer", "ctc", "nat", "blockwise", "dag")
SCORERS: dict[str, Any] = {
    "transformer": TransformerEngine,
    "ctc": CtcEngine,
    "nat": NatEngine,
    "blockwise": BlockwiseEngine,
    "dag": DagEngine,
}
LINES = [
    "she go to school !",
    "he see the big house .",
    "it",
    "the cat and the house",
    "they go home every day .",
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and the int8 folder that is made of it."""
    folder = tmp_path_factory.mktemp("models")
    corrector(folder / "model")
    assert convert([str(folder / "model"), "--quantize", "int8", "--output", str(folder / "int8")]) == 0
    return folder / "model", folder / "int8"


@pytest.fixture
def folder(folders: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy of an int8 folder, to be spoilt."""
    return shutil.copytree(folders[1], tmp_path / "int8")


def quantized(folder: Path, kind: str, seed: int) -> tuple[Checkpoint, Checkpoint]:
    """A random model of any shape, and as an int8 folder has it."""
    rng = random.Random(seed)
    drawn = random_config(rng, pad=1, max_source_len=20, max_target_len=30)
    settings = asdict(drawn)
    if kind != "transformer":
        settings = shape_of(drawn)
        settings["decoder_positions"] = rng.choice(POSITIONS)
    if kind == "dag":
        settings["link_heads"] = settings["encoder_heads"]
    found = architecture(kind)
    config = found.config(**settings)
    network = found.network(config)
    for weight in network.parameters():
        weight.data.normal_(std=0.4)
    save_checkpoint(
        folder / "model",
        architecture=kind,
        settings=asdict(config),
        tensors=network.state_dict(),
        source_vocab=vocabulary(config.src_vocab),
        target_vocab=vocabulary(config.tgt_vocab),
        card="",
    )
    assert convert([str(folder / "model"), "--quantize", "int8", "--output", str(folder / "int8")]) == 0
    return load_checkpoint(folder / "model"), load_checkpoint(folder / "int8")


# What it holds


def twin(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whole numbers [m,k] and scales [m] of a matrix: largest to 127, halves to even."""
    most = np.abs(weight).max(1)
    by = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > 0)
    return np.rint(weight * by[:, None]).astype(np.int8), most / np.float32(127)


def laid_out(matrix: np.ndarray) -> np.ndarray:
    """[m,k] as panels of 32 outputs, groups of 4 inputs, one number at a time."""
    outputs, inputs = matrix.shape
    found = np.zeros(((outputs + 31) // 32, (inputs + 3) // 4, 32, 4), matrix.dtype)
    for m in range(outputs):
        for k in range(inputs):
            found[m // 32, k // 4, m % 32, k % 4] = matrix[m, k]
    return found


def with_filled_heads(weight: np.ndarray, features: int, axis: int) -> np.ndarray:
    """Zeros behind each head's features, up to a multiple of 16."""
    heads = np.split(weight, weight.shape[axis] // features, axis)
    widths = [(0, -features % 16) if i == axis else (0, 0) for i in range(weight.ndim)]
    return np.concatenate([np.pad(head, widths) for head in heads], axis)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_the_numbers_are_those_of_a_twin(kind: str, seed: int, tmp_path: Path) -> None:
    model, stored = quantized(tmp_path, kind, seed)
    config = read_config(model)
    tensors = load_file(tmp_path / "int8" / WEIGHTS)  # safetensors itself reads it
    blocks = 0
    for name, array in model.tensors.items():
        if name in config.shared_weights():
            assert name not in tensors
            continue
        side, layer = name.partition("_")[0], name.rpartition(".")[0]
        if "_attention." in name:
            features = config.attention_features(side)
            axis = int(".out." in name)
            if axis < array.ndim:
                array = with_filled_heads(array, features, axis)
        if f"{layer}.scales" not in tensors or name.endswith(".bias"):
            np.testing.assert_array_equal(tensors[name], array, strict=True)
            continue
        blocks += 1
        numbers, scales = twin(array)
        np.testing.assert_array_equal(tensors[name], laid_out(numbers), strict=True)
        np.testing.assert_array_equal(tensors[f"{layer}.scales"], scales, strict=True)
    layers = (4 + config.gated_ffn) * config.encoder_layers + (7 + config.gated_ffn) * config.decoder_layers
    layers -= config.decoder_layers * (
        getattr(config, "decoder_recurrence", "none") != "none"
    )  # one matrix in place of two
    assert blocks == layers + 3 - len(config.shared_weights())
    assert stored.quantized == "int8"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_the_engine_computes_the_same_bits(
    kind: str, seed: int, isa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NARTK_ENGINE_ISA", isa)
    readings = []
    for checkpoint in quantized(tmp_path, kind, seed):
        config = read_config(checkpoint)
        vocab = checkpoint.target_vocab
        scorer = SCORERS[kind](
            config,
            checkpoint.tensors,
            vocab,
            source_vocab=checkpoint.source_vocab,
            type="int8",
            threads=1,
        )
        rng = random.Random(seed)
        sources = [[*(rng.randrange(3, config.src_vocab) for _ in range(n)), vocab.eos] for n in (7, 2)]
        memory = scorer.encode(sources)
        tokens = np.array([rng.randrange(3, config.tgt_vocab) for _ in range(6)], np.int32)
        if kind == "transformer":
            contexts = scorer.open(2)[[0, 0, 0, 1, 1, 1]]
            places, parents = np.arange(6, dtype=np.int32) % 3, np.array([-1, 0, 1, -1, 3, 4], np.int32)
            scores = scorer.run(Pass(tokens, places, memory[[0, 0, 0, 1, 1, 1]], contexts, parents), Want())
        elif kind == "ctc":
            scores = scorer.read_frames(memory, Want())
        elif kind == "dag":
            graphs = scorer.graphs(memory)
            readings.append([part.tobytes() for part in (graphs.sizes, graphs.features, *graphs.links)])
            continue
        else:
            scores = scorer.fill(Canvas(memory, np.array([4, 2], np.int32), tokens), Want())
        readings.append([scores.best.tobytes(), scores.log_probs.tobytes(), scores.rows([0, 1]).tobytes()])
    assert readings[0] == readings[1]


def test_it_decodes_as_int8_does(folders: tuple[Path, Path], tmp_path: Path) -> None:
    model, int8 = folders
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in LINES))
    outputs = []
    for name, dtype in ((model, ["--dtype", "int8"]), (int8, []), (int8, ["--dtype", "int8"])):
        output = tmp_path / "out.jsonl"
        arguments = [str(name), str(tmp_path / "in.txt"), "--output", str(output), *dtype]
        assert decode([*arguments, "--output-format", "jsonl", "--strategy", "iad"]) == 0
        outputs.append(output.read_text())
    assert outputs[0] == outputs[1] == outputs[2]
    assert '"positional_scores": [-' in outputs[0]
    loaded = nartk.load(int8)
    assert loaded.dtype == "int8"
    assert "|dtype:int8|" in loaded.signature(loaded.strategy("greedy", {}))
    assert loaded.parameters == nartk.load(model).parameters


def test_the_shipped_model_takes_a_quarter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert(["gec-en", "--quantize", "int8", "--output", str(tmp_path)]) == 0
    assert capsys.readouterr().err == f"nartk: {tmp_path}: int8, 8.1 MB of weights for 15.8 MB\n"
    source = load_checkpoint(model_folder("gec-en"))
    config = read_config(source)
    full = sum(4 * np.prod(shape) for shape in config.weight_shapes().values())
    full -= 2 * 4 * np.prod(source.tensors.shapes["output.weight"])  # one matrix of words, three names
    assert (tmp_path / WEIGHTS).stat().st_size < 0.26 * full
    card = (tmp_path / CARD).read_text(encoding="utf-8")
    assert card.startswith((source.folder / CARD).read_text(encoding="utf-8").rstrip())
    size = (tmp_path / WEIGHTS).stat().st_size
    assert (
        f"## int8\nThese are int8 weights, written by `nartk-convert --quantize int8`: {size:,} bytes" in card
    )
    assert f"(fingerprint `{source.fingerprint}`)" in card
    model = nartk.load(tmp_path)
    assert model.decode(["She go to school yesterday ."])[0].text == "She went to school yesterday ."


def test_blocks_begin_at_multiples_of_64_bytes(folders: tuple[Path, Path]) -> None:
    raw = (folders[1] / WEIGHTS).read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    begins = [8 + length + each["data_offsets"][0] for each in header.values() if each.get("dtype") == "I8"]
    assert len(begins) == 12
    assert all(begin % 64 == 0 for begin in begins)


def test_blocks_are_mapped_not_read(folders: tuple[Path, Path]) -> None:
    tensors = load_checkpoint(folders[1]).tensors
    block = tensors.mapped("encoder_layers.0.ffn.up.weight")  # type: ignore[attr-defined]
    np.testing.assert_array_equal(block, tensors["encoder_layers.0.ffn.up.weight"])
    assert not block.flags.owndata
    assert not block.flags.writeable


def test_a_checkpoint_of_fairseq_is_quantized(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = random_config(random.Random(3), src_vocab=24, tgt_vocab=24, pad=1, share_embeddings="all")
    network = architecture("transformer").network(config)
    tensors = {f"core.{name}": tensor for name, tensor in network.state_dict().items()}
    args = Namespace(**asdict(config), arch="nartk_transformer_tiny")
    path = fairseq_host.save(tmp_path / "checkpoint.pt", args, tensors)
    (tmp_path / "dict.txt").write_text("".join(f"w{i} {100 - i}\n" for i in range(20)))
    given = [str(path), "--dict", str(tmp_path / "dict.txt"), "--output"]
    assert convert([*given, str(tmp_path / "int8"), "--quantize", "int8"]) == 0
    assert capsys.readouterr().err.startswith(f"nartk: {tmp_path / 'int8'}: int8, ")
    assert convert([*given, str(tmp_path / "fp32")]) == 0
    line = "w3 w1 w4"
    one = nartk.load(tmp_path / "int8").decode([line])[0]
    other = nartk.load(tmp_path / "fp32", dtype="int8").decode([line])[0]
    assert one == other


def test_an_int8_drafter_serves_a_verifier_in_fp32(tmp_path: Path) -> None:
    random_model(tmp_path / "verifier", words=WORDS.split(), layers=2)
    random_model(tmp_path / "drafter", words=WORDS.split(), seed=2)
    assert convert([str(tmp_path / "drafter"), "--quantize", "int8", "--output", str(tmp_path / "int8")]) == 0
    model = nartk.load(tmp_path / "verifier")
    greedy = model.decode(LINES, "greedy")
    drafted = model.decode(LINES, "speculative", drafter=str(tmp_path / "int8"))
    assert [each.tokens for each in drafted] == [each.tokens for each in greedy]


# In other types


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_the_weights_that_it_stands_for(kind: str, seed: int, tmp_path: Path) -> None:
    """They are the model's own, rounded to a step of their row, under all names and in their shapes."""
    model, int8 = quantized(tmp_path, kind, seed)
    config = read_config(int8)
    found = restored(int8.tensors, config)
    packed = packed_sizes(config)
    assert found.keys() == model.tensors.keys()
    for name, wanted in model.tensors.items():
        assert found[name].dtype == np.float32
        assert found[name].shape == wanted.shape
        layer = config.shared_weights().get(name, name).removesuffix(".weight")
        if layer in packed and wanted.ndim > 1:
            step = np.abs(wanted).max(1, keepdims=True) / 127
            assert (np.abs(found[name] - wanted) <= 0.501 * step).all(), name
        else:
            np.testing.assert_array_equal(found[name], wanted, err_msg=name)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_engine_computes_with_them_in_other_types(folders: tuple[Path, Path], dtype: str) -> None:
    """As it does with a folder of fp32 that holds them; torch's network has them too."""
    int8 = load_checkpoint(folders[1])
    again = folders[1].parent / f"again.{dtype}"
    network = load_network(int8)
    save_checkpoint(
        again,
        architecture=int8.architecture,
        settings=asdict(read_config(int8)),
        tensors=network.state_dict(),
        source_vocab=int8.source_vocab,
        target_vocab=int8.target_vocab,
        card="",
    )
    options: dict[str, Any] = {"dtype": dtype, "threads": 1}
    found, wanted = (nartk.load(folder, **options).decode(LINES) for folder in (folders[1], again))
    assert [(each.tokens, each.positional_scores) for each in found] == [
        (each.tokens, each.positional_scores) for each in wanted
    ]


def test_without_the_engine_torch_computes_in_fp32(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = nartk.load(folders[1], dtype="fp32").decode(LINES)
    monkeypatch.setenv("NARTK_NO_ENGINE", "1")
    model = nartk.load(folders[1])
    assert model.dtype == "fp32"
    assert [each.tokens for each in model.decode(LINES)] == [each.tokens for each in wanted]
    with pytest.raises(UsageError, match="dtype='int8' needs the engine") as caught:
        nartk.load(folders[1], dtype="int8")
    assert caught.value.fix == "choose from fp32, bf16"


# What is refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{int8}", "--output", "{new}"], "is int8 already"),
        (["{model}", "--output", "{model}"], "the model itself. Fix: name another folder"),
        (["{model}", "--output", "{new}", "--spm", "{file}"], "--spm for"),
        (["{model}", "--output", "{new}", "--dtype", "fp16"], "--dtype fp16 with --quantize int8"),
        (["{new}", "--output", "{model}"], "no model at"),
    ],
)
def test_what_cannot_be_quantized_is_refused(
    folders: tuple[Path, Path],
    tmp_path: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    names = {"model": folders[0], "int8": folders[1], "new": tmp_path / "new", "file": tmp_path / "file"}
    assert convert([*(each.format(**names) for each in arguments), "--quantize", "int8"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_quantizing_needs_the_engine(
    folders: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("NARTK_NO_ENGINE", "1")
    assert convert([str(folders[0]), "--quantize", "int8", "--output", str(tmp_path / "new")]) == 2
    assert "--quantize needs the engine: no engine: NARTK_NO_ENGINE=1" in capsys.readouterr().err


# Corrupt folders

UP = "decoder_layers.0.ffn.up"


def config_with(**values: Any) -> Callable[[Path], object]:
    def spoil(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        config["model"].update(values.pop("model", {}))
        (folder / CONFIG).write_text(json.dumps(config | values), encoding="utf-8")

    return spoil


def tensors_with(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def spoil(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS)

    return spoil


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "quantized otherwise": (config_with(quantized="int4"), "'quantized' is 'int4', not 'int8'"),
    "layout of tomorrow": (config_with(layout=2), "layout 2 of int8 weights, this version reads 1"),
    "layout missing": (config_with(layout=None), "layout None of int8 weights, this version reads 1"),
    "not said to be quantized": (config_with(quantized=None), "the configuration says"),
    "wider than its weights": (config_with(model={"d_model": 64}), "the configuration says"),
    "more heads than its weights": (config_with(model={"encoder_heads": 8}), "the configuration says"),
    "block of another shape": (
        tensors_with(lambda t: t.update({f"{UP}.weight": np.zeros((1, 8, 16, 8), np.int8)})),
        f"tensor '{UP}.weight' has shape [1, 8, 16, 8], the configuration says [1, 8, 32, 4]",
    ),
    "block in fp32": (
        tensors_with(lambda t: t.update({f"{UP}.weight": t[f"{UP}.weight"].astype(np.float32)})),
        f"tensor '{UP}.weight' has type F32, not I8",
    ),
    "scales in fp16": (
        tensors_with(lambda t: t.update({f"{UP}.scales": t[f"{UP}.scales"].astype(np.float16)})),
        f"tensor '{UP}.scales' has type F16, not F32",
    ),
    "scales missing": (tensors_with(lambda t: t.pop(f"{UP}.scales")), f"tensor '{UP}.scales' is missing"),
    "scales too few": (
        tensors_with(lambda t: t.update({f"{UP}.scales": t[f"{UP}.scales"][:-1]})),
        "the configuration says [32]",
    ),
    "bias missing": (tensors_with(lambda t: t.pop(f"{UP}.bias")), f"tensor '{UP}.bias' is missing"),
    "tensor added": (
        tensors_with(lambda t: t.update(new=np.zeros(1, np.int8))),
        "'new' is not in the configuration",
    ),
    "a scale is NaN": (tensors_with(lambda t: t[f"{UP}.scales"].fill(np.nan)), "holds NaN or infinity"),
    "a number is -128": (
        tensors_with(lambda t: t[f"{UP}.weight"].reshape(-1)[5:6].fill(-128)),
        f"tensor '{UP}.weight' holds -128, below -127",
    ),
}


@pytest.mark.parametrize("kind", SPOILT)
def test_what_is_corrupt_is_refused(folder: Path, kind: str) -> None:
    spoil, message = SPOILT[kind]
    spoil(folder)
    with pytest.raises(CheckpointError) as caught:
        nartk.load(folder)
    assert caught.value.exit_code == 5
    assert message in str(caught.value)


def test_a_file_cut_anywhere_is_refused(folder: Path) -> None:
    whole = (folder / WEIGHTS).read_bytes()
    for i in range(50):
        (folder / WEIGHTS).write_bytes(whole[: len(whole) * i // 50])
        with pytest.raises(CheckpointError):
            nartk.load(folder)


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG])
def test_a_flipped_bit_is_refused_or_harmless(folder: Path, name: str) -> None:
    whole = (folder / name).read_bytes()
    rng = random.Random(0)
    for i in range(100):
        at = rng.randrange(min(len(whole), 4096) if i % 2 else len(whole))
        spoilt = bytearray(whole)
        spoilt[at] ^= 1 << rng.randrange(8)
        (folder / name).write_bytes(bytes(spoilt))
        with contextlib.suppress(CheckpointError, UnsupportedCheckpointError):
            nartk.load(folder)


def test_another_number_changes_the_fingerprint(folder: Path) -> None:
    spoilt = bytearray((folder / WEIGHTS).read_bytes())
    spoilt[-5000] ^= 1
    before = load_checkpoint(folder).fingerprint
    (folder / WEIGHTS).write_bytes(bytes(spoilt))
    with pytest.raises(CheckpointError, match="has been changed"):
        load_checkpoint(folder, check=True)
    sign(folder)
    assert load_checkpoint(folder, check=True).fingerprint != before


def test_mapped_weights_are_hashed_where_that_is_asked_for(tmp_path: Path) -> None:
    """One number of a matrix changes: loading does not read all of it as a whole, nartk-verify does."""
    random_model(tmp_path / "model", words=["a", "b", "c"])
    folder = str(tmp_path / "int8")
    assert convert([str(tmp_path / "model"), "--quantize", "int8", "--output", folder]) == 0
    command = [folder, "--fuzz", "2", "--quiet"]
    (tmp_path / "in.txt").write_text("a b\n")
    decoding = [folder, str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.txt")]
    assert (verify(command), decode([*decoding, "--check"])) == (0, 0)
    weights = tmp_path / "int8" / WEIGHTS
    raw = bytearray(weights.read_bytes())
    start = 8 + int.from_bytes(raw[:8], "little")
    raw[start] = (raw[start] + 1) % 100
    weights.write_bytes(raw)
    assert (verify(command), decode([*decoding, "--check"])) == (5, 5)
    assert decode(decoding) == 0
