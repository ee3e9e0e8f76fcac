"""The native model folder: ``model.safetensors``, ``config.json``, the processors' files, ``card.md``.

Nothing in it can run code. What is read is checked against the configuration before memory is taken.

``config.json`` of format 3 has ``files`` (the SHA-256 of every other file, by name), ``architecture`` (its
name), ``model`` (its settings), ``aliases`` (names of weights that are another's), ``special_ids`` (bos, pad,
eos and unk), ``start_token`` (what outputs begin after), ``input`` and ``output`` (a processor's ``name`` and
settings, see `nartk.processors`), in int8 folders ``quantized`` and ``layout``, and where the model was
trained on tokens that ordinary text is to be split into, ``tokenization`` (``penn``: English sentences in
the tokens of the Penn Treebank), where it came with such, ``generation`` (values of strategies' options,
see `checkpoints.generation`), and where outputs should resemble their input, ``guard`` (`processors.guard`).

Loading compares the hash of each file that it reads as a whole. The card, and the weights of int8 folders,
which are mapped, are compared where that is asked for, as ``nartk-verify`` and ``--check`` do.

A model may have rows for more words than its dictionary, as a matrix that was filled up to a multiple of 8
has. They stand for no word, and are left out as weights are read: a model's distribution is over the words
of its dictionary, in torch and on the engine alike.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from nartk.architectures.settings import SOURCE_WORDS, TARGET_WORDS
from nartk.checkpoints.checkpoint import Checkpoint, assemble
from nartk.checkpoints.names import ADDED, CARD, CONFIG, WEIGHTS
from nartk.checkpoints.quantized import INT8, LAYOUT
from nartk.checkpoints.tensors import QuantizedTensors, StoredTensors
from nartk.errors import CheckpointError
from nartk.files import Folder, JsonObject
from nartk.processors import SIDES
from nartk.processors.guard import KEY as GUARD

FORMAT = 3
_RESTORE = "convert the model again, or copy the whole folder again"


def read_native(folder: Folder, *, check: bool = False) -> Checkpoint:
    """Reads a folder that nartk has written.

    Args:
        check: True to compare also the hashes of files that are not read as a whole.

    Raises:
        CheckpointError: A file is missing, corrupt or inconsistent.
    """
    where = str(folder / CONFIG)
    config = folder.json(CONFIG)
    if (form := config.get("format")) != FORMAT:
        fix = "convert the model again with nartk-convert" if form in (1, 2) else ""
        raise CheckpointError(f"format {form!r}, this version reads {FORMAT}", fix=fix, where=where)
    aliases, quantized = config.get("aliases"), config.get("quantized")
    if (
        not isinstance(config.get("architecture"), str)
        or not isinstance(config.get("model"), dict)
        or not isinstance(aliases, dict)
    ):
        raise CheckpointError("'architecture', 'model' or 'aliases' is missing", where=where)
    if quantized not in (None, INT8):
        raise CheckpointError(f"'quantized' is {quantized!r}, not {INT8!r}", where=where)
    if quantized is not None and config.get("layout") != LAYOUT:
        raise CheckpointError(
            f"layout {config.get('layout')!r} of {INT8} weights, this version reads {LAYOUT}",
            fix="convert the model that it was made of again",
            where=where,
        )
    hashes = _hashes(config, folder)
    _compare(folder, hashes, but=() if check else (WEIGHTS, CARD))
    tensors = (StoredTensors if quantized is None else QuantizedTensors)(folder / WEIGHTS)
    if (digest := tensors.digest()) is not None:
        _require_hash(folder / WEIGHTS, hashes[WEIGHTS], digest)
    for alias, original in aliases.items():
        if not isinstance(original, str) or original not in tensors:
            raise CheckpointError(
                f"{alias!r} is an alias of {original!r}, which is missing", where=str(folder)
            )
        tensors.alias(alias, original)
    files = [name for name in hashes if name not in (WEIGHTS, CONFIG, CARD, *ADDED) and folder.has(name)]
    checkpoint = assemble(
        folder,
        config,
        tensors,
        fingerprint=folder.sha256(CONFIG)[:12],
        files={name: folder / name for name in files},
    )
    if quantized is None:
        source, target = checkpoint.input.vocab, checkpoint.target_vocab
        for words, vocab in ((SOURCE_WORDS, source), *((each, target) for each in TARGET_WORDS)):
            if vocab is not None and tensors.shapes.get(words, (0,))[0] > len(vocab):
                tensors.read_first(words, len(vocab))
    return replace(checkpoint, quantized=quantized, checked=check)


def _hashes(config: JsonObject, folder: Folder) -> dict[str, str]:
    """The hashes in a config.json."""
    found = config.get("files")
    if not isinstance(found, dict) or WEIGHTS not in found or set("".join(found)) & set("/\\:\0"):
        raise CheckpointError("'files' does not name the files of the folder", where=str(folder / CONFIG))
    for name in _strings([config.get(key) for key in (*SIDES, GUARD)]):
        if name not in found and folder.has(name):
            raise CheckpointError(
                f"'files' has no hash of {name!r}", fix=_RESTORE, where=str(folder / CONFIG)
            )
    return found


def _strings(value: object) -> Iterator[str]:
    """The strings in a value of JSON, but for the names of its members."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)


def _compare(folder: Folder, hashes: Mapping[str, str], but: Collection[str] = ()) -> None:
    for name, wanted in hashes.items():
        if name in but:
            continue
        if not folder.has(name):
            raise CheckpointError(f"the file {name!r} is missing", fix=_RESTORE, where=str(folder))
        _require_hash(folder / name, wanted, folder.sha256(name))


def _require_hash(path: Path, wanted: str, found: str) -> None:
    if wanted != found:
        raise CheckpointError(
            f"has been changed: its sha256 is {found[:12]}..., {CONFIG} has {str(wanted)[:12]}...",
            fix=_RESTORE,
            where=str(path),
        )
