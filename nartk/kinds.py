"""The kinds of models that nartk knows: where each kind's configuration, network and scorer are.

A kind is the name that a model folder's ``config.json`` gives, and `--arch nartk_KIND` in training.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from nartk.errors import UnsupportedCheckpointError


@dataclass(frozen=True)
class Kind:
    """A kind of model, imported where it is used.

    Attributes:
        module: Of its configuration and network.
        names: Of its configuration and network classes there.
        scorer_module, scorer_name: Of what serves it.
        engine_at: ``module:name`` of what serves it on the engine.
        tensors_at: ``module:name`` of what lends that to strategies over tensors.
        autoregressive: Whether it is trained to say the next word.
    """

    module: str
    names: tuple[str, str]
    scorer_module: str
    scorer_name: str
    engine_at: str
    tensors_at: str
    autoregressive: bool = False

    @property
    def config(self) -> Any:
        return getattr(import_module(self.module), self.names[0])

    @property
    def network(self) -> Any:
        return getattr(import_module(self.module), self.names[1])

    @property
    def scorer(self) -> Any:
        return getattr(import_module(self.scorer_module), self.scorer_name)

    @property
    def engine(self) -> Any:
        return _imported(self.engine_at)

    @property
    def tensors(self) -> Any:
        return _imported(self.tensors_at)


def _imported(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


KINDS = {
    "transformer": Kind(
        "nartk.models.transformer",
        ("TransformerConfig", "Transformer"),
        "nartk.models.transformer_scorer",
        "TransformerScorer",
        "nartk.engine.scorer:EngineScorer",
        "nartk.models.tensor_engine:TensorEngine",
        autoregressive=True,
    ),
    "blockwise": Kind(
        "nartk.models.blockwise",
        ("BlockwiseConfig", "Blockwise"),
        "nartk.models.blockwise",
        "BlockwiseScorer",
        "nartk.engine.parallel_scorer:BlockwiseEngine",
        "nartk.models.tensor_parallel:TensorBlocks",
    ),
    "nat": Kind(
        "nartk.models.nat",
        ("NatConfig", "Nat"),
        "nartk.models.nat_scorer",
        "NatScorer",
        "nartk.engine.parallel_scorer:NatEngine",
        "nartk.models.tensor_parallel:TensorCanvases",
    ),
    "dag": Kind(
        "nartk.models.da_transformer",
        ("DagConfig", "DaTransformer"),
        "nartk.models.dag_scorer",
        "DagScorer",
        "nartk.engine.parallel_scorer:DagEngine",
        "nartk.models.tensor_parallel:TensorGraphs",
    ),
    "ctc": Kind(
        "nartk.models.ctc",
        ("CtcConfig", "CtcNat"),
        "nartk.models.ctc_scorer",
        "CtcScorer",
        "nartk.engine.parallel_scorer:CtcEngine",
        "nartk.models.tensor_parallel:TensorFrames",
    ),
}


def kind_of(name: str) -> Kind:
    """The kind of that name; raises UnsupportedCheckpointError where this version has none."""
    if name not in KINDS:
        raise UnsupportedCheckpointError(
            f"a model of kind {name!r}", fix=f"this version knows {', '.join(KINDS)}"
        )
    return KINDS[name]
