"""nartk: fast sequence-to-sequence and non-autoregressive generation that keeps its word.

For example:

    model = nartk.load("gec-en")
    model.decode(["She go home ."], strategy="iad")[0].text
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nartk.pipeline import Model, load
    from nartk.registry import strategies

__version__ = "0.1.0"
__all__ = ["Model", "__version__", "load", "strategies"]

for _linked in ("models", "decoders", "data"):
    if not Path(__file__).with_name(_linked).is_dir():
        raise ImportError(
            f"nartk/{_linked} is not a folder: git made no symbolic link to ../{_linked}. Fix: `git config "
            f"core.symlinks true` (on Windows in Developer Mode), then `git checkout -- nartk/{_linked}`."
        )


def __getattr__(name: str) -> object:
    # The public names import torch, so they load on first use: `import nartk` stays cheap.
    if name in ("load", "Model"):
        from nartk import pipeline

        return getattr(pipeline, name)
    if name == "strategies":
        from nartk.registry import strategies

        return strategies
    raise AttributeError(f"module 'nartk' has no attribute {name!r}")
