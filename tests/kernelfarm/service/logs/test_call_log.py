"""The lines that the log has for calls."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import structlog
from structlog.testing import capture_logs

from kernelfarm.service.logs.call_log import CallLog

LOOKUP, COMPILE = "/x/Lookup", "/x/Compile"


async def test_quick_successes_of_a_method_have_one_line() -> None:
    log = CallLog()
    with capture_logs() as lines:
        for milliseconds in (1, 7, 2):
            log.done(LOOKUP, "OK", milliseconds / 1e3)
        log.done(COMPILE, "OK", 0.004)
        assert lines == []
        log.flush()
        log.flush()
    assert [(line["method"], line["calls"], line["slowest_ms"]) for line in lines] == [
        (LOOKUP, 3, 7.0),
        (COMPILE, 1, 4.0),
    ]


async def test_failures_and_slow_calls_have_lines_of_their_own() -> None:
    log = CallLog()
    with capture_logs() as lines:
        log.done(LOOKUP, "NOT_FOUND", 0.001)
        log.done(LOOKUP, "OK", 0.25)
        log.flush()
    assert [(line["event"], line["status"], line["elapsed_ms"]) for line in lines] == [
        ("call_done", "NOT_FOUND", 1.0),
        ("call_done", "OK", 250.0),
    ]


async def test_every_call_has_its_line_if_configured() -> None:
    log = CallLog(logs_each=True)
    with capture_logs() as lines:
        log.done(LOOKUP, "OK", 0.001)
    assert [line["event"] for line in lines] == ["call_done"]


async def test_a_line_about_many_calls_has_no_request_id() -> None:
    reported: list[dict[str, Any]] = []
    is_logged = asyncio.Event()

    def keep(logger: Any, name: str, line: MutableMapping[str, Any]) -> str:
        reported.append(dict(line))
        is_logged.set()
        raise structlog.DropEvent

    before = structlog.get_config()["processors"]
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, keep])
    try:
        structlog.contextvars.bind_contextvars(request_id="of the first call")
        CallLog(period_s=0.0).done(LOOKUP, "OK", 0.001)
        await is_logged.wait()
    finally:
        structlog.contextvars.unbind_contextvars("request_id")
        structlog.configure(processors=before)
    assert reported == [{"method": LOOKUP, "calls": 1, "slowest_ms": 1.0, "event": "calls_done"}]
