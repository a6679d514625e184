"""The metrics that the project declares, and the series that each of them has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from prometheus_client.metrics import MetricWrapperBase

from kernelfarm.service.metrics import declarations
from kernelfarm.service.metrics.declarations import Family


@dataclass(frozen=True)
class DeclaredMetric:
    """A metric's labels, in order, and its kind."""

    labels: tuple[str, ...]
    kind: str


@lru_cache(maxsize=1)
def declared_metrics() -> dict[str, DeclaredMetric]:
    """The metrics by the name that queries use."""
    found: dict[str, DeclaredMetric] = {}
    for declared in vars(declarations).values():
        if isinstance(declared, Family):
            suffix = "_total" if declared.kind == "counter" else ""
            found[declared.name + suffix] = DeclaredMetric(declared.labels, declared.kind)
        elif isinstance(declared, MetricWrapperBase):
            (metric,) = declared.collect()
            suffix = "_total" if metric.type == "counter" else ""
            found[metric.name + suffix] = DeclaredMetric(declared._labelnames, metric.type)
    return found


def series_names() -> set[str]:
    """The names of all series, those of histograms with their suffixes."""
    return {
        name + suffix
        for name, declared in declared_metrics().items()
        for suffix in (("_bucket", "_sum", "_count") if declared.kind == "histogram" else ("",))
    }
