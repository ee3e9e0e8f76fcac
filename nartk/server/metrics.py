"""Figures of a server, as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from nartk.protocols.hypothesis import Result
from nartk.server.service import Service

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_GAUGES = {
    "waiting_lines": ("waiting", "Lines that have come and not ended"),
    "cells": ("cells_in_use", "Cells of contexts in use"),
    "encoded_sources": ("memories_in_use", "Encoded sources in memory"),
}
disable_created_metrics()
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics(Collector):
    """Counts what a service does."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.registry = own = CollectorRegistry()
        self.requests = Counter("nartk_requests", "Requests", ("path", "status"), registry=own)
        self.seconds = Histogram(
            "nartk_request_seconds", "Time of requests", ("path",), buckets=_SECONDS, registry=own
        )
        counted = partial(Counter, labelnames=("model",), registry=own)
        self.lines = counted("nartk_lines", "Lines that were decoded")
        self.tokens = counted("nartk_tokens", "Tokens of outputs")
        self.passes = counted("nartk_passes", "Passes that lines took part in")
        self.drafted = counted("nartk_drafted_tokens", "Tokens that were drafted")
        self.accepted = counted("nartk_accepted_tokens", "Drafted tokens that were accepted")
        self.registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Lines of each model that have come and not ended, and what its scorer holds for them."""
        for name, (field, text) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"nartk_{name}", text, labels=["model"])
            for model, served in self.service.models.items():
                count = getattr(served if field == "waiting" else served.model.passes, field, None)
                if count is not None:
                    gauge.add_metric([model], count)
            yield gauge

    def decoded(self, model: str, result: Result) -> None:
        """Counts a line that was decoded."""
        self.lines.labels(model).inc()
        self.tokens.labels(model).inc(len(result.hypotheses[0].tokens))
        self.passes.labels(model).inc(result.passes)
        self.drafted.labels(model).inc(result.drafted)
        self.accepted.labels(model).inc(result.accepted)

    def text(self) -> bytes:
        """All figures in Prometheus' text format."""
        return generate_latest(self.registry)
