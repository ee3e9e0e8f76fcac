"""Writes a checkpoint of fairseq as a model folder."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nartk.adapters.fairseq.checkpoint import FairseqCheckpoint, read_checkpoint
from nartk.adapters.fairseq.network import to_network
from nartk.architectures import architecture
from nartk.architectures.decoders import MelOutput
from nartk.architectures.encoders import EncodedSources
from nartk.architectures.settings import Config
from nartk.checkpoints.names import DICTIONARY, INPUT, MEL, TOKENIZER
from nartk.checkpoints.saving import fact_card, save_checkpoint
from nartk.checkpoints.word_counts import counts_file
from nartk.errors import CheckpointError, UsageError, VocabMismatchError, named
from nartk.files import Folder, JsonObject
from nartk.models.reference import DTYPES
from nartk.models.transformer import Transformer
from nartk.processors import bpe as text_bpe
from nartk.processors import load_processor, named_file
from nartk.processors.encoded import NAME as ENCODED
from nartk.processors.speech import NAME as SPEECH
from nartk.processors.speech import mel_settings
from nartk.version import __version__
from nartk.vocab import Vocab


def convert(
    path: Path,
    output: Path,
    *,
    source_dict: Path | None = None,
    target_dict: Path | None = None,
    tokenizer: Path | None = None,
    target_tokenizer: Path | None = None,
    tokenization: str | None = None,
    bpe: str | None = None,
    bpe_codes: Path | None = None,
    encoder_json: Path | None = None,
    moses: bool | None = None,
    moses_source_lang: str | None = None,
    moses_target_lang: str | None = None,
    word_counts: Path | None = None,
    card: str | None = None,
    dtype: str = "fp32",
) -> Config:
    """Writes a fairseq checkpoint as a native model folder.

    Args:
        source_dict: fairseq's ``dict.txt``; by default the one in the folder the model was trained from.
        target_dict: The same for the target; by default `source_dict` where that is given.
        tokenizer: sentencepiece model; without it words are what stands between spaces.
        target_tokenizer: The target's, where it differs.
        tokenization: That of its training sentences, ``penn``; None: decoding is not to know it.
        bpe: The BPE of its words, ``subword-nmt``, ``fastbpe`` or ``gpt2``; ``none``: lines are cut already.
        bpe_codes: The file of its merges.
        encoder_json: The words of GPT-2's BPE.
        moses: True if Moses made its tokens; False: lines are tokens already.
        moses_source_lang, moses_target_lang: Their languages; by default those of the training data.
        word_counts: File of a drafter's: counts of its verifier's words (`nartk.checkpoints.word_counts`).
        card: Text of ``card.md``; by default what the checkpoint says about itself.
        dtype: Type of the stored weights: fp32, bf16 or fp16.

    Raises:
        UnsupportedCheckpointError: A setting has no counterpart in nartk's Transformer.
        CheckpointError: The checkpoint is corrupt, incomplete or unsafe, or a dictionary is not found.
        VocabMismatchError: A dictionary has another number of words than the model.
        UsageError: It was trained on subwords or Moses' tokens, and it is not given how they are made.
    """
    checkpoint = read_checkpoint(path)
    model = to_network(checkpoint)
    config: Config = model.config
    if isinstance(config, EncodedSources):
        words = target_dict or source_dict
        return _convert_light(checkpoint, model, output, words, word_counts, card=card, dtype=dtype)
    if config.src_vocab == 0:  # it reads no words
        beside = (source_dict, tokenizer, word_counts)
        return _convert_speech(checkpoint, model, output, *beside, card=card, dtype=dtype)
    source_path = find_dictionary(checkpoint, source_dict, "source")
    source = Vocab.read(source_path)
    target = Vocab.read(
        find_dictionary(checkpoint, source_dict if target_dict is None else target_dict, "target")
    )
    _require_words(checkpoint, "source", config.src_vocab, source)
    _require_words(checkpoint, "target", config.tgt_vocab, target)
    _require_splitting(checkpoint, bpe, moses, None if tokenizer is None else "sentencepiece", target)
    paths = {"codes": bpe_codes, "encoder": encoder_json}
    files = {key: path for key, path in paths.items() if path is not None}
    split: dict[str, JsonObject] = {}
    if isinstance(config, MelOutput):
        if files or moses:
            raise UsageError(
                f"{named('bpe')} or {named('tokenizer')} of a model that speaks phonemes", fix="leave it out"
            )
        split = {"input": {"only_known": True}, "output": _spoken(config, source_path.parent)}
    if files or moses:
        for processor, side, language in (
            ("input", "source", moses_source_lang),
            ("output", "target", moses_target_lang),
        ):
            split[processor] = {
                "name": text_bpe.NAME,
                "bpe": None if bpe == "none" else bpe,
                **{key: text_bpe.FILES[key] for key in files},
                "moses": _moses(checkpoint, side, language) if moses else None,
            }
            text_bpe.splitters(split[processor], files, str(path))  # refused now, not when it is needed
    save_checkpoint(
        output,
        architecture=checkpoint.architecture,
        settings=asdict(config),
        tensors=model.to(DTYPES[dtype]).state_dict(),
        source_vocab=source,
        target_vocab=target,
        tokenizer=tokenizer,
        target_tokenizer=target_tokenizer,
        tokenization=tokenization,
        others={text_bpe.FILES[key]: file for key, file in files.items()} | counts_file(word_counts, target),
        split=split,
        generation=_generation(checkpoint),
        card=_card(checkpoint, config, dtype) if card is None else card,
    )
    return config


def _require_words(checkpoint: FairseqCheckpoint, side: str, size: int, vocab: Vocab) -> None:
    """Raises VocabMismatchError where a dictionary has not as many words as the model."""
    if size != len(vocab):
        raise VocabMismatchError(
            f"the model has {size} {side} words, its dictionary {len(vocab)}",
            fix=f"give the dictionary it was trained with as {named(f'{side}_dict')}",
            where=str(checkpoint.path),
        )


def _generation(checkpoint: FairseqCheckpoint) -> dict[str, str]:
    """The settings of decoding of its architecture: the strategy, if it names one."""
    strategy = architecture(checkpoint.architecture).strategy
    return {"strategy": strategy} if strategy else {}


def _convert_light(
    checkpoint: FairseqCheckpoint,
    model: Transformer,
    output: Path,
    dictionary: Path | None,
    word_counts: Path | None,
    *,
    card: str | None,
    dtype: str,
) -> Config:
    """Writes the model folder of a drafter that reads what its verifier has encoded."""
    config: Config = model.config
    target = Vocab.read(find_dictionary(checkpoint, dictionary, "target"))
    _require_words(checkpoint, "target", config.tgt_vocab, target)
    save_checkpoint(
        output,
        architecture=checkpoint.architecture,
        settings=asdict(config),
        tensors=model.to(DTYPES[dtype]).state_dict(),
        source_vocab=None,
        target_vocab=target,
        input={"name": ENCODED},
        others=counts_file(word_counts, target),
        card=_card(checkpoint, config, dtype) if card is None else card,
    )
    return config


def _convert_speech(
    checkpoint: FairseqCheckpoint,
    model: Transformer,
    output: Path,
    dictionary: Path | None,
    tokenizer: Path | None,
    word_counts: Path | None,
    *,
    card: str | None,
    dtype: str,
) -> Config:
    """Writes the model folder of what reads sound, as the folder of its training data says.

    That is the folder of the dictionary, if it is given, else the one that the checkpoint names. It has what
    `nartk.tasks.speech` reads: the input processor's settings with their files, and the output's words; of a
    model that speaks it may have ``mel.json``, the settings of spectrograms.
    """
    config: Any = model.config
    where = str(checkpoint.path)
    folders = _data_folders(checkpoint) if dictionary is None else [dictionary.parent]
    folder = next((each for each in folders if os.path.isfile(each / INPUT)), None)
    if folder is None:
        raise CheckpointError(
            f"the folder of its training data, with {INPUT}, is not found",
            fix=f"give the dictionary in it with {named('source_dict')}",
            where=where,
        )
    target = Vocab.read(folder / DICTIONARY if dictionary is None else dictionary)
    if config.tgt_vocab != len(target):
        raise VocabMismatchError(
            f"the model has {config.tgt_vocab} target words, its dictionary {len(target)}", where=where
        )
    opened = Folder(folder)
    settings = opened.json(INPUT)
    files = {
        str(name): named_file(opened, settings, key)
        for key, name in settings.items()
        if _is_file(folder, name)
    }
    load_processor("input", opened, settings, target.specials)  # refused now, not when it is needed
    speaks = {"output": _spoken(config, folder)} if isinstance(config, MelOutput) else {}
    pieces = folder / TOKENIZER if tokenizer is None else tokenizer
    save_checkpoint(
        output,
        architecture=checkpoint.architecture,
        settings=asdict(config),
        tensors=model.to(DTYPES[dtype]).state_dict(),
        source_vocab=None,
        target_vocab=target,
        tokenizer=pieces if os.path.isfile(pieces) else None,
        input={**settings, "shortest": config.least_frames},
        split=speaks,
        others=files | counts_file(word_counts, target),
        generation=_generation(checkpoint),
        card=_card(checkpoint, config, dtype) if card is None else card,
    )
    written: Config = config
    return written


def _spoken(config: MelOutput, data: Path) -> JsonObject:
    """Settings of outputs that are spoken, with those of spectrograms that a folder of training data has."""
    folder = Folder(data)
    mel = folder.json(MEL) if folder.has(MEL) else {"bins": config.mel_features}
    found = mel_settings(mel, str(data / MEL))
    if found.bins != config.mel_features:
        raise CheckpointError(
            f"{MEL} has {found.bins} bins, the model {config.mel_features}", where=str(data)
        )
    return {"name": SPEECH, "mel": asdict(found)}


def _is_file(folder: Path, name: object) -> bool:
    """Tells whether a value of an input processor's settings is the name of a file beside them."""
    own = (DICTIONARY, TOKENIZER)  # which the model folder has anyhow
    return isinstance(name, str) and bool(name) and name not in own and os.path.isfile(folder / name)


def _require_splitting(
    checkpoint: FairseqCheckpoint, bpe: str | None, moses: bool | None, pieces: str | None, words: Vocab
) -> None:
    """Raises UsageError where a checkpoint was trained on what nobody says how to make."""
    task, evaluation = checkpoint.part("task"), checkpoint.part("common_eval")
    trained = [
        checkpoint.chosen("bpe"),
        task.get("eval_bleu_remove_bpe"),
        evaluation.get("post_process"),
        evaluation.get("remove_bpe"),
    ]
    found = next((str(each) for each in trained if each), None)
    marked = sum(word.endswith(text_bpe.SEPARATOR) for word in words.words)
    if found is None and marked > len(words) // 100:
        found = f"subwords that end in {text_bpe.SEPARATOR}"
    where = str(checkpoint.path)
    if found is not None and bpe is None and pieces is None:
        raise UsageError(
            f"the model was trained on BPE ({found}), which is not given",
            fix=f"give {named('bpe')} and {named('bpe_codes')}, or {named('bpe', 'none')}",
            where=where,
        )
    if "moses" in (checkpoint.chosen("tokenizer"), task.get("eval_bleu_detok")) and moses is None:
        raise UsageError(
            "the model was trained on tokens of Moses",
            fix=f"give {named('tokenizer', 'moses')}, or {named('tokenizer', 'none')} for lines of tokens",
            where=where,
        )


def _moses(checkpoint: FairseqCheckpoint, side: str, language: str | None) -> JsonObject:
    """The settings of Moses for a side; raises UsageError if nobody says its language."""
    options = checkpoint.part("tokenizer")
    folders = (*_data_folders(checkpoint), checkpoint.path.parent)
    known = [language, *(_language(checkpoint, folder, side) for folder in folders)]
    found = next(filter(None, known), None)
    if found is None:
        raise UsageError(
            f"the {side} language of its training data is not known",
            fix=f"give it with {named(f'moses_{side}_lang')}",
            where=str(checkpoint.path),
        )
    return {
        "lang": found,
        "dash_splits": not options.get("moses_no_dash_splits"),
        "escape": not options.get("moses_no_escape"),
    }


def find_dictionary(checkpoint: FairseqCheckpoint, given: Path | None, side: str) -> Path:
    """The dictionary that is given, or else the one in the data folder that the checkpoint names."""
    if given is not None:
        return given
    for folder in _data_folders(checkpoint):
        language = _language(checkpoint, folder, side)
        path = folder / (DICTIONARY if language is None else f"dict.{language}.txt")
        if os.path.isfile(path):
            return path
    raise CheckpointError(
        f"the {side} dictionary of its training data is not found",
        fix=f"give it with {named(f'{side}_dict')}",
        where=str(checkpoint.path),
    )


def _data_folders(checkpoint: FairseqCheckpoint) -> list[Path]:
    """The folders of its training data that are there."""
    names = str(checkpoint.part("task").get("data", "")).split(":")
    return [Path(name) for name in names if os.path.isdir(name)]


def _language(checkpoint: FairseqCheckpoint, folder: Path, side: str) -> str | None:
    """The language of a side, of the settings or of the files of a data folder."""
    # fairseq infers the languages it was not told from names such as train.src-trg.src.idx
    pairs = {tuple(path.name.split(".")[1].split("-")) for path in folder.glob("*.*-*.*.idx")}
    inferred = dict(zip(("source", "target"), pairs.pop(), strict=False)) if len(pairs) == 1 else {}
    return checkpoint.part("task").get(f"{side}_lang") or inferred.get(side)


def _card(checkpoint: FairseqCheckpoint, config: Config, dtype: str) -> str:
    validation = checkpoint.validation
    return fact_card(
        {
            "Architecture": checkpoint.settings.get("arch", "transformer"),
            "Layers": f"{config.layers('encoder')} encoder, {config.layers('decoder')} decoder",
            "Vocabulary": f"{config.src_vocab} source, {config.tgt_vocab} target",
            "Stored as": dtype,
            "Updates": checkpoint.updates,
            "Validation score when saved": "not validated" if validation is None else validation,
            "Converted from": checkpoint.path.name,
            "Converted by": f"nartk {__version__}",
            "Training data and licence": "not stated",
        }
    )
