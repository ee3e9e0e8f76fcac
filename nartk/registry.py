"""The decoder registry: one declaration gives a strategy its flags, help, defaults, API and signature."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from nartk.errors import (
    StrategyMismatchError,
    UnknownStrategyError,
    UsageError,
)
from nartk.guarantee import Promise

T = TypeVar("T", bound=type)
T_Scorer = TypeVar("T_Scorer")
_STRATEGIES: dict[str, type] = {}
_loaded = False


def option(
    default: Any,
    help: str,
    *,
    choices: Sequence[Any] | None = None,
    low: float | None = None,
    high: float | None = None,
    model: bool = False,
    smaller: bool = False,
    arrays: bool = False,
) -> Any:
    """Declares an option of a strategy.

    Args:
        default: Its value where the user gives none; its type is the option's type.
        help: One line for ``--help``, with the unit.
        choices: The values it may take.
        low, high: Its bounds, included.
        model: It names another model, which is loaded beside the first; the strategy finds its scorer in
            ``helpers`` and the model's fingerprint as the option's value.
        smaller: That model has at most as many parameters as the first, or they are probably swapped.
        arrays: The strategy asks that model over arrays (`Model.passes`), not over tensors.
    """
    metadata = {"help": help, "choices": choices, "low": low, "high": high, "model": model}
    return dataclasses.field(default=default, metadata={**metadata, "smaller": smaller, "arrays": arrays})


def register_decoder(name: str) -> Callable[[T], T]:
    """Makes a class a frozen dataclass of options and registers it as the strategy `name`.

    The class states its ``promise`` and the protocol, or protocols, it ``needs``, and has a method ``run``.
    """

    def register(cls: T) -> T:
        if name in _STRATEGIES:
            raise UsageError(f"two strategies are named {name!r}")
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)
        cls.name = name  # type: ignore[attr-defined]
        _STRATEGIES[name] = cls
        return cls

    return register


def strategies() -> dict[str, Promise]:
    """The names of all strategies, each with its promise where no option is given."""
    _load()
    return {name: _STRATEGIES[name].promise for name in sorted(_STRATEGIES)}  # type: ignore[attr-defined]


def strategy_class(name: str) -> type:
    """The class registered as `name`. No other strategy is imported, if there is one of that name.

    Raises:
        UnknownStrategyError: There is none; it names the nearest ones.
    """
    if name not in _STRATEGIES:
        _load_named(name)
    if name not in _STRATEGIES:
        _load()
        near = difflib.get_close_matches(name, _STRATEGIES, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UnknownStrategyError(
            f"no strategy {name!r}", fix=f"{hint}choose from {', '.join(sorted(_STRATEGIES))}"
        )
    return _STRATEGIES[name]


def options_of(name: str) -> dict[str, dataclasses.Field]:
    """The options of a strategy by name, each with its default, type and help."""
    return {item.name: item for item in dataclasses.fields(strategy_class(name)) if "help" in item.metadata}


def make_strategy(name: str, options: Mapping[str, Any]) -> Any:
    """A strategy with its options checked: unknown names, types, choices and bounds are UsageErrors."""
    cls = strategy_class(name)
    known = options_of(name)
    types = get_type_hints(cls)
    for key, value in options.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {_flag(near[0])}? " if near else ""
            raise UsageError(
                f"strategy {name!r} has no option {_flag(key)}",
                fix=f"{hint}it knows {', '.join(map(_flag, known)) or 'no options'}",
            )
        _check(name, key, value, types[key], known[key].metadata)
    return cls(**options)


def protocols(strategy: Any) -> tuple[type, ...]:
    """All protocols that a strategy, or a class of them, needs of its model."""
    return strategy.needs if isinstance(strategy.needs, tuple) else (strategy.needs,)


def speaks(strategy: Any, scorer: object) -> bool:
    """Whether a scorer speaks all protocols that a strategy, or a class of them, needs."""
    return all(isinstance(scorer, each) for each in protocols(strategy))


def require_protocol(strategy: Any, *scorers: T_Scorer) -> T_Scorer:
    """The first of a model's scorers that speaks the strategy's protocols.

    Raises:
        StrategyMismatchError: None does; it names the strategies that fit the model.
    """
    for scorer in scorers:
        if speaks(strategy, scorer):
            return scorer
    _load()
    fitting = [
        name for name, cls in sorted(_STRATEGIES.items()) if any(speaks(cls, each) for each in scorers)
    ]
    raise StrategyMismatchError(
        f"strategy {strategy.name!r} needs a {named_protocols(strategy)}, this model is none",
        fix=f"choose from {', '.join(fitting)}" if fitting else "",
    )


def named_protocols(strategy: Any) -> str:
    """The protocols that a strategy, or a class of them, needs, for messages."""
    return " and ".join(each.__name__ for each in protocols(strategy))


def reads_drafts(strategy: Any) -> bool:
    """Whether a strategy, or a class of them, takes drafts from the user."""
    return getattr(strategy, "reads_drafts", False)


def require_drafts_reader(strategy: Any) -> None:
    """Refuses drafts for a strategy that reads none, naming those that do."""
    if reads_drafts(strategy):
        return
    _load()
    reading = [name for name, cls in sorted(_STRATEGIES.items()) if reads_drafts(cls)]
    raise UsageError(
        f"drafts are given, but strategy {strategy.name!r} reads none",
        fix=f"choose from {', '.join(reading)}",
    )


def signature(strategy: Any, *, dtype: str, model: str, version: str) -> str:
    """What reproduces a result: ``strategy:iad|exact:1|dtype:fp32|nartk:0.1.0|model:ab12cd``."""
    parts = [f"strategy:{strategy.name}"]
    for name in options_of(strategy.name):
        value = getattr(strategy, name)
        parts.append(f"{name}:{int(value) if isinstance(value, bool) else value}")
    return "|".join([*parts, f"dtype:{dtype}", f"nartk:{version}", f"model:{model}"])


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _check(strategy: str, name: str, value: Any, wanted: type, rules: Mapping[str, Any]) -> None:
    flag = f"{_flag(name)} of {strategy!r}"
    if wanted is float and type(value) is int:
        value = float(value)
    if type(value) is not wanted:
        raise UsageError(f"{flag} is {value!r}, not of type {wanted.__name__}")
    if rules["choices"] is not None and value not in rules["choices"]:
        raise UsageError(f"{flag} is {value!r}", fix=f"choose from {', '.join(map(str, rules['choices']))}")
    low, high = rules["low"], rules["high"]
    if (low is not None and not value >= low) or (high is not None and not value <= high):
        bounds = f"at least {low}" if high is None else f"between {low} and {high}"
        raise UsageError(f"{flag} is {value}", fix=f"give a value {bounds}")


def _load_named(name: str) -> None:
    """Imports the strategy `name`, if the room `decoders` or another package has it."""
    stem = name.replace("-", "_")
    room = importlib.import_module("nartk.decoders")
    if stem.isidentifier() and Path(room.__path__[0], f"{stem}.py").is_file():
        importlib.import_module(f"nartk.decoders.{stem}")
    else:
        for point in _elsewhere():
            if point.name == name:
                point.load()


def _load() -> None:
    """Imports every strategy, and those that other packages declare."""
    global _loaded
    if _loaded:
        return
    _loaded = True
    room = importlib.import_module("nartk.decoders")
    for module in pkgutil.iter_modules(room.__path__):
        importlib.import_module(f"nartk.decoders.{module.name}")
    for point in _elsewhere():
        point.load()


def _elsewhere() -> Any:
    """The strategies that other packages declare."""
    from importlib.metadata import entry_points  # which takes 40 ms: few ask

    return entry_points(group="nartk.decoders")
