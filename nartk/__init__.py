"""nartk: fast sequence-to-sequence and non-autoregressive generation that keeps its word.

For example::

    model = nartk.load("gec-en-medium")
    best = model.decode(["She go home ."], strategy="iad")[0]
    best.text, best.score, best.pieces

`iterate` takes lines from anything that gives them, such as an open file, and yields hypotheses in their
order as they are decoded::

    for hypothesis in model.iterate(open("in.txt"), strategy="iad"):
        print(hypothesis.text)

N-best lists are `alternatives` of the best hypothesis::

    best = model.decode(["She go home ."], "beam", beam_size=5, nbest=3)[0]
    [best.text, *(each.text for each in best.alternatives)]

A line that cannot be decoded gives an empty hypothesis with its `error`, a `NartkError`. `Model.run` adds
statistics and the signature. `nartk.strategies()` lists what `strategy` may be, and
``help(nartk.strategy_class("beam"))`` shows the options of one.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from nartk.version import __version__

if TYPE_CHECKING:
    from nartk.errors import (
        CheckpointError,
        ClusterError,
        InputEncodingError,
        InputFileError,
        InputFormatError,
        InputTooLongError,
        InternalError,
        LengthMismatchError,
        MissingDependencyError,
        ModelNotFoundError,
        NartkError,
        OutOfMemoryError,
        OutputError,
        PassError,
        ResumeMismatchError,
        SourceMismatchError,
        StrategyMismatchError,
        UnknownStrategyError,
        UnsupportedCheckpointError,
        UsageError,
        VocabMismatchError,
    )
    from nartk.protocols.guarantee import Guarantee, Promise
    from nartk.protocols.hypothesis import DecodeStats, GraphTrace, Hypothesis, Result, TokenTrace
    from nartk.protocols.sources import Drafts
    from nartk.registry import strategies, strategy_class
    from nartk.serving.loading import load
    from nartk.serving.model import Model
    from nartk.serving.outcomes import Decoded

__all__ = [
    "CheckpointError",
    "ClusterError",
    "DecodeStats",
    "Decoded",
    "Drafts",
    "GraphTrace",
    "Guarantee",
    "Hypothesis",
    "InputEncodingError",
    "InputFileError",
    "InputFormatError",
    "InputTooLongError",
    "InternalError",
    "LengthMismatchError",
    "MissingDependencyError",
    "Model",
    "ModelNotFoundError",
    "NartkError",
    "OutOfMemoryError",
    "OutputError",
    "PassError",
    "Promise",
    "Result",
    "ResumeMismatchError",
    "SourceMismatchError",
    "StrategyMismatchError",
    "TokenTrace",
    "UnknownStrategyError",
    "UnsupportedCheckpointError",
    "UsageError",
    "VocabMismatchError",
    "__version__",
    "load",
    "strategies",
    "strategy_class",
]

for _linked in ("models", "decoders", "data"):
    if not Path(__file__).with_name(_linked).is_dir():
        raise ImportError(
            f"nartk/{_linked} is not a folder: git made no symbolic link to ../{_linked}. Fix: `git config "
            f"core.symlinks true` (on Windows in Developer Mode), then `git checkout -- nartk/{_linked}`."
        )

_PUBLIC = (
    "errors",
    "protocols.guarantee",
    "protocols.hypothesis",
    "registry",
    "protocols.sources",
    "serving.outcomes",
    "serving.model",
    "serving.loading",
)


def __getattr__(name: str) -> object:
    # What is public loads on first use, from the lightest module that has it: `import nartk` stays cheap.
    if name in __all__:
        for module in _PUBLIC:
            found = getattr(import_module(f"nartk.{module}"), name, None)
            if found is not None:
                return found
    raise AttributeError(f"module 'nartk' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
