"""Damaged, foreign and hostile folders of other libraries: a named error, at once, and nothing is written.

One table of changes, each made to a folder of CTranslate2 or of transformers that is read without it.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save
from support.hf_folders import text_folder
from support.hostile import DEEP, Change, elsewhere, patched, pickled, require_refused, written, zipped

from nartk.checkpoints.loading import load_checkpoint
from nartk.cli.convert import main as convert

BINARY, SAFE = "model.bin", "model.safetensors"


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hugging_face") / "model"
    text_folder(folder, seed=1)
    return folder


@pytest.fixture(scope="module")
def binary(theirs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    converters = pytest.importorskip("ctranslate2.converters", reason="ctranslate2 is not installed")
    folder = tmp_path_factory.mktemp("ctranslate2") / "model"
    files = ["source.spm", "target.spm"]
    converters.TransformersConverter(str(theirs), copy_files=files).convert(str(folder), quantization="int8")
    return folder


def setting(name: str, **values: Any) -> Change:
    """The JSON file has those values."""
    return written(name, lambda raw: json.dumps({**json.loads(raw), **values}).encode())


def header(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    """The header of a safetensors file is changed; its numbers stay."""

    def made(raw: bytes) -> bytes:
        (size,) = struct.unpack("<Q", raw[:8])
        found = json.loads(raw[8 : 8 + size])
        change(found)
        text = json.dumps(found).encode()
        return struct.pack("<Q", len(text)) + text + raw[8 + size :]

    return made


def first(found: dict[str, Any]) -> dict[str, Any]:
    """The entry of the first tensor of a header."""
    entry: dict[str, Any] = next(value for name, value in found.items() if name != "__metadata__")
    return entry


def arrays(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    def made(raw: bytes) -> bytes:
        found = {name: array.copy() for name, array in load(raw).items()}
        change(found)
        return save(found)

    return made


def in_parts(weight_map: Any) -> Change:
    """The weights are in files that an index names."""

    def change(folder: Path) -> None:
        (folder / SAFE).rename(folder.parent / "outside.safetensors")
        index = {"metadata": {}, "weight_map": weight_map}
        (folder / f"{SAFE}.index.json").write_text(json.dumps(index))

    return change


def _behind(raw: bytes, name: bytes) -> int:
    """Where what follows a name in a model.bin begins: rank, sizes, type, bytes."""
    return raw.index(name + b"\0") + len(name) + 1


def sized(name: bytes, sizes: tuple[int, ...]) -> Callable[[bytes], bytes]:
    """A tensor of a model.bin has other sizes, and as many bytes as before."""

    def made(raw: bytes) -> bytes:
        at = _behind(raw, name)
        return raw[: at + 1] + struct.pack(f"<{len(sizes)}I", *sizes) + raw[at + 1 + 4 * len(sizes) :]

    return made


def ranked(name: bytes, rank: int) -> Callable[[bytes], bytes]:
    return lambda raw: patched(_behind(raw, name), "<B", rank)(raw)


_SPEC = len(b"TransformerSpec") + 1
_REVISION, _COUNT = 4 + 2 + _SPEC, 4 + 2 + _SPEC + 4
_WORDS = b"decoder/embeddings/weight"
HUGE = 2**32 - 1

CTRANSLATE2: dict[str, Change] = {
    "an empty file": written(BINARY, b""),
    "text": written(BINARY, b"not a model\n" * 1000),
    "zeros": written(BINARY, bytes(4096)),
    "a pickle": elsewhere(BINARY, pickled),
    "what torch.save writes": elsewhere(BINARY, zipped),
    "a folder": elsewhere(BINARY, lambda path, _: path.mkdir()),
    "a pipe": elsewhere(BINARY, lambda path, _: os.mkfifo(path)),
    "a device": elsewhere(BINARY, lambda path, _: path.symlink_to("/dev/zero")),
    "a link to nowhere": elsewhere(BINARY, lambda path, _: path.symlink_to("nowhere")),
    "a link to itself": elsewhere(BINARY, lambda path, _: path.symlink_to(path.name)),
    "safetensors": written(BINARY, save({"a": np.zeros(3, np.float32)})),
    "version 0": written(BINARY, patched(0, "<I", 0)),
    "a version to come": written(BINARY, patched(0, "<I", HUGE)),
    "a name without end": written(BINARY, patched(4, "<H", 65535)),
    "tensors without number": written(BINARY, patched(_COUNT, "<I", HUGE)),
    "a tensor too many": written(BINARY, lambda raw: patched(_COUNT, "<I", raw[_COUNT] + 1)(raw)),
    "a tensor too few": written(BINARY, lambda raw: patched(_COUNT, "<I", raw[_COUNT] - 1)(raw)),
    "sizes beyond memory": written(BINARY, sized(_WORDS, (HUGE, HUGE))),
    "sizes whose product wraps around": written(BINARY, sized(_WORDS, (2**31, 2**31))),
    "a size of 0": written(BINARY, sized(_WORDS, (0, 16))),
    "255 dimensions": written(BINARY, ranked(_WORDS, 255)),
    "no dimensions": written(BINARY, ranked(_WORDS, 0)),
    "a type that is none": written(BINARY, lambda raw: patched(_behind(raw, _WORDS) + 9, "<B", 77)(raw)),
    "bytes beyond the file": written(BINARY, lambda raw: patched(_behind(raw, _WORDS) + 10, "<I", HUGE)(raw)),
    "another network": written(BINARY, lambda raw: raw.replace(b"TransformerSpec", b"TransformerSpek", 1)),
    "scales of nothing": written(BINARY, lambda raw: raw.replace(b"0/weight_scale", b"0/weighs_scale", 1)),
    "an alias of nothing": written(BINARY, lambda raw: raw[:-4] + b"abc\0"),
    "the file twice": written(BINARY, lambda raw: raw + raw),
    "no vocabulary": lambda folder: [path.unlink() for path in folder.glob("*vocabulary.json")],
    "a vocabulary that is no list": written("shared_vocabulary.json", b'{"a": 1}'),
    "a vocabulary of numbers": written("shared_vocabulary.json", b"[1, 2, 3]"),
    "a vocabulary too deep": written("shared_vocabulary.json", DEEP),
    "a vocabulary too short": written("shared_vocabulary.json", b'["a"]'),
    "a vocabulary of other bytes": written("shared_vocabulary.json", b"\xff\xfe\x00"),
    "settings that are a list": written("config.json", b"[]"),
    "settings too deep": written("config.json", DEEP),
    "settings of numbers": written("config.json", b'{"bos_token": 7, "eos_token": [1]}'),
    "pieces that are none": written("source.spm", b"\x0a\xff\xff\xff\xff\x0f" * 10),
}
HUGGING_FACE: dict[str, Change] = {
    "an empty file": written(SAFE, b""),
    "a header beyond the file": written(SAFE, patched(0, "<Q", 2**63)),
    "a header of 0": written(SAFE, patched(0, "<Q", 0)),
    "a header too deep": written(SAFE, struct.pack("<Q", len(DEEP)) + DEEP),
    "a pickle": elsewhere(SAFE, pickled),
    "what torch.save writes": elsewhere(SAFE, zipped),
    "a folder": elsewhere(SAFE, lambda path, _: path.mkdir()),
    "a pipe": elsewhere(SAFE, lambda path, _: os.mkfifo(path)),
    "a device": elsewhere(SAFE, lambda path, _: path.symlink_to("/dev/zero")),
    "cut in the middle": written(SAFE, lambda raw: raw[: len(raw) // 2]),
    "sizes beyond memory": written(SAFE, header(lambda found: first(found).update(shape=[2**40, 2**40]))),
    "sizes below 0": written(SAFE, header(lambda found: first(found).update(shape=[-1, 16]))),
    "places beyond the file": written(
        SAFE, header(lambda found: first(found).update(data_offsets=[0, 2**60]))
    ),
    "places that end before they begin": written(
        SAFE, header(lambda found: first(found).update(data_offsets=[64, 0]))
    ),
    "a type that is none": written(SAFE, header(lambda found: first(found).update(dtype="F99"))),
    "an entry that is no object": written(
        SAFE, header(lambda found: found.update({"model.shared.weight": 3}))
    ),
    "a tensor too few": written(SAFE, arrays(lambda found: found.pop("model.encoder.layers.0.fc1.bias"))),
    "a tensor too many": written(SAFE, arrays(lambda found: found.update(more=np.zeros(3, np.float32)))),
    "infinity": written(SAFE, arrays(lambda found: found["model.encoder.layers.0.fc1.bias"].fill(np.inf))),
    "parts outside the folder": in_parts({"model.shared.weight": "../outside.safetensors"}),
    "parts by a whole path": in_parts({"model.shared.weight": "/etc/passwd"}),
    "parts that are numbers": in_parts({"model.shared.weight": 7}),
    "parts that are a list": in_parts(["model.safetensors"]),
    "settings beyond memory": setting("config.json", d_model=2**40),
    "layers beyond memory": setting("config.json", encoder_layers=2**40),
    "settings below 0": setting("config.json", d_model=-16),
    "settings that are text": setting("config.json", d_model="16"),
    "settings that are a list": written("config.json", b"[]"),
    "settings too deep": written("config.json", b'{"a":' * 100_000),
    "code of the folder's own": setting("config.json", model_type="x", auto_map={"AutoConfig": "x--y.Z"}),
    "words that are numbers": written("vocab.json", b'{"a": "b"}'),
    "words of other ids": written("vocab.json", b'{"a": 99999999999}'),
    "a tokenizer outside the folder": setting("tokenizer_config.json", tokenizer_class="../../x"),
    "pieces that are none": written("source.spm", b"\x0a\xff\xff\xff\xff\x0f" * 10),
}
CASES = [
    *(("binary", name) for name in CTRANSLATE2),
    *(("theirs", name) for name in HUGGING_FACE),
]


def test_there_are_as_many_cases_as_are_promised() -> None:
    assert len(CASES) >= 60


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_hostile_folder_is_refused_at_once(
    kind: str, name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    change = {"binary": CTRANSLATE2, "theirs": HUGGING_FACE}[kind][name]
    new = str(tmp_path / "new")
    require_refused(
        request.getfixturevalue(kind),
        tmp_path / "model",
        change,
        load_checkpoint,
        lambda folder: convert([str(folder), "--output", new, "--quiet"]),
    )
