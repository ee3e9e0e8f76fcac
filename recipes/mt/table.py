"""The recipe's table and plot: quality of every system, and speed relative to the teacher's.

    python recipes/mt/table.py --work DIR [--earlier TABLE.json]

Reads DIR/systems.tsv, DIR/scores/KEY.{bleu,chrf}.json and DIR/speed.json; writes DIR/table.md, DIR/table.json
and, where matplotlib is installed, DIR/plot.png. What is missing or has failed gets a row that says so; what
another run, whose table.json is given, has measured, gets that run's row and a mark.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from systems import DRAFTERS, STUDENTS, TEACHER, VARIANTS

sys.path.append(str(Path(__file__).parents[1]))
from tables import Dots, number, plot, read_json, score, signatures, write

TITLES = {system.name: system.title for system in (TEACHER, *STUDENTS, *VARIANTS, *DRAFTERS)}
DATA_OF = {"teacher": ("raw",), **dict.fromkeys((system.name for system in DRAFTERS), ("distilled",))}
COLUMNS = (
    "system",
    "data",
    "strategy",
    "BLEU",
    "chrF",
    "ms",
    "x greedy",
    "x beam",
    "sent/s",
    "x greedy",
    "x beam",
)
LEGEND = """BLEU, chrF: with the 95 % interval of a bootstrap. ms: a sentence, one at a time.
sent/s: sentences in a second, {many} of them in batches of 32.
x greedy, x beam: how many times as fast as the teacher with greedy search and with beam 5, by rounds."""


def key_of(name: str, data: str, spec: str) -> str:
    """Name of a run's files."""
    return f"{name}.{data}.{spec}".replace(":", "_").replace("=", "-")


def identity(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["name"], row["data"], row["strategy"]


def ratio(base: list[float], mine: list[float]) -> float:
    return statistics.median(b / m for b, m in zip(base, mine, strict=True))


def collect(work: Path) -> list[dict[str, Any]]:
    """A row for each system, kind of data and strategy."""
    speed = read_json(work / "speed.json") or {"seconds": {}, "sentences": {}}
    seconds = speed["seconds"]
    bases = [seconds.get(key_of("teacher", "raw", spec)) for spec in TEACHER.decoders[:2]]
    rows = []
    for line in (work / "systems.tsv").read_text(encoding="utf-8").splitlines():
        what, name, spec, rest = line.split("\t")
        if what in ("model", "drafter"):
            continue
        if what == "missing":
            rows.append({"name": name, "data": "-", "strategy": spec, "missing": f"not available: {rest}"})
            continue
        for data in DATA_OF.get(name, ("raw", "distilled")):
            key = key_of(name, data, spec)
            row: dict[str, Any] = {"name": name, "data": data, "strategy": spec}
            rows.append(row)
            for metric in ("bleu", "chrf"):
                row[metric] = read_json(work / "scores" / f"{key}.{metric}.json")
            if row["bleu"] is None:
                marks = (f"{name}.{data}", key, f"{key}.bleu")
                failed = any((work / "failed" / mark).exists() for mark in marks)
                row["missing"] = "failed" if failed else "not run"
                continue
            mine = seconds.get(key)
            if mine is None:
                continue
            row["ms"] = 1000 * statistics.median(mine["1"]) / speed["sentences"]["1"]
            row["sentences_per_second"] = speed["sentences"]["32"] / statistics.median(mine["32"])
            for batch in ("1", "32"):
                for base, reference in zip(bases, ("greedy", "beam"), strict=True):
                    if base is not None:
                        row[f"over_{reference}_{batch}"] = ratio(base[batch], mine[batch])
    return rows


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    first = (TITLES[row["name"]], row["data"], row["strategy"] + " *" * row.get("earlier", False))
    if "missing" in row:
        return (*first, row["missing"], *["-"] * 7)
    return (
        *first,
        score(row["bleu"], 1),
        score(row["chrf"], 1),
        number(row, "ms", 1),
        number(row, "over_greedy_1", 2, "x"),
        number(row, "over_beam_1", 2, "x"),
        number(row, "sentences_per_second", 1),
        number(row, "over_greedy_32", 2, "x"),
        number(row, "over_beam_32", 2, "x"),
    )


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """BLEU against the speed of one sentence at a time; raw data hollow, distilled data filled."""
    shown = [row for row in rows if "over_beam_1" in row]
    dots = [
        Dots(
            f"{TITLES[name]}, {data}",
            i,
            data == "distilled",
            [
                (row["over_beam_1"], row["bleu"]["score"])
                for row in shown
                if (row["name"], row["data"]) == (name, data)
            ],
        )
        for i, name in enumerate(dict.fromkeys(row["name"] for row in shown))
        for data in ("raw", "distilled")
    ]
    plot(path, dots, "times as fast as the teacher with beam 5, one sentence at a time", "BLEU")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument(
        "--earlier", type=Path, help="table.json of another run, for what this one has not run"
    )
    args = parser.parse_args()
    work = args.work
    rows = collect(work)
    earlier = {identity(row): row for row in (read_json(args.earlier) or [] if args.earlier else [])}
    rows = [
        {**earlier[identity(row)], "earlier": True}
        if row.get("missing") == "not run" and "missing" not in earlier.get(identity(row), row)
        else row
        for row in rows
    ]
    speed = read_json(work / "speed.json")
    notes = [LEGEND.format(many=speed["sentences"]["32"] if speed else 0)]
    if any(row.get("earlier") for row in rows):
        notes.append("*: from an earlier run of the same recipe, relative to that run's own teacher.")
    notes += signatures(rows, ("bleu", "chrf"))
    if speed:
        notes.append(
            f"{speed['machine']}, {speed['device']}, {speed['threads']} threads, torch {speed['torch']}"
        )
    write(work, rows, COLUMNS, cells, notes, lambda path: draw(rows, path))


if __name__ == "__main__":
    main()
