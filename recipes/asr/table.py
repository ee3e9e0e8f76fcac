"""The speech recipe's table and plot: error rates of every system, and how fast each is.

    python recipes/asr/table.py --work DIR

Reads DIR/systems.tsv, DIR/scores/KEY.{wer,cer}.json and DIR/speed.json; writes DIR/table.md,
DIR/table.json and, where matplotlib is installed, DIR/plot.png. What is missing or has failed gets a row
that says so.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from recognizers import SYSTEMS

sys.path.append(str(Path(__file__).parents[1]))
from tables import Dots, number, plot, read_json, score, signatures, write

TITLES = {system.name: system.title for system in SYSTEMS}
BASE = ("ar", "beam:beam_size=5")  # whose decoder the others' are compared with
COLUMNS = ("system", "strategy", "WER", "CER", *("RTF", "decoder ms", "x beam's decoder") * 2)
LEGEND = """WER, CER: percent, with the 95 % interval of a bootstrap. Speed: first of one sound at a time,
{single} sounds, then in batches of 32, {many} sounds. RTF: real-time factor, seconds from sound files to text
for a second of sound. decoder: a sound's, without reading, features and encoder, with a drafter's own one.
x beam's decoder: how many times as fast as the decoder with beam 5, by rounds."""


def key_of(name: str, spec: str) -> str:
    """Name of a run's files."""
    return f"{name}.{spec}".replace(":", "_").replace("=", "-")


def speed_of(key: str, speed: dict[str, Any]) -> dict[str, float]:
    """The columns of speed: medians of the rounds, and of the rounds' ratios."""
    mine, base = (speed["seconds"].get(each) for each in (key, key_of(*BASE)))
    if mine is None:
        return {}
    found = {}
    for size, count in speed["sounds"].items():
        found[f"rtf_{size}"] = statistics.median(mine["whole"][size]) / speed["sound_seconds"][size]
        found[f"decoder_ms_{size}"] = 1000 * statistics.median(mine["decoder"][size]) / count
        if base is not None:
            rounds = zip(base["decoder"][size], mine["decoder"][size], strict=True)
            found[f"over_beam_{size}"] = statistics.median(theirs / own for theirs, own in rounds)
    return found


def collect(work: Path) -> list[dict[str, Any]]:
    """A row for each system and strategy."""
    speed = read_json(work / "speed.json")
    rows = []
    for line in (work / "systems.tsv").read_text(encoding="utf-8").splitlines():
        what, name, spec, rest = line.split("\t")
        if what == "model":
            continue
        row: dict[str, Any] = {"name": name, "strategy": spec}
        rows.append(row)
        if what == "missing":
            row["missing"] = f"not available: {rest}"
            continue
        key = key_of(name, spec)
        row |= {metric: read_json(work / "scores" / f"{key}.{metric}.json") for metric in ("wer", "cer")}
        if row["wer"] is None or row["cer"] is None:
            marks = (name, key, f"{key}.wer", f"{key}.cer")
            failed = any((work / "failed" / mark).exists() for mark in marks)
            row["missing"] = "failed" if failed else "not run"
        elif speed is not None:
            row |= speed_of(key, speed)
    return rows


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    first = (TITLES[row["name"]], f"`{row['strategy']}`")
    if "missing" in row:
        return (*first, row["missing"], *["-"] * (len(COLUMNS) - 3))
    speed = (
        (
            number(row, f"rtf_{size}", 4),
            number(row, f"decoder_ms_{size}", 2),
            number(row, f"over_beam_{size}", 2, "x"),
        )
        for size in (1, 32)
    )
    return (*first, score(row["wer"], 2), score(row["cer"], 2), *(cell for part in speed for cell in part))


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Word errors over the real-time factor of one sound at a time."""
    shown = [row for row in rows if "rtf_1" in row]
    names = dict.fromkeys(row["name"] for row in shown)
    dots = [
        Dots(
            TITLES[name],
            i,
            True,
            [(row["rtf_1"], row["wer"]["score"]) for row in shown if row["name"] == name],
        )
        for i, name in enumerate(names)
    ]
    plot(path, dots, "real-time factor, one sound at a time", "WER, percent")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    work = parser.parse_args().work
    rows, speed = collect(work), read_json(work / "speed.json")
    counts = {"1": 0, "32": 0} if speed is None else speed["sounds"]
    notes = [LEGEND.format(single=counts["1"], many=counts["32"]), *signatures(rows, ("wer", "cer"))]
    if speed is not None:
        notes.append(f"{speed['machine']}, {speed['device']}, {speed['dtype']}, {speed['threads']} threads")
    write(work, rows, COLUMNS, cells, notes, lambda path: draw(rows, path))


if __name__ == "__main__":
    main()
