"""Limits the log: the rate of lines with one cause and tenant, and the length of each line.

Clients determine how often they fail and what their errors quote; neither may fill a disk.
"""

from __future__ import annotations

import contextvars
import logging
import time
from collections.abc import Callable
from typing import Any

import structlog

from kernelfarm.bounded_text import bounded
from kernelfarm.service.rates import TokenBuckets

BURST, LINES_PER_S = 20, 1.0
"""The burst and the rate of lines with one event, tenant and cause."""

_FIELD_BYTES = 1500
_TRACE_BYTES = 16_000
_REPORT_INTERVAL_S = 10.0
_SUPPRESSED_EVENT = "lines_suppressed"
_SERIOUS = ("warning", "error", "critical")

Name = tuple[str, str, str]


class LogLimit:
    """A structlog processor that drops lines beyond the rate.

    The field `suppressed` of the next line of the same kind says how many were dropped. If none
    follows, an event `lines_suppressed` does. Lines about successes are not limited.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rates: TokenBuckets[Name] = TokenBuckets(BURST, LINES_PER_S, clock)
        self._reported_s = clock()

    def __call__(self, logger: Any, method: str, event: Any) -> Any:
        """Returns the line, or raises `structlog.DropEvent`."""
        cause = str(event.get("reason") or event.get("status") or "")[:80]
        is_limited = cause not in ("", "OK") or method in _SERIOUS
        if not is_limited or event.get("event") == _SUPPRESSED_EVENT:
            return event
        if self._clock() - self._reported_s >= _REPORT_INTERVAL_S:
            self.report_dropped()
        name = (str(event.get("event"))[:80], str(event.get("tenant", ""))[:80], cause)
        if not self._rates.take(name):
            raise structlog.DropEvent
        suppressed = self._rates.suppressed(name)
        return {**event, "suppressed": suppressed} if suppressed else event

    def report_dropped(self) -> None:
        """Logs the number of dropped lines that no line has reported yet."""
        self._reported_s = self._clock()
        for (event, tenant, cause), number in self._rates.all_suppressed().items():
            fields = {"of": event, "tenant": tenant, "cause": cause, "suppressed": number}
            # In a new context, because the line is not about this call.
            contextvars.Context().run(structlog.get_logger().warning, _SUPPRESSED_EVENT, **fields)


def bound_fields(logger: Any, method: str, event: Any) -> Any:
    """A structlog processor that bounds each text of a line."""
    return {name: _bounded(name, value) for name, value in event.items()}


def _bounded(name: str, value: Any) -> Any:
    if isinstance(value, bytes):
        value = value[:_FIELD_BYTES].hex()
    if not isinstance(value, str):
        return value
    most = _TRACE_BYTES if name == "exception" else _FIELD_BYTES
    # Most texts are short, and `bounded` would inspect each character.
    return value if len(value) * 4 <= most and value.isprintable() else bounded(value, most)


class LibraryLimit(logging.Filter):
    """Drops log records of libraries beyond the rate; logger, format and level identify a kind."""

    def __init__(self) -> None:
        super().__init__()
        self._rates: TokenBuckets[Name] = TokenBuckets(BURST, LINES_PER_S)

    def filter(self, record: logging.LogRecord) -> bool:
        """True if the record is to be logged."""
        return self._rates.take((record.name, str(record.msg)[:80], record.levelname))


limit = LogLimit()
"""The limit of this process."""
