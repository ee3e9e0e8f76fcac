"""Reports of a run on its rows: results, counts and where each token came from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from nartk.decoders.loop.acceptance import Verdict
from nartk.decoders.loop.rows import Row
from nartk.protocols.hypothesis import Hypothesis, PhaseSeconds, Result, TokenTrace


def branches(row: Row, accepted: Sequence[int]) -> int:
    """Accepted tokens that are not the first of those drafted after the one before."""
    parents = row.draft.parents
    return 0 if parents is None else sum(parents.index(parents[i]) != i for i in accepted)


def traced(row: Row, verdict: Verdict, margins: Sequence[float]) -> Iterator[TokenTrace]:
    """Origins of the tokens that a verdict outputs, and of those that were forced before them.

    Args:
        margins: [n], of the scored tokens of the pass.
    """
    for margin in margins[row.node - row.pending : row.node]:
        yield TokenTrace("prefix", row.passes + 1, margin)
    nodes = [row.node, *(row.node + 1 + i for i in verdict.accepted)]
    parents = row.draft.parents
    for i, node in enumerate(nodes[: len(verdict.tokens)]):
        if row.closing >= 0:
            origin = "prefix"
        elif i < len(verdict.accepted):
            origin = "draft"
        else:
            at = node - row.node - 1
            was_drafted = at + 1 < len(row.draft.tokens) if parents is None else at in parents
            origin = "rollback" if was_drafted else "verifier"
        yield TokenTrace(origin, row.passes + 1, margins[node])


def result_of(row: Row, now: float, *, left_mid_batch: bool, phases: PhaseSeconds) -> Result:
    """Result of a row that has ended."""
    hypothesis = Hypothesis(
        tokens=tuple(row.tokens),
        score=math.fsum(row.log_probs),
        positional_scores=tuple(row.log_probs),
        trace=tuple(row.trace) if row.trace else None,
    )
    return Result(
        index=row.request.index,
        hypotheses=(hypothesis,),
        seconds=now - row.started,
        passes=row.passes,
        drafted=row.drafted,
        accepted=row.accepted,
        drafter_passes=row.drafter_passes,
        branches=row.branches,
        left_mid_batch=left_mid_batch,
        phases=phases,
        prompt=row.prompt,
        no_speech=row.no_speech,
    )
