"""`nartk`: all commands by one name, and what ships with them."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from nartk.checkpoint import MOST_CARD
from nartk.cli import _strategy
from nartk.cli._common import Parser, command
from nartk.errors import EXIT_OK
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
    if argv and argv[0] in commands:
        found: int = import_module(f"nartk.cli.{argv[0]}").main(argv[1:])
        return found
    lists = {"models": _models, "strategies": _strategies}
    parser = Parser(prog="nartk", description=DESCRIPTION, examples=EXAMPLES)
    parser.usage = "%(prog)s COMMAND [ARGUMENT ...]"
    rows = {name: _summary(file) for name, file in commands.items()}
    rows |= {name: str(work.__doc__) for name, work in lists.items()}
    width = max(map(len, rows)) + 2
    listed = "\n".join(f"  {name:<{width}}{text}" for name, text in rows.items())
    parser.epilog = f"commands:\n{listed}\n\n{parser.epilog}"
    parser.add_argument("command", choices=[*rows], metavar="COMMAND", help="one of those below")
    print("\n".join(lists[parser.parse_args(argv or ["--help"]).command]()))
    return EXIT_OK


def _summary(file: Path) -> str:
    """What a command does, read from its source."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.partition(": ")[2].partition("\n")[0]


def _models() -> list[str]:
    """lists the models that ship: what they are for, licence, size and folder."""
    from nartk.pipeline import SHIPPED, model_folder

    lines = []
    for name in SHIPPED:
        folder = model_folder(name)
        card = read_file(folder / "card.md", most=MOST_CARD).decode("utf-8")
        licence = re.search(r"^- \*\*Licence\*\*: (.*)$", card, re.MULTILINE)
        size = sum(file.stat().st_size for file in folder.iterdir())
        lines += [
            card.partition("\n")[0].removeprefix("# "),
            f"  licence: {licence[1] if licence is not None else 'see card.md'}",
            f"  size: {size / 1e6:.1f} MB",
            f"  folder: {folder}",
        ]
    return lines


def _strategies() -> list[str]:
    """lists the strategies."""
    return [_strategy.summaries("nartk-decode")]
