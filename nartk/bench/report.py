"""Medians, paired ratios and differences of what a benchmark measured: as data, a page and a picture."""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nartk.bench.quality import Quality
from nartk.bench.runner import GREEDY, Cell, EngineRuns
from nartk.errors import UsageError, named, requiring
from nartk.files import JsonObject, require_storable, writing
from nartk.protocols.guarantee import Guarantee
from nartk.protocols.hypothesis import DecodeStats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = (
    *("engine", "promise", "type", "threads", "batch", "edits"),
    *("tokens/s", "x greedy", "x hf", "x ctranslate2", "passes", "accepted"),
    *("p50 ms", "p90 ms", "p99 ms", "MB", "differ"),
)
TIMES = {  # by Setup.clock
    "perf_counter": "wall",
    "process_time": "of the CPU, all engines in one process",
}
LEGEND = """x: how many times as fast on the same sentences, median of the rounds (lowest-highest), paired;
  greedy and ctranslate2 in the same type, hf in fp32. passes: verifier passes a sentence. accepted:
  drafted tokens a pass.
p50 p90 p99: latency of a sentence from its entry into a batch to its end, of a peer at batch 1 from text to
  text. MB: peak memory. differ: sentences whose output is not greedy search's in the same type; (ties): where
  torch computes, all of them at words whose logits differ by no more than twice the noise, see nartk-verify.
less greedy: the metric's difference to greedy search in the same type, with its 95 % interval by paired
  bootstrap."""
PARTS = ("encode", "draft", "verify", "loop")
_COST_COLUMNS = (
    *("engine", "type", "threads", "batch", "edits", *(f"{part} ms" for part in PARTS), "draft and loop"),
    *("ms a pass", "tokens a pass", "x greedy", "x if drafts were free"),
)
COST_LEGEND = """Where the time goes from ids to ids, ms a sentence, medians of rounds.
encode: the model reads the source. draft: the drafter does, and what it takes at each pass. verify: the
  model's passes. loop: the host's work around them. draft and loop: their share of the whole. ms a pass: of
  verify alone.
x greedy: the sums' ratio. x if drafts were free: the same without draft, the most that a drafter with as many
  tokens a pass can give."""


def summarize(cell: Cell, qualities: Sequence[Quality] = (), *, threads: int | None = None) -> JsonObject:
    """A cell as data: one entry an engine, in the order they were named.

    Args:
        threads: Threads of an engine, where cells differ in it.
    """
    hf = cell.find("hf", "fp32")
    entries = []
    for series in cell.series:
        greedy = cell.find(GREEDY, series.spec.dtype)
        entry: JsonObject = {
            "engine": series.spec.label,
            "dtype": series.spec.dtype,
            "signature": series.signature,
            "not_run": series.not_run or None,
        }
        if series.samples:
            entry |= _figures(series)
            entry["over_greedy"] = _ratio(series, greedy)
            entry["over_hf"] = _ratio(series, hf)
            entry["over_ctranslate2"] = _ratio(series, cell.find("ctranslate2", series.spec.dtype))
            promised = series.guarantee
            entry["guarantee"] = None if promised is None else promised.value
            entry["lossless"] = promised is Guarantee.IDENTICAL
            entry["costs"] = _costs(series)
            # A peer whose output is forced is forced in its length alone.
            comparable = greedy is not None and not (series.spec.peer and cell.job.forced is not None)
            entry["differ"] = entry["broken"] = None
            if comparable and greedy is not None:
                entry["differ"] = _differing(series, greedy)
                if entry["lossless"]:
                    entry["broken"] = _differing(series, greedy, allowed=series.ties)
            entry["quality"] = {each.name: _quality(each, series, greedy) for each in qualities}
        entries.append(entry)
    return {
        "threads": threads,
        "batch_size": cell.batch_size,
        "edits": cell.edits,
        "sentences": len(cell.job.lines),
        "engines": entries,
    }


def broken(summaries: Sequence[JsonObject]) -> list[str]:
    """The engines that broke their promise, each with how often."""
    return [
        f"{entry['engine']} {entry['dtype']}, batch {summary['batch_size']}: "
        f"{entry['broken']} of {summary['sentences']} sentences are not greedy search's"
        for summary in summaries
        for entry in summary["engines"]
        if entry.get("broken")
    ]


def _figures(series: EngineRuns) -> JsonObject:
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
        "peak_mb": max((sample.peak_mb for sample in samples if sample.peak_mb is not None), default=None),
    }


def _costs(series: EngineRuns) -> dict[str, float] | None:
    """Time of a sentence by part, ms; the median of the rounds."""
    reported = [sample.costs for sample in series.samples if sample.costs is not None]
    if not reported:
        return None
    sentences = len(series.samples[-1].tokens)
    return {
        part: 1000 * statistics.median(each[part] for each in reported) / sentences for part in reported[0]
    }


def _per(count: float | None, of: float | None) -> float | None:
    return None if count is None or not of else count / of


def _ratio(series: EngineRuns, base: EngineRuns | None) -> dict[str, float] | None:
    """Speed over that of `base`, round by round."""
    if base is None or base is series:
        return None
    theirs, mine = ([sample.seconds for sample in each.samples] for each in (base, series))
    return ratio(theirs, mine)


def ratio(base: Sequence[float], mine: Sequence[float]) -> dict[str, float]:
    """Speed over that of `base`: both are seconds by round, which are paired."""
    ratios = [theirs / own for theirs, own in zip(base, mine, strict=True)]
    return {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}


def _differing(
    series: EngineRuns, greedy: EngineRuns, allowed: Collection[tuple[int, tuple[int, ...]]] = ()
) -> int:
    """Highest number of a round's outputs that are neither greedy search's nor `allowed`."""
    compared = "texts" if series.spec.model else "tokens"  # another model may have other words
    wanted = getattr(greedy.samples[0], compared)
    worst: int = max(
        sum(
            found != wanted[row] and (row, tuple(found)) not in allowed
            for row, found in enumerate(getattr(sample, compared))
        )
        for sample in series.samples
    )
    return worst


def _quality(quality: Quality, series: EngineRuns, greedy: EngineRuns | None) -> JsonObject:
    """The score of the first round's outputs, and how it compares with greedy search's."""
    texts, compared = series.samples[0].texts, None
    if greedy is not None and greedy is not series:
        compared = asdict(quality.difference(texts, greedy.samples[0].texts))
    result = quality.of(texts)
    return {"score": result.score, "comparison": compared, "signature": result.signature}


def heading(
    title: str, found: Mapping[str, Any], facts: Mapping[str, object], *, hardware: str = ""
) -> list[str]:
    """The first lines of a page: its title, and what its figures depend on.

    Args:
        found: Figures as they are written to JSON, with ``command`` and ``environment``.
        facts: Further lines by name.
        hardware: Its description; empty: the CPU with one thread.
    """
    around = found["environment"]
    versions = (f"{name} {number}" for name, number in around["versions"].items() if number)
    lines = {
        "command": f"`{shlex.join(found['command'])}`",
        **facts,
        "hardware": hardware or f"{around['cpu']}, one thread",
        "load average": f"{around['load_average']:.2f} at the start",
        "versions": ", ".join(versions),
    }
    return [f"# {title}", *(f"- {name}: {value}" for name, value in lines.items()), ""]


def page(found: JsonObject) -> str:
    """The page in Markdown of all figures, as they are written to JSON."""
    around = found["environment"]
    facts = {
        "model": f"`{found['model']}`",
        "sentences": found["cells"][0]["sentences"],
        "rounds": found["rounds"],
        "time": TIMES[found["clock"]],
    }
    threads = " and ".join(map(str, found["threads"]))
    hardware = f"{around['gpu'] or around['cpu']}, {around['cores']} cores, {threads} threads"
    entries = [entry for summary in found["cells"] for entry in summary["engines"]]
    signatures = [
        *(entry["signature"] for entry in entries),
        *(each["signature"] for entry in entries for each in entry.get("quality", {}).values()),
    ]
    return "\n".join(
        [
            *heading("nartk-bench", found, facts, hardware=hardware),
            tables(found["cells"]),
            "",
            legend(found["cells"]),
            "",
            "Signatures:",
            *(f"- `{each}`" for each in dict.fromkeys(filter(None, signatures))),
        ]
    )


def tables(summaries: Sequence[JsonObject]) -> str:
    """The table of figures, and where they were measured that of costs."""
    return "\n\n".join(filter(None, [table(summaries), cost_table(summaries)]))


def legend(summaries: Sequence[JsonObject]) -> str:
    """Explains the columns of the tables."""
    reported = any(entry.get("costs") for summary in summaries for entry in summary["engines"])
    return f"{LEGEND}\n\n{COST_LEGEND}" if reported else LEGEND


def cost_table(summaries: Sequence[JsonObject]) -> str:
    """Markdown table of a sentence's time by part; empty where that was not measured."""
    rows = []
    for summary in summaries:
        entries = [entry for entry in summary["engines"] if entry.get("costs")]
        base = {
            entry["dtype"]: sum(entry["costs"].values()) for entry in entries if entry["engine"] == GREEDY
        }
        for entry in entries:
            costs, passes = entry["costs"], entry["passes_per_sentence"]
            whole, greedy = sum(costs.values()), base.get(entry["dtype"])
            tokens = entry["tokens"] / summary["sentences"]
            free = whole - costs["draft"]
            rows.append(
                (
                    entry["engine"],
                    entry["dtype"],
                    _number(summary["threads"], 0),
                    str(summary["batch_size"]),
                    _number(summary["edits"], 0),
                    *(f"{costs[part]:.2f}" for part in PARTS),
                    f"{(costs['draft'] + costs['loop']) / whole:.0%}",
                    _number(_per(costs["verify"], passes), 2),
                    _number(_per(tokens, passes), 2),
                    *(_number(_per(greedy, each), 2) for each in (whole, free)),
                )
            )
    return "\n".join(markdown(_COST_COLUMNS, rows))


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table, without columns in which there is nothing."""
    used = [i for i in range(len(columns)) if any(row[i] != "-" for row in rows)]
    lines = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(row[i] for i in used) + " |" for row in lines] if used else []


def table(summaries: Sequence[JsonObject]) -> str:
    """The figures as a Markdown table. Engines that did not run are listed below it."""
    entries = [entry for summary in summaries for entry in summary["engines"]]
    metrics = [*dict.fromkeys(name for entry in entries for name in entry.get("quality", {}))]
    columns = (*_COLUMNS, *(column for name in metrics for column in (name, "less greedy")))
    rows, absent = [], []
    for summary in summaries:
        for entry in summary["engines"]:
            if entry["not_run"] is not None:
                where = f"batch {summary['batch_size']}"
                absent.append(f"not run: {entry['engine']} {entry['dtype']}, {where}: {entry['not_run']}")
                continue
            rows.append((*_row(summary, entry), *_cells(entry, metrics)))
    lines = markdown(columns, rows)
    return "\n".join([*lines, *([""] if lines and absent else []), *dict.fromkeys(absent)])


def _row(summary: JsonObject, entry: JsonObject) -> tuple[str, ...]:
    latency = entry["latency_ms"] or {}
    return (
        entry["engine"],
        "-" if entry["guarantee"] is None else entry["guarantee"],
        entry["dtype"],
        _number(summary["threads"], 0),
        str(summary["batch_size"]),
        _number(summary["edits"], 0),
        _number(entry["tokens_per_second"], 0),
        times(entry["over_greedy"]),
        times(entry["over_hf"]),
        times(entry["over_ctranslate2"]),
        _number(entry["passes_per_sentence"], 2),
        _number(entry["accepted_per_pass"], 2),
        *(_number(latency.get(p), 1) for p in ("p50", "p90", "p99")),
        _number(entry["peak_mb"], 0),
        _number(entry["differ"], 0) + (" (ties)" if entry["differ"] and entry["broken"] == 0 else ""),
    )


def _cells(entry: JsonObject, metrics: Sequence[str]) -> tuple[str, ...]:
    cells: list[str] = []
    for name in metrics:
        quality = entry["quality"][name]
        compared = quality["comparison"]
        cells.append(f"{quality['score']:.4g}")
        if compared is None:
            cells.append("-")
            continue
        low, high = (compared["interval"][side] for side in ("low", "high"))
        cells.append(f"{compared['difference']:+.3g} ({low:+.3g} to {high:+.3g})")
    return tuple(cells)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def times(ratio: dict[str, float] | None) -> str:
    """A `ratio` as a cell: the median and, in brackets, lowest and highest."""
    if ratio is None:
        return "-"
    return f"{ratio['median']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"


def recipe_parser(description: str) -> argparse.ArgumentParser:
    """A parser of a recipe's flags with ``--rounds`` and the files that `publish` writes."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=description, formatter_class=formatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds after one to warm up (default: 5)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the page here too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here")
    return parser


def publish(found: JsonObject, page: str, options: argparse.Namespace) -> None:
    """Prints a page of what was found, and writes it to the files that `recipe_parser` was given.

    Raises:
        OutputError: A file cannot be written.
    """
    print(page)
    for path, text in ((options.markdown, page), (options.json, json.dumps(found, indent=2))):
        if path is not None:
            with writing(path) as file:
                file.write(f"{text}\n")


def require_plot(path: Path) -> None:
    """Refuses a picture that could not be drawn.

    Raises:
        OutputError: It cannot be written there.
        UsageError: The suffix is neither .png, .svg nor .pdf.
        MissingDependencyError: matplotlib is not installed.
    """
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise UsageError(f"{named('plot')} is {str(path)!r}", fix="end it with .png, .svg or .pdf")
    with requiring(f"{named('plot')} needs matplotlib, which is not installed", "plot"):
        import matplotlib  # noqa: F401
    require_storable(path, fix="choose a writable place with space")


def plot(summaries: Sequence[JsonObject], path: Path) -> None:
    """Draws each cell: how many times as fast as greedy search every engine is, or as hf where it ran.

    Beside it, where there are references, the first metric against tokens a second, engines by their number.
    """
    from matplotlib.figure import Figure

    ran = [[each for each in summary["engines"] if each["not_run"] is None] for summary in summaries]
    metric = next((name for entries in ran for each in entries for name in each["quality"]), None)
    columns = 1 if metric is None else 2
    most = max(1, *map(len, ran))
    figure = Figure(figsize=(7 * columns, (1 + 0.3 * most) * len(summaries)), layout="constrained")
    panels = figure.subplots(len(summaries), columns, squeeze=False)
    for axes, summary, entries in zip(panels, summaries, ran, strict=True):
        _plot_ratios(axes[0], entries)
        axes[0].set_title(_title(summary), loc="left", fontsize="medium")
        if metric is not None:
            _plot_quality(axes[1], entries, metric)
    with writing(path, binary=True) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=150)


def _title(summary: JsonObject) -> str:
    if "title" in summary:
        return str(summary["title"])
    edits = "" if summary["edits"] is None else f", {summary['edits']} edits"
    threads = "" if summary["threads"] is None else f", {summary['threads']} threads"
    return f"batch {summary['batch_size']}{edits}{threads}"


def _plot_ratios(axes: Axes, entries: Sequence[JsonObject]) -> None:
    base = "hf" if any(entry["over_hf"] for entry in entries) else "greedy"
    names, middles, errors = [], [], []
    for number, entry in reversed([*enumerate(entries, start=1)]):
        ratio = entry[f"over_{base}"] or {"median": 1.0, "low": 1.0, "high": 1.0}
        names.append(f"{entry['engine']} {entry['dtype']} ({number})")
        middles.append(ratio["median"])
        errors.append((ratio["median"] - ratio["low"], ratio["high"] - ratio["median"]))
    axes.barh(names, middles, xerr=list(zip(*errors, strict=True)), color="#4477aa", ecolor="#222222")
    axes.axvline(1.0, color="#222222", linewidth=0.8)
    axes.set_xlabel(f"times as fast as {base}")


def _plot_quality(axes: Axes, entries: Sequence[JsonObject], metric: str) -> None:
    """Each engine's score, with the interval of its difference to greedy search, against its speed."""
    for number, entry in enumerate(entries, start=1):
        speed, quality = entry["tokens_per_second"], entry["quality"][metric]
        score, compared = quality["score"], quality["comparison"]
        bars = None
        if compared is not None:
            low, high = (compared["baseline"] + compared["interval"][side] for side in ("low", "high"))
            # A percentile interval need not hold the estimate; a bar has no negative length.
            bars = [[max(0.0, score - low)], [max(0.0, high - score)]]
        axes.errorbar(speed, score, bars, fmt="o", color="#4477aa", ecolor="#bbbbbb", elinewidth=0.8)
        axes.annotate(
            str(number), (speed, score), xytext=(0, 4), textcoords="offset points", ha="center", size="small"
        )
    axes.set_xscale("log")
    axes.set_xlabel("tokens a second")
    axes.set_ylabel(metric)
