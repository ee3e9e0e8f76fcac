"""Metrics of texts as functions, with the options that are declared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nartk.metrics.result import MetricResult, References
from nartk.registry import METRICS


def scores(
    metric: str, references: References, outputs: Sequence[str], sources: Sequence[str] = (), **options: Any
) -> list[MetricResult]:
    found: list[MetricResult] = METRICS.make(metric, options).score(
        references, outputs, sources=sources, tell=lambda notice: None
    )
    return found


def bleu_score(references: References, outputs: Sequence[str], **options: Any) -> MetricResult:
    return scores("bleu", references, outputs, **options)[0]


def chrf_score(references: References, outputs: Sequence[str], **options: Any) -> MetricResult:
    return scores("chrf", references, outputs, **options)[0]


def ter_score(
    references: References, outputs: Sequence[str], *, lowercase: bool = True, **options: Any
) -> MetricResult:
    return scores("ter", references, outputs, keep_case=not lowercase, **options)[0]


def rouge_score(references: References, outputs: Sequence[str], **options: Any) -> list[MetricResult]:
    return scores("rouge", references, outputs, **options)


def gleu_score(
    sources: Sequence[str], references: References, outputs: Sequence[str], **options: Any
) -> MetricResult:
    return scores("gleu", references, outputs, sources, **options)[0]


def sari_score(
    sources: Sequence[str],
    references: References,
    outputs: Sequence[str],
    *,
    lowercase: bool = True,
    **options: Any,
) -> MetricResult:
    return scores("sari", references, outputs, sources, keep_case=not lowercase, **options)[0]


def error_rate(
    references: Sequence[str], outputs: Sequence[str], *, unit: str = "wer", **options: Any
) -> MetricResult:
    return scores(unit, [references], outputs, **options)[0]
