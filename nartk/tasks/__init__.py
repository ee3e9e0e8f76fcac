"""The only doorway to fairseq: `fairseq-train --user-dir nartk`, or `nartk-train`.

fairseq imports every file of this folder by itself. Importing this package alone needs no fairseq.
"""

from __future__ import annotations

import importlib
import pkgutil


def register() -> None:
    """Registers all architectures, criterions and optimizers of nartk with fairseq."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
