"""MaxMatch (M2): precision, recall and F0.5 of the edits of a grammatical-error correction.

A hypothesis can be cut into edits in many ways. MaxMatch takes the cut that agrees with the annotator's
edits most: the shortest path through the lattice of all cheapest alignments, where an edge that equals a
gold edit outweighs everything else. Source: Dahlmeier and Ng 2012, "Better Evaluation for Grammatical Error
Correction", https://aclanthology.org/N12-1067, sections 2 and 3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from nartk.data.m2 import M2Edit, M2Sentence, read_m2
from nartk.errors import InputTooLongError, NartkError
from nartk.files import read_lines
from nartk.metrics.metric import Metric, MetricFiles, Reads, Scorer
from nartk.metrics.result import MetricResult, check_lengths, f_measure, f_of_resamples, signature
from nartk.registry import option, register_metric

MAX_CELLS = 25_000_000  # of the alignment matrix: 5,000 source tokens against 5,000
MAX_STEPS = 1_200_000  # of the lattice: 630 tokens against 630 entirely different ones

Node = tuple[int, int]  # source tokens and hypothesis tokens consumed
OUTSIDE = -1  # in place of the number of unchanged words: the path is not inside an edit


@dataclass(frozen=True)
class EditLattice:
    """All cheapest alignments of a source and a hypothesis.

    Attributes:
        edges: From each node its (next node, whether the edge leaves a word unchanged), in path order.
        end: The last node, (source length, hypothesis length).
    """

    edges: dict[Node, list[tuple[Node, bool]]]
    end: Node


class EditCounts(NamedTuple):
    """Counts of one sentence against one annotator."""

    correct: int
    proposed: int
    gold: int


def _distances(equal: np.ndarray, substitution: int) -> np.ndarray:
    """Edit distances of all prefixes, [S+1, H+1] int32; insertion and deletion cost 1.

    Args:
        equal: [S, H] bool, which tokens are the same.
        substitution: Cost of replacing a token by another.
    """
    rows, columns = equal.shape
    ramp = np.arange(columns + 1, dtype=np.int32)
    table = np.empty((rows + 1, columns + 1), dtype=np.int32)
    table[0] = ramp
    for i in range(rows):
        row = table[i] + 1
        np.minimum(row[1:], table[i, :-1] + np.where(equal[i], 0, substitution), out=row[1:])
        # An insertion chain from column k to j costs j - k: a running minimum of row[k] - k.
        table[i + 1] = np.minimum.accumulate(row - ramp) + ramp
    return table


def build_lattice(source: Sequence[str], hypothesis: Sequence[str]) -> EditLattice:
    """Joins the cheapest alignments under substitution costs 1 and 2.

    With cost 2 a deletion beside an insertion is as good as a substitution, which gold edits may ask for.

    Raises:
        InputTooLongError: The two sentences would need more than `MAX_CELLS` or `MAX_STEPS`.
    """
    size = (len(source) + 1) * (len(hypothesis) + 1)
    if size > MAX_CELLS:
        raise InputTooLongError(
            f"{len(source)} source tokens against {len(hypothesis)} need {size} cells > {MAX_CELLS}",
            fix="split the line into sentences",
        )
    ids: dict[str, int] = defaultdict(lambda: len(ids))
    left = np.array([ids[token] for token in source], dtype=np.int32)
    right = np.array([ids[token] for token in hypothesis], dtype=np.int32)
    equal = left[:, None] == right[None, :]  # [S, H]

    deletions = np.zeros((len(source), len(hypothesis) + 1), dtype=bool)
    insertions = np.zeros((len(source) + 1, len(hypothesis)), dtype=bool)
    diagonals = np.zeros(equal.shape, dtype=bool)
    for substitution in (1, 2):
        before = _distances(equal, substitution)
        after = _distances(equal[::-1, ::-1], substitution)[::-1, ::-1]
        best = before[-1, -1]
        deletions |= before[:-1] + 1 + after[1:] == best
        insertions |= before[:, :-1] + 1 + after[:, 1:] == best
        diagonals |= before[:-1, :-1] + np.where(equal, 0, substitution) + after[1:, 1:] == best

    count = int(deletions.sum() + insertions.sum() + diagonals.sum())
    if count > MAX_STEPS:
        raise InputTooLongError(
            f"{len(source)} source tokens against {len(hypothesis)} align in {count} steps > {MAX_STEPS}",
            fix="split the line into sentences",
        )
    edges: dict[Node, list[tuple[Node, bool]]] = defaultdict(list)
    for i, j in np.argwhere(deletions).tolist():
        edges[i, j].append(((i + 1, j), False))
    for i, j in np.argwhere(insertions).tolist():
        edges[i, j].append(((i, j + 1), False))
    for i, j in np.argwhere(diagonals).tolist():
        edges[i, j].append(((i + 1, j + 1), bool(equal[i, j])))
    return EditLattice({node: edges[node] for node in sorted(edges)}, (len(source), len(hypothesis)))


def _connected(lattice: EditLattice, start: Node, end: Node, max_unchanged_words: int) -> bool:
    """True if a path with at most so many unchanged words leads from one node to the other."""
    fewest = {start: 0}
    queue = [start]
    for node in queue:
        for following, unchanged in lattice.edges.get(node, ()):
            if following[0] > end[0] or following[1] > end[1]:
                continue
            words = fewest[node] + unchanged
            if words <= max_unchanged_words and words < fewest.get(following, max_unchanged_words + 1):
                fewest[following] = words
                queue.append(following)
    return end in fewest


def _gold_ends(hypothesis: Sequence[str], start: int, words: Sequence[str], *, loose: bool) -> list[int]:
    """Ends of the hypothesis spans from `start` that read as `words`."""
    if not loose:
        end = start + len(words)
        return [end] if list(hypothesis[start:end]) == list(words) else []
    wanted, text, ends = "".join(words).lower(), "", []
    for end in range(start, len(hypothesis) + 1):
        if text == wanted:
            ends.append(end)
        if end == len(hypothesis) or len(text) > len(wanted):
            break
        text += hypothesis[end].lower()
    return ends


def _gold_edges(
    lattice: EditLattice,
    source: Sequence[str],
    hypothesis: Sequence[str],
    gold: Sequence[M2Edit],
    *,
    max_unchanged_words: int,
    loose: bool,
) -> dict[Node, list[tuple[Node, int]]]:
    """Edges of the lattice's transitive closure that equal a gold edit: (end node, rank) from each node.

    The rank counts the insertions at one place from 1 in their order, and is 0 for other edits.
    """
    by_start: dict[int, list[Node]] = defaultdict(list)
    for node in lattice.edges:
        by_start[node[0]].append(node)
    found: dict[Node, list[tuple[Node, int]]] = defaultdict(list)
    ranks: dict[int, int] = defaultdict(int)
    for edit in gold:
        rank = 0
        if edit.start == edit.end:
            ranks[edit.start] += 1
            rank = ranks[edit.start]
        for words in edit.alternatives:
            if words == list(source[edit.start : edit.end]):
                continue  # an edit that changes nothing is no edge
            for node in by_start[edit.start]:
                for end in _gold_ends(hypothesis, node[1], words, loose=loose):
                    target = (edit.end, end)
                    if target != node and _connected(lattice, node, target, max_unchanged_words):
                        found[node].append((target, rank))
    return found


def count_edits(
    lattice: EditLattice,
    source: Sequence[str],
    hypothesis: Sequence[str],
    gold: Sequence[M2Edit],
    *,
    max_unchanged_words: int = 2,
    ignore_whitespace_casing: bool = False,
) -> EditCounts:
    """Cuts the hypothesis into the edits that agree with one annotator most, and counts them.

    Of all cuts it takes the one with the most gold edits; of those, the one with the fewest alignment
    steps outside gold edits; of those, the one with the fewest other edits. An edit may run over
    `max_unchanged_words` words that both sides share.

    Args:
        lattice: `build_lattice(source, hypothesis)`.
        gold: The annotator's edits, without `noop`.
        ignore_whitespace_casing: Match gold edits in any case and spacing.
    """
    golden = _gold_edges(
        lattice,
        source,
        hypothesis,
        gold,
        max_unchanged_words=max_unchanged_words,
        loose=ignore_whitespace_casing,
    )
    # One integer orders the cuts: steps below matches, edits below steps.
    step = len(source) + len(hypothesis) + 1
    match = step * step
    # State: (unchanged words in the open edit or OUTSIDE, rank of the last gold insertion at this place).
    costs: dict[Node, dict[tuple[int, int], tuple[int, int]]] = defaultdict(dict)
    costs[0, 0][OUTSIDE, 0] = (0, 0)

    def visit(node: Node, words: int, rank: int, cost: int, correct: int) -> None:
        states = costs[node]
        if (words, rank) not in states or cost < states[words, rank][0]:
            states[words, rank] = (cost, correct)

    for node, edges in lattice.edges.items():
        for (words, rank), (cost, correct) in costs.pop(node, {}).items():
            for following, unchanged in edges:
                kept = rank if following[0] == node[0] else 0
                if unchanged:
                    visit(following, OUTSIDE, kept, cost + step, correct)
                    if OUTSIDE < words < max_unchanged_words:
                        visit(following, words + 1, kept, cost + step, correct)
                else:
                    visit(following, 0, kept, cost + step + 1, correct)
                    if words > OUTSIDE:
                        visit(following, words, kept, cost + step, correct)
            for following, gold_rank in golden.get(node, ()):
                if gold_rank == 0 or gold_rank > rank:
                    visit(following, OUTSIDE, gold_rank, cost - match, correct + 1)

    cost, correct = min(costs[lattice.end].values())
    return EditCounts(correct, correct + cost % step, len(gold))


def m2_score(
    references: Sequence[M2Sentence],
    hypotheses: Sequence[str],
    *,
    beta: float = 0.5,
    max_unchanged_words: int = 2,
    ignore_whitespace_casing: bool = False,
) -> MetricResult:
    """MaxMatch F of a corpus.

    Sentence by sentence it takes the annotator whose counts, added to the totals so far, give the highest
    F; at a tie the one with more correct edits, then with fewer proposed and gold ones, then the first.

    Args:
        references: Sentences of the gold M2 file.
        hypotheses: Corrected sentences, tokens separated by spaces.

    Raises:
        LengthMismatchError: There are not as many hypotheses as references.
        InputTooLongError: A sentence is too long to align; the error names it.
    """
    check_lengths(len(references), "gold", {"hypothesis": len(hypotheses)})
    totals = np.zeros(3, dtype=np.int64)
    rows: list[EditCounts] = []
    chosen: list[int] = []
    for number, (reference, line) in enumerate(zip(references, hypotheses, strict=True), start=1):
        source, hypothesis = reference.source, [token for token in line.split(" ") if token]
        try:
            lattice = build_lattice(source, hypothesis)
        except InputTooLongError as error:
            raise InputTooLongError(error.message, fix=error.fix, where=f"sentence {number}") from None
        best: tuple[float, int, int] | None = None
        for annotator in reference.annotators:
            row = count_edits(
                lattice,
                source,
                hypothesis,
                reference.edits_of(annotator),
                max_unchanged_words=max_unchanged_words,
                ignore_whitespace_casing=ignore_whitespace_casing,
            )
            correct, proposed, gold = (totals + np.array(row)).tolist()
            f = float(f_measure(correct, proposed, gold, beta)[2])
            rank = (f, correct, -proposed - gold)
            if best is None or rank > best:
                best, best_row, best_annotator = rank, row, annotator
        totals += best_row
        rows.append(best_row)
        chosen.append(best_annotator)

    correct, proposed, gold = totals.tolist()
    precision, recall, score = f_measure(correct, proposed, gold, beta)
    settings = (
        f"beta:{beta:g}",
        f"unchanged:{max_unchanged_words}",
        f"case:{'ignored' if ignore_whitespace_casing else 'kept'}",
    )
    return MetricResult(
        metric="m2",
        score=float(score),
        parts={
            "precision": float(precision),
            "recall": float(recall),
            "beta": beta,
            "correct": correct,
            "proposed": proposed,
            "gold": gold,
            "annotators": chosen,
        },
        signature=signature("m2", *settings),
        sentences=len(rows),
        resample=f_of_resamples(np.array(rows, dtype=np.float64), beta),
    )


@register_metric("m2")
class MaxMatch(Metric):
    """MaxMatch (M2) F, 0 to 1."""

    reads: ClassVar[Mapping[str, Reads]] = {"gold": Reads("sources and gold edits")}
    digits: ClassVar[int] = 4
    example: ClassVar[str] = "m2 HYP --gold GOLD.m2"

    beta: float = option(0.5, "weight of recall", above=0.0)
    max_unchanged_words: int = option(2, "longest run of unchanged words inside an edit", low=0)
    ignore_whitespace_casing: bool = option(False, "match gold edits in any case and spacing")

    def scorer(self, files: MetricFiles) -> Scorer:
        assert files.gold is not None
        dropped: list[NartkError] = []
        gold = list(read_m2(read_lines(files.gold), name=files.shown(files.gold), outside=dropped.append))
        if dropped:
            first = f"{dropped[0].where}: {dropped[0].message}"
            files.tell(f"left out gold edits outside their sentence: {len(dropped)}, first {first}")
        return files.against_gold(gold, lambda outputs: [m2_score(gold, outputs, **asdict(self))])
