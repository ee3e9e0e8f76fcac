"""The speech recipe's table: error rates of every system, and how fast each is.

    python recipes/asr/table.py --work DIR

Reads DIR/systems.tsv, DIR/scores/KEY.{wer,cer}.json and DIR/speed.json; writes DIR/table.md and
DIR/table.json. What is missing or has failed gets a row that says so.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from recognizers import SYSTEMS

TITLES = {system.name: system.title for system in SYSTEMS}
BASE = ("ar", "beam:beam_size=5")  # whose decoder the others' are compared with
COLUMNS = (
    "system",
    "strategy",
    "WER",
    "CER",
    *("RTF", "decoder ms", "x beam's decoder") * 2,
)
LEGEND = """WER, CER: percent, with the 95 % interval of a bootstrap. Speed: first of one sound at a time,
{single} sounds, then in batches of 32, {many} sounds. RTF: real-time factor, seconds from sound files to text
for a second of sound. decoder: a sound's, without reading, features and encoder, with a drafter's own one.
x beam's decoder: how many times as fast as the decoder with beam 5, by rounds."""


def key_of(name: str, spec: str) -> str:
    """What a run's files are called."""
    return f"{name}.{spec}".replace(":", "_").replace("=", "-")


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


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
    def number(key: str, digits: int, unit: str = "") -> str:
        return f"{row[key]:.{digits}f}{unit}" if key in row else "-"

    def score(metric: str) -> str:
        found = row[metric]
        bounds = found.get("confidence")
        around = f" ({bounds['low']:.2f} to {bounds['high']:.2f})" if bounds else ""
        return f"{found['score']:.2f}{around}"

    first = (TITLES[row["name"]], f"`{row['strategy']}`")
    if "missing" in row:
        return (*first, row["missing"], *["-"] * (len(COLUMNS) - 3))
    speed = (
        (number(f"rtf_{size}", 4), number(f"decoder_ms_{size}", 2), number(f"over_beam_{size}", 2, "x"))
        for size in (1, 32)
    )
    return (*first, score("wer"), score("cer"), *(cell for part in speed for cell in part))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    work = parser.parse_args().work
    rows, speed = collect(work), read_json(work / "speed.json")
    lines = ["| " + " | ".join(row) + " |" for row in (COLUMNS, ("---",) * len(COLUMNS), *map(cells, rows))]
    counts = {"1": 0, "32": 0} if speed is None else speed["sounds"]
    lines += ["", LEGEND.format(single=counts["1"], many=counts["32"])]
    signatures = {row[metric]["signature"] for row in rows for metric in ("wer", "cer") if row.get(metric)}
    lines += [f"signature {signature}" for signature in sorted(signatures)]
    if speed is not None:
        lines.append(f"{speed['machine']}, {speed['device']}, {speed['dtype']}, {speed['threads']} threads")
    (work / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (work / "table.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
