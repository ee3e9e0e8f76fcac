"""The scorers of architectures by short names: `NatEngine`, `NatReference`, `ConformerEngine`, ...

`TransformerDevice` is what takes the reference's place on a GPU.
"""

from __future__ import annotations

from typing import Any

from nartk.architectures import architecture

ARCHITECTURES = {
    "Transformer": "transformer",
    "Conformer": "conformer",
    "Whisper": "whisper",
    "OwsmCtc": "owsm_ctc",
    "Paraformer": "paraformer",
    "Ctc": "ctc",
    "Nat": "nat",
    "Dag": "dag",
    "Blockwise": "blockwise",
}


def __getattr__(name: str) -> Any:
    for side, attribute in (("Engine", "engine"), ("Reference", "scorer"), ("Device", "device_scorer")):
        if name.removesuffix(side) in ARCHITECTURES and name.endswith(side):
            return getattr(architecture(ARCHITECTURES[name.removesuffix(side)]), attribute)
    raise AttributeError(name)
