"""Makes an n-gram language model of a text, which the beam searches of CTC and DA-Transformer weigh in.

    python recipes/mt/language_model.py TEXT --output FILE.arpa [--order N]

TEXT has a sentence a line, its tokens with spaces between. The estimate is interpolated Kneser-Ney
smoothing with one discount an order, n1 / (n1 + 2 n2) of the n-grams that were counted once and twice (Kneser
& Ney 1995; Chen & Goodman 1999, section 3): the longest n-grams are counted as they occur, and so are those
that begin a sentence; of all others counts the number of tokens that were seen before them.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

START, END, UNKNOWN = "<s>", "</s>", "<unk>"
NEG_INF = -99.0  # what stands for the base-10 logarithm of 0 in ARPA files

Gram = tuple[str, ...]


def count(sentences: Iterable[str], order: int) -> list[Counter[Gram]]:
    """Counts of the n-grams of each length from 1 on, as above."""
    seen: list[Counter[Gram]] = [Counter() for _ in range(order)]
    for sentence in sentences:
        tokens = (START, *sentence.split(), END)
        for end in range(1, len(tokens)):
            for n in range(1, min(order, end + 1) + 1):
                seen[n - 1][tokens[end - n + 1 : end + 1]] += 1
    counts = [seen[-1]]
    for n in range(order - 1, 0, -1):
        before: Counter[Gram] = Counter(gram[1:] for gram in seen[n])
        begins = {gram: number for gram, number in seen[n - 1].items() if gram[0] == START}
        counts.insert(0, Counter({**before, **begins}))
    return counts


def discount(counts: Counter[Gram]) -> float:
    """Discount of each count, between 0 and 1."""
    once, twice = (sum(1 for number in counts.values() if number == n) for n in (1, 2))
    return once / (once + 2 * twice) if once and twice else 0.5


def estimate(sentences: Iterable[str], order: int) -> list[dict[Gram, tuple[float, float]]]:
    """For each length the n-grams with their probability and the weight of what is shorter after them."""
    counts = count(sentences, order)
    words = {gram[0] for gram in counts[0]} | {UNKNOWN}
    shorter: dict[Gram, float] = {(): 1 / len(words)}  # of an n-gram without its first token
    found: list[dict[Gram, tuple[float, float]]] = []
    weights: list[dict[Gram, float]] = []
    for n, grams in enumerate(counts, start=1):
        taken = discount(grams)
        totals: dict[Gram, int] = defaultdict(int)
        continuations: dict[Gram, int] = defaultdict(int)
        for gram, number in grams.items():
            totals[gram[:-1]] += number
            continuations[gram[:-1]] += 1
        left = {context: taken * continuations[context] / total for context, total in totals.items()}
        probabilities = {
            gram: (number - taken) / totals[gram[:-1]] + left[gram[:-1]] * shorter[gram[1:]]
            for gram, number in grams.items()
        }
        if n == 1:
            probabilities[(UNKNOWN,)] = left[()] * shorter[()]
        weights.append(left)
        found.append({gram: (value, 1.0) for gram, value in probabilities.items()})
        shorter = probabilities
    found[0][(START,)] = (0.0, 1.0)
    return [
        {gram: (value, following.get(gram, 1.0)) for gram, (value, _) in grams.items()}
        for grams, following in zip(found, [*weights[1:], {}], strict=True)
    ]


def arpa(grams: list[dict[Gram, tuple[float, float]]]) -> Iterator[str]:
    """The lines of the file."""
    yield "\\data\\"
    for n, each in enumerate(grams, start=1):
        yield f"ngram {n}={len(each)}"
    for n, each in enumerate(grams, start=1):
        yield f"\n\\{n}-grams:"
        for gram, (value, weight) in sorted(each.items()):
            behind = f"\t{math.log10(weight):.6f}" if n < len(grams) else ""
            yield f"{math.log10(value) if value else NEG_INF:.6f}\t{' '.join(gram)}{behind}"
    yield "\n\\end\\"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument(
        "--order", type=int, default=4, help="tokens of the longest n-grams (default: %(default)s)"
    )
    args = parser.parse_args()
    lines = args.text.read_text(encoding="utf-8").splitlines()
    args.output.write_text("\n".join(arpa(estimate(lines, args.order))) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
