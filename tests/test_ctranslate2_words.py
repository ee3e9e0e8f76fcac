"""Folders of CTranslate2 by the tokenizers beside model.bin: words and outputs are those of its Translator.

Models are random, of transformers' classes and by CTranslate2's own converters. Sources are cut by
transformers' tokenizers, subword-nmt or sacremoses, and go to the Translator as its documentation has it.
"""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support import hugging_face_text, tiny
from support.hf_folders import random_model
from support.oracles import corrected

import nartk
from nartk.checkpoints.loading import load_checkpoint
from nartk.cli.convert import main as convert
from nartk.errors import NartkError

converters = pytest.importorskip("ctranslate2.converters", reason="ctranslate2 is not installed")
pytest.importorskip("tokenizers")
pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own

LONGEST = 12  # tokens of an output
OPTIONS: dict[str, Any] = {"strategy": "greedy", "min_len": 5, "max_len": LONGEST, "max_ratio": 99.0}
SIZES = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
SIZES |= {"d_model": 16, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 512}
IDS = {"pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0, "decoder_start_token_id": 2}
T5 = {"d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "tie_word_embeddings": True}
OF_T5 = {**T5, "d_model": 16, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
# The model's family, its tokenizer's files in `hugging_face_text`, settings, and what CTranslate2's converter
# asks of a configuration besides.
FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "bart": ("bart", {**SIZES, **IDS}, {"normalize_before": False}),
    "mbart": ("mbart", {**SIZES, **IDS, "scale_embedding": True}, {"normalize_before": True}),
    "mbart50": ("mbart", {**SIZES, **IDS}, {"normalize_before": True, "tokenizer_class": "MBart50Tokenizer"}),
    "pegasus": (
        "pegasus",
        {**SIZES, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
        {"normalize_before": True, "normalize_embedding": False},
    ),
    "t5": ("t5", OF_T5, {}),
    "nllb": ("m2m_100", {**SIZES, **IDS}, {}),
    "m2m_100": ("m2m_100", {**SIZES, **IDS}, {}),
}
SLOW = {"vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model"}
FAST = {"tokenizer.json", "tokenizer_config.json"}
# Of models of many languages those of lines and outputs.
LANGUAGES = {
    "mbart": ("de_DE", "fr_XX"),
    "mbart50": ("en_XX", "fr_XX"),
    "nllb": ("eng_Latn", "fra_Latn"),
    "m2m_100": ("de", "fr"),
}
LINES = [each for each in corrected()["source"][:10] if len(each) < 200]


def made(family: str, folder: Path) -> tuple[Path, Path]:
    """A random model as transformers has it, and as CTranslate2 does, without any tokenizer."""
    import transformers

    theirs = folder / "theirs"
    theirs.mkdir()
    getattr(hugging_face_text, family)(theirs)
    own = json.loads((theirs / "config.json").read_text(encoding="utf-8"))
    name, settings, asked = FAMILIES[family]
    model = random_model(name, {**settings, "vocab_size": own["vocab_size"]}, 4)
    with torch.no_grad():  # so that outputs depend on the line more than on their own first words
        for key, weight in model.named_parameters():
            if ("encoder_attn" in key or "EncDecAttention" in key) and weight.dim() > 1:
                weight.mul_(3.0)
    model.save_pretrained(theirs)
    config = json.loads((theirs / "config.json").read_text(encoding="utf-8"))
    (theirs / "config.json").write_text(json.dumps({**config, **asked}), encoding="utf-8")
    transformers.AutoTokenizer.from_pretrained(theirs).save_pretrained(theirs)
    converters.TransformersConverter(str(theirs)).convert(str(folder / "made"))
    described = json.loads((folder / "made" / "config.json").read_text(encoding="utf-8"))
    if described["bos_token"] is None:  # of mBART-50 by transformers 5, which CTranslate2 does not load
        described["bos_token"] = "<s>"
        (folder / "made" / "config.json").write_text(json.dumps(described), encoding="utf-8")
    return theirs, folder / "made"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    found: dict[str, tuple[Path, Path]] = {}

    def model(family: str) -> tuple[Path, Path]:
        if family not in found:
            found[family] = made(family, tmp_path_factory.mktemp(family))
        return found[family]

    return model


def with_files(made: tuple[Path, Path], names: set[str], to: Path) -> Path:
    """A copy of CTranslate2's folder with some of the files of transformers'."""
    shutil.copytree(made[1], to)
    copied = [shutil.copy(each, to) for each in made[0].iterdir() if each.name in names]
    assert copied
    return to


def translated(folder: Path, sources: Sequence[Sequence[str]], prefix: Sequence[str]) -> list[list[str]]:
    """The Translator's greedy outputs, behind the prefix (in mBART-25 the start token, which none holds)."""
    import ctranslate2

    given: dict[str, Any] = {"beam_size": 1, "min_decoding_length": 5, "max_decoding_length": LONGEST}
    if prefix:
        given["target_prefix"] = [[*prefix]] * len(sources)
    found = ctranslate2.Translator(str(folder)).translate_batch([[*each] for each in sources], **given)
    start = json.loads((folder / "config.json").read_text(encoding="utf-8"))["decoder_start_token"]
    return [each.hypotheses[0][0 if start is None else len(prefix) :] for each in found]


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("bart", SLOW),
        ("bart", {"tokenizer.json"}),
        ("bart", FAST),
        ("mbart", FAST),
        ("mbart", {"tokenizer.json"}),
        ("mbart50", FAST),
        ("mbart50", {"tokenizer.json"}),
        ("pegasus", SLOW),
        ("pegasus", FAST),
        ("pegasus", {"tokenizer.json"}),
        ("t5", SLOW),
        ("t5", FAST),
        ("t5", {"tokenizer.json"}),
        ("nllb", FAST),
        ("m2m_100", SLOW),
    ],
    ids=lambda each: each if isinstance(each, str) else "+".join(sorted(each)),
)
def test_lines_are_cut_and_translated_as_by_its_callers(
    family: str, names: set[str], models: Callable[[str], tuple[Path, Path]], tmp_path: Path
) -> None:
    import transformers

    folder = with_files(models(family), names, tmp_path / "folder")
    source, target = LANGUAGES.get(family, (None, None))
    tokenizer = transformers.AutoTokenizer.from_pretrained(models(family)[0])
    if source is not None:
        tokenizer.src_lang = source
    told = [] if target is None else [f"__{target}__" if family == "m2m_100" else target]
    sources = [tokenizer.convert_ids_to_tokens(tokenizer.encode(line)) for line in LINES]
    wanted = translated(folder, sources, told)

    model = nartk.load(folder, guard=False, source_lang=source, target_lang=target)
    read = [model.checkpoint.text.read(line, longest=500).tokens for line in LINES]
    assert [model.checkpoint.source_vocab.to_words(each) for each in read] == sources
    vocab = model.checkpoint.target_vocab
    # mBART-25 begins after its language, the others write it as their first word.
    written = len(told) - (told == [vocab.words[model.checkpoint.start_token or 0]])
    for line, theirs in zip(model.decode(LINES, **OPTIONS), wanted, strict=True):
        ours = vocab.to_words(line.tokens)[written:]
        ours = ours[:-1] if ours[-1] == tokenizer.eos_token else ours
        shared = min(len(ours), len(theirs))  # a language's word counts as a token of ours
        assert shared >= LONGEST - 1
        assert ours[:shared] == theirs[:shared]
        if names != SLOW or not {*ours} & {*tokenizer.all_special_tokens}:  # sentencepiece knows none
            ids = tokenizer.convert_tokens_to_ids(ours)
            assert line.text == tokenizer.decode(ids, skip_special_tokens=True)
    assert len({tuple(each) for each in wanted}) > 2


def test_a_native_folder_cuts_as_the_folder_does(
    models: Callable[[str], tuple[Path, Path]], tmp_path: Path
) -> None:
    folder = with_files(models("bart"), SLOW, tmp_path / "folder")
    assert convert([str(folder), "--output", str(tmp_path / "native"), "--quiet"]) == 0
    native, converted = (nartk.load(each, guard=False) for each in (tmp_path / "native", folder))
    texts = [[each.text for each in model.decode(LINES, **OPTIONS)] for model in (native, converted)]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 2


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A random model of words that subword-nmt has cut, as CTranslate2 has it, and the codes."""
    learn_bpe = pytest.importorskip("subword_nmt.learn_bpe")
    apply_bpe = pytest.importorskip("subword_nmt.apply_bpe")
    folder = tmp_path_factory.mktemp("split")
    codes = io.StringIO()
    learn_bpe.learn_bpe(io.StringIO("\n".join(tiny.SENTENCES * 4)), codes, 40, min_frequency=1)
    (folder / "codes").write_text(codes.getvalue(), encoding="utf-8")
    cut = apply_bpe.BPE(io.StringIO(codes.getvalue()))
    found = {word for line in tiny.SENTENCES for word in cut.process_line(line).split()}
    letters = {each for line in tiny.SENTENCES for each in line}
    found |= {f"{each}{end}" for each in letters - {" "} for end in ("", "@@")}
    tiny.random_model(folder / "ours", words=sorted(found))
    to = ["--to", "ctranslate2", "--output", str(folder / "made"), "--quiet"]
    assert convert([str(folder / "ours"), *to]) == 0
    return folder / "made", folder / "codes"


def fastbpe(text: str) -> str:
    """Codes as fastBPE writes them: without a first line, with a count behind each."""
    return "".join(f"{line} {100 - i}\n" for i, line in enumerate(text.splitlines()[1:]))


@pytest.mark.parametrize(
    ("name", "written"), [("bpe.codes", str), ("bpecodes", fastbpe), ("codes", str), ("source.bpe", str)]
)
def test_codes_cut_words_as_subword_nmt(
    name: str, written: Callable[[str], str], split: tuple[Path, Path], tmp_path: Path
) -> None:
    apply_bpe = pytest.importorskip("subword_nmt.apply_bpe")
    shutil.copytree(split[0], tmp_path / "folder")
    text = split[1].read_text(encoding="utf-8")
    for each in {name, name.replace("source", "target")}:
        (tmp_path / "folder" / each).write_text(written(text), encoding="utf-8")
    model = nartk.load(tmp_path / "folder", guard=False)
    assert [each.split(" cuts ")[0] for each in model.checkpoint.notices] == [
        name,
        name.replace("source", "target"),
    ]
    lines = [*tiny.SENTENCES, "she goessee tos"]
    cut = apply_bpe.BPE(io.StringIO(text))
    sources = [[*cut.process_line(line).split(), "</s>"] for line in lines]
    assert any("@@" in word for source in sources for word in source)
    read = [model.checkpoint.text.read(line, longest=500).tokens for line in lines]
    assert [model.checkpoint.source_vocab.to_words(each) for each in read] == sources
    wanted = translated(tmp_path / "folder", sources, [])
    found = model.decode(lines, **OPTIONS)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.text == f"{' '.join(theirs)} ".replace("@@ ", "").rstrip()
    assert len({each.text for each in found}) > 2


def test_a_package_of_argos_translate_with_codes(split: tuple[Path, Path], tmp_path: Path) -> None:
    """Its text is normalised and cut by sacremoses first, as argostranslate/tokenizer.py does."""
    apply_bpe = pytest.importorskip("subword_nmt.apply_bpe")
    moses = pytest.importorskip("sacremoses")
    package = tmp_path / "package"
    shutil.copytree(split[0], package / "model")
    shutil.copy(split[1], package / "bpe.model")
    (package / "metadata.json").write_text('{"from_code": "fr", "to_code": "en", "target_prefix": ""}')
    model = nartk.load(package, guard=False)
    assert model.checkpoint.notices == ()
    cut = apply_bpe.BPE(io.StringIO(split[1].read_text(encoding="utf-8")))
    normalised, words = moses.MosesPunctNormalizer("fr"), moses.MosesTokenizer("fr")
    lines = ["she's «nothing» at goes…", "l'a  she,goes—no ,", *tiny.SENTENCES]
    vocab = model.checkpoint.source_vocab
    for line in lines:
        wanted = cut.segment_tokens(words.tokenize(normalised.normalize(line)))
        assert list(model.checkpoint.text.read(line, longest=500).tokens[:-1]) == vocab.ids(wanted)
    outputs = model.decode(lines, **OPTIONS)
    back = moses.MosesDetokenizer("en")
    for each in outputs:
        pieces = [word for word in vocab.to_words(each.tokens) if word != "</s>"]
        # A word that the limit cuts has no end: Argos Translate leaves its mark there.
        whole = f"{' '.join(pieces)} ".replace("@@ ", "").rstrip()
        assert each.text == back.detokenize(whole.split(" "))


def refused(folder: Path, **given: Any) -> str:
    with pytest.raises(NartkError) as caught:
        load_checkpoint(folder, **given)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("tokenizer.json", lambda raw: raw[:300], "damaged files of a TokenizersBackend"),
        ("tokenizer.json", lambda raw: b"{}", "damaged files of a TokenizersBackend"),
        ("tokenizer_config.json", lambda raw: b"[]", "not a JSON object"),
        ("codes", lambda raw: b"\xff\xfe\x00", "not UTF-8"),
        ("codes", lambda raw: b"a b\nabc\n", "damaged|two symbols"),
    ],
)
def test_files_that_are_damaged_are_refused(
    name: str,
    change: Callable[[bytes], bytes],
    says: str,
    models: Callable[[str], tuple[Path, Path]],
    tmp_path: Path,
) -> None:
    names = {"tokenizer.json", name} - {"codes"}
    folder = tmp_path / "folder"
    if name == "codes":
        shutil.copytree(models("bart")[1], folder)
    else:
        with_files(models("bart"), names, folder)
    raw = (folder / name).read_bytes() if (folder / name).exists() else b""
    (folder / name).write_bytes(change(raw))
    assert re.search(says, refused(folder))


def test_a_tokenizer_of_another_model_is_refused(
    models: Callable[[str], tuple[Path, Path]], tmp_path: Path
) -> None:
    folder = with_files(models("bart"), {"tokenizer.json"}, tmp_path / "folder")
    shutil.copy(models("t5")[0] / "tokenizer.json", folder)
    assert "words" in refused(folder)


def test_languages_of_mbart_are_asked_for(models: Callable[[str], tuple[Path, Path]], tmp_path: Path) -> None:
    folder = with_files(models("mbart"), FAST, tmp_path / "folder")
    assert "is missing, of a model of 25 languages" in refused(folder, source_lang="de_DE")
    assert "which this model does not know" in refused(folder, source_lang="de_DE", target_lang="fra")
