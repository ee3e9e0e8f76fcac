"""Names: of the files of a model folder, and of the models that ship."""

from __future__ import annotations

import os
from pathlib import Path

from nartk.errors import ModelNotFoundError, UsageError

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"  # of Hugging Face's folders
ADAPTER = "adapter_config.json"  # of Hugging Face's folders that hold no model
BINARY = "model.bin"  # of CTranslate2's folders
CARD = "card.md"
DICTIONARY = "dict.txt"
TARGET_DICTIONARY = "dict.target.txt"  # present only where source and target words differ
TOKENIZER = "spm.model"
TARGET_TOKENIZER = "spm.target.model"
INPUT = "input.json"  # of a folder of training data: the settings of an input processor that reads no text
MEL = "mel.json"  # settings of the spectrograms that a model speaks
WORD_COUNTS = "word_counts.json"  # how often the verifier writes each word, of a drafter
CALIBRATION = "calibration.json"  # which nartk-calibrate adds
COSTS = "costs.json"  # which nartk-bench --tune adds
ADDED = (CALIBRATION, COSTS)  # no part of the model

MOST_CARD = 10_000_000  # bytes of card.md

# Models inside the package, the default first; and those of them that wheels, to stay below 24 MB, leave out.
SHIPPED = ("gec-en-medium", "gec-en", "asr-digits", "st-digits", "s2s-digits")
IN_CLONES = ("gec-en", "st-digits", "s2s-digits")
_SHIPPED_AT = Path(__file__).parents[1] / "data" / "models"


def model_folder(name: str | os.PathLike[str]) -> Path:
    """The folder of a shipped model; any other name is a folder itself.

    Raises:
        ModelNotFoundError: The shipped model is not in this installation.
    """
    if not isinstance(name, str | os.PathLike):
        raise UsageError(f"the model is {name!r}, not a name or a path", fix="give a string or a path")
    if str(name) not in SHIPPED:
        return Path(name)
    if not os.path.isdir(_SHIPPED_AT / str(name)):
        raise ModelNotFoundError(
            f"the shipped model {str(name)!r} is not in this installation",
            fix="install nartk from a clone, in place: pip install -e .",
        )
    return _SHIPPED_AT / str(name)


def installed() -> list[str]:
    """The shipped models that this installation should have: a wheel leaves some out."""
    return [name for name in SHIPPED if name not in IN_CLONES or os.path.isdir(_SHIPPED_AT / name)]
