"""Rows of the tables of speech: scores of every system and strategy, and how fast each is."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tables import Dots, number, read_json

BASE = ("ar", "beam:beam_size=5")  # whose decoder the others' are compared with
SPEED_COLUMNS = ("RTF", "decoder ms", "x beam's decoder") * 2
LEGEND = """Speed: first of one sound at a time, {single} sounds, then in batches of 32, {many} sounds. RTF:
real-time factor, seconds from sound files to text for a second of sound. decoder: a sound's, without reading,
features and encoder, with a drafter's own one. x beam's decoder: how many times as fast as the decoder with
beam 5, by rounds."""


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


def collect(work: Path, metrics: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each system and strategy, by systems.tsv, scores/KEY.METRIC.json and speed.json."""
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
        row |= {metric: read_json(work / "scores" / f"{key}.{metric}.json") for metric in metrics}
        if any(row[metric] is None for metric in metrics):
            marks = (name, key, *(f"{key}.{metric}" for metric in metrics))
            failed = any((work / "failed" / mark).exists() for mark in marks)
            row["missing"] = "failed" if failed else "not run"
        elif speed is not None:
            row |= speed_of(key, speed)
    return rows


def speed_cells(row: Mapping[str, Any]) -> list[str]:
    """The cells of `SPEED_COLUMNS`."""
    return [
        cell
        for size in (1, 32)
        for cell in (
            number(row, f"rtf_{size}", 4),
            number(row, f"decoder_ms_{size}", 2),
            number(row, f"over_beam_{size}", 2, "x"),
        )
    ]


def speed_notes(speed: dict[str, Any] | None) -> list[str]:
    """Notes on the figures of speed, and on what they were measured on."""
    counts = {"1": 0, "32": 0} if speed is None else speed["sounds"]
    notes = [LEGEND.format(single=counts["1"], many=counts["32"])]
    if speed is not None:
        notes.append(f"{speed['machine']}, {speed['device']}, {speed['dtype']}, {speed['threads']} threads")
    return notes


def dots(rows: Iterable[Mapping[str, Any]], titles: Mapping[str, str], metric: str) -> list[Dots]:
    """Scores of each system over the real-time factor of one sound at a time."""
    shown = [row for row in rows if "rtf_1" in row]
    names = dict.fromkeys(row["name"] for row in shown)
    return [
        Dots(
            titles[name],
            i,
            True,
            [(row["rtf_1"], row[metric]["score"]) for row in shown if row["name"] == name],
        )
        for i, name in enumerate(names)
    ]
