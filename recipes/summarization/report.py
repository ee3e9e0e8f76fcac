"""The recipe's table: what each way to decode the verifier says, how well, and how fast.

    python recipes/summarization/report.py --work DIR --test NAME

Reads DIR/ways.tsv, DIR/out, DIR/scores and DIR/speed.NAME.json; writes DIR/table.NAME.md and
DIR/table.NAME.json. What is missing or has failed gets a row that says so.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from nartk.bench.engines import parse_spec
from nartk.registry import make_strategy

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "mt"))

from table import key_of, number, ratio, read_json

MEASURES = {"sari": "SARI", "rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}
DIGITS = {"sari": 2}
DIGITS_OF_ROUGE = 4
LEGEND = """Scores: with the 95 % interval of a bootstrap. same: outputs that equal greedy's.
tokens/pass: what a pass of the verifier gives. ms: a text, one at a time.
texts/s: texts in a second, {many} of them in batches of 32. x greedy: how many times as fast, by rounds."""


def outputs(work: Path, key: str) -> list[str] | None:
    path = work / "out" / key
    return path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else None


def scores_of(work: Path, key: str) -> dict[str, dict[str, Any]]:
    """Reports of nartk-score by name: sari, rouge1 and so on."""
    found: dict[str, dict[str, Any]] = {}
    for metric in ("sari", "rouge"):
        report = read_json(work / "scores" / f"{key}.{metric}.json")
        if report is not None:
            found |= {each["metric"]: each for each in (report, *report.get("others", ()))}
    return found


def promise_of(spec: str) -> str:
    strategy = parse_spec(spec, "fp32")
    return str(make_strategy(strategy.name, strategy.options).promised)


def collect(work: Path, test: str, speed: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each way to decode."""
    base_key = key_of("ar", test, "greedy")
    base, greedy = speed["seconds"].get(base_key), outputs(work, base_key)
    rows = []
    for line in (work / "ways.tsv").read_text(encoding="utf-8").splitlines():
        what, name, spec, rest = line.split("\t")
        if what == "model":
            continue
        row: dict[str, Any] = {"strategy": spec, "promise": "-"}
        rows.append(row)
        if what == "missing":
            row["missing"] = f"not available: {rest}"
            continue
        key = key_of(name, test, spec)
        row["promise"] = promise_of(spec)
        row["scores"] = scores_of(work, key)
        mine = outputs(work, key)
        if mine is None or not row["scores"]:
            failed = any((work / "failed").glob(f"{key}*"))
            row["missing"] = "failed" if failed else "not run"
            continue
        stats = read_json(work / "out" / f"{key}.json")
        if stats is not None:
            row["tokens_per_pass"] = stats["tokens"] / stats["passes"]
        if greedy is not None:
            row["same"] = sum(a == b for a, b in zip(greedy, mine, strict=True))
            row["of"] = len(greedy)
        seconds = speed["seconds"].get(key)
        if seconds is not None:
            row["ms"] = 1000 * statistics.median(seconds["1"]) / speed["sentences"]["1"]
            row["texts_per_second"] = speed["sentences"]["32"] / statistics.median(seconds["32"])
            if base is not None:
                row |= {f"over_greedy_{batch}": ratio(base[batch], seconds[batch]) for batch in ("1", "32")}
    return rows


def cells(row: dict[str, Any], measures: list[str]) -> tuple[str, ...]:
    def score(name: str) -> str:
        report, digits = row["scores"].get(name), DIGITS.get(name, DIGITS_OF_ROUGE)
        if report is None:
            return "-"
        bounds = report["confidence"]
        return f"{report['score']:.{digits}f} ({bounds['low']:.{digits}f} to {bounds['high']:.{digits}f})"

    first = (row["strategy"], row["promise"])
    if "missing" in row:
        return (*first, row["missing"], *["-"] * (len(measures) + 5))
    return (
        *first,
        *map(score, measures),
        f"{row['same']} of {row['of']}" if "same" in row else "-",
        number(row, "tokens_per_pass", 2),
        number(row, "ms", 1),
        number(row, "over_greedy_1", 2, "x"),
        number(row, "texts_per_second", 1),
        number(row, "over_greedy_32", 2, "x"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--test", required=True, help="test set")
    args = parser.parse_args()
    speed = read_json(args.work / f"speed.{args.test}.json")
    rows = collect(args.work, args.test, speed or {"seconds": {}, "sentences": {}})
    scored = {name: report for row in rows for name, report in row.get("scores", {}).items()}
    measures = [name for name in MEASURES if name in scored]
    head = ["strategy", "promise", *(MEASURES[name] for name in measures)]
    head += ["same", "tokens/pass", "ms", "x greedy", "texts/s", "x greedy"]
    table = (head, ["---"] * len(head), *(cells(row, measures) for row in rows))
    lines = ["| " + " | ".join(row) + " |" for row in table]
    lines += ["", LEGEND.format(many=speed["sentences"]["32"] if speed else 0)]
    lines += sorted({f"signature {report['signature']}" for report in scored.values()})
    if speed:
        lines.append(
            f"{speed['machine']}, {speed['device']}, {speed['threads']} threads, torch {speed['torch']}"
        )
    (args.work / f"table.{args.test}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (args.work / f"table.{args.test}.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
