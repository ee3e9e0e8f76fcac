"""The processors of a folder as transformers writes it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from nartk.errors import CheckpointError, UsageError, named
from nartk.files import Folder, JsonObject
from nartk.processors.hugging_face.classes import canonical, class_named, naming_damage, open_tokenizer
from nartk.processors.hugging_face.loading import NAME
from nartk.processors.hugging_face.tokenizer import SETTINGS
from nartk.vocab import SpecialIds

_CONFIG, _GENERATION = "config.json", "generation_config.json"


class HuggingFaceText(NamedTuple):
    """What the processors of a folder are loaded with.

    Attributes:
        input, output: Settings that `load_processor` reads, of the folder itself or of one with `files`.
        files: What a native folder takes over, by name.
        specials: bos, pad and eos are the model's, unk is the tokenizer's.
        words: How many the source has, and the target.
        notices: What was taken where nothing was said, in lines.
        tokenizer: What was read, which the loaders share as long as somebody holds it.
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
        source_lang: Of the lines; None: the tokenizer's own choice.
        target_lang: Of the outputs; None: what the model's configuration has.
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
