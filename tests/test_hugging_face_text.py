"""Hugging Face's tokenizers, read from their files: equal to transformers' own of the same folders."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from support import hugging_face_text as small

from nartk.adapters.hf import import_transformers
from nartk.decoders.drafters.ngram_cache import NgramCache
from nartk.decoders.drafters.source_copy import SourceCopy
from nartk.errors import (
    CheckpointError,
    InputFormatError,
    InputTooLongError,
    MissingDependencyError,
    UnsupportedCheckpointError,
    UsageError,
)
from nartk.processors import load_processor
from nartk.processors.hugging_face import HuggingFaceText, hugging_face_processors
from nartk.processors.hugging_face.pieces import Pieces
from nartk.protocols.hypothesis import Request
from nartk.vocab import SpecialIds

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

# What a process without transformers makes of folders: of each, sources, targets and texts.
OURS = """
import json, sys
from pathlib import Path
sys.modules["transformers"] = sys.modules["torch"] = None
from nartk.processors import load_processor
from nartk.processors.hugging_face import hugging_face_processors

given = json.load(sys.stdin)
for folder, ids in given["folders"].items():
    path = Path(folder)
    found = hugging_face_processors(path)
    source = load_processor("input", path, found.input, found.specials)
    target = load_processor("output", path, found.output, found.specials)
    print(json.dumps({
        "sources": [source.read(line, longest=10**6).tokens for line in given["lines"]],
        "targets": [target.encode(line) for line in given["lines"]],
        "texts": [target.decode(each) for each in ids],
    }))
assert sys.modules["transformers"] is None
"""

LINES = small.mixed_lines()


def theirs(folder: Path, **settings: Any) -> Any:
    transformers = import_transformers()
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings(action="ignore"):  # Marian's wants sacremoses, of which it makes no use
        return transformers.AutoTokenizer.from_pretrained(str(folder), **settings)


def ours(folder: Path, **settings: Any) -> tuple[HuggingFaceText, Any, Any]:
    found = hugging_face_processors(folder, **settings)
    source = load_processor("input", folder, found.input, found.specials)
    return found, source, load_processor("output", folder, found.output, found.specials)


def edit(path: Path, **changes: Any) -> None:
    """Changes keys of a JSON file; those of None are removed."""
    value = json.loads(path.read_text()) if path.is_file() else {}
    value |= changes
    small.write_json(path, {key: each for key, each in value.items() if each is not None})


def as_saved(slow: Path, made: Path) -> None:
    """As transformers 5 saves it."""
    theirs(slow).save_pretrained(made)


def as_of_4(slow: Path, made: Path) -> None:
    """As transformers 4 saved it: every file, and tokenizer.json with that version's pipeline."""
    as_saved(slow, made)
    for path in slow.iterdir():
        if path.name not in ("config.json", "tokenizer_config.json"):
            shutil.copy(path, made / path.name)
    named = {name: token for name, token in theirs(slow).special_tokens_map.items() if isinstance(token, str)}
    edit(made / "special_tokens_map.json", **named)
    edit(made / "tokenizer_config.json", backend=None, is_local=None, clean_up_tokenization_spaces=True)
    path = made / "tokenizer.json"
    if path.is_file():
        described = json.loads(path.read_text())
        listed = {
            token["id"]: {k: v for k, v in token.items() if k != "id"} for token in described["added_tokens"]
        }
        edit(made / "tokenizer_config.json", added_tokens_decoder=listed)
        if described["pre_tokenizer"]["type"] != "ByteLevel":
            metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}
            steps = [{"type": "WhitespaceSplit"}, metaspace]
            described["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
            small.write_json(path, described)


def fast_only(slow: Path, made: Path) -> None:
    """tokenizer.json alone."""
    as_saved(slow, made)
    own = json.loads((made / "tokenizer_config.json").read_text())
    kept = {key: own[key] for key in ("tokenizer_class", "src_lang", "extra_ids") if key in own}
    small.write_json(made / "tokenizer_config.json", kept)


def described(slow: Path, made: Path) -> None:
    """tokenizer.json of a class that has no other description."""
    fast_only(slow, made)
    edit(made / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast", unk_token="<unk>")
    edit(made / "tokenizer_config.json", eos_token="</s>", pad_token="<pad>")


LAYOUTS: tuple[Callable[[Path, Path], None], ...] = (as_saved, as_of_4, fast_only, described)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of each family, and of each layout of it."""
    top = tmp_path_factory.mktemp("tokenizers")
    found: dict[str, Path] = {}
    for name, make in small.FAMILIES.items():
        found[name] = top / name
        found[name].mkdir()
        make(found[name])
        for layout in LAYOUTS:
            if layout not in (as_saved, as_of_4) and name in ("m2m_100", "marian", "marian_separate"):
                continue  # they have no tokenizer.json
            made = found[f"{name}-{layout.__name__}"] = top / f"{name}-{layout.__name__}"
            made.mkdir()
            layout(found[name], made)
            shutil.copy(found[name] / "config.json", made)
    return found


@pytest.fixture(scope="module")
def expected(folders: dict[str, Path]) -> dict[str, dict[str, list[Any]]]:
    """Of each folder what transformers makes of the lines, and some ids of it."""
    draw = random.Random(3)
    found = {}
    for name, folder in folders.items():
        tokenizer = theirs(folder)
        words = min(len(tokenizer), json.loads((folder / "config.json").read_text())["vocab_size"])
        sources = [tokenizer(line)["input_ids"] for line in LINES]
        ids = sources[::2] + [[draw.randrange(words) for _ in range(12)] for _ in range(200)]
        found[name] = {
            "sources": sources,
            "targets": [tokenizer(text_target=line, add_special_tokens=False)["input_ids"] for line in LINES],
            "ids": ids,
            "texts": [tokenizer.decode(each, skip_special_tokens=True) for each in ids],
        }
    return found


@pytest.fixture(scope="module")
def made(folders: dict[str, Path], expected: dict[str, Any]) -> dict[str, Any]:
    """What a process makes of the same in which transformers cannot be imported."""
    given = {"lines": LINES, "folders": {str(folders[name]): each["ids"] for name, each in expected.items()}}
    run = subprocess.run(
        [sys.executable, "-c", OURS], input=json.dumps(given), capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return dict(zip(expected, map(json.loads, run.stdout.splitlines()), strict=True))


NAMES = [
    name if layout is None else f"{name}-{layout.__name__}"
    for name in small.FAMILIES
    for layout in (None, *LAYOUTS)
    if layout in (None, as_saved, as_of_4) or name not in ("m2m_100", "marian", "marian_separate")
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("what", ["sources", "targets", "texts"])
def test_as_transformers(name: str, what: str, expected: dict[str, Any], made: dict[str, Any]) -> None:
    assert len(LINES) == 1000
    given = expected[name]["ids"] if what == "texts" else LINES
    for line, theirs, ours in zip(given, expected[name][what], made[name][what], strict=True):
        assert ours == theirs, line


def test_pieces_are_sentencepiece_s(tmp_path: Path) -> None:
    """What is read of a model's file without its library."""
    small.train_pieces(tmp_path / "spiece.model", user_defined_symbols=["<n>"])
    found = Pieces(tmp_path / "spiece.model")
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    ids = list(range(len(model)))
    assert found.scored() == list(zip(model.id_to_piece(ids), model.get_score(ids), strict=True))
    assert [symbol["content"] for symbol in found.symbols()] == ["<s>", "</s>", "<n>"]


# Of each family with languages: a source's, a target's, and where the target's token comes in.
LANGUAGES = {
    "mbart": ("de_DE", "fr_XX", "start_word"),
    "mbart50": ("de_DE", "fr_XX", "first_word"),
    "nllb": ("deu_Latn", "fra_Latn", "first_word"),
    "m2m_100": ("de", "fr", "first_word"),
}


@pytest.mark.parametrize("family", LANGUAGES)
def test_languages(family: str, folders: dict[str, Path]) -> None:
    source_lang, target_lang, key = LANGUAGES[family]
    found, source, target = ours(folders[family], source_lang=source_lang, target_lang=target_lang)
    tokenizer = theirs(folders[family], src_lang=source_lang, tgt_lang=target_lang)
    language = tokenizer.convert_tokens_to_ids("__fr__" if family == "m2m_100" else target_lang)
    none = {"first_word": None, "start_word": None}
    assert {name: found.output[name] for name in none} == {**none, key: language}
    for line in LINES[200:300]:
        assert list(source.read(line, longest=1000)) == tokenizer(line)["input_ids"]
        # What a model of the family is taught to write, without the end; mBART's ends with its language.
        labels = tokenizer(text_target=line)["input_ids"][: -2 if family == "mbart" else -1]
        assert target.encode(line) == labels
    plain, _, _ = ours(folders[family])
    assert {name: plain.output[name] for name in none} == none


def test_suffix_of_older_nllb(tmp_path: Path) -> None:
    small.nllb(tmp_path, legacy_behaviour=True)
    _, source, _ = ours(tmp_path, source_lang="deu_Latn")
    wanted = theirs(tmp_path, src_lang="deu_Latn")("Guten Tag")["input_ids"]
    assert list(source.read("Guten Tag", longest=100)) == wanted
    assert wanted[-1] == theirs(tmp_path).convert_tokens_to_ids("deu_Latn")


def test_language_before_text_of_marian(folders: dict[str, Path]) -> None:
    _, source, target = ours(folders["marian"], target_lang="fra")
    tokenizer = theirs(folders["marian"])
    assert list(source.read("It rains.", longest=50)) == tokenizer(">>fra<< It rains.")["input_ids"]
    assert (
        target.encode("It rains.")
        == tokenizer(text_target="It rains.", add_special_tokens=False)["input_ids"]
    )


def test_source_prefix(folders: dict[str, Path]) -> None:
    _, source, target = ours(folders["t5"], source_prefix="translate English to German: ")
    wanted = theirs(folders["t5"])("translate English to German: It rains.")["input_ids"]
    assert list(source.read("It rains.", longest=50)) == wanted
    assert target.encode("It rains.") == theirs(folders["t5"])("It rains.")["input_ids"][:-1]


def test_forced_first_word(folders: dict[str, Path], tmp_path: Path) -> None:
    """Prefixes and drafts begin with what `generate` forces outputs to begin with."""
    folder = shutil.copytree(folders["bart"], tmp_path / "bart")
    edit(folder / "config.json", forced_bos_token_id=0)
    assert ours(folder)[2].encode("It") == [0, *theirs(folder)("It")["input_ids"][1:-1]]
    edit(folder / "generation_config.json", eos_token_id=2)
    assert ours(folder)[2].encode("It") == theirs(folder)("It")["input_ids"][1:-1]


@pytest.mark.parametrize("family", ["t5", "bart", "marian", "m2m_100"])
def test_tidied_outputs(family: str, folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders[family], tmp_path / family)
    edit(folder / "tokenizer_config.json", clean_up_tokenization_spaces=True)
    tokenizer, (_, _, target) = theirs(folder), ours(folder)
    ids = tokenizer("I ca n't say , it 's so .")["input_ids"]
    written = tokenizer.decode(ids, skip_special_tokens=True)
    assert target.decode(ids) == written
    assert (" , " in written) == (family == "bart")  # which transformers leaves as it is


def test_too_long(folders: dict[str, Path]) -> None:
    _, source, _ = ours(folders["mbart"])
    whole = list(source.read("It rains today.", longest=100))
    with pytest.raises(InputTooLongError, match=f"{len(whole) - 2} tokens > 2"):
        source.read("It rains today.", longest=4)
    cut = theirs(folders["mbart"])("It rains today.", truncation=True, max_length=4)["input_ids"]
    assert list(source.read("It rains today.", longest=4, truncate=True)) == cut == [*whole[:2], *whole[-2:]]


def test_token_without_a_row(folders: dict[str, Path], tmp_path: Path) -> None:
    """As bart-large-cnn, whose tokenizer has <mask> and whose model has not."""
    folder = shutil.copytree(folders["bart"], tmp_path / "bart")
    size = len(theirs(folder)) - 1
    edit(folder / "config.json", vocab_size=size)
    _, source, _ = ours(folder)
    assert len(source.read("It rains.", longest=50)) > 3
    with pytest.raises(InputFormatError) as raised:
        source.read("It <mask>.", longest=50)
    assert raised.value.message == f"holds the token {size} of a model with {size} words"


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("t5", {"source_prefix": "translate English to German: "}),
        ("marian", {"target_lang": "deu"}),
        ("mbart", {}),
        ("nllb", {"target_lang": "fra_Latn"}),
        ("m2m_100", {"target_lang": "de"}),
        ("bart", {}),
    ],
)
def test_what_a_copy_is(family: str, settings: dict[str, str], folders: dict[str, Path]) -> None:
    """Drafts from the source are the line, behind the word that outputs are forced to begin with."""
    found, source, target = ours(folders[family], **settings)
    plain = theirs(folders[family])("We saw it twice.", add_special_tokens=False)["input_ids"]
    request = Request(0, source.read("We saw it twice.", longest=99), 99)
    words = np.arange(len(target.vocab), dtype=np.int32)
    first = found.output["first_word"]
    assert (first is None) == (family in ("t5", "marian", "mbart", "bart"))
    copied = plain if first is None else [first, *plain]
    assert SourceCopy(words).begin(request).words == copied
    texts = NgramCache(words, max_ngram=3, max_draft=9).begin(request)
    assert {word for gram in texts.occurrences for word in gram if word >= 0} == {*copied[:-1]}


def test_special_ids(folders: dict[str, Path]) -> None:
    assert {name: ours(folders[name])[0].specials for name in ("t5", "pegasus", "bart", "m2m_100")} == {
        "t5": SpecialIds(bos=0, pad=0, eos=1, unk=2),
        "pegasus": SpecialIds(bos=0, pad=0, eos=1, unk=105),
        "bart": SpecialIds(bos=0, pad=1, eos=2, unk=3),
        "m2m_100": SpecialIds(bos=0, pad=1, eos=2, unk=3),
    }


def test_words_are_the_model_s(folders: dict[str, Path]) -> None:
    """Rows beyond the tokenizer's words have names of their own."""
    found, source, target = ours(folders["t5"])
    tokenizer = theirs(folders["t5"])
    assert found.words == (len(target.vocab), len(source.vocab)) == (len(tokenizer) + 28,) * 2
    assert list(target.vocab.words[: len(tokenizer)]) == tokenizer.convert_ids_to_tokens(
        range(len(tokenizer))
    )
    assert target.vocab.words[-1] == f"<unused_{len(tokenizer) + 27}>"


def test_native_folder(folders: dict[str, Path], tmp_path: Path) -> None:
    """The settings and the files are enough."""
    for name, folder in folders.items():
        found, source, target = ours(folder)
        made = tmp_path / name
        made.mkdir()
        for file, path in found.files.items():
            shutil.copy(path, made / file)
        settings = json.loads(json.dumps([found.input, found.output]))
        copied = [
            load_processor(side, made, each, found.specials)
            for side, each in zip(("input", "output"), settings, strict=True)
        ]
        assert copied[0].read(LINES[300], longest=1000).tokens == source.read(LINES[300], longest=1000).tokens
        assert copied[1].vocab == target.vocab


def damage(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text)  # type: ignore[return-value]


REFUSED: dict[str, tuple[str, Callable[[Path], Any], dict[str, str], type[Exception], str]] = {
    "class": (
        "bart",
        lambda folder: edit(folder / "tokenizer_config.json", tokenizer_class="BertTokenizerFast"),
        {},
        UnsupportedCheckpointError,
        "the tokenizer class 'BertTokenizer'. Fix: nartk has M2M100Tokenizer, MBart50Tokenizer,",
    ),
    "code": (
        "t5",
        lambda folder: edit(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["a.B", None]}),
        {},
        UnsupportedCheckpointError,
        "'auto_map' is {'AutoTokenizer': ['a.B', None]} in tokenizer_config.json",
    ),
    "files": (
        "marian",
        lambda folder: (folder / "target.spm").unlink(),
        {},
        CheckpointError,
        "the files of a MarianTokenizer are missing: source.spm and target.spm and vocab.json",
    ),
    "languages": (
        "nllb",
        lambda folder: edit(folder / "tokenizer_config.json", additional_special_tokens=[]),
        {},
        UsageError,
        "source_lang is 'eng_Latn', which this model's tokenizer does not know",
    ),
    "source language": (
        "nllb",
        lambda folder: None,
        {"source_lang": "xx"},
        UsageError,
        "choose from ace_Arab, deu_Latn, eng_Latn, fra_Latn, zho_Hans",
    ),
    "language of a family without": (
        "t5",
        lambda folder: None,
        {"source_lang": "en"},
        UsageError,
        "source_lang='en' for a T5Tokenizer, whose sources have no language",
    ),
    "target language": (
        "bart",
        lambda folder: None,
        {"target_lang": "de"},
        UsageError,
        "target_lang is 'de'",
    ),
    "same ids": (
        "bart",
        lambda folder: edit(folder / "config.json", pad_token_id=2),
        {},
        CheckpointError,
        "special ids (0, 2, 2, 3) of bos, pad, eos and unk: one is below 0, or that of two symbols",
    ),
    "unknown": (
        "t5",
        lambda folder: described_without_unknown(folder),
        {},
        UnsupportedCheckpointError,
        "a tokenizer without a unk_token",
    ),
    "json": ("bart", damage("vocab.json", "{"), {}, CheckpointError, "damaged files of a RobertaTokenizer"),
    "pieces": ("t5", damage("spiece.model", "none"), {}, CheckpointError, "damaged files of a T5Tokenizer"),
    "marian's pieces": (
        "marian",
        damage("source.spm", "none"),
        {},
        CheckpointError,
        "not a sentencepiece model",
    ),
    "marian's pieces of targets": (
        "marian",
        damage("target.spm", "none"),
        {},
        CheckpointError,
        "not a sentencepiece model",
    ),
    "marian's unknown": (
        "marian",
        lambda folder: edit(folder / "vocab.json", **{"<unk>": None}),
        {},
        CheckpointError,
        "a vocabulary without '<unk>'",
    ),
    "an id that is none": (
        "marian",
        lambda folder: edit(folder / "vocab.json", **{"<unk>": "3"}),
        {},
        CheckpointError,
        "the id of '<unk>' is '3'",
    ),
    "an id below 0": (
        "m2m_100",
        lambda folder: edit(folder / "vocab.json", **{"</s>": -1}),
        {},
        CheckpointError,
        "the id of '</s>' is -1",
    ),
    "settings": ("t5", damage("tokenizer_config.json", "[]"), {}, CheckpointError, "not a JSON object"),
    "added": (
        "t5",
        damage("tokenizer_config.json", '{"added_tokens_decoder": 5}'),
        {},
        CheckpointError,
        "damaged files of a T5Tokenizer",
    ),
}


def described_without_unknown(folder: Path) -> None:
    made = folder / "made"
    made.mkdir()
    described(folder, made)
    for path in made.iterdir():
        shutil.copy(path, folder)
    edit(folder / "tokenizer_config.json", unk_token=None)


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, folders: dict[str, Path], tmp_path: Path) -> None:
    family, change, settings, error, message = REFUSED[case]
    folder = shutil.copytree(folders[family], tmp_path / family)
    change(folder)
    with pytest.raises(error) as raised:
        hugging_face_processors(folder, **settings)
    assert message in str(raised.value)


def test_without_the_library(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingDependencyError) as raised:
        ours(folders["t5"])
    assert raised.value.fix == "pip install 'nartk[hf]'"
    ours(folders["marian"])  # by sentencepiece alone
