"""The log is limited in lines of one cause, and each line in length."""

from __future__ import annotations

import json
import logging

import pytest
import structlog
from structlog.testing import capture_logs

from kernelfarm.service.logs.limits import BURST, LibraryLimit, LogLimit, bound_fields
from kernelfarm.service.logs.logger import configure_logs, get_logger
from kernelfarm.service.rates import TokenBuckets
from kernelfarm.service.settings import ServiceSettings


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def passes(limit: LogLimit, **event: object) -> dict[str, object] | None:
    try:
        return limit(None, "info", {"event": "call_refused", **event})
    except structlog.DropEvent:
        return None


def test_lines_of_one_tenant_and_cause_are_limited_and_say_how_many_were_dropped() -> None:
    clock = Clock()
    limit = LogLimit(clock)
    reported = [passes(limit, tenant="acme", reason="INVALID_GRAPH") for _ in range(BURST + 50)]
    assert [line is not None for line in reported] == [True] * BURST + [False] * 50
    assert passes(limit, tenant="beta", reason="INVALID_GRAPH")
    assert passes(limit, tenant="acme", reason="QUOTA_BYTES")
    clock.now_s += 1.0
    line = passes(limit, tenant="acme", reason="INVALID_GRAPH")
    assert line is not None and line["suppressed"] == 50
    assert passes(limit, tenant="acme", reason="INVALID_GRAPH") is None


def test_dropped_lines_are_reported_even_if_no_line_follows() -> None:
    clock = Clock()
    limit = LogLimit(clock)
    for _ in range(BURST + 3):
        passes(limit, tenant="acme", reason="X")
    clock.now_s += 11
    with capture_logs() as lines:
        passes(limit, tenant="beta", reason="X")
        limit.report_dropped()
    assert [{k: v for k, v in line.items() if k != "log_level"} for line in lines] == [
        {
            "event": "lines_suppressed",
            "of": "call_refused",
            "tenant": "acme",
            "cause": "X",
            "suppressed": 3,
        }
    ]


def test_successes_are_not_limited() -> None:
    limit = LogLimit(Clock())
    assert all(passes(limit, status="OK", tenant="acme") for _ in range(10 * BURST))


def test_rates_evict_unused_names() -> None:
    rates: TokenBuckets[int] = TokenBuckets(1, 1.0, Clock())
    for name in range(100_000):
        assert rates.take(name)
    assert rates.take(0), "an evicted name has a full bucket again"
    assert not rates.take(99_999)


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_line_is_short_whatever_its_fields_are(
    capsys: pytest.CaptureFixture[str], log_format: str
) -> None:
    before = structlog.get_config()
    root, handlers = logging.getLogger(), logging.getLogger().handlers[:]
    structlog.reset_defaults()
    try:
        configure_logs(ServiceSettings(log_format=log_format), "service")
        try:
            raise ValueError("z" * 10**6)
        except ValueError as error:
            get_logger().error(
                "call_failed", message="x" * 10**7, data=b"y" * 10**6, exc_info=error
            )
        get_logger().info("call_done", status="NOT_FOUND", elapsed_ms=1.5)
    finally:
        structlog.configure(**before)
        root.handlers[:] = handlers
    long, short = [line for line in capsys.readouterr().err.splitlines() if "call_" in line]
    assert len(long) < 25_000 and "left out" in long
    if log_format == "json":
        assert json.loads(short)["elapsed_ms"] == 1.5


def test_short_fields_stay_as_they_are() -> None:
    event = {"message": "plain", "tags": ["a"], "number": 7, "lines": "two\nlines"}
    assert bound_fields(None, "info", event) == event


def test_lines_of_libraries_are_limited_by_their_form() -> None:
    limit = LibraryLimit()
    record = logging.LogRecord("grpc", logging.ERROR, "", 0, "failed: %s", ("x",), None)
    assert sum(limit.filter(record) for _ in range(10 * BURST)) <= BURST + 1
