"""Writes model folders, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from nartk.checkpoints.generation import KEY as GENERATION
from nartk.checkpoints.names import (
    ADDED,
    CARD,
    CONFIG,
    DICTIONARY,
    TARGET_DICTIONARY,
    TARGET_TOKENIZER,
    TOKENIZER,
    WEIGHTS,
)
from nartk.checkpoints.native import FORMAT
from nartk.errors import CheckpointError
from nartk.files import Folder, JsonObject, read_file, sha256, write_json, writing, writing_folder
from nartk.processors.text import SentencePieceTokenizer
from nartk.vocab import Vocab

if TYPE_CHECKING:
    from torch import Tensor

_NAMES = (WEIGHTS, CONFIG, CARD, DICTIONARY, TARGET_DICTIONARY, TOKENIZER, TARGET_TOKENIZER, *ADDED)
_MOST_COPIED = 1_000_000_000  # bytes of a processor's file


def save_checkpoint(
    folder: Path,
    *,
    architecture: str,
    settings: JsonObject,
    tensors: Mapping[str, Tensor],
    source_vocab: Vocab | None,
    target_vocab: Vocab,
    tokenizer: Path | None = None,
    target_tokenizer: Path | None = None,
    card: str,
    tokenization: str | None = None,
    start_token: int | None = None,
    input: JsonObject | None = None,
    others: Mapping[str, Path] | None = None,
    generation: JsonObject | None = None,
    split: Mapping[str, JsonObject] = MappingProxyType({}),
) -> None:
    """Writes a model folder, whole or not at all, in place of an older one.

    Tensors that share memory are stored once, under their first name.

    Args:
        source_vocab: None where the model reads no text.
        tokenizer, target_tokenizer: Models of sentencepiece; the second None: as the first.
        tokenization: That of the sentences, ``penn``; None: lines are sentences as the model reads them.
        start_token: Start token of the decoder; None: eos.
        input: Name and settings of an input processor other than ``text``.
        others: The files of such a processor, by the names that they are to have.
        generation: Values of strategies' options, see `nartk.checkpoints.generation`.
        split: Settings by side that replace those of ``text``, such as the name of another processor.

    Raises:
        CheckpointError: A tokenizer is no model of sentencepiece.
        OutputError: The folder cannot be written, or what is there is no model's.
    """
    import torch
    from safetensors.torch import save

    stored: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    seen: dict[tuple[int, tuple[int, ...], tuple[int, ...]], str] = {}
    for name, tensor in tensors.items():
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
        if key in seen and tensor.numel() > 0:
            aliases[name] = seen[key]
        else:
            seen[key] = name
            stored[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    output: JsonObject = {"name": "text", "words": len(target_vocab), "dictionary": DICTIONARY}
    dictionaries = {}
    copied = {} if others is None else dict(others)
    if source_vocab is not None:
        dictionaries[DICTIONARY] = source_vocab
        input = {**output, "words": len(source_vocab)}
        if target_vocab != source_vocab:
            output["dictionary"] = TARGET_DICTIONARY
    dictionaries[output["dictionary"]] = target_vocab
    if tokenizer is not None:
        output["sentencepiece"] = TOKENIZER
        copied[TOKENIZER] = tokenizer
        if source_vocab is not None and input is not None:
            input = {**input, "sentencepiece": TOKENIZER}
    if target_tokenizer is not None:
        output["sentencepiece"] = TARGET_TOKENIZER
        copied[TARGET_TOKENIZER] = target_tokenizer
    for pieces in filter(None, (tokenizer, target_tokenizer)):
        SentencePieceTokenizer(pieces, target_vocab)  # refused now, not when it is needed
    if input is not None:
        input = {**input, **split.get("input", {})}
    output |= split.get("output", {})
    config = {
        "architecture": architecture,
        "model": dict(settings),
        "aliases": aliases,
        "special_ids": asdict(target_vocab.specials),
        "start_token": target_vocab.eos if start_token is None else start_token,
        "input": input,
        "output": output,
    }
    if tokenization is not None:
        config["tokenization"] = tokenization
    if generation:
        config[GENERATION] = dict(generation)
    weights = [save(stored, metadata={"format": "pt"})]
    save_files(folder, weights=weights, config=config, files=copied, card=card, vocabs=dictionaries)


def save_files(
    folder: Path,
    *,
    weights: Iterable[bytes | memoryview],
    config: JsonObject,
    files: Mapping[str, Path],
    card: str,
    vocabs: Mapping[str, Vocab] = MappingProxyType({}),
) -> None:
    """Writes a model folder of the parts of its file of weights, whole or not at all.

    Args:
        config: Contents of config.json, except for the format and the hashes.
        files: Files to copy, by name.
        vocabs: Dictionaries to write, by name.

    Raises:
        OutputError: The folder cannot be written, or what is there is no model's.
    """
    copied = {
        name for name, source in files.items() if os.path.realpath(source) == os.path.realpath(folder / name)
    }
    with writing_folder(folder, known={*_files_of(folder), *copied}) as made:
        with writing(made / WEIGHTS, binary=True) as file:
            file.writelines(weights)
        for name, vocab in vocabs.items():
            vocab.write(made / name)
        for name, source in files.items():
            with writing(made / name, binary=True) as file:
                file.write(read_file(source, most=_MOST_COPIED))
        with writing(made / CARD) as file:
            file.write(card)
        hashes = {path.name: sha256(path) for path in sorted(made.iterdir())}
        with writing(made / CONFIG) as file:
            write_json(file, {"format": FORMAT, **config, "files": hashes})


def fact_card(facts: Mapping[str, object]) -> str:
    """The text of a card of facts by name."""
    return "# Model card\n\n" + "".join(f"- {name}: {value}\n" for name, value in facts.items())


def _files_of(folder: Path) -> Collection[str]:
    """The names that files of a model in this folder may have; none where there is no model."""
    try:
        config = Folder(folder).json(CONFIG)
        return {*_NAMES, *config.get("files", {})} if "format" in config else ()
    except (CheckpointError, TypeError):
        return ()
