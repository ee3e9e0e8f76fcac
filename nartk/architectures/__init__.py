"""The architectures that nartk knows: a file each, named as ``config.json`` and ``--arch nartk_NAME`` say.

A file declares its architecture's configuration, with the names and shapes of its weights, and where its
network and what serves it are. None needs torch: the engine reads a model by these files alone.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from nartk.errors import UnsupportedCheckpointError, requiring_torch
from nartk.protocols.passes import PassScorer

if TYPE_CHECKING:
    from nartk.architectures.transformer import TransformerConfig

C = TypeVar("C", bound="type[TransformerConfig]")
_DECLARED: dict[str, Architecture] = {}


@dataclass(frozen=True)
class Architecture:
    """A model's architecture. What needs torch or the engine is imported where it is used.

    Attributes:
        config: Class of its configuration.
        protocols: Those that its models speak, of `nartk.protocols`: the strategies and drafters
            that need no other serve it.
        criterions: Of fairseq, those that train it.
        presets: Settings that differ from the configuration's, by the name of `--arch` that they have.
        strategy: What decodes with a converted model where none is named; "": the command's own default.
    """

    name: str
    config: type[TransformerConfig]
    protocols: tuple[type, ...]
    criterions: tuple[str, ...]
    presets: Mapping[str, Mapping[str, Any]]
    strategy: str
    network_at: str
    scorer_at: str | None
    engine_at: str | None

    @property
    def autoregressive(self) -> bool:
        """Whether it predicts the next word of an output: such models verify drafts."""
        return PassScorer in self.protocols

    @property
    def network(self) -> Any:
        """The class of its network, in torch."""
        with requiring_torch(f"a network of architecture {self.name!r}"):
            return _imported(self.network_at)

    @property
    def scorer(self) -> Any:
        """The class of what serves its network, in torch."""
        with requiring_torch(f"a model of architecture {self.name!r}"):
            return None if self.scorer_at is None else _imported(self.scorer_at)

    @property
    def engine(self) -> Any:
        """The class of what serves its weights on the engine; None where the engine has not learnt it."""
        return None if self.engine_at is None else _imported(self.engine_at)


def register_architecture(
    name: str,
    *,
    protocols: tuple[type, ...],
    criterions: tuple[str, ...],
    presets: Mapping[str, Mapping[str, Any]],
    network: str,
    scorer: str | None = None,
    engine: str | None = None,
    strategy: str = "",
) -> Callable[[C], C]:
    """Declares the configuration that it decorates as the architecture `name`.

    Args:
        protocols, criterions, strategy: As `Architecture` has them.
        presets: By what follows ``nartk_NAME`` in the name of ``--arch``; "" is the architecture itself.
        network, scorer, engine: ``module:Class`` of what `Architecture` has of these names.
    """

    def register(config: C) -> C:
        archs = {f"nartk_{name}{ending}": settings for ending, settings in presets.items()}
        _DECLARED[name] = Architecture(
            name, config, protocols, criterions, archs, strategy, network, scorer, engine
        )
        return config

    return register


def architectures() -> dict[str, Architecture]:
    """All architectures by name, those of other distributions too."""
    _load_elsewhere()
    return {name: architecture(name) for name in _names()}


def architecture(name: str) -> Architecture:
    """The architecture of that name; raises UnsupportedCheckpointError where this version has none."""
    if name not in _DECLARED:
        if name not in _own():
            _load_elsewhere()
        if name not in _names():
            raise UnsupportedCheckpointError(
                f"a model of architecture {name!r}", fix=f"this version knows {', '.join(_names())}"
            )
        if name not in _DECLARED:
            import_module(f"{__name__}.{name}")
    return _DECLARED[name]


def _own() -> set[str]:
    return {module.name for module in pkgutil.iter_modules(__path__)}


def _names() -> list[str]:
    return sorted(_own() | {*_DECLARED})


@cache
def _load_elsewhere() -> None:
    """Imports the architectures that other distributions declare."""
    from importlib.metadata import entry_points  # which takes 40 ms: few ask

    for point in entry_points(group="nartk.architectures"):
        point.load()


def _imported(name: str) -> Any:
    module, _, name = name.partition(":")
    return getattr(import_module(module), name)
