"""Declares decoders, drafters, metrics and vocoders where they are defined, by name, with their options.

One declaration gives flags, help, defaults, Python API and signature.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import pkgutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, get_type_hints

from nartk.errors import (
    StrategyMismatchError,
    UnknownStrategyError,
    UsageError,
    is_torch,
    named,
    requiring_torch,
)
from nartk.protocols.guarantee import Promise

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

T = TypeVar("T", bound=type)
Options: TypeAlias = Mapping[str, Any]  # values by name
T_Scorer = TypeVar("T_Scorer")


# What options may ask for at most, as memory grows with it: hypotheses or candidates, and samples.
WIDEST, MOST_SAMPLES = 1000, 10_000
# Beyond this a weight leaves nothing else of a score, and infinity times 0 is no number.
HEAVIEST = 1000.0

# Names of options in other programs, which are accepted too.
ALIASES = {
    "beam_size": ("beam", "num_beams"),
    "length_penalty": ("lenpen",),
    "max_len": ("max_new_tokens",),
    "nbest": ("num_return_sequences",),
    "beam_groups": ("num_beam_groups", "diverse_beam_groups"),
    "diversity_penalty": ("diverse_beam_strength",),
    "no_source_ngram": ("encoder_no_repeat_ngram_size",),
    "rules": ("as",),
}


def option(
    default: object,
    help: str,
    *,
    choices: Sequence[object] | None = None,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    most: str | None = None,
    model: bool = False,
    smaller: bool = False,
    itself: bool = False,
    file: bool = False,
    within: str = "",
    does_nothing: bool = False,
    implies: bool = False,
) -> Any:
    """Declares an option of a strategy, a drafter or a metric.

    Args:
        default: Its value where the user gives none; its type is the option's type.
        help: One line for ``--help``, with the unit.
        choices: The values it may take.
        low, high: Its bounds, included.
        above: A bound that is not included.
        most: The option of the same class that it may not exceed.
        model: It names another model, which is loaded beside the first; the strategy finds its scorer in
            ``auxiliary`` and the model's fingerprint as the option's value.
        smaller: That model has at most as many parameters as the first, or they are probably swapped.
        itself: Layers of the first model may take that model's place, ``self:layers=2``.
        file: It names a file.
        within: Folder in the first model's whose model is taken where none is named, if it is there.
        does_nothing: Its default does: signatures leave it out there.
        implies: Who gives it and names no strategy means the one that declares it (`implied`).
    """
    rules = {"help": help, "choices": choices, "low": low, "high": high, "above": above, "most": most}
    models = {"model": model, "smaller": smaller, "itself": itself, "file": file, "within": within}
    rest = {"does_nothing": does_nothing, "implies": implies}
    return dataclasses.field(default=default, metadata={**rules, **models, **rest})


class Registry:
    """Classes of options by name, each declared in a module of a package, or in another distribution.

    Args:
        noun: Name of such a class in messages.
        package: Whose modules declare them.
        group: Group of the entry points through which other distributions do.
        by_file: True if each module is named as what it declares; else all modules of the package are small,
            and are imported together.
    """

    def __init__(self, noun: str, package: str, group: str, *, by_file: bool = False) -> None:
        self.noun, self.package, self.group, self.by_file = noun, package, group, by_file
        self.classes: dict[str, type] = {}
        self.is_own_loaded = self.is_loaded = False

    def register(self, name: str) -> Callable[[T], T]:
        """Makes a class a frozen dataclass of options and declares it as `name`."""

        def declare(cls: T) -> T:
            if name in self.classes:
                raise UsageError(f"{self.noun} {name!r} is declared twice", fix="rename one of the two")
            dataclasses.dataclass(frozen=True, kw_only=True)(cls)
            cls.name = name  # type: ignore[attr-defined]
            self.classes[name] = cls
            return cls

        return declare

    def all(self) -> dict[str, type]:
        """All of them, sorted by name; without torch, those that need it are left out."""
        deque(self.every(), maxlen=0)
        return dict(sorted(self.classes.items()))

    def every(self) -> Iterator[type]:
        """Each of them: those of the package, and then, for who wants more, those of other distributions."""
        self._load_own()
        own = [*self.classes.values()]
        yield from own
        if not self.is_loaded:
            self.is_loaded = True
            for point in self._elsewhere():
                point.load()
        yield from [each for each in self.classes.values() if each not in own]

    def find(self, name: str) -> type:
        """The class declared as `name`. Where modules are named as what they declare, no other is imported.

        Raises:
            UnknownStrategyError: There is none; it names the nearest ones.
            MissingDependencyError: It needs torch, which is not installed.
        """
        if name not in self.classes:
            if self.by_file:
                self._load_named(name)
            else:
                self._load_own()
        if name not in self.classes:
            known = self.all()
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise UnknownStrategyError(
                    f"no {self.noun} {name!r}", fix=f"{hint}choose from {', '.join(known)}"
                )
        return self.classes[name]

    def options(self, name: str) -> dict[str, dataclasses.Field[Any]]:
        """Its options by name, each with its default, type and help."""
        return {item.name: item for item in dataclasses.fields(self.find(name)) if "help" in item.metadata}

    def make(self, name: str, options: Options) -> Any:
        """One with its options checked: unknown names, types, choices and bounds are UsageErrors."""
        cls = self.find(name)
        known = self.options(name)
        types = get_type_hints(cls)
        options = declared(options, known)
        for key, value in options.items():
            if key not in known:
                raise UsageError(
                    f"{self.noun} {name!r} has no option {named(key)}",
                    fix=f"{self.hint(key, known)}it knows {', '.join(map(named, known)) or 'no options'}",
                )
            _check(name, key, value, types[key], known[key].metadata)
        made = cls(**options)
        for key, item in known.items():
            most = item.metadata["most"]
            if most is not None and getattr(made, key) > getattr(made, most):
                raise UsageError(
                    f"{named(key)} is {getattr(made, key)}, above {named(most, getattr(made, most))}",
                    fix=f"raise {named(most)}",
                )
        return made

    def hint(self, key: str, known: Iterable[str]) -> str:
        """Suggests an option in place of one that is not known: one of the same class, or of the others."""
        of: dict[str, list[str]] = {}
        for name, cls in self.all().items():
            for item in dataclasses.fields(cls):
                if "help" in item.metadata:
                    for each in (item.name, *ALIASES.get(item.name, ())):
                        of.setdefault(each, []).append(name)
        if key in of:
            return f"it is an option of {', '.join(of[key])}; "
        near = difflib.get_close_matches(key, known, n=1) or difflib.get_close_matches(key, of, n=1)
        if not near:
            return ""
        whose = "" if near[0] in known else f" of {', '.join(of[near[0]])}"
        return f"did you mean {named(near[0])}{whose}? "

    def _load_own(self) -> None:
        """Imports the package's modules."""
        if self.is_own_loaded:
            return
        self.is_own_loaded = True
        for module in pkgutil.iter_modules(importlib.import_module(self.package).__path__):
            try:
                importlib.import_module(f"{self.package}.{module.name}")
            except ImportError as error:
                if not is_torch(error):
                    raise

    def _load_named(self, name: str) -> None:
        """Imports what declares `name`, if the package or another distribution has it; nothing else."""
        stem = name.replace("-", "_")
        package = importlib.import_module(self.package)
        if stem.isidentifier() and Path(package.__path__[0], f"{stem}.py").is_file():
            with requiring_torch(f"{self.noun} {name!r}"):
                importlib.import_module(f"{self.package}.{stem}")
        else:
            for point in self._elsewhere():
                if point.name == name:
                    point.load()

    def _elsewhere(self) -> EntryPoints:
        """Those that other distributions declare."""
        from importlib.metadata import entry_points  # which takes 40 ms: few ask

        return entry_points(group=self.group)


DECODERS = Registry("strategy", "nartk.decoders", "nartk.decoders", by_file=True)
DRAFTERS = Registry("drafter", "nartk.decoders.drafters", "nartk.drafters")
METRICS = Registry("metric", "nartk.metrics", "nartk.metrics")
VOCODERS = Registry("vocoder", "nartk.vocoders", "nartk.vocoders", by_file=True)


# Each makes a class a frozen dataclass of options and registers it under a name. A strategy's class states
# its `promise` and the protocol, or protocols, it `needs`, and has a method `run`; a drafter's is a
# `nartk.decoders.loop.drafter.DrafterOptions`, a metric's a `nartk.metrics.metric.Metric`, a
# vocoder's a `nartk.vocoders.vocoder.VocoderOptions`.
register_decoder, register_drafter, register_metric = DECODERS.register, DRAFTERS.register, METRICS.register
register_vocoder = VOCODERS.register

# Of strategies, as `Registry` has them.
strategy_class, options_of, make_strategy = DECODERS.find, DECODERS.options, DECODERS.make


def read_options(text: str, name: str, given: Iterable[str], types: Mapping[str, type]) -> dict[str, object]:
    """The options that a user wrote behind a name: ``NAME:OPTION=VALUE:OPTION=VALUE``.

    Args:
        text: All that was written, for messages.
        given: Its parts ``OPTION=VALUE``.
        types: Type of each option that the named thing knows.

    Raises:
        UsageError: It does not know an option, or a value is none of the option's type.
    """
    options: dict[str, object] = {}
    for part in given:
        key, equals, value = part.partition("=")
        if not equals or key not in types:
            known = ", ".join(types) or "no options"
            raise UsageError(f"{text!r} sets {part!r}", fix=f"{name} knows {known}, as OPTION=VALUE")
        is_flag = types[key] is bool
        try:
            options[key] = {"0": False, "1": True}[value] if is_flag else types[key](value)
        except (KeyError, ValueError):
            form = "0 or 1" if is_flag else f"of type {types[key].__name__}"
            raise UsageError(f"{text!r} has the value {value!r}", fix=f"give one that is {form}") from None
    return options


def declared(options: Options, known: Iterable[str]) -> dict[str, object]:
    """Options under the names by which they are declared, where some have those of other programs.

    Raises:
        UsageError: One is given under two names.
    """
    names = {alias: name for name in known for alias in ALIASES.get(name, ())}
    found: dict[str, object] = {}
    for key, value in options.items():
        name = key if key in known else names.get(key, key)
        if name in found:
            raise UsageError(f"{named(name)} is given under two names", fix="give one of them")
        found[name] = value
    return found


# Of commands and the server, with a model whose configuration names none: greedy search's output, sooner.
DEFAULT_STRATEGY = "iad"


def implied(options: Iterable[str], default: str) -> str:
    """The strategy that is meant where none is named.

    It is `default` if that has all options, or if none of the others implies a strategy (`option`); else of
    those that are implied the one that has all, or the first.
    """
    names = {alias: name for name, aliases in ALIASES.items() for alias in aliases}
    keys = [names.get(key, key) for key in options]
    others = [key for key in keys if key not in options_of(default)]
    found = [name for key in others for name, cls in DECODERS.all().items() if _implies(cls, key)]
    return next((name for name in found if options_of(name).keys() >= {*keys}), [*found, default][0])


def _implies(cls: type, key: str) -> bool:
    """Tells whether a strategy, and none that it extends, has an option that implies it."""
    bases = [base for base in cls.__mro__[1:] if base in DECODERS.classes.values()]
    item = options_of(cls.name).get(key)  # type: ignore[attr-defined]
    is_own = not any(key in options_of(base.name) for base in bases)  # type: ignore[attr-defined]
    return item is not None and item.metadata["implies"] and is_own


def strategies() -> dict[str, Promise]:
    """The names of all strategies, each with its promise where no option is given.

    Without torch, those that need it are left out.
    """
    return {name: cls.promise for name, cls in DECODERS.all().items()}  # type: ignore[attr-defined]


def protocols(strategy: Any) -> tuple[type, ...]:
    """All protocols that a strategy, or a class of them, needs of its model."""
    return strategy.needs if isinstance(strategy.needs, tuple) else (strategy.needs,)


def speaks(strategy: Any, scorer: object) -> bool:
    """Tells whether a scorer speaks all protocols that a strategy, or a class of them, needs."""
    return all(isinstance(scorer, each) for each in protocols(strategy))


def require_protocol(strategy: Any, *scorers: T_Scorer) -> T_Scorer:
    """The first of a model's scorers that speaks the strategy's protocols.

    Raises:
        StrategyMismatchError: None does; it names the strategies that fit the model.
    """
    for scorer in scorers:
        if speaks(strategy, scorer):
            return scorer
    fitting = [name for name, cls in DECODERS.all().items() if any(speaks(cls, each) for each in scorers)]
    raise StrategyMismatchError(
        f"strategy {strategy.name!r} needs a {named_protocols(strategy)}, this model is none",
        fix=f"choose from {', '.join(fitting)}" if fitting else "",
    )


def named_protocols(strategy: Any) -> str:
    """The protocols that a strategy, or a class of them, needs, for messages."""
    return " and ".join(each.__name__ for each in protocols(strategy))


def reads_drafts(strategy: object) -> bool:
    """Tells whether a strategy, or a class of them, takes drafts from the user."""
    return getattr(strategy, "reads_drafts", False)


def reads_any_length(strategy: object) -> bool:
    """Tells whether a strategy, or a class of them, takes sources longer than its model reads at once."""
    return getattr(strategy, "reads_any_length", False)


def reads_sound_alone(strategy: object) -> bool:
    """Tells whether a strategy takes sources that tell where a recording ends (`FeatureSource.sound`)."""
    return getattr(strategy, "reads_sound_alone", False)


def is_greedy(name: str) -> bool:
    """Tells whether a strategy is greedy search, of any architecture."""
    return getattr(strategy_class(name), "is_greedy", False)


def is_streamed(strategy: object) -> bool:
    """Tells whether `serving.streaming` ends recordings with the output of a strategy, or a class of them."""
    return getattr(strategy, "is_streamed", False)


def require_drafts_reader(strategy: Any) -> None:
    """Refuses drafts for a strategy that reads none, naming those that do."""
    if reads_drafts(strategy):
        return
    reading = [name for name, cls in DECODERS.all().items() if reads_drafts(cls)]
    raise UsageError(
        f"drafts are given, but strategy {strategy.name!r} reads none",
        fix=f"choose from {', '.join(reading)}",
    )


def signature(strategy: Any, *, exact: bool, dtype: str, model: str, version: str) -> str:
    """Key to repeat a result: ``strategy:iad|match_len:1|exact:1|dtype:fp32|nartk:0.1.0|model:ab12cd``."""
    parts = [f"strategy:{strategy.name}"]
    for item in dataclasses.fields(strategy):
        value = getattr(strategy, item.name)
        if "help" not in item.metadata or (item.metadata["does_nothing"] and value == item.default):
            continue
        parts.append(f"{item.name}:{int(value) if isinstance(value, bool) else value}")
    return "|".join([*parts, f"exact:{int(exact)}", f"dtype:{dtype}", f"nartk:{version}", f"model:{model}"])


def _check(owner: str, name: str, value: object, wanted: type, rules: Options) -> None:
    shown = f"{named(name)} of {owner!r}"
    if wanted is float and type(value) is int:
        value = float(value)
    if type(value) is not wanted:
        raise UsageError(f"{shown} is {value!r}, not of type {wanted.__name__}")
    if rules["choices"] is not None and value not in rules["choices"]:
        raise UsageError(f"{shown} is {value!r}", fix=f"choose from {', '.join(map(str, rules['choices']))}")
    if rules["above"] is not None and not value > rules["above"]:
        raise UsageError(f"{shown} is {value}", fix=f"give a value above {rules['above']}")
    low, high = rules["low"], rules["high"]
    if (low is not None and not value >= low) or (high is not None and not value <= high):
        bounds = f"at least {low}" if high is None else f"between {low} and {high}"
        raise UsageError(f"{shown} is {value}", fix=f"give a value {bounds}")
