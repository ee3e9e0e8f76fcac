"""Compares searches that give several outputs, or change greedy search's: quality, choice, repetition.

    python recipes/mt/several.py MODEL SOURCE --ref REFERENCE [--nbest 5] [--dtype fp32] [--markdown FILE]

Columns: BLEU of the first output of each line; of the best of its outputs by BLEU with smoothing, which an
oracle would choose; outputs of a line that differ; distinct-1 and distinct-2 (Li et al. 2016,
https://arxiv.org/abs/1510.03055), the share of words and pairs of words among the outputs of a line that are
different; and lines whose first output has three words in a row twice.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sacrebleu.metrics import BLEU

import nartk
from nartk.bench.report import heading, markdown, publish
from nartk.bench.runner import environment
from nartk.files import read_lines

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
SENTENCE = BLEU(effective_order=True)
COLUMNS = ("search", "BLEU", "BLEU, oracle", "outputs", "distinct-1", "distinct-2", "repeat")


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


def oracle(texts: Sequence[str], reference: str) -> str:
    """The first of those outputs that have the largest sentence BLEU."""
    return max(texts, key=lambda text: SENTENCE.sentence_score(text, [reference]).score)


def measured(outputs: Sequence[Sequence[str]], references: Sequence[str]) -> dict[str, float]:
    """Figures by column of the outputs of each line, the best first."""
    first = [texts[0] for texts in outputs]
    chosen = [oracle(texts, reference) for texts, reference in zip(outputs, references, strict=True)]
    return {
        "BLEU": BLEU().corpus_score(first, [references]).score,
        "BLEU, oracle": BLEU().corpus_score(chosen, [references]).score,
        "outputs": statistics.fmean(len(set(texts)) for texts in outputs),
        "distinct-1": statistics.fmean(distinct(texts, 1) for texts in outputs),
        "distinct-2": statistics.fmean(distinct(texts, 2) for texts in outputs),
        "repeat": float(sum(map(repeats, first))),
    }


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("model", help="a model folder")
    parser.add_argument("source", help="lines to decode")
    parser.add_argument("--ref", required=True, help="their references")
    parser.add_argument("--nbest", type=int, default=5, help="outputs of a line (default: %(default)s)")
    parser.add_argument("--dtype", default="fp32", help="type of the weights (default: %(default)s)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the page here too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here")
    args = parser.parse_args()

    model = nartk.load(args.model, dtype=args.dtype)
    lines, references = read_lines(args.source), read_lines(args.ref)
    runs: dict[str, dict[str, float]] = {}
    for name, options in (*SEVERAL, *ONE):
        label = ":".join((name, *(f"{key}={value}" for key, value in options.items())))
        options = {**options, **({"nbest": args.nbest} if (name, options) in SEVERAL else {})}
        if "beam" in name:
            options["beam_size"] = args.nbest
        found = model.run(lines, name, options)
        runs[label] = measured([[each.text for each in one] for one in found.hypotheses], references)
    rows = [
        (label, *(f"{run[column]:.{0 if column == 'repeat' else 2}f}" for column in COLUMNS[1:]))
        for label, run in runs.items()
    ]
    figures = {"command": sys.argv, "environment": environment("cpu"), "runs": runs}
    facts = {"model": f"`{args.model}`", "lines": len(lines), "outputs of a line": args.nbest}
    page = "\n".join([*heading("Several outputs", figures, facts), *markdown(COLUMNS, rows)])
    publish(figures, page, args)


if __name__ == "__main__":
    main()
