"""nartk: fast sequence-to-sequence and non-autoregressive generation that keeps its word.

For example:

    model = nartk.load("gec-en")
    model.decode(["She go home ."], strategy="iad")[0].text
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nartk.pipeline import Model, load
    from nartk.registry import strategies

__version__ = "0.1.0"
__all__ = ["Model", "__version__", "load", "strategies"]

_HERE = Path(__file__).resolve().parent
_ROOMS = ("nartk.models", "nartk.decoders", "nartk.data")


class _RoomFinder:
    """Finds the rooms of a bare checkout, where they lie beside the package and not inside it."""

    @staticmethod
    def find_spec(fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname in _ROOMS:
            return PathFinder.find_spec(fullname, [str(_HERE.parent)])
        return None


if not (_HERE / "models").is_dir():
    sys.meta_path.append(_RoomFinder)


def __getattr__(name: str) -> object:
    # The public names import torch, so they load on first use: `import nartk` stays cheap.
    if name in ("load", "Model"):
        from nartk import pipeline

        return getattr(pipeline, name)
    if name == "strategies":
        from nartk.registry import strategies

        return strategies
    raise AttributeError(f"module 'nartk' has no attribute {name!r}")
