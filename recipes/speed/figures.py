"""The tables and pictures of recipes/speed.sh that show several runs of nartk-bench, and texts to measure.

    python recipes/speed/figures.py drafts FILE... [--peers FILE...] [--quality FILE] --output NAME
    python recipes/speed/figures.py costs DIR --output NAME
    python recipes/speed/figures.py lines TEXT --length N --output FILE
    python recipes/speed/figures.py start --fresh VENV --rounds N --output NAME

The first two write NAME.md and NAME.png, the last NAME.md and NAME.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import nartk

COUNT = 8  # lines of a text
LINE, CORRECTED = "She go to school yesterday .\n", "She went to school yesterday .\n"
WITHOUT_TORCH = "import sys; sys.modules['torch'] = None\n"
DECODE = f"{WITHOUT_TORCH}from nartk.cli.decode import main; sys.exit(main(sys.argv[1:]))"
TRANSLATE = f"""{WITHOUT_TORCH}import ctranslate2, sentencepiece
pieces = sentencepiece.SentencePieceProcessor(model_file=sys.argv[1])
translator = ctranslate2.Translator(sys.argv[2])
for line in sys.stdin:
    words = [*pieces.encode(line.strip(), out_type=str), "</s>"]
    (found,) = translator.translate_batch([words], beam_size=1)
    print("".join(found.hypotheses[0]).replace("▁", " ").strip())
"""
# What a process used. One that is started has at least its parent's peak memory, so that its parent is small.
LAUNCH = """
import os, sys, time
begin = time.perf_counter()
process = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, used = os.wait4(process, 0)
seconds = time.perf_counter() - begin
print(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss, status, file=sys.stderr)
"""
Found = dict[str, Any]  # what nartk-bench wrote with --json
Row = tuple[Found, Found]  # a cell of it, and one of its engines


def rows(found: Found) -> Iterable[Row]:
    """Each engine in each cell that ran."""
    for cell in found["cells"]:
        for engine in cell["engines"]:
            if engine["not_run"] is None:
                yield cell, engine


def short(label: str) -> str:
    """An engine's label, with the names of models in place of their folders."""
    return re.sub(r"(?:mt|drafters\.[\w.-]+)/([\w-]+?)(\.distilled)?/model", r"\1", label)


def table(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    shown = [columns, ["---"] * len(columns), *lines]
    return ["| " + " | ".join(line) + " |" for line in shown]


def page(title: str, runs: Sequence[Found], parts: Iterable[Sequence[str]]) -> str:
    """A page of Markdown: how it was measured, and tables."""
    around = runs[0]["environment"]
    versions = ", ".join(f"{name} {number}" for name, number in around["versions"].items() if number)
    lines = [
        f"# {title}",
        *(f"- command: `{shlex.join(found['command'])}`" for found in runs),
        f"- hardware: {around['cpu']}, {around['cores']} cores; versions: {versions}",
    ]
    return "\n".join([*lines, *(line for part in parts for line in ("", *part))]) + "\n"


def times(engine: Found, over: str = "over_greedy") -> str:
    ratio = engine[over]
    return "1" if ratio is None else f"{ratio['median']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"


def condition(path: Path) -> str:
    """Title of what a file holds, such as light.512.32000-words.batch-8.json."""
    _, size, *others = path.stem.split(".")
    return ", ".join([f"d_model {size}", *(each.replace("-", " ") for each in others)])


def drafts(paths: Sequence[Path], peers: Sequence[Path], quality: Path | None, output: Path) -> None:
    """Page of drafts: times as fast as greedy search by the verifier's size; beside other libraries.

    The picture shows the files that name a size alone.
    """
    runs = [json.loads(path.read_text()) for path in paths]
    sizes = [int(path.stem.split(".")[1]) if path.stem.count(".") == 1 else None for path in paths]
    known = {(short(each["engine"]), each["dtype"]) for found in runs for _, each in rows(found)}
    scored = None if quality is None else json.loads(quality.read_text())
    less = {
        (short(each["engine"]), each["dtype"]): each["quality"]["bleu"]["comparison"]["difference"]
        for _, each in rows(scored or {"cells": []})
        if each["quality"]["bleu"]["comparison"] is not None
    }
    order = dict.fromkeys(short(each["engine"]) for found in runs for _, each in rows(found))
    lines: dict[tuple[str, str], list[Found | None]] = {
        (engine, dtype): [
            next((e for _, e in rows(found) if (short(e["engine"]), e["dtype"]) == (engine, dtype)), None)
            for found in runs
        ]
        for dtype in ("fp32", "int8")
        for engine in order
        if (engine, dtype) in known
    }
    body = [
        (
            engine,
            dtype,
            *("not run" if each is None else _speed(each) for each in series),
            *([f"{less[engine, dtype]:+.2f}" if (engine, dtype) in less else "0"] if scored else []),
        )
        for (engine, dtype), series in lines.items()
    ]
    columns = [
        "engine",
        "type",
        *map(condition, paths),
        *(["BLEU less greedy"] if scored else []),
    ]
    note = [
        "Times as fast as greedy search in the same type, batch 1 unless named, medians of the rounds",
        "(lowest-highest), CPU time; of greedy search, tokens a second. Verifiers have the teacher's",
        "distribution.",
    ]
    parts = [table(columns, body), note]
    beside = [json.loads(path.read_text()) for path in peers]
    if beside:
        compared = [
            (
                condition(path),
                short(each["engine"]),
                each["dtype"],
                f"{each['tokens_per_second']:.0f}",
                times(each),
                times(each, "over_ctranslate2"),
            )
            for path, found in zip(peers, beside, strict=True)
            for _, each in rows(found)
        ]
        names = ["verifier", "engine", "type", "tokens/s", "x greedy", "x CTranslate2"]
        parts.append(table(names, compared))
        parts.append(["Wall time, each engine in a process of its own, rounds in turns."])
    every = [*runs, *beside, *([scored] if scored else [])]
    output.with_suffix(".md").write_text(page("When drafts pay", every, parts))

    def draw(axes: Any, dtype: str) -> None:
        own = [(engine, series) for (engine, type), series in lines.items() if type == dtype]
        for number, (engine, series) in enumerate(own):
            points = [
                (size, each["over_greedy"]["median"])
                for size, each in zip(sizes, series, strict=True)
                if size is not None and each is not None and each["over_greedy"] is not None
            ]
            if points:  # ten colours, then again with other lines
                style = {"marker": "ox"[number // 10 % 2], "linestyle": ("-", "--")[number // 10 % 2]}
                axes.plot(*zip(*points, strict=True), label=engine, **style)
        axes.axhline(1.0, color="#222222", linewidth=0.8)
        axes.set_xscale("log", base=2)
        shown = [size for size in sizes if size is not None]
        axes.set_xticks(shown, [str(size) for size in shown])
        axes.set(title=dtype, xlabel="d_model of the verifier", ylabel="times as fast as greedy search")
        axes.legend(fontsize="x-small")

    picture(output, [lambda axes, dtype=dtype: draw(axes, dtype) for dtype in ("fp32", "int8")])


def _speed(engine: Found) -> str:
    if engine["over_greedy"] is None:
        return f"{engine['tokens_per_second']:.0f} tokens/s"
    return times(engine)


def costs(folder: Path, output: Path) -> None:
    """Page of costs: of a token by batch, length, threads and replicas; and the share of loop and drafter."""
    batch, share = (json.loads((folder / f"costs.{name}.json").read_text()) for name in ("batch", "share"))
    by_length = {
        input_: {
            int(path.name.split(".")[2]): json.loads(path.read_text())
            for path in folder.glob(f"costs.{input_}.*.json")
        }
        for input_ in ("text", "random")
    }
    engines = folder / "bench.engine.json"
    threads = json.loads(engines.read_text()) if engines.is_file() else None
    parts = [table(["engine", "type", "batch", "µs a token", "x greedy"], _by_batch(batch))]
    names = ["encode", "draft", "verify", "loop"]
    parts.append(
        table(["engine", "type", "batch", *(f"{n} ms" for n in names), "draft and loop"], _shares(share))
    )
    lengths = [
        (input_, str(length), each["engine"], each["dtype"], f"{_cost(each):.0f}", times(each))
        for input_, runs in by_length.items()
        for length in sorted(runs)
        for _, each in rows(runs[length])
    ]
    parts.append(table(["sources", "tokens", "engine", "type", "µs a token", "x greedy"], lengths))
    if threads is not None:
        parts.append(table(["engine", "type", "threads", "batch", "tokens/s"], _by_threads(threads)))
    runs = [batch, share, *(found for input_ in by_length.values() for _, found in sorted(input_.items()))]
    output.with_suffix(".md").write_text(page("What a token costs", runs, parts))

    def by_batch(axes: Any) -> None:
        curves(axes, ((_name(e), cell["batch_size"], _cost(e)) for cell, e in rows(batch)))
        axes.set(title="batch (JFLEG, one thread)", xlabel="sentences", ylabel="µs a token")

    def by_source(axes: Any) -> None:
        curves(
            axes,
            (
                (f"{_name(each)}, {input_}", length, _cost(each))
                for input_, found in by_length.items()
                for length in sorted(found)
                for _, each in rows(found[length])
            ),
        )
        axes.set(title="length (batch 1, one thread)", xlabel="source tokens", ylabel="µs a token")

    def bars(axes: Any) -> None:
        shown = [(cell, each) for cell, each in rows(share)]
        labels, left = [f"{e['engine']}, batch {c['batch_size']}" for c, e in shown], [0.0] * len(shown)
        for name in names:
            widths = [100 * e["costs"][name] / sum(e["costs"].values()) for _, e in shown]
            axes.barh(labels, widths, left=left, label=name)
            left = [a + b for a, b in zip(left, widths, strict=True)]
        axes.set(title="where the time goes, int8, without the tokenizer", xlabel="%")
        axes.legend(fontsize="x-small")

    def by_threads(axes: Any) -> None:
        assert threads is not None
        shown = [(c, e) for c, e in rows(threads) if c["batch_size"] == 32]
        labels = [f"{_name(e)}, {c['threads']} threads" for c, e in shown]
        axes.barh(labels, [e["tokens_per_second"] for _, e in shown])
        axes.tick_params(axis="y", labelsize="xx-small")
        axes.set(title="threads and replicas (JFLEG, batch 32)", xlabel="tokens a second")

    picture(output, [by_batch, by_source, bars, *([by_threads] if threads is not None else [])])


def _cost(engine: Found) -> float:
    """Microseconds a token."""
    return 1e6 / float(engine["tokens_per_second"])


def _name(engine: Found) -> str:
    return f"{engine['engine']} {engine['dtype']}"


def _by_batch(found: Found) -> Iterable[Sequence[str]]:
    for cell, each in rows(found):
        yield each["engine"], each["dtype"], str(cell["batch_size"]), f"{_cost(each):.0f}", times(each)


def _shares(found: Found) -> Iterable[Sequence[str]]:
    for cell, each in rows(found):
        spent = each["costs"]
        share = (spent["draft"] + spent["loop"]) / sum(spent.values())
        columns = (f"{spent[name]:.3f}" for name in ("encode", "draft", "verify", "loop"))
        yield each["engine"], each["dtype"], str(cell["batch_size"]), *columns, f"{share:.0%}"


def _by_threads(found: Found) -> Iterable[Sequence[str]]:
    for cell, each in rows(found):
        where = (str(cell["threads"]), str(cell["batch_size"]))
        yield short(each["engine"]), each["dtype"], *where, f"{each['tokens_per_second']:.0f}"


def curves(axes: Any, points: Iterable[tuple[str, float, float]]) -> None:
    """A line for each name, on logarithmic axes."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for name, x, y in points:
        lines.setdefault(name, []).append((x, y))
    for name, line in lines.items():
        axes.plot(*zip(*line, strict=True), marker="o", label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.legend(fontsize="x-small")


def picture(output: Path, panels: Sequence[Callable[[Any], None]]) -> None:
    """Draws panels, two beside each other."""
    height = (len(panels) + 1) // 2
    figure = Figure(figsize=(13, 5 * height), layout="constrained")
    FigureCanvasAgg(figure)
    for panel, axes in zip(panels, figure.subplots(height, 2, squeeze=False).flat, strict=False):
        panel(axes)
    figure.savefig(output.with_suffix(".png"), dpi=110)


def used(command: Sequence[str], given: str = "") -> tuple[str, list[float]]:
    """Output of a process; its wall time, its CPU time, both in seconds, and its peak memory, MiB."""
    launcher = [sys.executable, "-I", "-S", "-c", LAUNCH, *command]
    alone = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(launcher, input=given, capture_output=True, text=True, check=True, env=alone)
    *messages, last = done.stderr.splitlines()
    seconds, cpu, peak, status = map(float, last.split())  # the peak in KiB, as Linux counts it
    if status:
        raise SystemExit(f"figures.py: failed: {shlex.join(command)}\n" + "\n".join(messages))
    return done.stdout, [seconds, cpu, peak / 1024]


def start(fresh: Path, rounds: int, output: Path) -> None:
    """Page of starts: processes that decode one line, with nartk alone installed, and beside CTranslate2."""
    from nartk.adapters.ctranslate2 import to_ctranslate2
    from nartk.bench.runner import environment
    from nartk.bench.turns import in_turns
    from nartk.serving.scorers import load_network

    checkpoint = nartk.load().checkpoint
    small, here = str(fresh.absolute() / "bin" / "python"), sys.executable
    decode, pieces = str(fresh.absolute() / "bin" / "nartk-decode"), str(checkpoint.folder / "spm.model")
    with tempfile.TemporaryDirectory() as folder:
        commands: dict[str, list[str]] = {}
        for dtype, quantization in (("fp32", None), ("int8", "int8")):
            peer = Path(folder) / dtype
            to_ctranslate2(load_network(checkpoint), checkpoint.target_vocab, peer, quantization=quantization)
            flags = ["--dtype", dtype]
            commands[f"nartk-decode, nothing else installed | {dtype}"] = [decode, *flags]
            commands[f"nartk-decode | {dtype}"] = [here, "-c", DECODE, *flags]
            commands[f"CTranslate2 | {dtype}"] = [here, "-c", TRANSLATE, pieces, str(peer)]
        alone = ("import numpy, sentencepiece", "import numpy", "pass")
        commands |= {f"python -c '{code}' | -": [small, "-c", code] for code in alone}

        def started(name: str) -> list[float]:
            text, figures = used(commands[name], LINE)
            if text != ("" if name.endswith("-") else CORRECTED):
                raise SystemExit(f"figures.py: {name} wrote {text!r}")
            return figures

        found = in_turns({name: partial(started, name) for name in commands}, rounds)
    measured = {"command": ["recipes/speed.sh", "start"], "environment": environment("cpu"), "rounds": found}
    output.with_suffix(".json").write_text(json.dumps(measured, indent=2) + "\n")
    note = [
        f"Whole processes such as `printf {LINE!r} | nartk-decode`: medians of {rounds}",
        "interleaved rounds (lowest-highest) after one to warm up; MiB: peak memory. In the first lines, and",
        "with Python alone, nartk and what it needs are all that is installed; elsewhere torch is installed,",
        "but blocked.",
    ]
    columns = ["process", "type", "wall ms", "CPU ms", "MiB"]
    shown = page("To start, decode one line and end", [measured], [table(columns, starts(found)), note])
    output.with_suffix(".md").write_text(shown)


def starts(found: Mapping[str, Sequence[Sequence[float]]]) -> Iterable[Sequence[str]]:
    """A line of the table for each process, from its wall time, CPU time and memory in each round."""
    for name, rounds in found.items():
        wall, cpu, peak = zip(*rounds, strict=True)
        ms = [[1000 * seconds for seconds in each] for each in (wall, cpu)]
        yield (*name.split(" | "), *(middle(each, 0) for each in ms), middle(peak, 1))


def middle(values: Sequence[float], digits: int) -> str:
    """A median with its range."""
    median, low, high = (f"{each(values):.{digits}f}" for each in (statistics.median, min, max))
    return f"{median} ({low}-{high})"


def lines(text: Path, length: int, output: Path) -> None:
    """Writes lines of `length` source tokens of the shipped model, eos included, made of a text's words."""
    model = nartk.load()
    found, words = [], iter(text.read_text(encoding="utf-8").split())
    while len(found) < COUNT:
        line = ""
        while len(model.encode(line)) < length:
            line = f"{line} {next(words)}".strip()
        if len(model.encode(line)) == length:
            found.append(line)
    output.write_text("".join(f"{line}\n" for line in found), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    figures = parser.add_subparsers(dest="figure", required=True)
    one = figures.add_parser("drafts")
    one.add_argument("files", type=Path, nargs="+")
    one.add_argument("--peers", type=Path, nargs="+", default=[])
    one.add_argument("--quality", type=Path)
    one.add_argument("--output", type=Path, required=True)
    two = figures.add_parser("costs")
    two.add_argument("folder", type=Path)
    two.add_argument("--output", type=Path, required=True)
    three = figures.add_parser("lines")
    three.add_argument("text", type=Path)
    three.add_argument("--length", type=int, required=True)
    three.add_argument("--output", type=Path, required=True)
    four = figures.add_parser("start")
    four.add_argument("--fresh", type=Path, required=True)
    four.add_argument("--rounds", type=int, required=True)
    four.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    if args.figure == "drafts":
        drafts(args.files, args.peers, args.quality, args.output)
    elif args.figure == "costs":
        costs(args.folder, args.output)
    elif args.figure == "start":
        start(args.fresh, args.rounds, args.output)
    else:
        lines(args.text, args.length, args.output)


if __name__ == "__main__":
    main()
