"""Tokenizers by their class names, and the processors of a folder that have one."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from nartk.errors import (
    CheckpointError,
    InputFormatError,
    NartkError,
    UnsupportedCheckpointError,
    UsageError,
    named,
)
from nartk.files import Folder, JsonObject
from nartk.processors import named_file, register_processor
from nartk.processors.hugging_face.fast import T5, Described, MBart, MBart50, Nllb, Pegasus, Roberta, Whisper
from nartk.processors.hugging_face.slow import M2M100, Marian
from nartk.processors.hugging_face.tokenizer import SETTINGS, Tokenizer
from nartk.processors.text import TextInput, TextOutput
from nartk.protocols.passes import TextSource
from nartk.vocab import MOST_WORDS, SpecialIds, Vocab

NAME = "hugging_face"
_CONFIG, _GENERATION = "config.json", "generation_config.json"
CLASSES: dict[str, type[Tokenizer]] = {
    "M2M100Tokenizer": M2M100,
    "MBart50Tokenizer": MBart50,
    "MBartTokenizer": MBart,
    "MarianTokenizer": Marian,
    "NllbTokenizer": Nllb,
    "PegasusTokenizer": Pegasus,
    "RobertaTokenizer": Roberta,
    "T5Tokenizer": T5,
    "TokenizersBackend": Described,
    "WhisperTokenizer": Whisper,
}
# Other names of the same, with ``Fast`` at the end or without.
ALIASES = {
    "BartTokenizer": "RobertaTokenizer",
    "MT5Tokenizer": "T5Tokenizer",
    "PreTrainedTokenizer": "TokenizersBackend",
}
# The class of a type of model whose folder names none.
DEFAULT_CLASS = {
    "bart": "RobertaTokenizer",
    "m2m_100": "M2M100Tokenizer",
    "marian": "MarianTokenizer",
    "mbart": "MBartTokenizer",
    "mt5": "T5Tokenizer",
    "pegasus": "PegasusTokenizer",
    "t5": "T5Tokenizer",
    "whisper": "WhisperTokenizer",
}


# Both sides of a model are one tokenizer.
_OPEN: weakref.WeakValueDictionary[tuple[object, ...], Tokenizer] = weakref.WeakValueDictionary()


def canonical(name: object, model_type: str) -> str:
    """The name in `CLASSES` of the class that a folder names, or else has by its type of model."""
    found = str(name or DEFAULT_CLASS.get(model_type)).removesuffix("Fast")
    return ALIASES.get(found, found)


def class_named(name: str, where: str) -> type[Tokenizer]:
    """A tokenizer class; raises UnsupportedCheckpointError if nartk does not have it."""
    if name not in CLASSES:
        raise UnsupportedCheckpointError(
            f"the tokenizer class {name!r}", fix=f"nartk has {', '.join(CLASSES)}", where=where
        )
    return CLASSES[name]


def open_tokenizer(folder: Folder, settings: JsonObject) -> Tokenizer:
    """The tokenizer of a folder, which is read once as long as somebody holds it."""
    name = str(settings.get("class"))
    found = class_named(name, str(folder))
    keys = {*SETTINGS, *(key for each in found.files for key in each)}
    paths = {key: named_file(folder, settings, key) for key in sorted(keys & settings.keys())}
    stats = [(path, os.stat(path)) for path in paths.values()]
    key = (name, *((path, stat.st_ino, stat.st_mtime_ns) for path, stat in stats))
    tokenizer = _OPEN.get(key)
    if tokenizer is None:
        with naming_damage(str(folder), name):
            tokenizer = found(folder, paths)
        _OPEN[key] = tokenizer
    return tokenizer


@contextmanager
def naming_damage(where: str, name: str) -> Iterator[None]:
    """Reports what damaged files of a tokenizer raise as a CheckpointError."""
    try:
        yield
    except (NartkError, MemoryError, OSError):
        raise
    except Exception as error:  # `tokenizers` raises nothing narrower
        raise CheckpointError(f"damaged files of a {name}: {error}", where=where) from error


@dataclass(frozen=True)
class HuggingFaceTokenizer(TextOutput):
    """Text of one side as a tokenizer has it. Implements `OutputProcessor`.

    Attributes:
        target: True if it is the target's.
        prefix: Text before each line.
        first_words: Ids before each line, one at most.
    """

    tokenizer: Tokenizer
    vocab: Vocab
    target: bool
    prefix: str = ""
    first_words: tuple[int, ...] = ()

    def encode(self, text: str) -> list[int]:
        ids = [*self.first_words, *self.tokenizer.encode(self.prefix + text, target=self.target)]
        if max(ids, default=0) >= len(self.vocab):
            raise InputFormatError(
                f"holds the token {max(ids)} of a model with {len(self.vocab)} words",
                fix="take the tokenizer's special tokens out of the line",
            )
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids)


class HuggingFaceInput(TextInput):
    """Reads a line between special words. An output that copies it has neither these nor the prefix.

    Args:
        first_words: Ids that an output begins with, one at most.
    """

    def __init__(
        self,
        tokenizer: HuggingFaceTokenizer,
        before: Sequence[int],
        after: Sequence[int],
        first_words: tuple[int, ...],
    ) -> None:
        super().__init__(tokenizer, before, after)
        self.first_words = first_words
        self.prefix = tokenizer.encode("") if tokenizer.prefix else []

    def read(self, line: str, *, longest: int, truncate: bool = False) -> TextSource:
        tokens = super().read(line, longest=longest, truncate=truncate).tokens
        inner = tokens[len(self.before) : len(tokens) - len(self.after)]
        # The prefix may be cut otherwise before a line than alone.
        same = takewhile(lambda pair: pair[0] == pair[1], zip(self.prefix, inner, strict=False))
        words = inner[len(list(same)) :]
        return TextSource(tokens, (*self.first_words, *words) if words else ())


@register_processor("input", NAME)
def load_input(folder: Folder, settings: JsonObject, specials: SpecialIds) -> TextInput:
    before, after, prefix = (settings.get(key) for key in ("before", "after", "prefix"))
    first = _first_words(folder, settings)
    if not isinstance(prefix, str):
        raise CheckpointError(f"'prefix' is {prefix!r}, not a text", where=str(folder))
    tokenizer, vocab = _load(folder, settings, specials, target=False)
    for key, ids in (("before", before), ("after", after)):
        if not isinstance(ids, list) or not all(type(id) is int and 0 <= id < len(vocab) for id in ids):
            raise CheckpointError(f"{key!r} is {ids!r}, not ids of words", where=str(folder))
    text = HuggingFaceTokenizer(tokenizer, vocab, target=False, prefix=prefix)
    return HuggingFaceInput(text, before or (), after or (), first)


@register_processor("output", NAME)
def load_output(folder: Folder, settings: JsonObject, specials: SpecialIds) -> HuggingFaceTokenizer:
    tokenizer, vocab = _load(folder, settings, specials, target=True)
    return HuggingFaceTokenizer(tokenizer, vocab, target=True, first_words=_first_words(folder, settings))


def _first_words(folder: Folder, settings: JsonObject) -> tuple[int, ...]:
    first, count = settings.get("first_word"), settings.get("words")
    if first is None:
        return ()
    if type(first) is not int or type(count) is not int or not 0 <= first < count:
        raise CheckpointError(f"'first_word' is {first!r}, not the id of a word", where=str(folder))
    return (first,)


def _load(
    folder: Folder, settings: JsonObject, specials: SpecialIds, *, target: bool
) -> tuple[Tokenizer, Vocab]:
    count = settings.get("words")
    if type(count) is not int or not max(astuple(specials)) < count <= MOST_WORDS:
        raise CheckpointError(f"'words' is {count!r}, with special ids {specials}", where=str(folder))
    tokenizer = open_tokenizer(folder, settings)
    ends = settings.get("also_eos", [])
    if not isinstance(ends, list) or not all(type(id) is int and 0 <= id < count for id in ends):
        raise CheckpointError(f"'also_eos' is {ends!r}, not ids of words", where=str(folder))
    key = (count, specials, (*ends,), target and "target_vocabulary" in tokenizer.paths)
    if key not in tokenizer.vocabs:
        words = tuple(tokenizer.words(count, target=target))
        tokenizer.vocabs[key] = replace(Vocab(words, *astuple(specials)), also_eos=(*ends,))
    return tokenizer, tokenizer.vocabs[key]


class HuggingFaceText(NamedTuple):
    """Settings and files of a folder's processors.

    Attributes:
        input, output: Settings that `load_processor` reads, of the folder itself or of one with `files`.
        files: Files that a native folder takes over, by name.
        specials: bos, pad and eos are the model's, unk is the tokenizer's.
        words: Number of the source's words, and of the target's.
        notices: Lines on defaults that were taken.
        tokenizer: The tokenizer read, which the loaders share as long as somebody holds it.
    """

    input: JsonObject
    output: JsonObject
    files: dict[str, Path]
    specials: SpecialIds
    words: tuple[int, int]
    notices: tuple[str, ...]
    tokenizer: object


def hugging_face_processors(
    folder: str | os.PathLike[str],
    *,
    source_lang: str | None = None,
    target_lang: str | None = None,
    source_prefix: str | None = None,
    ends: Sequence[int] = (),
    start: Callable[[], int] | None = None,
) -> HuggingFaceText:
    """The processors of a folder as transformers writes it.

    Args:
        ends: The words that end an output, the model's eos first; none: config.json or the tokenizer says.
        start: Finds what outputs begin after where no language is given; it may be one.
        source_lang: Language of the lines; None: the tokenizer's own choice.
        target_lang: Language of the outputs; None: that of the model's configuration.
        source_prefix: Put before each line.

    Raises:
        UnsupportedCheckpointError: nartk does not have its tokenizer, or the tokenizer lacks a special token.
        CheckpointError: A file is missing or damaged, or two special tokens are one.
        UsageError: The tokenizer does not know a language.
        MissingDependencyError: `tokenizers` is not installed.
    """
    opened = Folder.at(folder)
    config, where = opened.json(_CONFIG), str(folder)
    beside = {key: name for key, name in SETTINGS.items() if opened.has(name)}
    own = opened.json(beside["settings"]) if "settings" in beside else {}
    name = canonical(
        own.get("tokenizer_class") or config.get("tokenizer_class"), str(config.get("model_type"))
    )
    found = class_named(name, where)
    names = next((each for each in found.files if all(map(opened.has, each.values()))), None)
    if names is None:
        wanted = ", or ".join(" and ".join(each.values()) for each in found.files)
        raise CheckpointError(f"the files of a {name} are missing: {wanted}", where=where)
    settings = {"name": NAME, "class": name, **names, **beside}
    tokenizer = open_tokenizer(opened, settings)
    with naming_damage(where, name):  # now, for some files are read when they are first needed
        tokenizer.encode("a", target=False)
        tokenizer.decode(tokenizer.encode("a", target=True))
    languages = tokenizer.languages()
    prefix = "" if source_prefix is None else source_prefix

    def language(name: str, option: str) -> int:
        if name not in languages:
            known = ", ".join(sorted(languages))
            raise UsageError(
                f"{named(option)} is {name!r}, which this model's tokenizer does not know",
                fix=f"choose from {known}" if known else "leave it out",
            )
        return languages[name]

    source = start_word = None
    if source_lang is None:
        source_lang = tokenizer.config.get("src_lang") or tokenizer.source_language
    elif tokenizer.source_language is None:
        raise UsageError(
            f"{named('source_lang', source_lang)} for a {name}, whose sources have no language",
            fix="leave it out",
        )
    if source_lang is not None and tokenizer.source_language is not None:
        source = language(source_lang, "source_lang")
    generation = opened.optional_json(_GENERATION)
    first = (config if generation is None else generation).get("forced_bos_token_id")
    if target_lang is not None:
        target = language(target_lang, "target_lang")
        if tokenizer.writes_language:
            first = target
        elif tokenizer.source_language is not None:
            start_word = target
        else:
            prefix = f">>{target_lang}<< {prefix}"
    notices = []
    if target_lang is None and tokenizer.source_language is not None:
        taken = start() if start is not None and not tokenizer.writes_language else first
        what = next(
            (repr(name) for name, id in languages.items() if id == taken), "a language of the model's choice"
        )
        notices.append(
            f"{named('target_lang')} is not given: outputs are in {what}, as its files have it; lines are in "
            f"{source_lang!r}"
        )
    before, after = tokenizer.around(source)
    sizes = config.get("vocab_size"), config.get("decoder_vocab_size", config.get("vocab_size"))
    words = tuple(size if type(size) is int and size > 0 else -1 for size in sizes)
    if -1 in words:
        raise CheckpointError(f"'vocab_size' is {sizes[words.index(-1)]!r}", where=str(opened / _CONFIG))
    if ends:
        config = {**config, "eos_token_id": ends[0]}
    specials = tokenizer.special_ids(config, min(words))
    return HuggingFaceText(
        input={
            **settings,
            "words": words[0],
            "prefix": prefix,
            "before": before,
            "after": after,
            "first_word": first,
        },
        output={
            **{**settings, "words": words[1], "first_word": first, "start_word": start_word},
            **({"also_eos": [*ends[1:]]} if ends[1:] else {}),
        },
        files={each: opened / each for each in (*names.values(), *beside.values())},
        specials=specials,
        words=(words[0], words[1]),
        notices=(*notices,),
        tokenizer=tokenizer,
    )
