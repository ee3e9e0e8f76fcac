"""Writes the pages of the site that come from the code: one for each strategy and each architecture."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import fields
from importlib import import_module
from inspect import getdoc
from pathlib import Path

from nartk.architectures import Architecture, architectures, imported
from nartk.checkpoints.names import SHIPPED, model_folder
from nartk.cli._strategy import add_options
from nartk.cli.decode import main as decode
from nartk.cli.trace import main as trace
from nartk.data.audio.sounds import write_wav
from nartk.protocols.prompts import Prompted
from nartk.registry import DECODERS, DEFAULT_STRATEGY, protocols, strategies, strategy_class

sys.path.append(str(Path(__file__).parents[1] / "recipes" / "asr"))
from corpora import RATE, numbers

ROOT = Path(__file__).parents[1]
TEXT = "She go home. She go to school yesterday."
DRAFT = "She goes home. She went to school yesterday."
OWN_LAYERS = "--drafter self:skip=decoder.1.ffn"  # the model without a sublayer
# Strategies that the default model shows, with the options that they need.
CORRECT = {
    **dict.fromkeys(("greedy", "iad", "ngram", "recycling", "union"), ""),
    **dict.fromkeys(("sample", "beam", "diverse-beam", "contrastive"), ""),
    "verify": "--draft-columns 2",
    "speculative": f"{OWN_LAYERS} --no-adaptive",
    "bild": OWN_LAYERS,
}
OF_DATA = 3  # settings that follow from dictionaries
PROMPTED = ("whisper",)  # architectures whose folders have prompts
RECOGNISE = ("ctc-greedy", "ctc-beam")
TRACES = ROOT / "docs" / "traces"  # of strategies whose models do not ship; make.sh tells how they were made
SMALL = "trained for this page by docs/traces/make.sh on numbers that ship"
TRACED = {  # by their input
    "in.txt": "`in.txt` has the line `nine two seven five`. Models are small ones that write German number "
    f"words, {SMALL}",
    "number.wav": "`number.wav` is the first number of the test set of recipes/asr. The model is a small "
    f"one, {SMALL}",
    "numbers.wav": "`numbers.wav` has the first eight numbers of the test set of recipes/asr, with pauses of "
    "two seconds: more sound than a window holds. The model is Whisper tiny.en, which does not ship",
}
_UNTRAINED = (
    "There is no picture: a model with attention and CTC does not ship, and learns too little in the minutes "
    "in which docs/traces/make.sh trains those of other pages."
)
UNDRAWN = {
    **dict.fromkeys(("ctc-draft", "joint-ctc"), _UNTRAINED),
    "speak": "There is no picture: in the only pass all tokens come out as they went in, and what the model "
    "makes of them, a spectrogram, is in no trace.",
}
TRANSLATE = ("dag-greedy", "dag-lookahead", "dag-viterbi", "dag-joint-viterbi", "dag-beam", "dag-sample")


def write_pages(folder: Path) -> None:
    """Writes ``strategies/NAME.md``, with pictures, and ``architectures/NAME.md`` into a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("strategies", "architectures"):
        (folder / name).mkdir(parents=True)
    _write_strategies(folder / "strategies")
    _write_architectures(folder / "architectures")


def _write_strategies(folder: Path) -> None:
    measured = dict(_rows("strategies.md", "`--strategy`"))
    with tempfile.TemporaryDirectory() as inputs, contextlib.chdir(inputs):
        Path("in.tsv").write_text(f"{TEXT}\t{DRAFT}\n", encoding="utf-8")
        write_wav(Path("number.wav"), next(numbers("test")).signal, RATE)
        for name in strategies():
            columns = {"promise": str(strategy_class(name).promise), **measured[name]}  # type: ignore[attr-defined]
            made = strategy_class(name)
            texts = [f"# `{name}`", *_docstrings(import_module(made.__module__), made), *_cells(columns)]
            texts += [*_decode(name, folder), "## Options", _options(name)]
            (folder / f"{name}.md").write_text("\n\n".join(texts), encoding="utf-8")


def _write_architectures(folder: Path) -> None:
    rows, shipped = dict(_rows("models.md", "architecture")), dict(_shipped())
    for name, found in architectures().items():
        module, network = import_module(found.config.__module__), imported(found.network_at)
        decoding = [f"[`{each}`](../strategies/{each}.md)" for each in decoders_of(found)]
        names = [f"`{each}`" for each in found.presets]
        criterions = " or ".join(f"`--criterion {each}`" for each in found.criterions)
        trained = f"`nartk-train --arch` {', '.join(names)} with {criterions}" if names else "elsewhere"
        columns = {
            "models": rows[name]["models"],
            "decoded by": ", ".join(decoding) or "none: it drafts for other models",
            "default strategy": f"`{found.strategy or DEFAULT_STRATEGY}`" if decoding else "none",
            "what loads": rows[name]["what loads"],
            "trained by": trained,
            "measured in": rows[name]["measured in"],
            "runs on": "the engine and torch" if found.engine_at else "torch",
            "one command": shipped.get(name, ""),
        }
        texts = [f"# `{name}`", *_docstrings(module, network), *_cells(columns), "## Settings"]
        if names:
            texts.append("Flags of `nartk-train` set them, such as `--d-model 256`.")
        texts.append(_settings(found))
        (folder / f"{name}.md").write_text("\n\n".join(texts), encoding="utf-8")


def _shipped() -> Iterator[tuple[str, str]]:
    """Architectures of the models that ship, and a command that decodes with one."""
    for name in SHIPPED:
        config = json.loads((model_folder(name) / "config.json").read_text(encoding="utf-8"))
        source = "number.wav" if config["input"]["name"] == "audio" else "in.txt"
        yield config["architecture"], f"`nartk-decode {name} {source}`"


def decoders_of(found: Architecture) -> list[str]:
    """Strategies whose protocols the models of an architecture speak."""
    spoken = {base for each in found.protocols for base in each.__mro__}
    if found.name in PROMPTED:
        spoken.add(Prompted)
    return [name for name in strategies() if spoken.issuperset(protocols(strategy_class(name)))]


def _settings(found: Architecture) -> str:
    rows = ["| setting | default | what it is |", "|---|---|---|"]
    for item in fields(found.config)[OF_DATA:]:
        choices = item.metadata["choices"] or ()
        values = ", ".join(f"`{value}`" for value in choices)
        text = item.metadata["help"].replace("|", "\\|")
        rows.append(f"| `{item.name}` | `{item.default}` | {text}{': ' * bool(values)}{values} |")
    return "\n".join([*rows, ""])


def _cells(columns: Mapping[str, str]) -> Iterator[str]:
    for key, cell in columns.items():
        if cell:
            yield f"**{key[0].upper()}{key[1:]}.** {cell}"


def _docstrings(*of: object) -> Iterator[str]:
    """What modules and classes say of themselves; papers are links."""
    for text in filter(None, map(getdoc, of)):
        yield re.sub(r"arXiv:(\d{4}\.\d{5})", r"[\g<0>](https://arxiv.org/abs/\1)", text.replace("``", "`"))


def _rows(page: str, first: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Names in tables of a page whose first heading is `first`, with the cells of each by their headings."""
    headings: list[str] = []
    for line in (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines():
        names, *cells = line.strip("|").split(" | ")
        if names.strip() == first:
            headings = [cell.strip() for cell in cells]
        elif line.startswith("| `") and len(cells) == len(headings):
            linked = (_from_generated(cell.strip(), page) for cell in cells)
            columns = dict(zip(headings, linked, strict=True))
            yield from ((name, columns) for name in re.findall("`([a-z0-9_-]+)`", names))
        elif not line.startswith("|"):
            headings = []


def _from_generated(cell: str, page: str) -> str:
    """A cell whose links lead from the folder of a generated page."""
    return re.sub(r"\]\((?!https?:)(#?)", lambda found: f"](../../{page * bool(found[1])}{found[1]}", cell)


def _decode(name: str, folder: Path) -> list[str]:
    """How a model decodes one line, and draws it; of one that does not ship, by its trace in `TRACES`."""
    rows = (TRACES / "commands.tsv").read_text(encoding="utf-8").splitlines()
    traced = {strategy: rest for strategy, *rest in (row.split("\t") for row in rows)}
    if name in CORRECT:
        model, more = SHIPPED[0], ""
        source = f"in.tsv {CORRECT[name]}".strip()
        told = f"`in.tsv` has the line `{TEXT}`"
        if name == "verify":
            told += f" and, behind a tab, the draft `{DRAFT}`"
        if OWN_LAYERS in source:
            told += ". The drafter is the model itself without one sublayer"
    elif name in RECOGNISE or name in TRANSLATE:
        model, source = "asr-digits" if name in RECOGNISE else "st-digits", "number.wav"
        more = f" --model {model}"
        told = "`number.wav` is the first number of the test set of recipes/asr"
    elif name in traced:
        model, source, flags = traced[name]
        told, more = TRACED[source], ""
        source = f"{source} {flags}".strip()
    else:
        return ["## One decode", UNDRAWN[name]]
    commands = (
        f"nartk-decode {model} {source} --strategy {name} --trace trace.jsonl --output out.txt",
        f"nartk-trace trace.jsonl --line 1{more} --svg {name}.svg",
    )
    if name in traced:
        shutil.copy(TRACES / f"{name}.jsonl", "trace.jsonl")
    for main, command in [*zip((decode, trace), commands, strict=True)][name in traced :]:
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
