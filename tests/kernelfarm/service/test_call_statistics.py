"""What the histogram and the log have for calls."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Histogram
from structlog.testing import capture_logs

from kernelfarm.service.call_names import (
    CallNames,
    add_call_names,
    bind_call_names,
    current_request_id,
)
from kernelfarm.service.call_statistics import CallStatistics
from kernelfarm.service.metrics.declarations import CALL_BOUNDS_S

LOOKUP, COMPILE = "/kernelfarm.v1.CompileService/Lookup", "/x/Compile"


def histogram() -> tuple[CollectorRegistry, Histogram]:
    registry = CollectorRegistry()
    labels = ["method", "status"]
    return registry, Histogram("x", "x", labels, buckets=CALL_BOUNDS_S, registry=registry)


def statistics(*, logs_each: bool = False) -> CallStatistics:
    return CallStatistics(histogram()[1], logs_each=logs_each)


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
    counted = CallStatistics(batched)
    with capture_logs():
        for number, seconds in enumerate(elapsed):
            status = "OK" if number % 2 else "NOT_FOUND"
            counted.add(LOOKUP, status, seconds)
            single.labels("CompileService/Lookup", status).observe(seconds)
        assert samples(batched_registry) == {}
        counted.flush()
        counted.flush()
    assert samples(batched_registry) == samples(single_registry)


def test_quick_successes_of_a_method_have_one_line() -> None:
    counted = statistics()
    with capture_logs() as lines:
        for milliseconds in (1, 7, 2):
            counted.add(LOOKUP, "OK", milliseconds / 1e3)
        counted.add(COMPILE, "OK", 0.004)
        assert lines == []
        counted.flush()
        counted.flush()
    assert [(line["method"], line["calls"], line["slowest_ms"]) for line in lines] == [
        (LOOKUP, 3, 7.0),
        (COMPILE, 1, 4.0),
    ]


def test_failures_and_slow_calls_have_lines_of_their_own() -> None:
    counted = statistics()
    with capture_logs() as lines:
        counted.add(LOOKUP, "NOT_FOUND", 0.001)
        counted.add(LOOKUP, "OK", 0.25)
        counted.flush()
    assert [(line["event"], line["status"], line["elapsed_ms"]) for line in lines] == [
        ("call_done", "NOT_FOUND", 1.0),
        ("call_done", "OK", 250.0),
    ]


def test_every_call_has_its_line_if_configured() -> None:
    counted = statistics(logs_each=True)
    with capture_logs() as lines:
        counted.add(LOOKUP, "OK", 0.001)
        counted.flush()
    assert [line["event"] for line in lines] == ["call_done"]


def names(stated: object = "", header: str = "") -> CallNames:
    return CallNames(LOOKUP, stated, (("x-request-id", header),), {"tenant": "acme"})


def test_a_request_id_is_the_messages_or_the_headers_if_it_is_a_plain_word() -> None:
    assert names("of-message", "of-header").request_id == "of-message"
    assert names("", "of-header").request_id == "of-header"
    assert names("two words", "of-header").request_id == "of-header"
    for stated, header in (("", ""), ("x" * 129, "\n"), (b"bytes", "a b")):
        found = names(stated, header)
        assert len(found.request_id) == 32
        assert found.request_id == found.request_id != names(stated, header).request_id


async def test_lines_of_a_call_have_its_names() -> None:
    lines: list[dict[str, Any]] = []

    def keep(logger: Any, name: str, line: MutableMapping[str, Any]) -> str:
        lines.append(dict(line))
        raise structlog.DropEvent

    before = structlog.get_config()["processors"]
    structlog.configure(processors=[add_call_names, keep])
    try:
        assert current_request_id() == ""
        bind_call_names(names("r7"))
        assert current_request_id() == "r7"
        statistics(logs_each=True).add(LOOKUP, "OK", 0.001)
    finally:
        structlog.configure(processors=before)
    stated = {"request_id": "r7", "method": LOOKUP, "tenant": "acme"}
    assert lines == [{**stated, "event": "call_done", "status": "OK", "elapsed_ms": 1.0}]
