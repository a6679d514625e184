"""Durations of calls that are added to a histogram in batches."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Histogram

from kernelfarm.service.metrics.declarations import CALL_BOUNDS_S
from kernelfarm.service.metrics.durations import CallDurations

METHOD = "/kernelfarm.v1.CompileService/Lookup"


def histogram() -> tuple[CollectorRegistry, Histogram]:
    registry = CollectorRegistry()
    labels = ["method", "status"]
    return registry, Histogram("x", "x", labels, buckets=CALL_BOUNDS_S, registry=registry)


def samples(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
    return {
        (sample.name, str(sample.labels)): sample.value
        for metric in registry.collect()
        for sample in metric.samples
    }


def test_a_batch_gives_the_histogram_that_single_observations_give() -> None:
    elapsed = [0.0, 0.0003, 0.0005, 0.00051, 0.3, 0.3, 299.0, 300.0, 4000.0, *CALL_BOUNDS_S]
    batched_registry, batched = histogram()
    single_registry, single = histogram()
    durations = CallDurations(batched)
    for number, seconds in enumerate(elapsed):
        status = "OK" if number % 2 else "NOT_FOUND"
        durations.add(METHOD, status, seconds)
        single.labels("CompileService/Lookup", status).observe(seconds)
    assert samples(batched_registry) == {}
    durations.flush()
    durations.flush()
    assert samples(batched_registry) == samples(single_registry)
