"""Compares searches that give several outputs, or change greedy search's: quality, choice, repetition.

    python recipes/several.py MODEL SOURCE --ref REFERENCE... [--metric bleu] [--nbest 5] [--dtype fp32]
                              [--pretokenized] [--no-guard] [--markdown FILE] [--json FILE]

Columns: the score of the first output of each line, percent; that of the best of its outputs by the metric's
form for single sentences, which an oracle would choose; outputs of a line that differ; distinct-1 and
distinct-2 (Li et al. 2016, https://arxiv.org/abs/1510.03055), the share of words and pairs of words among the
outputs of a line that are different; and lines whose first output has three words in a row twice.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import nartk
from nartk.bench.report import heading, markdown, publish
from nartk.bench.runner import environment
from nartk.files import read_lines
from nartk.metrics.gleu import Gleu
from nartk.metrics.metric import Corpus, Metric
from nartk.metrics.result import MetricResult
from nartk.metrics.rouge import Rouge
from nartk.metrics.sacre import Bleu

# Name, metric, and what makes its score percent.
METRICS: dict[str, tuple[str, Metric, float]] = {
    "bleu": ("BLEU", Bleu(), 1.0),
    "gleu": ("GLEU", Gleu(), 100.0),
    "rouge": ("ROUGE-1", Rouge(), 100.0),
}
Scored = Callable[[Sequence[str]], MetricResult]  # of an output of each line

# Strategy and options; those that give several outputs get as many as are asked for.
SEVERAL: tuple[tuple[str, dict[str, Any]], ...] = (
    ("beam", {}),
    ("diverse-beam", {"diversity_penalty": 0.2}),
    ("diverse-beam", {"diversity_penalty": 0.5}),
    ("diverse-beam", {"diversity_penalty": 1.0}),
    ("sample", {"temperature": 0.5}),
    ("sample", {"temperature": 1.0}),
)
ONE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("greedy", {}),
    ("greedy", {"momentum": 0.1}),
    ("greedy", {"momentum": 0.2}),
    ("contrastive", {"penalty_alpha": 0.2}),
    ("contrastive", {"penalty_alpha": 0.6}),
)
COLUMNS = ("score", "oracle", "outputs", "distinct-1", "distinct-2", "repeat")


def grams(text: str, n: int) -> list[tuple[str, ...]]:
    words = text.split()
    return [tuple(words[i : i + n]) for i in range(len(words) + 1 - n)]


def distinct(texts: Sequence[str], n: int) -> float:
    """The share of n-grams that are different; of no n-grams 1."""
    found = [gram for text in texts for gram in grams(text, n)]
    return len(set(found)) / len(found) if found else 1.0


def repeats(text: str) -> bool:
    """True if three words in a row come twice."""
    found = grams(text, 3)
    return len(set(found)) < len(found)


def oracle(outputs: Sequence[Sequence[str]], scored: Scored) -> list[str]:
    """The best of each line's outputs by its own score; of equal ones the first."""
    most = max(map(len, outputs))
    ranks = [[texts[min(rank, len(texts) - 1)] for texts in outputs] for rank in range(most)]
    scores = np.stack([scored(texts).each() for texts in ranks])  # [ranks, lines]
    return [ranks[rank][line] for line, rank in enumerate(scores.argmax(0))]


def measured(outputs: Sequence[Sequence[str]], scored: Scored) -> dict[str, float]:
    """Figures by column of the outputs of each line, the best first."""
    first = [texts[0] for texts in outputs]
    return {
        "score": scored(first).score,
        "oracle": scored(oracle(outputs, scored)).score,
        "outputs": statistics.fmean(len(set(texts)) for texts in outputs),
        "distinct-1": statistics.fmean(distinct(texts, 1) for texts in outputs),
        "distinct-2": statistics.fmean(distinct(texts, 2) for texts in outputs),
        "repeat": float(sum(map(repeats, first))),
    }


def against(metric: Metric, sources: Sequence[str], files: Sequence[str]) -> Scored:
    """A function that scores an output of each line against the references of files; blank ones are none."""
    references = [[line if line.strip() else None for line in read_lines(name)] for name in files]
    texts = Corpus(references=references, sources=sources, tell=lambda _: None)
    compare = metric.against(texts)
    return lambda outputs: compare(outputs)[0]


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("model", help="a model folder")
    parser.add_argument("source", help="lines to decode")
    parser.add_argument("--ref", required=True, nargs="+", help="their references, a file each")
    parser.add_argument(
        "--metric", choices=METRICS, default="bleu", help="what scores outputs (default: %(default)s)"
    )
    parser.add_argument("--nbest", type=int, default=5, help="outputs of a line (default: %(default)s)")
    parser.add_argument("--dtype", default="fp32", help="type of the weights (default: %(default)s)")
    parser.add_argument("--pretokenized", action="store_true", help="spaces part the tokens of lines")
    parser.add_argument("--no-guard", dest="guard", action="store_false", help="the model's own outputs")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the page here too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here")
    args = parser.parse_args()

    model = nartk.load(args.model, dtype=args.dtype, pretokenized=args.pretokenized, guard=args.guard)
    lines = read_lines(args.source)
    name, metric, unit = METRICS[args.metric]
    scored = against(metric, lines, args.ref)
    runs: dict[str, dict[str, float]] = {}
    for strategy, options in (*SEVERAL, *ONE):
        label = ":".join((strategy, *(f"{key}={value}" for key, value in options.items())))
        options = {**options, **({"nbest": args.nbest} if (strategy, options) in SEVERAL else {})}
        if "beam" in strategy:
            options["beam_size"] = args.nbest
        print(f"several.py: {label}", file=sys.stderr)
        found = model.run(lines, strategy, options, truncate=True)
        outputs = [
            [each.text for each in one] or [line] for line, one in zip(lines, found.hypotheses, strict=True)
        ]
        runs[label] = measured(outputs, scored)
        for column in ("score", "oracle"):
            runs[label][column] *= unit
    rows = [
        (label, *(f"{run[column]:.{0 if column == 'repeat' else 2}f}" for column in COLUMNS))
        for label, run in runs.items()
    ]
    figures = {"command": sys.argv, "environment": environment("cpu"), "metric": name, "runs": runs}
    facts = {"model": f"`{args.model}`", "lines": len(lines), "outputs of a line": args.nbest}
    titles = ("search", name, f"{name}, oracle", *COLUMNS[2:])
    page = "\n".join([*heading("Several outputs", figures, facts), *markdown(titles, rows)])
    publish(figures, page, args)


if __name__ == "__main__":
    main()
