"""The table and plot of the recipe of speech translation: quality of every system, and how fast each is.

    python recipes/st/table.py --work DIR

Reads DIR/systems.tsv, DIR/scores/KEY.{bleu,wer,ser}.json, DIR/verified/KEY and DIR/speed.json; writes
DIR/table.md, DIR/table.json and, where matplotlib is installed, DIR/plot.png. What is missing or has failed
gets a row that says so.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from translators import PARTS, SYSTEMS

sys.path.append(str(Path(__file__).parents[1]))
from speech_table import SPEED_COLUMNS, collect, dots, key_of, speed_cells, speed_notes
from tables import plot, read_json, right, score, signatures, write

TITLES = {**{system.name: system.title for system in SYSTEMS}, **PARTS}
METRICS = ("bleu", "wer", "ser")
COLUMNS = ("system", "strategy", "BLEU", "WER", "numbers right", *SPEED_COLUMNS)
LEGEND = """BLEU; WER and numbers without any wrong word, percent; with the 95 % interval of a bootstrap. Of
OWSM-CTC the words in front of the output are not scored."""


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    first = (TITLES[row["name"]], f"`{row['strategy']}`")
    if "missing" in row:
        return (*first, row["missing"], *["-"] * (len(COLUMNS) - 3))
    scores = (score(row["bleu"], 1), score(row["wer"], 2), score(right(row["ser"]), 1))
    return (*first, *scores, *speed_cells(row))


def verified(rows: list[dict[str, Any]], work: Path) -> Iterator[str]:
    """Reports of nartk-verify on the strategies that promise greedy search's output."""
    for row in rows:
        key = key_of(row["name"], row["strategy"])
        path, mark = work / "verified" / key, work / "failed" / f"{key}.verified"
        if path.is_file() or mark.is_file():
            report = "failed" if mark.is_file() else path.read_text(encoding="utf-8").rstrip()
            yield f"{TITLES[row['name']]}, {row['strategy']}, against greedy search:\n{report}\n"


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """BLEU over the real-time factor of one sound at a time."""
    plot(path, dots(rows, TITLES, "bleu"), "real-time factor, one sound at a time", "BLEU")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    work = parser.parse_args().work
    rows, speed = collect(work, METRICS), read_json(work / "speed.json")
    notes = [LEGEND, *speed_notes(speed), *signatures(rows, METRICS), *verified(rows, work)]
    write(work, rows, COLUMNS, cells, notes, lambda path: draw(rows, path))


if __name__ == "__main__":
    main()
