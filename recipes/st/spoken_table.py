"""The table of translation into speech: a recogniser's transcripts of every output, and speed.

    python recipes/st/spoken_table.py --work DIR

Reads DIR/systems.tsv, DIR/scores/KEY.{asr-bleu,wer,ser,per}.json, DIR/out/KEY.lst and DIR/out/KEY*.json;
writes DIR/table.md and DIR/table.json and, where matplotlib is installed, DIR/plot.png. What is missing or
has failed gets a row that says so.
"""

from __future__ import annotations

import argparse
import math
import sys
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from speakers import SYSTEMS

sys.path.append(str(Path(__file__).parents[1]))
from speech_table import dots, key_of
from tables import number, plot, read_json, right, score, signatures, write

TITLES = {system.name: system.title for system in SYSTEMS} | {"reference": "reference speech"}
METRICS = ("asr-bleu", "wer", "ser")
COLUMNS = (
    "system",
    "strategy",
    "ASR-BLEU",
    "of the reference's",
    "WER",
    "numbers right",
    "phoneme errors",
    "length",
    "RTF",
    "vocoder",
)
LEGEND = """ASR-BLEU, WER and whole numbers: of the recogniser's transcripts, against the words of the
translation; phoneme errors: of the phonemes that are written beside; all percent, with the 95 % interval of a
bootstrap. length: mean absolute log-ratio of an output's length to the reference's. RTF: seconds that one
thread computes for a second of the source's sound, from sound to sound; vocoder: the vocoder's part."""


def seconds_of(path: str) -> float | None:
    """Length of a sound file; None where there is none, or no sound in it."""
    try:
        with wave.open(path) as file:
            return file.getnframes() / file.getframerate() or None
    except FileNotFoundError:
        return None


def length_ratio(ours: Sequence[str], theirs: Sequence[str]) -> float | None:
    """The mean absolute log-ratio of the lengths of two lists of sounds; a missing sound does not count."""
    pairs = [(seconds_of(own), seconds_of(other)) for own, other in zip(ours, theirs, strict=True)]
    ratios = [abs(math.log(own / other)) for own, other in pairs if own and other]
    return sum(ratios) / len(ratios) if ratios else None


def speed_of(work: Path, key: str, heard: float) -> dict[str, float]:
    """Real-time factors of a system, the cascade's with both of its models, by `heard` seconds of sources."""
    reports = [read_json(work / "out" / f"{key}{part}.json") for part in ("", ".graph")]
    if reports[0] is None or not heard:
        return {}
    vocoder = reports[0]["speech"]["seconds"]
    whole = vocoder + sum(report["seconds"] for report in reports if report is not None)
    return {"rtf_1": whole / heard, "vocoder": vocoder / heard}


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


def collect(work: Path) -> list[dict[str, Any]]:
    """A row for the reference speech, and for each system and strategy."""
    root, *sources = lines(work / "data/test.tsv")
    heard = sum(seconds_of(f"{root}/{source}") or 0.0 for source in sources)
    references = lines(work / "out/reference.lst")
    rows: list[dict[str, Any]] = []
    for what, name, spec, rest in [
        ["decode", "reference", "", ""],
        *(line.split("\t") for line in lines(work / "systems.tsv")),
    ]:
        if what == "model":
            continue
        key = key_of(name, spec) if spec else name
        row: dict[str, Any] = {"name": name, "strategy": spec}
        rows.append(row)
        row |= {metric: read_json(work / "scores" / f"{key}.{metric}.json") for metric in (*METRICS, "per")}
        if what == "missing":
            row["missing"] = f"not available: {rest}"
        elif any(row[metric] is None for metric in METRICS):
            failed = any((work / "failed" / mark).exists() for mark in (name, key, f"{key}.heard"))
            row["missing"] = "failed" if failed else "not run"
        else:
            ratio = length_ratio(lines(work / "out" / f"{key}.lst"), references)
            row |= {} if ratio is None else {"length": ratio}
            row |= speed_of(work, key, heard)
            best = row["asr-bleu"]["others"][0]["score"]
            row |= {"share": row["asr-bleu"]["score"] / best} if best else {}
    return rows


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    first = (TITLES[row["name"]], f"`{row['strategy']}`" if row["strategy"] else "-")
    if "missing" in row:
        return (*first, row["missing"], *["-"] * (len(COLUMNS) - 3))
    return (
        *first,
        score(row["asr-bleu"], 1),
        number(row, "share", 3),
        score(row["wer"], 2),
        score(right(row["ser"]), 1),
        "-" if row["per"] is None else score(row["per"], 2),
        number(row, "length", 3),
        number(row, "rtf_1", 4),
        number(row, "vocoder", 4),
    )


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """ASR-BLEU over the real-time factor."""
    plot(path, dots(rows, TITLES, "asr-bleu"), "real-time factor, from sound to sound", "ASR-BLEU")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    work = parser.parse_args().work
    rows = collect(work)
    notes = [LEGEND, *signatures(rows, METRICS)]
    write(work, rows, COLUMNS, cells, notes, lambda path: draw(rows, path))


if __name__ == "__main__":
    main()
