"""A trace as a picture, by matplotlib: how many tokens passes settle, and what each pass settled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nartk.errors import number_of, requiring
from nartk.files import writing
from nartk.tracing import ORIGINS, Traced
from nartk.tracing.page import bars, counts, histogram, stats

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers tell apart, and hatches for those who see none.
_LOOKS = {
    "draft": ("#0072b2", ""),
    "verifier": ("#e69f00", "///"),
    "rollback": ("#cc79a7", "xxx"),
    "prefix": ("#999999", "..."),
    "model": ("#009e73", "\\\\\\"),
}
_MOST_TOKENS = 200  # of a sentence that is drawn with its words
_WIDTH = 0.2  # inches of a token
_MOST_INCHES = 40.0  # of a picture


def require_matplotlib() -> None:
    """Raises MissingDependencyError where matplotlib is not installed."""
    with requiring("drawing a picture needs matplotlib, which is not installed", "plot"):
        import matplotlib  # noqa: F401


def plot_histogram(trace: Sequence[Traced], path: Path, form: str) -> None:
    """Draws how many passes settled how many tokens, as `form`, png or svg."""
    figure = make_figure(7, 3.5)
    axes = figure.subplots()
    found = bars(histogram(trace))
    total = stats(trace)
    accepted = f"{total.accepted / total.passes:.2f}" if total.passes else "0"
    middles = [(low + high) / 2 for low, high, _ in found]
    widths = [0.9 * (high - low + 1) for low, high, _ in found]
    axes.bar(middles, [count for _, _, count in found], widths, color=_LOOKS["draft"][0])
    axes.xaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]
    axes.set_xlabel("tokens that a pass settled")
    axes.set_ylabel("passes")
    axes.set_title(
        f"{counts(total)}, {accepted} drafted tokens accepted a pass", loc="left", fontsize="medium"
    )
    save_figure(figure, path, form)


def plot_passes(traced: Traced, path: Path, form: str) -> None:
    """Draws each token of a sentence in the row of the pass that settled it, as `form`, png or svg."""
    count = len(traced.output)
    rows = sorted({*traced.passes_at})
    figure = make_figure(max(5.0, 1.5 + _WIDTH * count), 2.2 + 0.25 * len(rows))
    axes = figure.subplots()
    row_of = {number: row for row, number in enumerate(rows)}
    for origin in (origin for origin in ORIGINS if origin in traced.origin):
        color, hatch = _LOOKS[origin]
        at = [i for i, each in enumerate(traced.origin) if each == origin]
        where = [row_of[traced.passes_at[i]] for i in at]
        axes.barh(
            where,
            0.9,
            0.8,
            left=[i - 0.45 for i in at],
            color=color,
            hatch=hatch,
            edgecolor="w",
            label=origin,
        )
    axes.set_yticks(range(len(rows)), [str(number) for number in rows])
    axes.set_xlim(-0.6, max(count, 1) - 0.4)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_ylabel("pass")
    if count <= _MOST_TOKENS:
        # A dollar sign would begin a formula.
        axes.set_xticks(range(count), [word.replace("$", r"\$") for word in traced.output], rotation=90)
    else:
        axes.set_xlabel("token")
    drafted = f", {traced.accepted} of {traced.drafted} drafted tokens accepted" if traced.drafted else ""
    axes.set_title(
        f"line {traced.line}: {number_of(count, 'token')} in {number_of(traced.passes, 'pass')}{drafted}",
        loc="left",
        fontsize="medium",
    )
    if traced.origin:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    save_figure(figure, path, form)


def make_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches, or as many as a picture may have."""
    from matplotlib.figure import Figure

    return Figure(figsize=(min(width, _MOST_INCHES), min(height, _MOST_INCHES)), layout="constrained")


def save_figure(figure: Figure, path: Path, form: str) -> None:
    """Writes a figure as `form`, png or svg."""
    with writing(path, binary=True) as file:
        figure.savefig(file, format=form, dpi=150)
