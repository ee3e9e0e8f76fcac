"""The speech recipe's table and plot: error rates of every system, and how fast each is.

    python recipes/asr/table.py --work DIR

Reads DIR/systems.tsv, DIR/scores/KEY.{wer,cer}.json and DIR/speed.json; writes DIR/table.md,
DIR/table.json and, where matplotlib is installed, DIR/plot.png. What is missing or has failed gets a row
that says so.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from recognizers import SYSTEMS

sys.path.append(str(Path(__file__).parents[1]))
from speech_table import SPEED_COLUMNS, collect, dots, speed_cells, speed_notes
from tables import plot, read_json, score, signatures, write

TITLES = {system.name: system.title for system in SYSTEMS}
METRICS = ("wer", "cer")
COLUMNS = ("system", "strategy", "WER", "CER", *SPEED_COLUMNS)
LEGEND = "WER, CER: percent, with the 95 % interval of a bootstrap."


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    first = (TITLES[row["name"]], f"`{row['strategy']}`")
    if "missing" in row:
        return (*first, row["missing"], *["-"] * (len(COLUMNS) - 3))
    return (*first, *(score(row[metric], 2) for metric in METRICS), *speed_cells(row))


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Word errors over the real-time factor of one sound at a time."""
    plot(path, dots(rows, TITLES, "wer"), "real-time factor, one sound at a time", "WER, percent")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    work = parser.parse_args().work
    rows, speed = collect(work, METRICS), read_json(work / "speed.json")
    notes = [LEGEND, *speed_notes(speed), *signatures(rows, METRICS)]
    write(work, rows, COLUMNS, cells, notes, lambda path: draw(rows, path))


if __name__ == "__main__":
    main()
