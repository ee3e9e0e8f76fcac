"""Options of a command in a TOML file; those of the command line win over them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from nartk.cli._common import Parser
from nartk.cli._files import require_readable
from nartk.cli._strategy import last_value, strategy_named
from nartk.errors import InputFileError, UsageError
from nartk.files import STDIN, JsonObject, reading
from nartk.registry import ALIASES, DECODERS, options_of, strategies

_FLAG = "--config"
_NOT_IN_A_FILE = {_FLAG, "--help", "--version", "--debug", "--print-completion"}
_TAKEN = {"--vad"}  # options of strategies


def add_config(parser: argparse.ArgumentParser) -> None:
    """Adds the file of options."""
    parser.add_argument(
        _FLAG,
        metavar="FILE",
        help="options in TOML, such as batch_size = 8, strategy = 'beam' or truncate = true; those of the "
        "command line win, where --no-truncate turns off what the file turns on, and --guard no_guard = true",
    )


def with_config(parser: Parser, argv: Sequence[str]) -> list[str]:
    """The arguments, behind those that the file of `add_config`'s flag stands for.

    Raises:
        InputFileError: The file cannot be read, or is no TOML.
        UsageError: It names an option that does not exist, or twice, or gives it a value of another type.
    """
    name = last_value(argv, _FLAG)
    if name is None:
        return [*argv]
    _add_opposites(parser)
    found: dict[str, list[str]] = {}
    values = _read(name)
    given = strategy_named(argv)
    strategy = values.get("strategy") if given is None else given
    for key, value in values.items():
        flag = "--" + key.replace("_", "-")
        if flag in found:
            raise UsageError(f"{key!r} is there twice, with - and with _", fix="leave one out", where=name)
        _require_known(parser, key, flag, strategy, name)
        found[flag] = _arguments(parser, key, flag, value, name)
    return [*(argument for arguments in found.values() for argument in arguments), *argv]


def _add_opposites(parser: Parser) -> None:
    """Adds for each switch a flag that turns it off, and which `--help` leaves out."""
    for flag, action in [*parser._option_string_actions.items()]:
        opposite = f"--{flag[5:]}" if flag.startswith("--no-") else f"--no-{flag[2:]}"
        if action.const is True and flag.startswith("--") and opposite not in _TAKEN:
            parser.add_argument(
                opposite,
                action="store_false",
                dest=action.dest,
                default=argparse.SUPPRESS,
                help=argparse.SUPPRESS,
            )


def _read(name: str) -> JsonObject:
    if name == STDIN:
        raise UsageError(f"{_FLAG} is stdin", fix="name a file")
    import tomllib  # which few runs need

    require_readable(name)
    with reading(name) as file:
        try:
            return tomllib.loads(file.read().decode("utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputFileError(
                f"no TOML: {error}", fix="write options as NAME = VALUE", where=name
            ) from None


def _require_known(parser: Parser, key: str, flag: str, strategy: object, name: str) -> None:
    """Refuses a key that is no option of the command, nor of the strategy, or of any where none is named."""
    own = {each for each in parser._option_string_actions if each.startswith("--")} - _NOT_IN_A_FILE
    if flag in own or flag == "--strategy":
        return
    known = {
        key for each in ([strategy] if isinstance(strategy, str) else strategies()) for key in _keys(each)
    }
    option = key.replace("-", "_")
    if {option, option.removeprefix("no_")} & known:
        return
    hint = DECODERS.hint(option, [*known, "strategy", *(each[2:].replace("-", "_") for each in own)])
    of = f" with strategy {strategy!r}" if isinstance(strategy, str) else ""
    raise UsageError(
        f"{parser.prog}{of} has no option {key!r}", fix=f"{hint}see {parser.prog} --help", where=name
    )


def _keys(strategy: str) -> set[str]:
    """Options of a strategy, by all of their names."""
    names = options_of(strategy)
    return {*names, *(alias for key in names for alias in ALIASES.get(key, ()))}


def _arguments(parser: Parser, key: str, flag: str, value: object, name: str) -> list[str]:
    """The arguments that a value stands for."""
    action = parser._option_string_actions.get(flag)
    is_switch = action is not None and action.nargs == 0
    if isinstance(value, bool):
        if action is not None and not is_switch:
            raise UsageError(f"{key!r} is {value}, not a value", fix="give a number or a text", where=name)
        if value:
            return [flag]
        return [] if is_switch else [f"--no-{flag[2:]}"]
    if is_switch:
        raise UsageError(f"{key!r} is {value!r}, neither true nor false", fix="give one of them", where=name)
    parts = value if isinstance(value, list) else [value]
    if not parts or not all(
        isinstance(part, str | int | float) and not isinstance(part, bool) for part in parts
    ):
        raise UsageError(
            f"{key!r} is {value!r}, no number, text or list of them", fix="give one of these", where=name
        )
    return [f"{flag}={','.join(map(str, parts))}"]
