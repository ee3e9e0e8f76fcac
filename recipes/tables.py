"""Parts of the recipes' tables: scores with their intervals, rows of Markdown, a plot over speed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


def read_json(path: Path) -> Any:
    """JSON of a file; None where there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def number(row: Mapping[str, Any], key: str, digits: int, unit: str = "") -> str:
    """The cell of a number, or of none."""
    return f"{row[key]:.{digits}f}{unit}" if key in row else "-"


def score(found: Mapping[str, Any], digits: int) -> str:
    """The cell of a score, with the interval of its bootstrap."""
    bounds = found.get("confidence")
    around = f" ({bounds['low']:.{digits}f} to {bounds['high']:.{digits}f})" if bounds else ""
    return f"{found['score']:.2f}{around}"


def right(wrong: dict[str, Any]) -> dict[str, Any]:
    """The share of right numbers, of that of wrong ones."""
    found = {"score": 100 - wrong["score"]}
    if "confidence" in wrong:
        bounds = wrong["confidence"]
        found["confidence"] = {"low": 100 - bounds["high"], "high": 100 - bounds["low"]}
    return found


def signatures(rows: Iterable[Mapping[str, Any]], metrics: Sequence[str]) -> list[str]:
    """A line for each signature of the rows' scores."""
    found = {row[metric]["signature"] for row in rows for metric in metrics if row.get(metric) is not None}
    return [f"signature {signature}" for signature in sorted(found)]


class Dots(NamedTuple):
    """Points of a plot that belong together.

    Attributes:
        colour: Number of the colour.
        filled: Filled points; else hollow ones.
        points: x and y of each.
    """

    label: str
    colour: int
    filled: bool
    points: Sequence[tuple[float, float]]


def plot(path: Path, dots: Iterable[Dots], x: str, y: str) -> None:
    """Draws points over a logarithmic axis."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for each in dots:
        if each.points:
            axes.scatter(
                *zip(*each.points, strict=True),
                edgecolors=f"C{each.colour}",
                facecolors=f"C{each.colour}" if each.filled else "none",
                label=each.label,
            )
    axes.set_xscale("log")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if axes.collections:
        axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def write(
    work: Path,
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    cells: Callable[[dict[str, Any]], Sequence[str]],
    notes: Sequence[str],
    draw: Callable[[Path], None],
) -> None:
    """Writes table.md, whose text it prints, table.json and, where matplotlib is installed, plot.png."""
    shown = (columns, ("---",) * len(columns), *map(cells, rows))
    text = "\n".join(["| " + " | ".join(row) + " |" for row in shown] + ["", *notes])
    (work / "table.md").write_text(text + "\n", encoding="utf-8")
    (work / "table.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    print(text)
    try:
        draw(work / "plot.png")
    except ModuleNotFoundError as error:
        print(f"table.py: no plot, {error.name} is not installed: pip install 'nartk[plot]'", file=sys.stderr)
