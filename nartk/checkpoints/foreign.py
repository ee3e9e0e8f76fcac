"""Models of other libraries by the files of their folders, each with its way into nartk or none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

from nartk.checkpoints.names import BINARY, CONFIG
from nartk.errors import UnsupportedCheckpointError
from nartk.files import Folder

_ORIGIN = "name the model that it was made of; nartk does not read it"
# Patterns of files that are all there, with what such a folder is, and the way in.
_KNOWN: tuple[tuple[tuple[str, ...], str, Callable[[Path], str]], ...] = (
    (
        ("model.bin.part*",),
        "a model of CTranslate2 in parts",
        lambda folder: f"join them: cat {folder}/model.bin.part* > {folder}/model.bin",
    ),
    (("*.onnx",), "a model in ONNX", lambda _: _ORIGIN),
    (("*.gguf",), "a model in GGUF", lambda _: _ORIGIN),
    (("am.mvn", "model.pt"), "a model of FunASR", lambda folder: f"nartk-convert {folder} --output DIR"),
    (("*.pth", "config.yaml"), "a model of ESPnet", lambda folder: f"nartk-convert {folder} --output DIR"),
    (("exp", "meta.yaml"), "a model of ESPnet", lambda folder: f"nartk-convert {folder} --output DIR"),
    (
        ("dict*.txt", "*.pt"),
        "a folder of fairseq's checkpoints",
        lambda folder: f"nartk-convert {min(folder.glob('*.pt'))} --output DIR",
    ),
    (
        ("*.pt",),
        "a folder of checkpoints of torch",
        lambda folder: (
            f"nartk-convert {min(folder.glob('*.pt'))} --output DIR, if they are fairseq's or OpenAI's; "
            "docs/models.md tells how state dicts of other networks are read"
        ),
    ),
)
_MARIAN = b"\1\0\0\0\0\0\0\0"  # with which binary models of Marian begin
ESPNET_CONFIG, ESPNET_PACKED = "config.yaml", "meta.yaml"
FUNASR_CONFIG, FUNASR_MANIFEST = "config.yaml", "configuration.json"
FUNASR_WEIGHTS, FUNASR_STATISTICS = "model.pt", "am.mvn"
ARGOS = "model"  # the folder inside of a package


def is_ctranslate2(folder: Folder) -> bool:
    """Tells whether a folder is one of CTranslate2's."""
    if not folder.has(BINARY):
        return False
    config = folder.optional_json(CONFIG) or {}
    return "format" not in config and "model_type" not in config


def marian_models(folder: Path) -> list[str]:
    """Names of the models of Marian that a folder holds: archives of NumPy's, and its binary files."""
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.suffix == ".npz" and path.is_file():
            found.append(path.name)
        elif path.suffix == ".bin" and path.is_file():
            with contextlib.suppress(OSError), path.open("rb") as file:
                if file.read(len(_MARIAN)) == _MARIAN:
                    found.append(path.name)
    return found


def is_marian(folder: Folder) -> bool:
    """Tells whether a folder is one of Marian's own models."""
    return not folder.has(CONFIG) and bool(marian_models(folder.path))


def is_argos(folder: Folder) -> bool:
    """Tells whether a folder is a package of Argos Translate, with a model of CTranslate2 inside of it."""
    return folder.has("metadata.json") and folder.has(f"{ARGOS}/{BINARY}")


def is_espnet(path: Path) -> bool:
    """Tells whether a folder, or a file of weights, is one of ESPnet's, by the names of files."""
    if path.is_dir():
        packed, config = path / ESPNET_PACKED, path / ESPNET_CONFIG
        return not (path / CONFIG).is_file() and (
            packed.is_file() or (config.is_file() and any(path.glob("*.pth")))
        )
    return path.suffix == ".pth" and (path.parent / ESPNET_CONFIG).is_file()


def is_funasr(path: Path) -> bool:
    """Tells whether a folder, or a file of weights, is one of FunASR's, by the names of files."""
    if not path.is_dir():
        return path.suffix == ".pt" and (path.parent / FUNASR_STATISTICS).is_file() and is_funasr(path.parent)
    described = any((path / name).is_file() for name in (FUNASR_CONFIG, FUNASR_MANIFEST))
    known = any((path / name).is_file() for name in (FUNASR_WEIGHTS, FUNASR_STATISTICS))
    return described and known and not (path / CONFIG).is_file() and not is_espnet(path)


def refuse_foreign(folder: Path) -> None:
    """Raises UnsupportedCheckpointError where a folder is known as another library's."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    for patterns, what, remedy in _KNOWN:
        if all(any(fnmatch(name, pattern) for name in names) for pattern in patterns):
            raise UnsupportedCheckpointError(f"is {what}", fix=remedy(folder), where=str(folder))
