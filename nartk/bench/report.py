"""Medians, paired ratios and differences of what a benchmark measured: as data, a table and a picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nartk.bench.runner import Cell, Series
from nartk.errors import MissingDependencyError, UsageError
from nartk.files import writing
from nartk.hypothesis import DecodeStats
from nartk.registry import make_strategy, strategies

_COLUMNS = (
    "engine",
    "type",
    "batch",
    "edits",
    "tokens/s",
    "x greedy",
    "x hf",
    "passes",
    "accepted",
    "p50 ms",
    "p90 ms",
    "p99 ms",
    "MB",
    "differ",
)
LEGEND = """x: how many times as fast on the same sentences, median of the rounds (lowest-highest), paired;
  greedy in the same type, hf in fp32. passes: verifier passes a sentence. accepted: drafted tokens a pass.
p50 p90 p99: latency of a sentence, alone in its batch. MB: peak memory.
differ: sentences whose output is not greedy search's in the same type."""


def summarize(cell: Cell) -> dict[str, Any]:
    """A cell as data: one entry an engine, in the order they were named."""
    hf = _find(cell, "hf", "fp32")
    entries = []
    for series in cell.series:
        greedy = _find(cell, "greedy", series.spec.dtype)
        entry: dict[str, Any] = {
            "engine": series.spec.label,
            "dtype": series.spec.dtype,
            "signature": series.signature,
            "not_run": series.not_run or None,
        }
        if series.samples:
            entry |= _figures(series)
            entry["over_greedy"] = _ratio(series, greedy)
            entry["over_hf"] = _ratio(series, hf)
            entry["lossless"] = lossless(series)
            # A peer whose output is forced is forced in its length alone.
            told = greedy is not None and not (series.spec.peer and cell.job.forced is not None)
            entry["differ"] = _differing(series, greedy) if told and greedy is not None else None
        entries.append(entry)
    return {
        "batch_size": cell.batch_size,
        "edits": cell.edits,
        "sentences": len(cell.job.lines),
        "engines": entries,
    }


def lossless(series: Series) -> bool:
    """Whether it promises greedy search's output to the last bit."""
    name, options = series.spec.name, series.spec.options
    if name not in strategies() or not options.get("exact", True):
        return False
    return bool(make_strategy(name, options).promised == "identical to greedy")


def broken(summaries: Sequence[dict[str, Any]]) -> list[str]:
    """The engines that broke their promise, each with how often."""
    return [
        f"{entry['engine']} {entry['dtype']}, batch {summary['batch_size']}: "
        f"{entry['differ']} of {summary['sentences']} sentences are not greedy search's"
        for summary in summaries
        for entry in summary["engines"]
        if entry.get("lossless") and entry["differ"]
    ]


def _find(cell: Cell, label: str, dtype: str) -> Series | None:
    for series in cell.series:
        if (series.spec.label, series.spec.dtype) == (label, dtype) and series.samples:
            return series
    return None


def _figures(series: Series) -> dict[str, Any]:
    samples = series.samples
    seconds = [sample.seconds for sample in samples]
    last = samples[-1]
    sentences, tokens = len(last.tokens), sum(map(len, last.tokens))
    latencies = [latency for sample in samples for latency in sample.latencies]
    return {
        "seconds": seconds,
        "tokens": tokens,
        "tokens_per_second": tokens / statistics.median(seconds),
        "latency_ms": DecodeStats(latencies=latencies).latency_ms if latencies else None,
        "passes_per_sentence": _per(last.passes, sentences),
        "accepted_per_pass": _per(last.accepted, last.passes) if last.drafted else None,
        "peak_mb": max(sample.peak_mb for sample in samples),
    }


def _per(count: int | None, of: int | None) -> float | None:
    return None if count is None or not of else count / of


def _ratio(series: Series, base: Series | None) -> dict[str, float] | None:
    """How many times faster than `base`, round by round."""
    if base is None or base is series:
        return None
    pairs = zip(base.samples, series.samples, strict=True)
    ratios = [theirs.seconds / mine.seconds for theirs, mine in pairs]
    return {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}


def _differing(series: Series, greedy: Series) -> int:
    wanted = greedy.samples[0].tokens
    return max(sum(a != b for a, b in zip(sample.tokens, wanted, strict=True)) for sample in series.samples)


def table(summaries: Sequence[dict[str, Any]]) -> str:
    """The figures as a Markdown table. Engines that did not run are listed below it."""
    rows = [_COLUMNS, tuple("---" for _ in _COLUMNS)]
    absent = []
    for summary in summaries:
        for entry in summary["engines"]:
            if entry["not_run"] is not None:
                where = f"batch {summary['batch_size']}"
                absent.append(f"not run: {entry['engine']} {entry['dtype']}, {where}: {entry['not_run']}")
                continue
            rows.append(_row(summary, entry))
    used = [i for i in range(len(_COLUMNS)) if any(row[i] != "-" for row in rows[2:])] if rows[2:] else []
    lines = ["| " + " | ".join(row[i] for i in used) + " |" for row in rows] if used else []
    return "\n".join([*lines, *([""] if lines and absent else []), *dict.fromkeys(absent)])


def _row(summary: dict[str, Any], entry: dict[str, Any]) -> tuple[str, ...]:
    latency = entry["latency_ms"] or {}
    return (
        entry["engine"],
        entry["dtype"],
        str(summary["batch_size"]),
        _number(summary["edits"], 0),
        _number(entry["tokens_per_second"], 0),
        _times(entry["over_greedy"]),
        _times(entry["over_hf"]),
        _number(entry["passes_per_sentence"], 2),
        _number(entry["accepted_per_pass"], 2),
        *(_number(latency.get(p), 1) for p in ("p50", "p90", "p99")),
        _number(entry["peak_mb"], 0),
        _number(entry["differ"], 0),
    )


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _times(ratio: dict[str, float] | None) -> str:
    if ratio is None:
        return "-"
    return f"{ratio['median']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"


def require_plot(path: Path) -> None:
    """Refuses a picture that could not be drawn.

    Raises:
        UsageError: The suffix is neither .png, .svg nor .pdf.
        MissingDependencyError: matplotlib is not installed.
    """
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise UsageError(f"--plot is {str(path)!r}", fix="end it with .png, .svg or .pdf")
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "--plot needs matplotlib, which is not installed", fix="pip install 'nartk[plot]'"
        ) from error


def plot(summaries: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws for each cell how many times as fast as greedy search every engine is, or as hf where it ran."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 1 + 1.6 * len(summaries)), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, summary in zip(figure.subplots(len(summaries), squeeze=False)[:, 0], summaries, strict=True):
        entries = [entry for entry in summary["engines"] if entry["not_run"] is None]
        base = "hf" if any(entry["over_hf"] for entry in entries) else "greedy"
        names, middles, errors = [], [], []
        for entry in reversed(entries):
            ratio = entry[f"over_{base}"] or {"median": 1.0, "low": 1.0, "high": 1.0}
            names.append(f"{entry['engine']} {entry['dtype']}")
            middles.append(ratio["median"])
            errors.append((ratio["median"] - ratio["low"], ratio["high"] - ratio["median"]))
        axes.barh(names, middles, xerr=list(zip(*errors, strict=True)), color="#4477aa", ecolor="#222222")
        axes.axvline(1.0, color="#222222", linewidth=0.8)
        edits = "" if summary["edits"] is None else f", {summary['edits']} edits"
        axes.set_title(f"batch {summary['batch_size']}{edits}", loc="left", fontsize="medium")
        axes.set_xlabel(f"times as fast as {base}")
    with writing(path, binary=True) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=150)
