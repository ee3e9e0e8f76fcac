"""The flags of a strategy: they derive from the options it declares."""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nartk.checkpoints.generation import with_generation
from nartk.checkpoints.loading import generation_of
from nartk.checkpoints.names import CONFIG, model_folder
from nartk.cli._common import Parser, completes
from nartk.errors import UsageError
from nartk.files import Folder
from nartk.registry import (
    ALIASES,
    DECODERS,
    DEFAULT_STRATEGY,
    implied,
    options_of,
    strategies,
    strategy_class,
)

if TYPE_CHECKING:
    from nartk.decoders.strategy import Strategy


def parse(
    parser: Parser, argv: Sequence[str], *, default: str = DEFAULT_STRATEGY, by_model: bool = False
) -> tuple[argparse.Namespace, dict[str, Any]]:
    """Parses a command line with ``--strategy NAME`` and that strategy's own flags.

    Args:
        by_model: Let the model's configuration name the default.

    Returns:
        The arguments of `parser` and `strategy`, and those options of the strategy that were given.

    Raises:
        UsageError: The strategy does not know a flag; the error names those it knows.
        UnknownStrategyError: There is no such strategy.
    """
    parser.add_argument(
        "--strategy", metavar="NAME", default=default, help="how to decode (default: %(default)s)"
    )
    name = strategy_named(argv)
    opened = _models(argv) if by_model else {}
    if name is None:  # then no flag names another model
        default = next(map(generation_of, opened.values()), {}).get("strategy", default)
    if name is None and ("-h" in argv or "--help" in argv):
        # Importing all strategies may take a second, for torch: options are shown only where one is named.
        parser.epilog = f"{summaries(parser.prog)}\n\n{parser.epilog}"
        parser.parse_args(["--help"])
    if name is None:
        name = implied(_unknown(parser, argv), default)
        parser.set_defaults(strategy=name)
    options = _add_options(parser, name)
    if completes(argv):
        _add_all(parser)
    args, unknown = parser.parse_known_intermixed_args(argv)
    args.opened = opened
    for flag in unknown:
        if flag.startswith("-"):
            raise _unknown_flag(parser, name, flag.split("=")[0], options)
    return args, {key: getattr(args, key) for key in options.values() if hasattr(args, key)}


def of_model(args: argparse.Namespace, given: dict[str, Any]) -> dict[str, Any]:
    """The options that are given, and those that the model's configuration gives in place of defaults."""
    folder = args.opened.get(next(iter(args.inputs), ""))
    return with_generation({} if folder is None else generation_of(folder), args.strategy, given)


def _models(argv: Sequence[str]) -> dict[str, Folder]:
    """The folders of the arguments that name models, which loading is to take over."""
    folders = {name: Folder(model_folder(name)) for name in argv}
    return {name: folder for name, folder in folders.items() if folder.has(CONFIG)}


def _unknown(parser: Parser, argv: Sequence[str]) -> list[str]:
    """The options of long flags that are none of the command's own."""
    flags = [each.partition("=")[0] for each in argv[: [*argv, "--"].index("--")] if each.startswith("--")]
    return [_option(flag) for flag in flags if flag not in parser._option_string_actions]


def strategy_named(argv: Sequence[str]) -> str | None:
    """The value of the last ``--strategy``."""
    return last_value(argv, "--strategy")


def last_value(argv: Sequence[str], flag: str) -> str | None:
    """The value of a flag where it stands last; None where it is not given."""
    found = None
    for i, argument in enumerate(argv):
        if argument == "--":
            break
        if argument == flag and i + 1 < len(argv):
            found = argv[i + 1]
        elif argument.startswith(f"{flag}="):
            found = argument.partition("=")[2]
    return found


def _add_options(parser: Parser, name: str) -> dict[str, str]:
    """Adds the flags of a strategy; returns its options' names by flag."""
    promise = strategy_class(name).promise  # type: ignore[attr-defined]
    group = parser.add_argument_group(f"options of the strategy {name} ({promise})")
    try:
        return add_options(group, options_of(name))
    except argparse.ArgumentError as error:
        raise UsageError(
            f"{error.argument_name} is an option of strategy {name!r} and of {parser.prog} itself",
            fix="rename it in the strategy",
        ) from None


def _add_all(parser: Parser) -> None:
    """Adds the flags of all strategies, each once: what is completed may name any of them."""
    (chosen,) = (action for action in parser._actions if action.dest == "strategy")
    chosen.choices = [*strategies()]
    for name in strategies():
        for key, item in options_of(name).items():
            with contextlib.suppress(argparse.ArgumentError):  # of another strategy too
                add_options(parser, {key: item})


def add_options(
    group: argparse._ActionsContainer, options: Mapping[str, dataclasses.Field[Any]]
) -> dict[str, str]:
    """Adds the flags of declared options, which are set only where they are given; their names by flag.

    Raises:
        argparse.ArgumentError: One of them is there already.
    """
    flags = {}
    for key, item in options.items():
        flag = _flag(key)
        flags[flag] = key
        keywords: dict[str, Any] = {"default": argparse.SUPPRESS, "dest": key}
        shown: object = item.default
        if isinstance(item.default, bool):
            keywords["action"] = argparse.BooleanOptionalAction
            shown = flag if item.default else "--no-" + flag[2:]
        else:
            keywords["type"] = type(item.default)
            keywords["choices"] = item.metadata["choices"]
            if item.metadata["choices"] is None:
                keywords["metavar"] = {int: "N", float: "X"}.get(type(item.default), "TEXT")
        text = f"{item.metadata['help']} (default: {shown})".replace("%", "%%")
        group.add_argument(flag, *map(_flag, ALIASES.get(key, ())), help=text, **keywords)
    return flags


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")


def _option(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _unknown_flag(parser: Parser, name: str, flag: str, options: dict[str, str]) -> UsageError:
    known = [_option(text) for text in parser._option_string_actions if text.startswith("--")]
    hint = DECODERS.hint(_option(flag), known)
    return UsageError(
        f"{parser.prog} with strategy {name!r} has no option {flag}",
        fix=f"{hint}it knows {', '.join(options) or 'no options'}; see {parser.prog} --help for the others",
    )


def summaries(prog: str) -> str:
    """All strategies with the first line of their documentation, read from the source."""
    from importlib.metadata import entry_points

    package = import_module("nartk.decoders")  # which imports no strategy
    found = {point.name: "" for point in entry_points(group="nartk.decoders")}
    for file in Path(package.__path__[0]).glob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.ClassDef):
                continue
            for decorator in node.decorator_list:
                match decorator:
                    case ast.Call(ast.Name("register_decoder"), [ast.Constant(str(name))]):
                        found[name] = (ast.get_docstring(node) or "").partition("\n")[0]
    width = max(map(len, found)) + 2
    lines = [f"  {name:<{width}}{found[name]}" for name in sorted(found)]
    return "\n".join([f"strategies ({prog} --strategy NAME --help lists the options of one):", *lines])


def shared_options(strategy: Strategy, other: str) -> dict[str, Any]:
    """The values of those options of a strategy that another one has as well."""
    mine = {item.name for item in dataclasses.fields(strategy)}
    return {key: getattr(strategy, key) for key in options_of(other) if key in mine}
