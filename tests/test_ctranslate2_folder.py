"""Folders of CTranslate2: what its own converter makes of a Whisper is read as the Whisper it was made of."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
from support import hugging_face_text, tiny
from support.hf_folders import random_model as random_text_model
from support.hf_folders import text_folder
from support.scripted_passes import decode
from support.tiny import SENTENCES
from support.whisper_models import (
    NO_TIMESTAMPS,
    START,
    id_of,
    random_frames,
    random_model,
    random_settings,
    save,
)

import nartk
from nartk.architectures import architecture
from nartk.checkpoints.ctranslate2 import whisper
from nartk.checkpoints.ctranslate2.binary import BinaryTensors
from nartk.checkpoints.generation import with_generation
from nartk.checkpoints.loading import generation_of, load_checkpoint
from nartk.cli.convert import main as convert
from nartk.engine import available
from nartk.errors import NartkError
from nartk.files import Folder
from nartk.protocols.hypothesis import Request
from nartk.registry import make_strategy
from nartk.serving.scorers import load_network

converters = pytest.importorskip("ctranslate2.converters", reason="ctranslate2 is not installed")


@pytest.fixture(autouse=True)
def words_of_small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whisper's models of several languages have more words than ours."""
    monkeypatch.setattr(whisper, "_MULTILINGUAL", 100)


def made(folder: Path, seed: int, quantization: str | None = None, **settings: Any) -> tuple[Path, Path]:
    """A random Whisper as transformers has it, and as CTranslate2 does."""
    rng = random.Random(seed)
    drawn = {**random_settings(rng, seconds=1.0), "activation_function": "gelu", **settings}
    # What the folder does not say is as OpenAI's models have it.
    fields = {"max_length": drawn["max_target_positions"], "max_initial_timestamp_index": 50}
    theirs = save(random_model(drawn, seed, ends=0.5, **fields), folder / "theirs")
    converter = converters.TransformersConverter(str(theirs), copy_files=["tokenizer.json"])
    converter.convert(str(folder / "converted"), quantization=quantization)
    return theirs, folder / "converted"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return made(tmp_path_factory.mktemp("whisper"), 3)


def rounded(weight: np.ndarray, quantization: str | None) -> np.ndarray:
    match quantization:
        case "float16":
            return weight.astype(np.float16).astype(np.float32)
        case "bfloat16":
            return torch.tensor(weight).bfloat16().float().numpy()
    return weight


@pytest.mark.parametrize("quantization", [None, "float16", "bfloat16"])
@pytest.mark.parametrize("seed", range(4))
def test_weights_and_settings_are_those_of_transformers(
    seed: int, quantization: str | None, tmp_path: Path
) -> None:
    theirs, converted = map(load_checkpoint, made(tmp_path, seed, quantization))
    assert converted.settings == theirs.settings
    assert converted.tensors.keys() == theirs.tensors.keys()
    for name, weight in theirs.tensors.items():
        np.testing.assert_array_equal(converted.tensors[name], rounded(weight, quantization), err_msg=name)
    both = [dict(each.beside) for each in (theirs, converted)]
    for beside in both:
        for side in ("input", "output"):
            beside[side] = {k: v for k, v in beside[side].items() if k not in ("settings", "special")}
    # Where a folder names no heads that follow the sound, its converter writes all of the upper half.
    layers, heads = (theirs.settings[f"decoder_{name}"] for name in ("layers", "heads"))
    upper = tuple((layer, head) for layer in range(layers // 2, layers) for head in range(heads))
    named, written = (beside["output"].pop("heads") for beside in both)
    assert written == (named or upper)
    assert both[0] == both[1]


@pytest.mark.parametrize("quantization", ["int8", "int8_float16", "int16"])
def test_quantised_weights_are_what_they_stand_for(quantization: str, tmp_path: Path) -> None:
    theirs, converted = map(load_checkpoint, made(tmp_path, 1, quantization))
    steps = 1023 if quantization == "int16" else 127
    for name, weight in theirs.tensors.items():
        if weight.ndim == 2 and "positions" not in name:
            # CTranslate2's int16 has one scale a matrix, and 10 bits.
            largest = np.abs(weight).max(None if quantization == "int16" else 1, keepdims=True)
            assert (np.abs(converted.tensors[name] - weight) <= 1.01 * largest / steps).all(), name
            if quantization != "int16":
                assert len(np.unique(converted.tensors[name][0])) <= 255


@pytest.mark.skipif(not available(), reason="no engine")
def test_int8_stays_int8(tmp_path: Path) -> None:
    """Quantised again, rows have the numbers that CTranslate2 gave them."""
    _, converted = made(tmp_path, 1, "int8", d_model=64, encoder_attention_heads=4, encoder_ffn_dim=96)
    assert convert([str(converted), "--quantize", "int8", "--output", str(tmp_path / "made"), "--quiet"]) == 0
    stored, file = load_checkpoint(tmp_path / "made"), BinaryTensors(converted / "model.bin")
    blocks = stored.tensors.mapped("encoder_layers.0.ffn.up.weight")  # panels, groups, outputs, inputs
    ours = blocks.transpose(0, 2, 1, 3).reshape(96, 64)
    assert (ours == file._raw("encoder/layer_0/ffn/linear_0/weight")).all()


def test_strategies_have_the_models_options(pair: tuple[Path, Path]) -> None:
    theirs, converted = (generation_of(Folder(each)) for each in pair)
    assert converted == theirs
    assert converted["strategy"] == "windows"


@pytest.mark.parametrize("seed", range(3))
def test_outputs_are_ctranslate2s(seed: int, tmp_path: Path) -> None:
    library: Any = pytest.importorskip("ctranslate2")
    _, converted = made(tmp_path, seed)
    checkpoint, limit = load_checkpoint(converted), 12
    model = SimpleNamespace(config=SimpleNamespace(num_mel_bins=checkpoint.settings["input_features"]))
    sources = random_frames(model, random.Random(seed), [100] * 4)
    whisper_of = library.models.Whisper(str(converted), compute_type="float32")
    prompt = [START, id_of("de"), id_of("transcribe"), NO_TIMESTAMPS]
    wanted = []
    for source in sources:
        frames = library.StorageView.from_array(np.ascontiguousarray(source.frames.T[None]))
        wanted += whisper_of.generate(frames, [prompt], beam_size=1, max_length=2 * limit)[0].sequences_ids
    scorer: Any = architecture("whisper").scorer(
        load_network(checkpoint), checkpoint.target_vocab, start_token=checkpoint.start_token
    )
    prompts: Any = checkpoint.output.prompts  # type: ignore[attr-defined]
    scorer.prompts = prompts.asking("de", "transcribe")
    strategy = make_strategy("greedy", with_generation(checkpoint.generation, "greedy", {}))
    requests = [Request(i, source, limit) for i, source in enumerate(sources)]
    found = [[*each.hypotheses[0].tokens] for each in decode(strategy, scorer, requests, batch_size=4)]
    for ours, theirs in zip(found, wanted, strict=True):
        assert len(ours) > 1
        assert ours[: len(theirs)] == theirs[: len(ours)]


def changed(folder: Path, to: Path, **files: Callable[[bytes], bytes]) -> Path:
    """A copy of a folder, some of whose files are others; names have _ for their last dot."""
    shutil.copytree(folder, to)
    for name, change in files.items():
        stem, _, ending = name.rpartition("_")
        path = to / f"{stem}.{ending}"
        path.write_bytes(change(path.read_bytes()))
    return to


def refused(folder: Path) -> NartkError:
    with pytest.raises(NartkError) as caught:
        load_checkpoint(folder)
    assert caught.value.fix or "corrupt" in str(caught.value) or str(folder) in str(caught.value)
    return caught.value


@pytest.fixture(params=["pair", "marian"])
def converted(request: pytest.FixtureRequest) -> Path:
    found: tuple[Path, Path] = request.getfixturevalue(request.param)
    return found[1]


def test_a_file_that_is_cut_off_is_refused(converted: Path, tmp_path: Path) -> None:
    size = (converted / "model.bin").stat().st_size
    for i, length in enumerate([0, 1, 3, 4, 6, 7, 20, 30, *(size * k // 12 for k in range(1, 12)), size - 1]):
        refused(changed(converted, tmp_path / str(i), model_bin=lambda raw, n=length: raw[:n]))


def test_flipped_bits_are_refused_or_change_weights_alone(converted: Path, tmp_path: Path) -> None:
    rng, raw = random.Random(1), (converted / "model.bin").read_bytes()
    folder = changed(converted, tmp_path / "flipped")
    wanted = load_checkpoint(converted)
    for _ in range(300):
        flipped = bytearray(raw)
        # The first bytes of the file, where its names and sizes are denser than elsewhere, and others.
        flipped[rng.randrange(rng.choice([60, 4000, len(raw)]))] ^= 1 << rng.randrange(8)
        (folder / "model.bin").write_bytes(flipped)
        try:
            found = load_checkpoint(folder)
        except NartkError:
            continue
        assert found.settings["d_model"] == wanted.settings["d_model"]
        assert found.tensors.shapes == wanted.tensors.shapes


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_bin": lambda raw: struct.pack("<I", 9) + raw[4:]}, "version 9"),
        ({"model_bin": lambda raw: raw + b"more"}, "4 bytes are left over"),
        ({"model_bin": lambda raw: raw.replace(b"decoder/embeddings", b"decoder/embedding_", 1)}, "corrupt"),
        ({"model_bin": lambda raw: raw.replace(b"WhisperSpec", b"WhisperSpek", 1)}, "'WhisperSpek'"),
        ({"model_bin": lambda raw: raw.replace(b"fc", b"xx").replace(b"conv1/bias", b"conv1/bios")}, "conv1"),
        ({"vocabulary_json": lambda raw: raw[:-3]}, "not JSON"),
        ({"vocabulary_json": lambda raw: b"{}"}, "not a list of words"),
        ({"vocabulary_json": lambda raw: json.dumps(json.loads(raw)[:-1]).encode()}, "words, the model"),
        ({"vocabulary_json": lambda raw: raw.replace(b"notimestamps", b"notimestamp_")}, "lacks <|notimest"),
        ({"config_json": lambda raw: b'{"suppress_ids": [99999999]}'}, "'suppress_ids'"),
        ({"config_json": lambda raw: b"[]"}, "not a JSON object"),
    ],
)
def test_files_that_lie_are_refused(
    change: dict[str, Callable[[bytes], bytes]], says: str, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    assert says in str(refused(changed(pair[1], tmp_path / "changed", **change)))


@pytest.mark.parametrize("name", ["tokenizer.json", "vocabulary.json"])
def test_a_file_that_is_missing_is_named(name: str, pair: tuple[Path, Path], tmp_path: Path) -> None:
    folder = changed(pair[1], tmp_path / "without")
    (folder / name).unlink()
    assert name in str(refused(folder))


def test_a_tokenizer_of_another_model_is_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    def swapped(raw: bytes) -> bytes:
        one, other = b"<|startoftranscript|>", b"<|translate|>"
        return raw.replace(one, b"\0").replace(other, one).replace(b"\0", other)

    assert "tokenizer.json" in str(refused(changed(pair[1], tmp_path / "other", tokenizer_json=swapped)))


def test_older_vocabularies_are_lines(pair: tuple[Path, Path], tmp_path: Path) -> None:
    folder = changed(pair[1], tmp_path / "lines")
    words = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
    (folder / "vocabulary.json").unlink()
    (folder / "vocabulary.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    assert load_checkpoint(folder).fingerprint == load_checkpoint(pair[1]).fingerprint


def test_a_native_folder_is_made_of_it(pair: tuple[Path, Path], tmp_path: Path) -> None:
    assert convert([str(pair[1]), "--output", str(tmp_path / "native"), "--quiet"]) == 0
    native, converted = load_checkpoint(tmp_path / "native"), load_checkpoint(pair[1])
    assert native.settings == converted.settings
    for name, weight in converted.tensors.items():
        np.testing.assert_array_equal(native.tensors[name], weight)


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A random Marian as transformers has it, and as CTranslate2 does, with its sentencepiece models."""
    folder = tmp_path_factory.mktemp("marian")
    model = text_folder(folder / "theirs", seed=2)
    start = model.config.decoder_start_token_id
    with torch.no_grad():  # as in Marian's own models, whose first embedding is 0 and no word
        model.model.shared.weight[start] = 0
        model.final_logits_bias[0, start] = -1e4
    model.save_pretrained(folder / "theirs")
    converter = converters.TransformersConverter(
        str(folder / "theirs"), copy_files=["source.spm", "target.spm"]
    )
    converter.convert(str(folder / "converted"))
    return folder / "theirs", folder / "converted"


def test_lines_of_text_are_decoded_as_by_transformers_folder(marian: tuple[Path, Path]) -> None:
    theirs, converted = (nartk.load(each, guard=False) for each in marian)
    lines = [*SENTENCES[:8], "", "something else 12"]
    for strategy in ("greedy", "beam"):
        wanted, found = (
            [each.text for each in model.decode(lines, strategy=strategy, max_len=12, max_ratio=99.0)]
            for model in (theirs, converted)
        )
        assert found == wanted
    assert len(set(found)) > 2


def test_lines_of_text_are_decoded_as_by_ctranslate2(marian: tuple[Path, Path]) -> None:
    library: Any = pytest.importorskip("ctranslate2")
    model = nartk.load(marian[1], guard=False)
    translator = library.Translator(str(marian[1]))
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(marian[1] / "source.spm"))
    sources = [[*pieces.encode(line, out_type=str), "</s>"] for line in SENTENCES]
    wanted = translator.translate_batch(sources, beam_size=1, max_decoding_length=12)
    options = {"strategy": "greedy", "max_len": 12, "max_ratio": 99.0}
    words = model.checkpoint.target_vocab
    for found, theirs in zip(model.decode(SENTENCES, **options), wanted, strict=True):
        told = words.to_words([each for each in found.tokens if each != words.eos])
        assert told == theirs.hypotheses[0]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"config_json": lambda raw: raw.replace(b'"<unk>"', b'"<unknown>"')}, "'<unknown>'"),
        ({"config_json": lambda raw: b'{"eos_token": null}'}, "'eos_token' is None"),
        ({"model_bin": lambda raw: raw.replace(b"decoder/num_heads", b"decoder/num_tails")}, "num_tails"),
        (
            {"model_bin": lambda raw: raw.replace(b"ffn/linear_1/bias", b"ffn/linear_9/bias", 1)},
            "linear_1/bias",
        ),
        ({"shared_vocabulary_json": lambda raw: json.dumps(json.loads(raw)[1:]).encode()}, "'</s>'"),
        ({"source_spm": lambda raw: raw[:40]}, "not a sentencepiece model"),
    ],
)
def test_text_models_that_lie_are_refused(
    change: dict[str, Callable[[bytes], bytes]], says: str, marian: tuple[Path, Path], tmp_path: Path
) -> None:
    assert says in str(refused(changed(marian[1], tmp_path / "changed", **change)))


def test_a_text_model_becomes_a_native_folder(marian: tuple[Path, Path], tmp_path: Path) -> None:
    assert convert([str(marian[1]), "--output", str(tmp_path / "native"), "--quiet"]) == 0
    native, converted = (nartk.load(each, guard=False) for each in (tmp_path / "native", marian[1]))
    for one, other in zip(native.decode(SENTENCES), converted.decode(SENTENCES), strict=True):
        assert one.text == other.text


def test_without_pieces_words_stand_between_spaces(marian: tuple[Path, Path], tmp_path: Path) -> None:
    folder = changed(marian[1], tmp_path / "without")
    for side in ("source", "target"):
        (folder / f"{side}.spm").unlink()
    checkpoint = load_checkpoint(folder)
    assert [each.split(" for ")[0] for each in checkpoint.notices] == ["no tokenizer"] * 2
    words = checkpoint.target_vocab.words[5:9]
    assert checkpoint.output.decode(checkpoint.output.encode(" ".join(words))) == " ".join(words)


def test_a_model_that_is_told_its_language_is_refused(tmp_path: Path) -> None:
    tiny.random_model(tmp_path / "words", words=tiny.WORDS.split())
    to = ["--to", "ctranslate2", "--output", str(tmp_path / "made"), "--quiet"]
    assert convert([str(tmp_path / "words"), *to]) == 0
    config = json.loads((tmp_path / "made" / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "made" / "config.json").write_text(json.dumps({**config, "decoder_start_token": None}))
    assert "no start token" in str(refused(tmp_path / "made"))


def test_what_a_model_of_two_languages_does_not_know(marian: tuple[Path, Path]) -> None:
    with pytest.raises(NartkError, match="which this model does not know"):
        load_checkpoint(marian[1], source_lang="de")
    with pytest.raises(NartkError, match="whose folder knows none"):
        load_checkpoint(marian[1], source_prefix="translate: ")


@pytest.mark.parametrize(("family", "given"), [("nllb", ("deu_Latn", "fra_Latn")), ("m2m_100", ("de", "fr"))])
def test_models_of_many_languages_are_told_two(family: str, given: tuple[str, str], tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    getattr(hugging_face_text, family)(theirs)
    words = json.loads((theirs / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    sizes = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    ids = {"pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0, "decoder_start_token_id": 2}
    sizes |= {"vocab_size": words, "d_model": 16, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
    ids["scale_embedding"] = False
    random_text_model("m2m_100", {**sizes, **ids}, 4).save_pretrained(theirs)
    converter = converters.TransformersConverter(str(theirs), copy_files=["sentencepiece.bpe.model"])
    converter.convert(str(tmp_path / "converted"))
    source, target = given
    outputs = []
    for folder in (theirs, tmp_path / "converted"):
        model = nartk.load(folder, guard=False, source_lang=source, target_lang=target)
        options = {"strategy": "greedy", "min_len": 5, "max_len": 12, "max_ratio": 99.0}
        outputs.append([(each.text, *each.tokens) for each in model.decode(SENTENCES, **options)])
    assert outputs[0] == outputs[1]
    assert len(set(outputs[0])) > 2
    with pytest.raises(NartkError, match="is missing, of a model of"):
        load_checkpoint(tmp_path / "converted", source_lang=source)


def test_a_package_of_argos_translate_is_the_model_in_it(marian: tuple[Path, Path], tmp_path: Path) -> None:
    package = tmp_path / "package"
    inner = changed(marian[1], package / "model")
    for side in ("source", "target"):
        (inner / f"{side}.spm").rename(package / "sentencepiece.model")
    (package / "metadata.json").write_text('{"from_code": "en", "to_code": "es", "target_prefix": ""}')
    packed, plain = (nartk.load(each, guard=False) for each in (package, marian[1]))
    for one, other in zip(packed.decode(SENTENCES), plain.decode(SENTENCES), strict=True):
        assert one.text == other.text
    assert convert([str(package), "--output", str(tmp_path / "native"), "--quiet"]) == 0
    assert load_checkpoint(tmp_path / "native").notices == ()
    (package / "metadata.json").write_text('{"target_prefix": "__es__"}')
    assert "'target_prefix' is '__es__'" in str(refused(package))
