"""The native model folder: what is written is read back, and what is corrupt is refused, quickly."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import memory
from support.folders import sign
from support.tiny import random_model

import nartk
from nartk.checkpoints.loading import load_checkpoint
from nartk.checkpoints.names import CONFIG, DICTIONARY, SHIPPED, WEIGHTS, model_folder
from nartk.checkpoints.saving import save_checkpoint
from nartk.checkpoints.tensors import StoredTensors, require_shapes
from nartk.errors import CheckpointError, ModelNotFoundError, OutputError, UnsupportedCheckpointError
from nartk.vocab import Vocab

WORDS = ["a", "b", "c", "d"]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("model") / "sound", words=WORDS)


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    """A copy of a sound model, to be spoilt."""
    return shutil.copytree(sound, tmp_path / "model")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    source, target = Vocab.from_words(["x", "y"]), Vocab.from_words(["y", "z", "ü"])
    tensors = {"w": torch.randn(3, 4), "half": torch.randn(5).half(), "brain": torch.randn(2).bfloat16()}
    save_checkpoint(
        tmp_path / "m",
        architecture="transformer",
        settings={"d_model": 4, "dropout": 0.1},
        tensors=tensors,
        source_vocab=source,
        target_vocab=target,
        card="# card\n",
    )
    read = load_checkpoint(tmp_path / "m")
    assert (read.architecture, read.settings) == ("transformer", {"d_model": 4, "dropout": 0.1})
    assert read.source_vocab == source
    assert read.target_vocab == target
    assert read.tensors.types == {"w": "F32", "half": "F16", "brain": "BF16"}
    assert read.tensors.shapes == {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        assert torch.equal(torch.from_numpy(read.tensors[name]), tensor.float())
    assert (tmp_path / "m" / "card.md").read_text(encoding="utf-8") == "# card\n"
    # safetensors' own reader, and nothing beside the four files of the format and the second dictionary
    assert torch.equal(load_file(tmp_path / "m" / WEIGHTS)["w"], tensors["w"])
    assert {p.name for p in (tmp_path / "m").iterdir()} == {
        "model.safetensors",
        "config.json",
        "card.md",
        "dict.txt",
        "dict.target.txt",
    }


def test_each_type_is_read_as_the_same_number(tmp_path: Path) -> None:
    """All numbers of 16 bits, and what is special of the others, against torch's own conversion."""
    bits = torch.arange(2**16, dtype=torch.int32).to(torch.int16)
    halves = {"F16": bits.view(torch.float16), "BF16": bits.view(torch.bfloat16)}
    tensors = {name: tensor[tensor.isfinite()].reshape(2, -1) for name, tensor in halves.items()}
    tensors["F32"] = torch.tensor([0.0, -0.0, 1e-45, 3.4e38, -1e-38])
    tensors["F64"] = tensors["F32"].double() / 3
    tensors |= {"empty": torch.zeros(0, 4), "after": torch.ones(1, 1), "I64": torch.tensor([2**40])}
    save_file(tensors, tmp_path / WEIGHTS)
    stored = StoredTensors(tmp_path / WEIGHTS)
    whole = (tmp_path / WEIGHTS).read_bytes()
    assert stored.digest() == hashlib.sha256(whole).hexdigest()
    for name, tensor in tensors.items():
        wanted = tensor.float() if tensor.is_floating_point() else tensor
        assert torch.equal(torch.from_numpy(stored[name]), wanted), name


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_what_is_not_finite_is_refused_in_each_type(value: str, dtype: torch.dtype, tmp_path: Path) -> None:
    save_file({"w": torch.tensor([1.0, float(value), -2.0], dtype=dtype)}, tmp_path / WEIGHTS)
    with pytest.raises(CheckpointError, match="tensor 'w' holds NaN or infinity"):
        StoredTensors(tmp_path / WEIGHTS).digest()


def test_weights_are_of_the_file_that_was_checked(folder: Path) -> None:
    """Another file put in its place, as `save_checkpoint` does, is not read."""
    before = load_file(folder / WEIGHTS)
    read = load_checkpoint(folder)
    save_file({name: tensor + 1 for name, tensor in before.items()}, folder / "new")
    (folder / "new").replace(folder / WEIGHTS)
    for name, tensor in before.items():
        assert torch.equal(torch.from_numpy(read.tensors[name]), tensor)
    del read
    cut = StoredTensors(folder / WEIGHTS)
    (folder / WEIGHTS).write_bytes(b"")
    with pytest.raises(CheckpointError, match="is cut off"):
        cut.digest()


def test_tensors_that_share_memory_are_stored_once(tmp_path: Path) -> None:
    shared, vocab = torch.randn(4, 4), Vocab.from_words(WORDS)
    tensors = {"embedding": shared, "output": shared, "transposed": shared.t(), "first": shared[0]}
    save_checkpoint(
        tmp_path,
        architecture="x",
        settings={},
        tensors=tensors,
        source_vocab=vocab,
        target_vocab=vocab,
        card="",
    )
    assert load_file(tmp_path / WEIGHTS).keys() == {"embedding", "transposed", "first"}
    read = load_checkpoint(tmp_path)
    assert read.tensors["output"] is read.tensors["embedding"]
    assert read.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(torch.from_numpy(read.tensors[name]), tensor)
    assert read.target_vocab is read.source_vocab


@pytest.fixture(scope="module")
def with_pieces_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("model") / "pieces")


def swap_two_words(path: Path) -> None:
    """Two words of a dictionary change places: as many words, all of them known."""
    lines = path.read_text(encoding="utf-8").split("\n")
    lines[0], lines[1] = lines[1], lines[0]
    path.write_text("\n".join(lines), encoding="utf-8")


def another_number(path: Path) -> None:
    tensors = load_file(path)
    next(iter(tensors.values())).view(-1)[0] += 1
    save_file(tensors, path, metadata={"format": "pt"})


def other_pieces(path: Path) -> None:
    """A score of the last piece changes, in a model that still loads."""
    from sentencepiece import sentencepiece_model_pb2 as proto

    model = proto.ModelProto.FromString(path.read_bytes())
    model.pieces[-1].score -= 1
    path.write_bytes(model.SerializeToString())


CHANGES = {DICTIONARY: swap_two_words, "spm.model": other_pieces, WEIGHTS: another_number}


@pytest.mark.parametrize("name", CHANGES)
def test_the_fingerprint_is_of_weights_words_and_pieces(
    name: str, with_pieces_of_its_own: Path, tmp_path: Path
) -> None:
    """As the signature, the calibration, the journal of nartk-distill and a drafter's entry have it."""
    two = shutil.copytree(with_pieces_of_its_own, tmp_path / "two")
    CHANGES[name](two / name)
    sign(two)
    again = load_checkpoint(two)  # a model made so in the first place
    assert again.fingerprint != load_checkpoint(with_pieces_of_its_own).fingerprint
    assert nartk.load(two).signature(nartk.load(two).strategy("greedy", {})).count(again.fingerprint) == 1


@pytest.mark.parametrize("name", CHANGES)
def test_what_was_changed_after_conversion_is_refused(
    name: str, with_pieces_of_its_own: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(with_pieces_of_its_own, tmp_path / "model")
    nartk.load(folder)
    CHANGES[name](folder / name)
    with pytest.raises(CheckpointError, match=r"has been changed: its sha256 is [0-9a-f]{12}\.\.\., config"):
        nartk.load(folder)
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=r"is missing|cannot read"):
        nartk.load(folder)


def test_hashes_are_sha256sums(with_pieces_of_its_own: Path) -> None:
    config = json.loads((with_pieces_of_its_own / CONFIG).read_text(encoding="utf-8"))
    names = {path.name for path in with_pieces_of_its_own.iterdir()}
    assert config["files"].keys() == names - {CONFIG} == {"card.md", DICTIONARY, WEIGHTS, "spm.model"}
    for name, found in config["files"].items():
        assert found == hashlib.sha256((with_pieces_of_its_own / name).read_bytes()).hexdigest()
    load_checkpoint(with_pieces_of_its_own, check=True)
    for shipped in SHIPPED:
        load_checkpoint(model_folder(shipped), check=True)


@pytest.mark.parametrize("name", ["../x", "a/b"])
def test_hashes_of_files_elsewhere_are_refused(name: str, sound: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sound, tmp_path / "model")
    for files in ({}, [], None, {WEIGHTS: "0" * 64, name: "0" * 64}):
        config_with(files=files)(folder)
        with pytest.raises(CheckpointError, match="'files' does not name the files of the folder"):
            load_checkpoint(folder)


@pytest.mark.parametrize("name", [DICTIONARY, "spm.model"])
def test_a_file_that_is_read_has_a_hash(name: str, with_pieces_of_its_own: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(with_pieces_of_its_own, tmp_path / "model")
    files = json.loads((folder / CONFIG).read_text(encoding="utf-8"))["files"]
    config_with(files={each: files[each] for each in files if each != name})(folder)
    with pytest.raises(CheckpointError, match=f"'files' has no hash of '{name}'"):
        load_checkpoint(folder)


def test_a_card_may_be_edited_but_is_checked(sound: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sound, tmp_path / "model")
    (folder / "card.md").write_text("mine\n", encoding="utf-8")
    load_checkpoint(folder)
    with pytest.raises(CheckpointError, match="has been changed"):
        load_checkpoint(folder, check=True)


class BrokenOffError(Exception):
    pass


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("call", ["os.replace", "os.rename", "os.fsync"])
def test_a_folder_is_written_whole_or_not_at_all(
    call: str, tmp_path: Path, sound: Path, with_pieces_of_its_own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken off at any file, it is the older model or the newer one; no file of one is in the other."""
    a, b = contents(with_pieces_of_its_own), contents(sound)
    real, seen = getattr(os, call.removeprefix("os.")), set()
    for stop in range(20):
        target = tmp_path / "model"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(with_pieces_of_its_own, target)
        (target / "calibration.json").write_text("{}")
        count = 0

        def broken(*args: Any, stop: int = stop) -> None:
            nonlocal count
            count += 1
            if count == stop + 1:
                raise BrokenOffError
            real(*args)

        with monkeypatch.context() as patch, contextlib.suppress(BrokenOffError):
            patch.setattr(call, broken)
            random_model(target, words=WORDS)
        found = contents(target)
        assert found in ({**a, "calibration.json": b"{}"}, b), stop
        assert [path.name for path in tmp_path.iterdir()] == ["model"]
        seen.add(found == b)
        if count <= stop:
            break
    assert seen == {True, False}


@pytest.mark.parametrize(
    "mine",
    [
        {"thesis.txt": "mine"},
        {DICTIONARY: "a 1\n", "spm.model": "mine"},  # names that a model's files have, and no model
        {CONFIG: '{"name": "a web application"}'},
        {CONFIG: "[]"},
        {CONFIG: '{"format": 3, "files": 3}'},
    ],
    ids=lambda mine: "-".join(mine),
)
def test_a_folder_of_something_else_is_not_replaced(mine: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    for name, text in mine.items():
        (tmp_path / "model" / name).write_text(text)
    with pytest.raises(OutputError, match=f"holds '{min(mine)}', which would be lost"):
        random_model(tmp_path / "model", words=WORDS)
    assert contents(tmp_path / "model") == {name: text.encode() for name, text in mine.items()}


def load_in_little_memory(folder: Path) -> None:
    """Loads the model; whatever is wrong, in under 200 MB more than before."""
    with memory.rising_at_most(200_000):
        nartk.load(folder)


def test_the_memory_that_loading_takes_is_seen() -> None:
    """Also after more was held, and given back."""
    bytearray(400_000_000)
    with pytest.raises(AssertionError), memory.rising_at_most(200_000):
        bytearray(250_000_000)


def config_with(**values: Any) -> Callable[[Path], object]:
    def spoil(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        config.update(values)
        (folder / CONFIG).write_text(json.dumps(config), encoding="utf-8")

    return spoil


def setting(**values: Any) -> Callable[[Path], object]:
    def spoil(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        config["model"].update(values)
        (folder / CONFIG).write_text(json.dumps(config), encoding="utf-8")

    return spoil


def part(side: str, **values: Any) -> Callable[[Path], object]:
    def spoil(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        config[side].update(values)
        (folder / CONFIG).write_text(json.dumps(config), encoding="utf-8")

    return spoil


def with_pieces(content: bytes) -> Callable[[Path], object]:
    def spoil(folder: Path) -> None:
        raw("spm.model", content)(folder)
        part("output", sentencepiece="spm.model")(folder)

    return spoil


def ids(**changed: int) -> dict[str, int]:
    return {"bos": 0, "pad": 1, "eos": 2, "unk": 3, **changed}


def text(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content, encoding="utf-8")


def raw(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def missing(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def tensors_with(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], object]:
    def spoil(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS)

    return spoil


def header(entries: object, *, body: bytes = b"", length: int | None = None) -> Callable[[Path], object]:
    """A safetensors file by hand: the header's length, the header, the weights."""
    encoded = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    size = len(encoded) if length is None else length
    return raw(WEIGHTS, struct.pack("<Q", size) + encoded + body)


def first(tensors: dict[str, torch.Tensor]) -> str:
    return "decoder_layers.0.ffn.up.weight"


def entry(**values: Any) -> dict[str, Any]:
    return {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **values}}


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "config is empty": (text(CONFIG, ""), "not JSON"),
    "config is no JSON": (text(CONFIG, "{"), "not JSON"),
    "config is a list": (text(CONFIG, "[]"), "not a JSON object"),
    "config is not UTF-8": (raw(CONFIG, b'{"\xff": 1}'), "not JSON"),
    "config is nested without end": (text(CONFIG, "[" * 100_000), "not JSON"),
    "config says NaN": (text(CONFIG, '{"format": NaN}'), "NaN is no number"),
    "config says Infinity": (text(CONFIG, '{"model": {"dropout": Infinity}}'), "Infinity is no number"),
    "config is huge": (text(CONFIG, " " * 1_100_000), "larger than 1000000 bytes"),
    "format of tomorrow": (config_with(format=4), "format 4, this version reads 3"),
    "format 1": (
        text(CONFIG, '{"format": 1}'),
        "format 1, this version reads 3. Fix: convert",
    ),
    "format 2": (config_with(format=2, files=None), "format 2, this version reads 3. Fix: convert"),
    "format missing": (text(CONFIG, "{}"), "format None, this version reads 3"),
    "no input": (config_with(input=None), "'input' is missing"),
    "output is text": (config_with(output="text"), "'output' is missing"),
    "processor unknown": (
        config_with(input={"name": "sound"}),
        "an input processor 'sound'. Fix: this",
    ),
    "processor without a name": (config_with(output={}), "an output processor None"),
    "dictionary outside": (
        part("input", dictionary="../dict.txt"),
        "is '../dict.txt', not the name",
    ),
    "dictionary is the folder": (
        part("output", dictionary="."),
        "'dictionary' is '.', not the name",
    ),
    "dictionary is a number": (part("output", dictionary=3), "'dictionary' is 3, not the name of a file"),
    "pieces absent": (part("input", sentencepiece="x.model"), "the file 'x.model' is missing"),
    "start token outside": (config_with(start_token=8), "'start_token' is 8, not between 0 and 7"),
    "start token below": (config_with(start_token=-1), "'start_token' is -1, not between 0 and 7"),
    "start token is true": (config_with(start_token=True), "'start_token' is True, not between"),
    "no special ids": (config_with(special_ids=None), "'special_ids' is None, not ids of bos, pad, eos, unk"),
    "special id missing": (config_with(special_ids={"bos": 0}), "not ids of bos, pad, eos, unk"),
    "special id below": (config_with(special_ids=ids(unk=-1)), "not ids of bos, pad, eos, unk"),
    "eos is pad": (config_with(special_ids=ids(eos=1)), "that of two symbols"),
    "eos beyond the words": (config_with(special_ids=ids(eos=99)), "</s> has id 99, but there are"),
    "another padding in the words": (config_with(special_ids=ids(pad=4)), "the model pads with 1"),
    "no settings": (config_with(model=None), "'architecture', 'model' or 'aliases' is missing"),
    "architecture is a number": (
        config_with(architecture=7),
        "'architecture', 'model' or 'aliases' is missing",
    ),
    "alias of nothing": (config_with(aliases={"x": "y"}), "'x' is an alias of 'y', which is missing"),
    "alias is a list": (config_with(aliases={"x": ["y"]}), "'x' is an alias of ['y'], which is missing"),
    "unknown setting": (setting(d_mode=32), "unknown model setting 'd_mode'"),
    "setting is text": (setting(d_model="32"), "model setting 'd_model' is '32', not a int"),
    "setting is a fraction": (setting(d_model=32.0), "model setting 'd_model' is 32.0, not a int"),
    "setting is huge": (setting(d_model=10**9), "`d_model` is 1000000000"),
    "setting has 400 digits": (setting(encoder_ffn=10**400), "`encoder_ffn` is 1000"),
    "setting is negative": (setting(decoder_ffn=-1), "`decoder_ffn` is -1"),
    "positions are huge": (setting(max_target_len=10_000_000), "`max_target_len` is 10000000"),
    "a million layers": (setting(encoder_layers=10**6), "`encoder_layers` is 1000000, more than 1000"),
    "a thousand layers": (
        setting(encoder_layers=1000),
        "the encoder has 1 layers, the configuration says 1000",
    ),
    "no heads": (setting(encoder_heads=0), "`encoder_heads`"),
    "unequal heads": (setting(encoder_heads=3), "`d_model` 32 is no multiple of `encoder_heads` 3"),
    "dropout above 1": (setting(dropout=1.5), "`dropout` is 1.5"),
    "activation unknown": (setting(activation="eval"), "`activation` is 'eval'"),
    "another padding": (setting(pad=0), "pads with 0"),
    "padding outside": (setting(pad=10_000), "pads with 10000"),
    "wider than its weights": (setting(d_model=64), "the configuration says"),
    "more words than rows": (setting(src_vocab=9, tgt_vocab=9), "the configuration says [9, 32]"),
    "fewer rows than its dictionary": (setting(src_vocab=7, tgt_vocab=7), "7 words, its dictionary 8"),
    "no dictionary": (missing(DICTIONARY), "the file 'dict.txt' is missing"),
    "dictionary without counts": (text(DICTIONARY, "a\nb\n"), "expected 'WORD COUNT', found 'a'"),
    "dictionary not UTF-8": (raw(DICTIONARY, b"\xff\xfe 1\n"), "cannot read the dictionary"),
    "dictionary too short": (text(DICTIONARY, "a 1\n"), "8 words, its dictionary 5"),
    "tokenizer is none": (with_pieces(b"not a model"), "not a sentencepiece model"),
    "tokenizer is empty": (with_pieces(b""), "not a sentencepiece model"),
    "no weights": (missing(WEIGHTS), "cannot read"),
    "weights empty": (raw(WEIGHTS, b""), "truncated, or not a safetensors file"),
    "weights are a pickle": (raw(WEIGHTS, b"\x80\x04cos\nsystem\n(S'true'\ntR."), "not a safetensors file"),
    "header longer than the file": (header(b"{}", length=10**6), "truncated"),
    "header of 2^63 bytes": (header(b"{}", length=2**63), "truncated"),
    "header of 100 MB": (header(b"{" + b" " * 100_000_000 + b"}"), "not a safetensors file"),
    "header of no bytes": (header(b""), "truncated"),
    "header is no JSON": (header(b"{]"), "not JSON"),
    "header nested without end": (header(b"[" * 100_000), "not JSON"),
    "header is a list": (header([]), "not a JSON object"),
    "shape of 2^62": (header(entry(shape=[2**62, 4]), body=b"\0" * 8), "its header says"),
    "shape is negative": (header(entry(shape=[-2]), body=b"\0" * 8), "has no shape"),
    "shape is true": (header(entry(shape=[True, 2]), body=b"\0" * 8), "has no shape"),
    "shape is a fraction": (header(entry(shape=[2.0]), body=b"\0" * 8), "has no shape"),
    "shape missing": (header(entry(shape=None), body=b"\0" * 8), "has no shape"),
    "type unknown": (header(entry(dtype="F1"), body=b"\0" * 8), "has no known type"),
    "type is a list": (header(entry(dtype=["F32"]), body=b"\0" * 8), "has no known type"),
    "entry is a number": (header({"w": 3}, body=b"\0" * 8), "has no known type"),
    "offsets missing": (header(entry(data_offsets=None), body=b"\0" * 8), "corrupt"),
    "offsets that overlap": (
        header(entry(shape=[1], data_offsets=[0, 4]) | {"v": entry(shape=[1])["w"]}, body=b"\0" * 8),
        "corrupt",
    ),
    "offsets outside": (header(entry(data_offsets=[0, 80]), body=b"\0" * 8), "corrupt"),
    "offsets backwards": (header(entry(data_offsets=[8, 0]), body=b"\0" * 8), "corrupt"),
    "bytes too many": (header(entry(), body=b"\0" * 9), "holds 9 bytes of weights, its header says 8"),
    "tensor missing": (tensors_with(lambda t: t.pop(first(t))), "is missing"),
    "tensor added": (
        tensors_with(lambda t: t.update(new=torch.ones(1))),
        "'new' is not in the configuration",
    ),
    "tensor of another shape": (
        tensors_with(lambda t: t.update({first(t): torch.ones(3, 32)})),
        "has shape [3, 32], the configuration says [32, 32]",
    ),
    "tensor of whole numbers": (
        tensors_with(lambda t: t.update({first(t): torch.ones(32, 32, dtype=torch.int64)})),
        "has type I64, which is no floating point",
    ),
    "tensor with NaN": (
        tensors_with(lambda t: t[first(t)].view(-1)[5].fill_(float("nan"))),
        "holds NaN or infinity",
    ),
    "tensor with infinity": (
        tensors_with(lambda t: t[first(t)].view(-1)[5].fill_(float("-inf"))),
        "holds NaN or infinity",
    ),
    "infinities that cancel": (
        tensors_with(lambda t: t[first(t)].view(-1)[:2].copy_(torch.tensor([1, -1]) * torch.inf)),
        "holds NaN or infinity",
    ),
}


@pytest.mark.parametrize("kind", SPOILT)
def test_what_is_corrupt_is_refused(folder: Path, kind: str) -> None:
    spoil, message = SPOILT[kind]
    spoil(folder)
    sign(folder)  # else the hash alone would refuse it
    with pytest.raises((CheckpointError, UnsupportedCheckpointError)) as caught:
        load_in_little_memory(folder)
    assert caught.value.exit_code == 5
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_the_sound_model_loads(folder: Path) -> None:
    load_in_little_memory(folder)


def test_a_file_cut_anywhere_is_refused(folder: Path) -> None:
    whole = (folder / WEIGHTS).read_bytes()
    for i in range(100):
        (folder / WEIGHTS).write_bytes(whole[: len(whole) * i // 100])
        sign(folder)
        with pytest.raises(CheckpointError):
            load_in_little_memory(folder)


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG, DICTIONARY])
def test_a_flipped_bit_is_refused_or_harmless(folder: Path, name: str) -> None:
    """No crash, no hang, no foreign exception; half of the bits lie in the header."""
    whole = (folder / name).read_bytes()
    rng = random.Random(0)
    for i in range(150):
        at = rng.randrange(min(len(whole), 4096) if i % 2 else len(whole))
        spoilt = bytearray(whole)
        spoilt[at] ^= 1 << rng.randrange(8)
        (folder / name).write_bytes(bytes(spoilt))
        if name != CONFIG:
            sign(folder)
        with contextlib.suppress(CheckpointError, UnsupportedCheckpointError):
            load_in_little_memory(folder)


def test_no_model_there(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "absent", tmp_path / "a\0b"):
        with pytest.raises(ModelNotFoundError) as caught:
            nartk.load(place)
        assert "name a shipped model or a folder with config.json" in str(caught.value)


def test_an_architecture_that_is_not_known(folder: Path) -> None:
    config_with(architecture="transducer")(folder)
    with pytest.raises(UnsupportedCheckpointError) as caught:
        nartk.load(folder)
    known = (
        "blockwise, cif, conformer, ctc, dag, daspeech, fastspeech2, light_drafter, nat, owsm_ctc, "
        "paraformer, sanm_paraformer, speech_ctc, speech_dag, transformer, transformer_tts, whisper"
    )
    assert str(caught.value).endswith(
        f"a model of architecture 'transducer'. Fix: this version knows {known}."
    )


def test_shapes_are_compared_name_by_name() -> None:
    wanted = {"a": (2, 3), "b": (1,)}
    require_shapes(wanted, {"b": (1,), "a": (2, 3)}, "here")
    with pytest.raises(CheckpointError, match="here: tensor 'b' is missing"):
        require_shapes(wanted, {"a": (2, 3)}, "here")
