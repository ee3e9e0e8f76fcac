"""The documents' blocks of commands, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "recipes").glob("*/README.md")),
    *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "tests").glob("*/*.md")),
]
FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BETWEEN = {"|", "||", "&&", ";", "&", "(", ")"}  # of simple commands


@dataclass(frozen=True)
class Block:
    """A fenced block: its page, the number of its first line, its language and its text."""

    page: str
    line: int
    language: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command of a block, as bash reads it, and what the page shows of its output."""

    page: str
    line: int
    text: str
    shown: str = ""

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    text, name = page.read_text(encoding="utf-8"), str(page.relative_to(ROOT))
    for found in FENCE.finditer(text):
        yield Block(name, text[: found.start()].count("\n") + 2, found[1], found[2])


def commands(block: Block) -> Iterator[Command]:
    """A script of bash is one command; of a console each line after a ``$`` is, with what follows it."""
    if block.language == "bash":
        yield Command(block.page, block.line, block.text)
    if block.language != "console":
        return
    start, prompt, shown = 0, "", ""
    for number, line in enumerate([*block.text.splitlines(), "$ "], start=block.line):
        if prompt.endswith("\\\n"):
            prompt += f"{line}\n"
        elif line.startswith("$ "):
            if prompt:
                yield Command(block.page, start, prompt, shown)
            start, prompt, shown = number, f"{line[2:]}\n", ""
        elif not prompt:
            raise ValueError(f"{block.page}:{number}: a console begins with `$ `")
        else:
            shown += f"{line}\n"


def simple(text: str) -> list[list[str]]:
    """Words of each simple command of a line of bash, without comments, redirections and settings."""
    if re.match(r"\w+=\$\(", text):  # a setting that a command computes
        return []
    lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars="|&;()<>")
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    words = iter(lexer)
    for word in words:
        if word in BETWEEN:
            found.append([])
        elif set(word) <= set("<>&"):
            next(words)
        elif found[-1] or not re.match(r"\w+=", word):
            found[-1].append(word)
    return [each for each in found if each]
