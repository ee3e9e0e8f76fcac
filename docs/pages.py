"""Writes the pages of the site that come from the code: one for each strategy, with a decode of its own."""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from inspect import getdoc
from pathlib import Path

from nartk.cli._strategy import add_options
from nartk.cli.decode import main as decode
from nartk.cli.trace import main as trace
from nartk.data.audio.sounds import write_wav
from nartk.registry import DECODERS, strategies, strategy_class

sys.path.append(str(Path(__file__).parents[1] / "recipes" / "asr"))
from corpora import RATE, numbers

ROOT = Path(__file__).parents[1]
TEXT = "She go home. She go to school yesterday."
DRAFT = "She goes home. She went to school yesterday."
CORRECT = ("greedy", "iad", "verify", "ngram", "recycling", "union", "sample", "beam")
RECOGNISE = ("ctc-greedy", "ctc-beam")
TRANSLATE = ("dag-greedy", "dag-lookahead", "dag-viterbi", "dag-joint-viterbi", "dag-beam", "dag-sample")


def write_pages(folder: Path) -> None:
    """Writes ``NAME.md`` of each strategy, and the pictures that they show, into a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    measured = dict(_rows())
    with tempfile.TemporaryDirectory() as inputs, contextlib.chdir(inputs):
        Path("in.tsv").write_text(f"{TEXT}\t{DRAFT}\n", encoding="utf-8")
        write_wav(Path("number.wav"), next(numbers("test")).signal, RATE)
        for name in strategies():
            columns = {"promise": str(strategy_class(name).promise), **measured[name]}  # type: ignore[attr-defined]
            texts = [f"# `{name}`", *_docstrings(name)]
            texts += [f"**{key[0].upper()}{key[1:]}.** {cell}" for key, cell in columns.items()]
            texts += [*_decode(name, folder), "## Options", _options(name)]
            (folder / f"{name}.md").write_text("\n\n".join(texts), encoding="utf-8")


def _docstrings(name: str) -> Iterator[str]:
    """What the strategy's module and class say of it; papers are links."""
    made = strategy_class(name)
    for text in filter(None, map(getdoc, (import_module(made.__module__), made))):
        yield re.sub(r"arXiv:(\d{4}\.\d{5})", r"[\g<0>](https://arxiv.org/abs/\1)", text.replace("``", "`"))


def _rows() -> Iterator[tuple[str, dict[str, str]]]:
    """Strategies, and what the tables of docs/strategies.md have of each, by column."""
    headings: list[str] = []
    for line in (ROOT / "docs" / "strategies.md").read_text(encoding="utf-8").splitlines():
        names, *cells = line.strip("|").split(" | ")
        if names.strip() == "`--strategy`":
            headings = [cell.strip() for cell in cells]
        elif line.startswith("| `") and len(cells) == len(headings):
            linked = (re.sub(r"\]\((?!https?:)", "](../../", cell.strip()) for cell in cells)
            columns = dict(zip(headings, linked, strict=True))
            yield from ((name, columns) for name in re.findall("`([a-z-]+)`", names))


def _decode(name: str, folder: Path) -> list[str]:
    """How a model that ships decodes one line, and draws it; nothing where none that ships does."""
    if name in CORRECT:
        model, source, more = "gec-en", "in.tsv", ""
        told = f"`in.tsv` has the line `{TEXT}`"
        if name == "verify":
            source += " --draft-columns 2"
            told += f" and, behind a tab, the draft `{DRAFT}`"
    elif name in RECOGNISE or name in TRANSLATE:
        model, source = "asr-digits" if name in RECOGNISE else "st-digits", "number.wav"
        more = f" --model {model}"
        told = "`number.wav` is the first number of the test set of recipes/asr"
    else:
        return []
    commands = (
        f"nartk-decode {model} {source} --strategy {name} --trace trace.jsonl --output out.txt",
        f"nartk-trace trace.jsonl --line 1{more} --svg {name}.svg",
    )
    for main, command in zip((decode, trace), commands, strict=True):
        if main([*command.split()[1:], "--quiet"]):
            raise RuntimeError(f"this fails: {command}")
    shutil.move(f"{name}.svg", folder)
    shown = "\n".join(f"$ {command}" for command in commands)
    return ["## One decode", f"{told}.", f"```console\n{shown}\n```", f"![What was decoded when]({name}.svg)"]


def _options(name: str) -> str:
    parser = argparse.ArgumentParser(add_help=False)
    add_options(parser, DECODERS.options(name))
    rows = ["| option | what it does |", "|---|---|"]
    for action in parser._actions:
        flags = ", ".join(f"`{flag}`" for flag in action.option_strings)
        values = ", ".join(f"`{value}`" for value in action.choices or ())
        text = (action.help or "").replace("%%", "%").replace("|", "\\|")
        rows.append(f"| {flags} | {text}{': ' * bool(values)}{values} |")
    return "\n".join([*rows, ""])
