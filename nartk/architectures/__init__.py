"""The architectures that nartk knows: a file each, named as ``config.json`` and ``--arch nartk_NAME`` say.

A file declares its architecture: a configuration that combines an encoder (`encoders`), a decoder
(`decoders`) and heads, of whose layers (`parts`) the names and shapes of weights derive. These also say which
protocols it speaks, and where its network and its scorers are. None needs torch: the engine reads a model by
these files alone.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from typing import Any, TypeVar

from nartk.architectures.settings import Config, Speaks
from nartk.errors import UnsupportedCheckpointError, requiring_torch
from nartk.protocols.passes import PassScorer

C = TypeVar("C", bound=type[Config])
_SHARED = {"decoders", "encoders", "parts", "positions", "settings"}  # files that declare no architecture
_ENGINE = "nartk.engine.base:OnEngine"
_REFERENCE = "nartk.models.reference:OnTorch"
_DECLARED: dict[str, Architecture] = {}


@dataclass(frozen=True)
class Architecture:
    """A model's architecture. What needs torch or the engine is imported where it is used.

    Attributes:
        config: Class of its configuration.
        criterions: Those of fairseq that train it.
        presets: Settings that differ from the configuration's, by the name of `--arch` that they have.
        strategy: Default strategy of a converted model; "": the command's own default.
        network_at: ``module:Class`` of its network in torch.
        engine_at: That of the base of its scorer on the engine; None: the engine has not learnt its layers.
    """

    name: str
    config: type[Config]
    criterions: tuple[str, ...]
    presets: Mapping[str, Mapping[str, object]]
    strategy: str
    network_at: str
    engine_at: str | None

    @cached_property
    def _speaks(self) -> list[Speaks]:
        classes = self.config.__mro__
        return [found for each in classes if (found := vars(each).get("speaks")) is not None]

    @property
    def protocols(self) -> tuple[type, ...]:
        """Those of `nartk.protocols` that its models speak, by which strategies and drafters serve it."""
        return tuple(protocol for each in self._speaks for protocol in each.protocols)

    @property
    def autoregressive(self) -> bool:
        """Tells whether it predicts the next word of an output: such models verify drafts."""
        return PassScorer in self.protocols

    @property
    def network(self) -> Any:
        """The class of its network, in torch."""
        with requiring_torch(f"a network of architecture {self.name!r}"):
            return imported(self.network_at)

    @cached_property
    def scorer(self) -> Any:
        """The class of what serves its network, in torch."""
        with requiring_torch(f"a model of architecture {self.name!r}"):
            return self._combined(_REFERENCE, [each.reference for each in self._speaks])

    @cached_property
    def device_scorer(self) -> Any:
        """The class of what serves its network on a GPU."""
        with requiring_torch(f"a model of architecture {self.name!r}"):
            return self._combined(_REFERENCE, [each.device or each.reference for each in self._speaks])

    @cached_property
    def engine(self) -> Any:
        """The class of what serves its weights on the engine; None where the engine has not learnt it."""
        return self.engine_at and self._combined(self.engine_at, [each.engine for each in self._speaks])

    def _combined(self, base: str, mixins: list[str]) -> type:
        classes = tuple(imported(each) for each in (*mixins, base))
        return type(f"{self.name}:{classes[-1].__name__}", classes, {"__module__": classes[-1].__module__})


def register_architecture(
    name: str,
    *,
    criterions: tuple[str, ...],
    presets: Mapping[str, Mapping[str, object]],
    network: str = "",
    strategy: str = "",
    engine: bool = True,
) -> Callable[[C], C]:
    """Declares the configuration that it decorates as the architecture `name`.

    Args:
        criterions, strategy: Same as in `Architecture`.
        presets: Settings by the suffix of ``nartk_NAME`` in ``--arch``; "" is the architecture itself.
        network: ``module:Class`` of its network in torch; "": that of the configuration's decoder.
        engine: True if the engine implements its layers.
    """

    def register(config: C) -> C:
        archs = {f"nartk_{name}{ending}": settings for ending, settings in presets.items()}
        at = network if network else config.network
        base = _ENGINE if engine else None
        _DECLARED[name] = Architecture(name, config, criterions, archs, strategy, at, base)
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
    return {module.name for module in pkgutil.iter_modules(__path__)} - _SHARED


def _names() -> list[str]:
    return sorted(_own() | {*_DECLARED})


@cache
def _load_elsewhere() -> None:
    """Imports the architectures that other distributions declare."""
    from importlib.metadata import entry_points  # which takes 40 ms: few ask

    for point in entry_points(group="nartk.architectures"):
        point.load()


def imported(name: str) -> Any:
    """The class that ``module:Class`` names."""
    module, _, name = name.partition(":")
    return getattr(import_module(module), name)
