"""The files beside a model.bin by which text is cut into the words of its vocabularies.

CTranslate2 itself reads words alone: converters copy what they are told to (``--copy_files``), and users put
there what the model was trained with. The first of these that is whole is read, of one side or of both:

- a sentencepiece model;
- the files of a tokenizer of Hugging Face's: those of the class that tokenizer_config.json names, or
  tokenizer.json, or vocab.json and merges.txt (byte-level BPE);
- codes of BPE, by subword-nmt or fastBPE: text is cut at spaces first, in packages of Argos Translate by the
  Moses tokeniser behind its normaliser of punctuation (argostranslate/tokenizer.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nartk.errors import CheckpointError
from nartk.files import Folder, JsonObject
from nartk.processors.hugging_face.loading import CLASSES, canonical, naming_damage, open_tokenizer
from nartk.processors.hugging_face.tokenizer import SETTINGS, Tokenizer

PACKAGE = "metadata.json"  # of packages of Argos Translate
SIDES = ("source", "target")
# Names of files, of one side before those of both.
_PIECES = ("{}.spm", "sentencepiece.model", "sentencepiece.bpe.model", "spiece.model", "spm.model")
_CODES = ("{}.bpe", "{}.codes", "bpe.codes", "bpecodes", "codes", "codes.txt", "bpe.model")
_MOST_CODES = 100_000_000  # bytes


class Cut(NamedTuple):
    """Settings by which the text of a side is cut.

    Attributes:
        settings: Those of `nartk.processors.ctranslate2`.
        files: Names of the files that they name.
        around: Words that the tokenizer puts before a source, and after it; None: it puts none itself.
        notice: Line on what the folder does not tell, or "".
    """

    settings: JsonObject
    files: Sequence[str]
    around: tuple[list[str], list[str]] | None = None
    notice: str = ""


def cut_of(folder: Folder, side: str, package: JsonObject) -> Cut:
    """Finds what cuts the text of a side; without any, words are what stands between spaces.

    Args:
        side: One of `SIDES`.
        package: Contents of metadata.json, where the folder is a package of Argos Translate.

    Raises:
        UnsupportedCheckpointError: The tokenizer is not known to nartk.
        CheckpointError: A file is damaged.
        MissingDependencyError: A module is missing that reads it.
    """
    pieces = _first(folder, _PIECES, side)
    if pieces is not None:
        return Cut({"sentencepiece": pieces}, [pieces])
    tokenizer = _tokenizer_settings(folder)
    if tokenizer is not None:
        return _of_tokenizer(folder, tokenizer)
    codes = _first(folder, _CODES, side)
    if codes is not None:
        return _of_codes(folder, side, codes, package)
    return Cut({}, [], notice=f"no tokenizer for the {side}: its words are what stands between spaces")


def _first(folder: Folder, names: Sequence[str], side: str) -> str | None:
    return next((each for each in (name.format(side) for name in names) if folder.has(each)), None)


def _tokenizer_settings(folder: Folder) -> JsonObject | None:
    """The settings of the tokenizer of Hugging Face's whose files are there; None: there is none."""
    beside = {key: name for key, name in SETTINGS.items() if folder.has(name)}
    own = folder.json(beside["settings"]) if "settings" in beside else {}
    named = canonical(own.get("tokenizer_class"), "")
    # What tokenizer.json describes needs no class; vocab.json and merges.txt are BART's where none is named.
    for name in (named, "TokenizersBackend", "RobertaTokenizer"):
        for files in CLASSES[name].files if name in CLASSES else ():
            if all(map(folder.has, files.values())):
                return {"class": name, **files, **beside}
    return None


def _of_tokenizer(folder: Folder, settings: JsonObject) -> Cut:
    tokenizer: Tokenizer = open_tokenizer(folder, settings)
    with naming_damage(str(folder), str(settings["class"])):  # some files are read when they are first needed
        tokenizer.encode("a", target=False)
        before, after = tokenizer.around(None)
        words = tokenizer.words(max((*before, *after), default=-1) + 1, target=False)
    around = [words[id] for id in before], [words[id] for id in after]
    files = [name for key, name in settings.items() if key != "class"]
    return Cut({"tokenizer": settings}, files, around)


def _of_codes(folder: Folder, side: str, codes: str, package: JsonObject) -> Cut:
    try:
        lines = folder.read(codes, most=_MOST_CODES).decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise CheckpointError("codes of BPE that are not UTF-8", where=str(folder / codes)) from error
    pairs = [line for line in lines if line and not line.startswith("#version:")]
    program = "fastbpe" if pairs and len(pairs[0].split(" ")) == 3 else "subword-nmt"
    found: JsonObject = {"bpe": program, "codes": codes}
    lang = package.get({"source": "from_code", "target": "to_code"}[side])
    if isinstance(lang, str):
        moses = {"lang": lang, "dash_splits": False, "escape": True, "punctuation": True}
        return Cut({**found, "moses": moses}, [codes])
    notice = f"{codes} cuts the {side}'s words, which are what stands between spaces: give tokenised text"
    return Cut(found, [codes], notice=notice)
