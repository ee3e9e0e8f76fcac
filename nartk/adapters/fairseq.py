"""Checkpoints of fairseq: reads them safely, converts them to the native format, averages them.

Needs no fairseq: a checkpoint is a pickled dictionary of settings and tensors. It is loaded with
``weights_only=True`` and a short allow-list, so that a file cannot run code; there is no other way in.
"""

from __future__ import annotations

import mmap
import os
import pickle
import re
import zipfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor

from nartk import __version__
from nartk._fairseq_compat import safe_globals
from nartk.architectures import architecture, architectures
from nartk.architectures.transformer import SOURCE_WORDS, TARGET_WORDS
from nartk.checkpoints.checkpoint import (
    DICTIONARY,
    INPUT,
    TOKENIZER,
    fact_card,
    read_json,
    require_shapes,
    save_checkpoint,
)
from nartk.errors import (
    CheckpointError,
    InputFileError,
    MissingDependencyError,
    NartkError,
    UnsupportedCheckpointError,
    UsageError,
    VocabMismatchError,
    named,
)
from nartk.files import writing
from nartk.models.reference import DTYPES
from nartk.models.transformer import Transformer, TransformerConfig
from nartk.processors import bpe as text_bpe
from nartk.processors import load_processor, named_file
from nartk.vocab import SPECIALS, Vocab

PAD = SPECIALS.index("<pad>")

# Of fairseq's position tables: the first position stands after the padding id.
_FIRST_POSITION = PAD + 1
# The decoder of older checkpoints had no norm after its last layer, whatever its settings say.
_FINAL_NORM_SINCE = {"encoder": 2.0, "decoder": 3.0}
# Version marks, position tables that can be computed, and the second copy of each encoder layer's weights
# that fairseq 0.12 keeps for torch's fast path and overwrites when it loads.
_IGNORED = re.compile(
    r"(en|de)coder\.(version|embed_positions\.(_float_tensor|weights))"
    r"|encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)"
)
_LEGACY_NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}
# fairseq's settings that change the computation to one nartk's Transformer does not have.
_UNSUPPORTED: dict[str, Callable[[Any], bool]] = {
    "adaptive_softmax_cutoff": lambda value: value is not None,
    "adaptive_input": bool,
    "char_inputs": bool,
    "cross_self_attention": bool,
    "no_cross_attention": bool,
    "quant_noise_pq": lambda value: value > 0,
    "quant_noise_scalar": lambda value: value > 0,
    "encoder_layers_to_keep": lambda value: value is not None,
    "decoder_layers_to_keep": lambda value: value is not None,
    "encoder_xformers_att_config": lambda value: value is not None,
    "decoder_xformers_att_config": lambda value: value is not None,
    "base_layers": lambda value: value > 0,
}
# Names that fairseq gives to what it saves.
_SAVED = re.compile(r"checkpoint(\d+|_\d+_\d+|_last|_best|\.best_.+)\.pt")
_ACTIVATIONS = ("relu", "gelu")
_SAFE_TORCH = (2, 6)
_ZIP = b"PK\x03\x04"  # what torch takes for a zip file begins so


@dataclass(frozen=True)
class FairseqCheckpoint:
    """A checkpoint that has been read, and checked to hold settings and tensors.

    Attributes:
        settings: The model's options by name, such as ``encoder_layers``.
        tensors: Weights by fairseq's names.
        state: Everything in the file.
    """

    path: Path
    settings: dict[str, Any]
    tensors: dict[str, Tensor]
    state: dict[str, Any]

    @property
    def updates(self) -> int:
        """Training steps so far; 0 where the file does not say."""
        history = self.state.get("optimizer_history")
        last = history[-1] if isinstance(history, list) and history else None
        found = last.get("num_updates") if isinstance(last, dict) else None
        return found if isinstance(found, int) else 0

    @property
    def validation(self) -> float | None:
        """The validation score at which it was saved, or None if it was saved without validating."""
        extra = self.state.get("extra_state")
        value = extra.get("val_loss") if isinstance(extra, dict) else None
        return float(value) if isinstance(value, (int, float)) else None

    @property
    def higher_is_better(self) -> bool:
        """Whether :attr:`validation` is a quality rather than a loss."""
        options = _section(self.state, "checkpoint")
        return bool(options.get("maximize_best_checkpoint_metric", False))


def read_checkpoint(path: Path) -> FairseqCheckpoint:
    """Reads a fairseq ``.pt`` file without running anything in it.

    Raises:
        InputFileError: There is no such file.
        CheckpointError: It is truncated, corrupt, no checkpoint of fairseq, or asks for code to be run.
    """
    where = str(path)
    with loading_safely(path):
        state = torch.load(path, map_location="cpu", weights_only=True)
    tensors = state.get("model") if isinstance(state, dict) else None
    if not _are_tensors(tensors):
        raise CheckpointError("not a checkpoint of fairseq: it holds no weights under 'model'", where=where)
    require_dense(tensors, where)
    settings = _section(state, "model") or _options(state.get("args"))
    if not settings:
        raise CheckpointError("not a checkpoint of fairseq: it holds no settings", where=where)
    return FairseqCheckpoint(path, settings, dict(tensors), state)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file that torch has written of them alone; raises as `read_checkpoint`."""
    with loading_safely(path):
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    if not _are_tensors(tensors):
        raise CheckpointError("holds something else than tensors by name", where=str(path))
    require_dense(tensors, str(path))
    return dict(tensors)


def _are_tensors(values: object) -> TypeGuard[dict[str, Tensor]]:
    return isinstance(values, dict) and all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in values.items()
    )


def require_dense(tensors: Mapping[str, Tensor], where: str) -> None:
    """Raises CheckpointError if one of a file's tensors would take more memory than the file stores of it."""
    for name, tensor in tensors.items():
        # Else 1 number with strides of 0 would be a tensor of any size.
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise CheckpointError(f"tensor {name[:80]!r} is not dense", where=where)
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise CheckpointError(f"tensor {name[:80]!r} is larger than what is stored of it", where=where)


@contextmanager
def loading_safely(path: Path) -> Iterator[None]:
    """Checks a ``.pt`` file before torch loads it within, and names what torch refuses or cannot read.

    Raises:
        InputFileError: There is no such file.
        CheckpointError: As `read_checkpoint`.
        MissingDependencyError: torch is so old that it may run code of the file (CVE-2025-32434).
    """
    if tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < _SAFE_TORCH:
        raise MissingDependencyError(
            f"torch {torch.__version__} may run code that a checkpoint holds", fix="pip install 'torch>=2.6'"
        )
    where = str(path)
    if not os.path.isfile(path):
        raise InputFileError("no such file", fix="check the name", where=where)
    try:
        _refuse_bombs(path)
        with torch.serialization.safe_globals(safe_globals()):
            yield
    except (NartkError, MemoryError):
        raise
    except OSError as error:
        raise CheckpointError(f"cannot read: {error.strerror}", where=where) from error
    except pickle.UnpicklingError as error:
        refused = re.search(r"GLOBAL (\S+)|class (\S+) was not an allowed", str(error))
        if refused is None:
            raise CheckpointError("corrupt, or not a checkpoint", where=where) from error
        raise _asks_for(next(filter(None, refused.groups())), where) from error
    except Exception as error:  # a corrupt pickle may raise anything
        raise CheckpointError("truncated, corrupt, or not a checkpoint", where=where) from error


def _asks_for(name: str, where: str) -> CheckpointError:
    return CheckpointError(
        f"asks for {name!r}, which a checkpoint has no need of",
        fix="do not load it elsewhere either, unless you trust its origin",
        where=where,
    )


def _refuse_bombs(path: Path) -> None:
    """Refuses what takes more memory than the file has bytes, before memory is taken.

    torch.save does not compress, so nothing compressed is read: no part is larger than what the file holds of
    it, and all together are no larger than the file. Nor does a checkpoint have a ``bytearray``, which a
    pickle makes of a number.
    """
    with path.open("rb") as file:
        if file.read(len(_ZIP)) == _ZIP:
            with zipfile.ZipFile(file) as parts:
                for part in parts.infolist():
                    if part.compress_type != zipfile.ZIP_STORED or part.compress_size != part.file_size:
                        raise CheckpointError(
                            f"{part.filename[:80]!r} is compressed, from {part.file_size} bytes",
                            fix="write it as torch.save does, without compression",
                            where=str(path),
                        )
                total = sum(part.file_size for part in parts.infolist())
            size = os.fstat(file.fileno()).st_size
            if total > size:
                raise CheckpointError(f"its parts have {total} bytes, it has {size}", where=str(path))
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if re.search(rb"c(builtins|__builtin__)\nbytearray\n", data):
                raise _asks_for("builtins.bytearray", str(path))


def architecture_name(checkpoint: FairseqCheckpoint) -> str:
    """The name of a checkpoint's architecture, as `nartk.architectures` has it.

    Raises:
        UnsupportedCheckpointError: It is neither one of nartk's nor fairseq's own `transformer`.
    """
    name = _architecture(checkpoint)
    if re.match(r"(transformer|m?bart)(_(?!lm)|$)", name):
        return "transformer"
    for each in architectures():
        if re.match(rf"nartk_{each}(_|$)", name):
            return each
    raise UnsupportedCheckpointError(
        f"architecture {name!r}",
        fix=f"nartk_{', nartk_'.join(architectures())} and fairseq's transformer convert",
        where=str(checkpoint.path),
    )


def to_network(checkpoint: FairseqCheckpoint) -> Transformer:
    """The network of a checkpoint of nartk's, or of fairseq's own `transformer`, in fp32.

    Raises:
        UnsupportedCheckpointError: A setting has no counterpart in nartk; it is named.
        CheckpointError: Tensors are missing, of a wrong shape, or not finite.
    """
    where = str(checkpoint.path)
    declared = architecture(architecture_name(checkpoint))
    ours = _architecture(checkpoint).startswith("nartk_")
    try:
        wanted, tensors = _from_core(checkpoint, declared.config) if ours else _from_fairseq(checkpoint)
    except (LookupError, TypeError, ValueError, RuntimeError) as error:  # of a shape or type that is none
        raise CheckpointError(f"damaged settings or tensors: {error}", where=where) from error
    for key, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise CheckpointError(f"tensor {key!r} has type {tensor.dtype}", where=where)
        if not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f"tensor {key!r} holds NaN or infinity", where=where)
    try:
        config = declared.config.from_dict(wanted)
    except (UsageError, CheckpointError) as error:
        raise CheckpointError(error.message, where=where) from error
    # Shapes are compared before memory is taken: a wrong size must not allocate.
    require_shapes(config.weight_shapes(), shapes(tensors), where)
    model: Transformer = declared.network(config)
    model.load_state_dict({key: tensor.float() for key, tensor in tensors.items()})
    return model.eval()


def shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor, for `require_shapes`."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


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
    card: str | None = None,
    dtype: str = "fp32",
) -> TransformerConfig:
    """Writes a fairseq checkpoint as a native model folder.

    Args:
        source_dict: fairseq's ``dict.txt``; by default the one in the folder the model was trained from.
        target_dict: The same for the target; by default `source_dict` where that is given.
        tokenizer: sentencepiece model; without it words are what stands between spaces.
        target_tokenizer: The target's, where it differs.
        tokenization: Of the sentences that it was trained on, ``penn``; None: decoding is not to know it.
        bpe: What cut its words, ``subword-nmt``, ``fastbpe`` or ``gpt2``; ``none``: lines are cut already.
        bpe_codes: The file of its merges.
        encoder_json: The words of GPT-2's BPE.
        moses: Whether Moses made its tokens; False: lines are tokens already.
        moses_source_lang, moses_target_lang: Their languages; by default those of the training data.
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
    config = model.config
    if config.src_vocab == 0:  # it reads no words
        return _convert_speech(checkpoint, model, output, source_dict, tokenizer, card=card, dtype=dtype)
    source = Vocab.read(find_dictionary(checkpoint, source_dict, "source"))
    target = Vocab.read(
        find_dictionary(checkpoint, source_dict if target_dict is None else target_dict, "target")
    )
    for side, size, vocab in (("source", config.src_vocab, source), ("target", config.tgt_vocab, target)):
        if size != len(vocab):
            raise VocabMismatchError(
                f"the model has {size} {side} words, its dictionary {len(vocab)}",
                fix=f"give the dictionary it was trained with as {named(f'{side}_dict')}",
                where=str(path),
            )
    _require_splitting(checkpoint, bpe, moses, None if tokenizer is None else "sentencepiece", target)
    paths = {"codes": bpe_codes, "encoder": encoder_json}
    files = {key: path for key, path in paths.items() if path is not None}
    split: dict[str, dict[str, Any]] = {}
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
        architecture=architecture_name(checkpoint),
        settings=asdict(config),
        tensors=model.to(DTYPES[dtype]).state_dict(),
        source_vocab=source,
        target_vocab=target,
        tokenizer=tokenizer,
        target_tokenizer=target_tokenizer,
        tokenization=tokenization,
        others={text_bpe.FILES[key]: file for key, file in files.items()},
        split=split,
        card=_card(checkpoint, config, dtype) if card is None else card,
    )
    return config


def _convert_speech(
    checkpoint: FairseqCheckpoint,
    model: Transformer,
    output: Path,
    dictionary: Path | None,
    tokenizer: Path | None,
    *,
    card: str | None,
    dtype: str,
) -> TransformerConfig:
    """Writes the model folder of what reads sound, as the folder of its training data says.

    That is the folder of the dictionary, if it is given, else the one that the checkpoint names. It has what
    `nartk.tasks.speech` reads: the input processor's settings with their files, and the output's words.
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
    settings = read_json(folder / INPUT)
    files = {
        str(name): named_file(folder, settings, key)
        for key, name in settings.items()
        if _is_file(folder, name)
    }
    load_processor("input", folder, settings, target.specials)  # refused now, not when it is needed
    pieces = folder / TOKENIZER if tokenizer is None else tokenizer
    name = architecture_name(checkpoint)
    strategy = architecture(name).strategy
    save_checkpoint(
        output,
        architecture=name,
        settings=asdict(config),
        tensors=model.to(DTYPES[dtype]).state_dict(),
        source_vocab=None,
        target_vocab=target,
        tokenizer=pieces if os.path.isfile(pieces) else None,
        input={**settings, "shortest": config.least_frames},
        others=files,
        generation={"strategy": strategy} if strategy else {},
        card=_card(checkpoint, config, dtype) if card is None else card,
    )
    return config


def _is_file(folder: Path, name: object) -> bool:
    """Whether a value of an input processor's settings is the name of a file beside them."""
    own = (DICTIONARY, TOKENIZER)  # which the model folder has anyhow
    return isinstance(name, str) and bool(name) and name not in own and os.path.isfile(folder / name)


def _require_splitting(
    checkpoint: FairseqCheckpoint, bpe: str | None, moses: bool | None, pieces: str | None, words: Vocab
) -> None:
    """Raises UsageError where a checkpoint was trained on what nobody says how to make."""
    task, evaluation = _section(checkpoint.state, "task"), _section(checkpoint.state, "common_eval")
    trained = [
        _chosen(checkpoint, "bpe"),
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
    if "moses" in (_chosen(checkpoint, "tokenizer"), task.get("eval_bleu_detok")) and moses is None:
        raise UsageError(
            "the model was trained on tokens of Moses",
            fix=f"give {named('tokenizer', 'moses')}, or {named('tokenizer', 'none')} for lines of tokens",
            where=where,
        )


def _chosen(checkpoint: FairseqCheckpoint, section: str) -> Any:
    """The name of what a run had for ``bpe`` or ``tokenizer``."""
    cfg = checkpoint.state.get("cfg")
    value = (cfg if isinstance(cfg, dict) else _options(checkpoint.state.get("args"))).get(section)
    return value if isinstance(value, str) else _options(value).get("_name")


def _moses(checkpoint: FairseqCheckpoint, side: str, language: str | None) -> dict[str, Any]:
    """The settings of Moses for a side; raises UsageError if nobody says its language."""
    options = _section(checkpoint.state, "tokenizer")
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


def average(checkpoints: Sequence[FairseqCheckpoint]) -> dict[str, Any]:
    """The mean of several checkpoints' weights, as the contents of a new one without optimizer state.

    Sums are kept in fp64; the mean has the type of the weights. What is no floating point number, and all
    settings, come from the last checkpoint.

    Raises:
        CheckpointError: Names or shapes of the weights differ.
    """
    last = checkpoints[-1]
    sums = {key: tensor.double() for key, tensor in last.tensors.items() if tensor.is_floating_point()}
    for other in checkpoints[:-1]:
        require_shapes(
            shapes({key: last.tensors[key] for key in sums}),
            shapes({key: tensor for key, tensor in other.tensors.items() if tensor.is_floating_point()}),
            str(other.path),
        )
        for key in sums:
            sums[key] = sums[key] + other.tensors[key].double()
    model = dict(last.tensors)
    for key, total in sums.items():
        model[key] = (total / len(checkpoints)).to(last.tensors[key].dtype)
    state = {key: value for key, value in last.state.items() if key != "last_optimizer_state"}
    return {**state, "model": model}


def last_checkpoints(folder: Path, count: int) -> list[FairseqCheckpoint]:
    """The `count` checkpoints of `folder` with the most updates, the oldest first.

    Raises:
        UsageError: There are fewer.
    """
    return _pick(_saved(folder), count, folder, "checkpoints")


def best_checkpoints(folder: Path, count: int) -> list[FairseqCheckpoint]:
    """The `count` checkpoints of `folder` with the best validation score, the best last.

    Raises:
        UsageError: There are fewer that were validated when they were saved.
    """

    def quality(checkpoint: FairseqCheckpoint) -> float:
        value = checkpoint.validation
        assert value is not None  # of those that were validated
        return value if checkpoint.higher_is_better else -value

    validated = [checkpoint for checkpoint in _saved(folder) if checkpoint.validation is not None]
    return _pick(sorted(validated, key=quality), count, folder, "validated checkpoints")


def write_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Writes what :func:`average` gives as a fairseq checkpoint."""
    with writing(path, binary=True) as file:
        torch.save(dict(state), file)


def _saved(folder: Path) -> list[FairseqCheckpoint]:
    """The checkpoints that a training run keeps in a folder, one an update, in the order of training.

    ``checkpoint_last.pt`` and ``checkpoint_best.pt`` are copies of others, and as good as they.
    """
    if not os.path.isdir(folder):
        raise InputFileError("no such folder", fix="check the name", where=str(folder))
    found = {}
    for path in sorted(folder.iterdir()):
        if _SAVED.fullmatch(path.name):
            checkpoint = read_checkpoint(path)
            found[checkpoint.updates] = checkpoint
    return [found[updates] for updates in sorted(found)]


def _pick(
    checkpoints: list[FairseqCheckpoint], count: int, folder: Path, what: str
) -> list[FairseqCheckpoint]:
    if not 1 <= count <= len(checkpoints):
        raise UsageError(f"{count} {what} asked for, {len(checkpoints)} in {str(folder)!r}")
    return checkpoints[-count:]


def _section(state: Mapping[str, Any], name: str) -> dict[str, Any]:
    """One part of fairseq's settings: of the whole training run, or (older files) of its command line."""
    cfg = state.get("cfg")
    return _options(cfg.get(name)) if isinstance(cfg, dict) else _options(state.get("args"))


def _options(value: Any) -> dict[str, Any]:
    if isinstance(value, Namespace):
        return dict(vars(value))
    return dict(value) if isinstance(value, dict) else {}


def _architecture(checkpoint: FairseqCheckpoint) -> str:
    return str(checkpoint.settings.get("arch", checkpoint.settings.get("_name", "")))


def _from_core(
    checkpoint: FairseqCheckpoint, config: type[TransformerConfig]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Settings and weights of a model that nartk trained: the fairseq model holds the core as `core`."""
    tensors = {key.removeprefix("core."): tensor for key, tensor in checkpoint.tensors.items()}
    known = {item.name for item in fields(config)}
    settings = {key: value for key, value in checkpoint.settings.items() if key in known}
    names = config().weight_shapes()
    reads_words, has_decoder = SOURCE_WORDS in names, TARGET_WORDS[1] in names
    settings["src_vocab"] = _require(tensors, SOURCE_WORDS, checkpoint).shape[0] if reads_words else 0
    words = TARGET_WORDS[1] if has_decoder else "ctc.weight"
    settings["tgt_vocab"] = _require(tensors, words, checkpoint).shape[0]
    settings["pad"] = PAD
    return settings, tensors


def _from_fairseq(checkpoint: FairseqCheckpoint) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Settings and weights of fairseq's own Transformer."""
    options = _Settings(checkpoint)
    options.refuse_unsupported()
    left = dict(checkpoint.tensors)
    made: dict[str, Tensor] = {}

    def take(name: str) -> Tensor:
        tensor = _require(left, name, checkpoint)
        del left[name]
        return tensor

    def move(old: str, new: str) -> None:
        for part in ("weight", "bias"):
            made[f"{new}.{part}"] = take(f"{old}.{part}")

    def fuse(old: str, new: str, parts: str) -> None:
        for suffix in ("weight", "bias"):
            if parts == "qkv" and f"{old}.in_proj_{suffix}" in left:  # before fairseq 0.8
                made[f"{new}.{suffix}"] = take(f"{old}.in_proj_{suffix}")
            elif f"{old}.in_proj_{suffix}" in left:
                q, kv = take(f"{old}.in_proj_{suffix}").tensor_split([options.width], 0)
                left[f"{old}.q_proj.{suffix}"] = q
                made[f"{new}.{suffix}"] = kv
            else:
                made[f"{new}.{suffix}"] = torch.cat([take(f"{old}.{part}_proj.{suffix}") for part in parts])

    for key in [key for key in left if _IGNORED.fullmatch(key)]:
        del left[key]
    for side in ("encoder", "decoder"):
        if options.positions(side) == "learned":
            table = take(f"{side}.embed_positions.weight")
            made[f"{side}_embedding.positions.weight"] = table[_FIRST_POSITION:]
        if options.get("layernorm_embedding", False):
            move(f"{side}.layernorm_embedding", f"{side}_embedding.norm")
        if options.norm_first(side):
            move(f"{side}.layer_norm", f"{side}_norm")
        for i in range(options.layers(side)):
            old, new = f"{side}.layers.{i}", f"{side}_layers.{i}"
            for number, norm in enumerate(_LEGACY_NORMS[side]):
                for part in ("weight", "bias"):
                    if f"{old}.layer_norms.{number}.{part}" in left:
                        left[f"{old}.{norm}.{part}"] = left.pop(f"{old}.layer_norms.{number}.{part}")
            fuse(f"{old}.self_attn", f"{new}.self_attention.qkv", "qkv")
            move(f"{old}.self_attn.out_proj", f"{new}.self_attention.out")
            move(f"{old}.self_attn_layer_norm", f"{new}.self_norm")
            if side == "decoder":
                fuse(f"{old}.encoder_attn", f"{new}.cross_attention.kv", "kv")
                move(f"{old}.encoder_attn.q_proj", f"{new}.cross_attention.q")
                move(f"{old}.encoder_attn.out_proj", f"{new}.cross_attention.out")
                move(f"{old}.encoder_attn_layer_norm", f"{new}.cross_norm")
            move(f"{old}.fc1", f"{new}.ffn.up")
            move(f"{old}.fc2", f"{new}.ffn.down")
            move(f"{old}.final_layer_norm", f"{new}.ffn_norm")
    for side in ("encoder", "decoder"):
        made[f"{side}_embedding.words.weight"] = take(f"{side}.embed_tokens.weight")
    words = made["decoder_embedding.words.weight"]
    made["output.weight"] = words
    for name in ("decoder.output_projection.weight", "decoder.embed_out"):
        if name in left:
            made["output.weight"] = take(name)
    shared = options.share_embeddings
    for other, when in (("output", ("all", "decoder")), ("encoder_embedding.words", ("all",))):
        if shared in when and not torch.equal(made[f"{other}.weight"], words):
            raise CheckpointError(f"{other} and target words are tied, but differ", where=options.where)
    if left:
        raise UnsupportedCheckpointError(f"a model with the tensor {min(left)!r}", where=options.where)
    return options.config(made), made


def _require(tensors: Mapping[str, Tensor], name: str, checkpoint: FairseqCheckpoint) -> Tensor:
    if name not in tensors:
        raise CheckpointError(f"tensor {name!r} is missing", where=str(checkpoint.path))
    return tensors[name]


class _Settings:
    """fairseq's model options in nartk's terms; the defaults are those of fairseq's `transformer`."""

    def __init__(self, checkpoint: FairseqCheckpoint) -> None:
        self.values = checkpoint.settings
        self.tensors = checkpoint.tensors
        self.where = str(checkpoint.path)

    def get(self, name: str, default: Any) -> Any:
        value = self.values.get(name, default)
        if default is not None and type(value) is not type(default) and type(value) is not int:
            raise CheckpointError(f"setting {name!r} is {value!r}", where=self.where)
        return value

    @property
    def width(self) -> int:
        return self.get("encoder_embed_dim", 512)

    def layers(self, side: str) -> int:
        return self.get(f"{side}_layers", 6)

    def norm_first(self, side: str) -> bool:
        return self.get(f"{side}_normalize_before", False)

    def positions(self, side: str) -> str:
        if self.get("no_token_positional_embeddings", False):
            return "none"
        return "learned" if self.get(f"{side}_learned_pos", False) else "sinusoidal"

    @property
    def share_embeddings(self) -> str:
        if self.get("share_all_embeddings", False):
            return "all"
        return "decoder" if self.get("share_decoder_input_output_embed", False) else "none"

    def refuse_unsupported(self) -> None:
        for name, is_set in _UNSUPPORTED.items():
            value = self.values.get(name)
            if value is not None and is_set(value):
                self._refuse(name, value)
        for name in ("decoder_embed_dim", "decoder_input_dim", "decoder_output_dim"):
            if self.values.get(name, self.width) != self.width:
                self._refuse(name, self.values[name], f"other than encoder_embed_dim {self.width}")
        activation = self.values.get("activation_fn", _ACTIVATIONS[0])
        if activation not in _ACTIVATIONS:
            self._refuse("activation_fn", activation)
        if self.norm_first("decoder") and self.get("no_decoder_final_norm", False):
            self._refuse("no_decoder_final_norm", True, "in a pre-norm decoder")
        for side, since in _FINAL_NORM_SINCE.items():
            version = self.tensors.get(f"{side}.version", torch.ones(1))
            if self.norm_first(side) and float(version[0]) < since:
                self._refuse(f"{side}.version", float(version[0]), f"without the final norm of {since:g}")

    def _refuse(self, name: str, value: Any, why: str = "") -> None:
        raise UnsupportedCheckpointError(f"setting {name!r} is {value!r} {why}".rstrip(), where=self.where)

    def config(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """What TransformerConfig stores, for weights already under nartk's names."""
        values: dict[str, Any] = {
            "src_vocab": tensors["encoder_embedding.words.weight"].shape[0],
            "tgt_vocab": tensors["output.weight"].shape[0],
            "pad": PAD,
            "d_model": self.width,
            "activation": self.get("activation_fn", "relu"),
            "share_embeddings": self.share_embeddings,
            "scale_embedding": not self.get("no_scale_embedding", False),
            "norm_embedding": self.get("layernorm_embedding", False),
        }
        for name, default in (("dropout", 0.1), ("attention_dropout", 0.0), ("activation_dropout", 0.0)):
            values[name] = float(self.get(name, default))
        for side, longest in (("encoder", "source"), ("decoder", "target")):
            ffn = self.get("encoder_ffn_embed_dim", 2048)
            values[f"{side}_layers"] = self.layers(side)
            values[f"{side}_ffn"] = self.get(f"{side}_ffn_embed_dim", ffn)
            values[f"{side}_heads"] = self.get(f"{side}_attention_heads", 8)
            values[f"{side}_norm_first"] = self.norm_first(side)
            values[f"{side}_positions"] = self.positions(side)
            table = tensors.get(f"{side}_embedding.positions.weight")
            limit = self.get(f"max_{longest}_positions", 1024) if table is None else table.shape[0]
            values[f"max_{longest}_len"] = limit
        return values


def find_dictionary(checkpoint: FairseqCheckpoint, given: Path | None, side: str) -> Path:
    """The dictionary that is given, or else the one in the data folder that the checkpoint names."""
    if given is not None:
        return given
    for folder in _data_folders(checkpoint):
        path = folder / f"dict.{_language(checkpoint, folder, side)}.txt"
        if os.path.isfile(path):
            return path
    raise CheckpointError(
        f"the {side} dictionary of its training data is not found",
        fix=f"give it with {named(f'{side}_dict')}",
        where=str(checkpoint.path),
    )


def _data_folders(checkpoint: FairseqCheckpoint) -> list[Path]:
    """The folders of its training data that are there."""
    names = str(_section(checkpoint.state, "task").get("data", "")).split(":")
    return [Path(name) for name in names if os.path.isdir(name)]


def _language(checkpoint: FairseqCheckpoint, folder: Path, side: str) -> str | None:
    """The language of a side, of the settings or of the files of a data folder."""
    # fairseq infers the languages it was not told from names such as train.src-trg.src.idx
    pairs = {tuple(path.name.split(".")[1].split("-")) for path in folder.glob("*.*-*.*.idx")}
    inferred = dict(zip(("source", "target"), pairs.pop(), strict=False)) if len(pairs) == 1 else {}
    return _section(checkpoint.state, "task").get(f"{side}_lang") or inferred.get(side)


def _card(checkpoint: FairseqCheckpoint, config: TransformerConfig, dtype: str) -> str:
    validation = checkpoint.validation
    return fact_card(
        {
            "Architecture": checkpoint.settings.get("arch", "transformer"),
            "Layers": f"{config.encoder_layers} encoder, {config.decoder_layers} decoder",
            "Vocabulary": f"{config.src_vocab} source, {config.tgt_vocab} target",
            "Stored as": dtype,
            "Updates": checkpoint.updates,
            "Validation score when saved": "not validated" if validation is None else validation,
            "Converted from": checkpoint.path.name,
            "Converted by": f"nartk {__version__}",
            "Training data and licence": "not stated",
        }
    )
