"""`nartk`: all commands by one name, and what ships with them."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

from nartk.checkpoints.names import MOST_CARD
from nartk.cli import _strategy
from nartk.cli._common import Parser, command, completes, parser_of
from nartk.errors import EXIT_OK, ModelNotFoundError, UsageError
from nartk.files import read_file

DESCRIPTION = """Fast sequence-to-sequence and non-autoregressive generation that keeps its word.
nartk COMMAND is nartk-COMMAND: `nartk COMMAND --help` tells its options."""
EXAMPLES = """  echo 'She go to school yesterday .' | nartk decode
  nartk decode in.txt --output out.txt
  nartk verify in.txt
  nartk models
  nartk --print-completion bash >> ~/.bash_completion      and so every command"""


@command
def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit code; without arguments shows the help."""
    own = Path(__file__)
    commands = {file.stem: file for file in sorted(own.parent.glob("[a-z]*.py")) if file != own}
    flags = [*takewhile(re.compile("-.").match, argv)]  # which may stand before the command
    name, *rest = argv[len(flags) :] or [""]
    if name in commands:
        found: int = import_module(f"nartk.cli.{name}").main([*flags, *rest])
        return found
    lists = {"models": _models, "strategies": _strategies}
    parser = Parser(prog="nartk", description=DESCRIPTION, examples=EXAMPLES)
    parser.usage = "%(prog)s COMMAND [ARGUMENT ...]"
    rows = {name: _summary(file) for name, file in commands.items()}
    rows |= {name: str(work.__doc__) for name, work in lists.items()}
    width = max(map(len, rows)) + 2
    listed = "\n".join(f"  {name:<{width}}{text}" for name, text in rows.items())
    if completes(argv):
        _complete(parser, commands, rows, argv)
    parser.epilog = f"commands:\n{listed}\n\n{parser.epilog}"
    parser.add_argument("command", choices=[*rows], metavar="COMMAND", help="one of those below")
    parser.add_argument("names", nargs="*", metavar="ARGUMENT", help="of models: those that are shown")
    args = parser.parse_args(argv or ["--help"])
    print("\n".join(lists[args.command](*args.names)))
    return EXIT_OK


def _complete(
    parser: Parser, commands: Mapping[str, Path], rows: Mapping[str, str], argv: Sequence[str]
) -> None:
    """Prints the script that completes all commands with their options, and exits."""

    def parser_class(*, prog: str, **_: object) -> Any:
        name = prog.rpartition(" ")[2]
        found = parser_of(import_module(f"nartk.cli.{name}").main) if name in commands else None
        return Parser(prog=prog, description=rows[name]) if found is None else found

    parser.usage = None
    each = parser.add_subparsers(dest="command", parser_class=cast(Any, parser_class))
    for name, text in rows.items():
        each.add_parser(name, help=text)
    parser.parse_args(argv)


def _summary(file: Path) -> str:
    """Summary of a command, read from its source."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.partition(": ")[2].partition("\n")[0]


def _models(*names: str) -> list[str]:
    """lists the models that ship: what they are for, licence, size and folder; of one named its card too."""
    from nartk.checkpoints.names import SHIPPED, installed, model_folder

    lines = []
    for name in names or installed():
        folder = model_folder(name)
        if not (folder / "card.md").is_file():
            raise ModelNotFoundError(
                f"no model {name!r} with a card", fix=f"choose from {', '.join(SHIPPED)}, or name a folder"
            )
        card = read_file(folder / "card.md", most=MOST_CARD).decode("utf-8")
        licence = re.search(r"^- \*\*Licence\*\*: (.*)$", card, re.MULTILINE)
        size = sum(file.stat().st_size for file in folder.iterdir())
        lines += [
            card.partition("\n")[0].removeprefix("# "),
            f"  licence: {licence[1] if licence is not None else 'see card.md'}",
            f"  size: {size / 1e6:.1f} MB",
            f"  folder: {folder}",
        ]
        if names:
            lines += ["", card.partition("\n")[2].strip()]
    return lines


def _strategies(*names: str) -> list[str]:
    """lists the strategies."""
    if names:
        raise UsageError(
            f"strategies takes no argument, {names[0]!r} is given",
            fix=f"nartk decode --strategy {names[0]} --help shows one",
        )
    return [_strategy.summaries("nartk-decode")]
