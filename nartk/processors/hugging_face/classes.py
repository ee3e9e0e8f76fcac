"""The tokenizer classes by their names, and the tokenizer of a folder, which both sides of a model share."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from nartk.errors import CheckpointError, NartkError, UnsupportedCheckpointError
from nartk.files import Folder, JsonObject
from nartk.processors import named_file
from nartk.processors.hugging_face.fast import T5, Described, MBart, MBart50, Nllb, Pegasus, Roberta, Whisper
from nartk.processors.hugging_face.slow import M2M100, Marian
from nartk.processors.hugging_face.tokenizer import SETTINGS, Tokenizer

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
