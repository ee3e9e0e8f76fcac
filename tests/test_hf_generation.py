"""Folders of Hugging Face whose files ask for more, or say less, than most: text as `generate` makes it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import hf_folders, hugging_face_text

import nartk
from nartk.checkpoints.hugging_face.text import start_token_of
from nartk.checkpoints.loading import load_checkpoint
from nartk.cli.convert import main as convert
from nartk.cli.decode import main as decode_command
from nartk.errors import CheckpointError
from nartk.processors.hugging_face import hugging_face_processors
from nartk.processors.hugging_face.languages import M2M100, NLLB, WMT21

LINES = ["She goes to school .", "The cat sat on the mat", "news about Zürich !", "a b c d e f"]


@pytest.fixture(scope="module", autouse=True)
def transformers() -> Any:
    pytest.importorskip("transformers")
    pytest.importorskip("tokenizers")
    return hf_folders.transformers()


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("marian") / "model"
    return folder, hf_folders.text_folder(folder)


def write(folder: Path, file: str, **changes: Any) -> None:
    """Changes values of a file, which may be missing; None takes one out."""
    path = folder / file
    values = (json.loads(path.read_text()) if path.exists() else {}) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


def generated(transformers: Any, folder: Path, **settings: Any) -> list[str]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    for line in LINES:
        with torch.inference_mode():
            ids = model.generate(**tokenizer(line, return_tensors="pt"), **settings)[0]
        found.append(tokenizer.decode(ids[1:], skip_special_tokens=True))
    return found


@pytest.mark.filterwarnings("ignore")  # theirs
@pytest.mark.parametrize("beams", [1, 3])
def test_several_words_that_end_an_output(
    beams: int, marian: tuple[Path, Any], tmp_path: Path, transformers: Any
) -> None:
    folder = shutil.copytree(marian[0], tmp_path / "model")
    plain = nartk.load(folder).decode(LINES, "greedy", max_len=24)
    common = max(
        {word for each in plain for word in each.tokens[4:-1]},
        key=[word for each in plain for word in each.tokens[4:-1]].count,
    )
    eos = json.loads((folder / "config.json").read_text())["eos_token_id"]
    write(folder, "generation_config.json", eos_token_id=[eos, common], num_beams=beams, max_length=25)
    wanted = generated(transformers, folder)
    model = nartk.load(folder)
    found = model.decode(LINES)
    assert [each.text for each in found] == wanted
    assert any(each.tokens[-1] == common for each in found)
    assert convert([str(folder), "--output", str(tmp_path / "native"), "--quiet"]) == 0
    assert [each.text for each in nartk.load(tmp_path / "native").decode(LINES)] == wanted
    for strategy in ("greedy", "iad", "ngram", "recycling") if beams == 1 else ():
        assert [each.text for each in model.decode(LINES, strategy)] == wanted


@pytest.mark.filterwarnings("ignore")  # theirs
@pytest.mark.parametrize("where", ["generation config", "config", "list", "bos"])
def test_start_tokens_stand_in_several_places(where: str, tmp_path: Path, transformers: Any) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    hugging_face_text.bart(folder)
    words = json.loads((folder / "config.json").read_text())["vocab_size"]
    sizes = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    sizes |= {"d_model": 16, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 64}
    sizes |= {"vocab_size": words, "forced_eos_token_id": None}
    hf_folders.random_model("bart", sizes, 0).save_pretrained(folder)
    start: Any = 5
    write(
        folder, "generation_config.json", decoder_start_token_id=None, forced_eos_token_id=None, max_length=20
    )
    if where == "generation config":
        write(folder, "generation_config.json", decoder_start_token_id=start)
        write(folder, "config.json", decoder_start_token_id=None)
    elif where == "list":
        write(folder, "generation_config.json", decoder_start_token_id=[start])
    else:
        (folder / "generation_config.json").unlink()
        start = 5 if where == "config" else None
        write(folder, "config.json", decoder_start_token_id=start)
    assert load_checkpoint(folder).start_token == (0 if where == "bos" else 5)
    wanted = generated(transformers, folder, max_length=20, num_beams=1, do_sample=False)
    assert [each.text for each in nartk.load(folder).decode(LINES, "greedy", max_len=19)] == wanted


@pytest.mark.parametrize(
    ("value", "start"),
    [([3, 2], 3), (3, 3), (None, 2), ("absent", 2), ([], None), ("3", None), (["3"], None), (True, None)],
)
def test_a_start_token_by_default(value: Any, start: int | None, tmp_path: Path) -> None:
    config = {} if value == "absent" else {"eos_token_id": value}
    if start is not None:
        assert start_token_of(config, None, ("eos_token_id", 2), tmp_path) == start
        return
    with pytest.raises(CheckpointError) as caught:
        start_token_of(config, {}, ("eos_token_id", 2), tmp_path)
    assert caught.value.message == f"'eos_token_id' is {value!r}, not the id of a word"


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("in_list", [False, True])
def test_the_language_that_is_told_is_that_of_the_start_token(
    file: str, in_list: bool, tmp_path: Path, transformers: Any
) -> None:
    folder = tmp_path / "model"
    multilingual(folder, hugging_face_text.mbart, family="mbart")
    languages = hugging_face_processors(folder).tokenizer.languages()
    start = languages["de_DE"]
    write(folder, "config.json", decoder_start_token_id=languages["fr_XX"])
    write(folder, "generation_config.json", decoder_start_token_id=None, bos_token_id=None)
    write(folder, file, decoder_start_token_id=[start] if in_list else start)
    checkpoint = load_checkpoint(folder)
    assert checkpoint.start_token == start
    [notice] = checkpoint.notices
    assert "outputs are in 'de_DE', as its files have it" in notice
    assert load_checkpoint(folder, target_lang="fr_XX").start_token == languages["fr_XX"]


def multilingual(folder: Path, make: Callable[[Path], int], family: str = "m2m_100", **settings: Any) -> Any:
    folder.mkdir()
    make(folder)
    words = json.loads((folder / "config.json").read_text())["vocab_size"]
    sizes = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    sizes |= {"d_model": 16, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 64}
    ids = {"vocab_size": words + 250, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    model = hf_folders.random_model(family, ids | sizes | settings, 0)
    model.save_pretrained(folder)
    return model


def without_languages(folder: Path) -> None:
    """Takes the lists of languages out of a folder's files, and what was made of them."""
    for name in ("special_tokens_map.json", "added_tokens.json", "tokenizer.json"):
        (folder / name).unlink(missing_ok=True)
    kept = ("tokenizer_class", "language_codes", "src_lang")
    path = folder / "tokenizer_config.json"
    values = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({key: value for key, value in values.items() if key in kept}))


@pytest.mark.filterwarnings("ignore")  # theirs
@pytest.mark.parametrize(
    ("make", "codes", "extra"),
    [
        (hugging_face_text.m2m_100, [f"__{code}__" for code in M2M100], {}),
        (hugging_face_text.m2m_100, [f"__{code}__" for code in WMT21], {"language_codes": "wmt21"}),
        (hugging_face_text.nllb, NLLB, {}),
    ],
    ids=["m2m", "wmt21", "nllb"],
)
def test_languages_that_no_file_lists(
    make: Any, codes: Any, extra: dict[str, Any], tmp_path: Path, transformers: Any
) -> None:
    folder = tmp_path / "model"
    multilingual(folder, make)
    without_languages(folder)
    write(folder, "tokenizer_config.json", **extra)
    source, target = codes[-1].strip("_"), codes[0].strip("_")
    names = [code.strip("_") for code in codes]
    theirs = folder
    if codes is NLLB:  # whose own list theirs passes over where the files have none
        from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES

        theirs = shutil.copytree(folder, tmp_path / "listed")
        write(theirs, "tokenizer_config.json", additional_special_tokens=FAIRSEQ_LANGUAGE_CODES)
    tokenizer = transformers.AutoTokenizer.from_pretrained(theirs, src_lang=source)
    model = nartk.load(folder, source_lang=source, target_lang=target)
    for line in LINES:
        assert [*model.encode(line)] == tokenizer(line).input_ids
    for name, code in [*zip(names, codes, strict=True)][::9]:
        wanted = tokenizer.convert_tokens_to_ids(code)
        checkpoint = load_checkpoint(folder, source_lang=source, target_lang=name)
        assert checkpoint.generation["forced_bos"] == wanted, name
    assert all(each.tokens[0] == tokenizer.convert_tokens_to_ids(codes[0]) for each in model.decode(LINES))


@pytest.mark.parametrize(
    ("generation", "message"),
    [
        (
            {},
            "outputs are in a language of the model's choice, as its files have it; lines are in 'eng_Latn'",
        ),
        (
            {"forced_bos_token_id": "fra_Latn"},
            "outputs are in 'fra_Latn', as its files have it; lines are in 'e",
        ),
    ],
    ids=["none", "forced"],
)
def test_a_language_that_is_not_given_is_told(
    generation: dict[str, Any],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    transformers: Any,
) -> None:
    folder = tmp_path / "model"
    multilingual(folder, hugging_face_text.nllb)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = {key: tokenizer.convert_tokens_to_ids(value) for key, value in generation.items()}
    write(folder, "generation_config.json", max_length=9, **ids)
    (tmp_path / "in.txt").write_text("She goes .\n")
    assert decode_command([str(folder), str(tmp_path / "in.txt")]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "--target-lang" in line]
    assert len(told) == 1
    assert told[0].startswith(f"nartk: --target-lang is not given: {message}")
    assert decode_command([str(folder), str(tmp_path / "in.txt"), "--target-lang", "fra_Latn"]) == 0
    assert "--target-lang" not in capsys.readouterr().err
    with pytest.warns(UserWarning, match="target_lang is not given"):
        nartk.load(folder)
