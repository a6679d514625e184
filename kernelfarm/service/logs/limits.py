"""Bounds the log: how often a line of one cause is written for one tenant, and how long it is.

Clients choose how often they fail and what is quoted of them; neither may fill a disk.
"""

from __future__ import annotations

import contextvars
import logging
import time
from collections.abc import Callable
from typing import Any

import structlog

from kernelfarm.errors import bounded
from kernelfarm.service.rates import TokenBuckets

BURST, LINES_PER_S = 20, 1.0
"""Lines of one event, tenant and cause: so many at once, then so many in a second."""

_FIELD_BYTES = 1500
_TRACE_BYTES = 16_000
_REPORT_INTERVAL_S = 10.0
_SUPPRESSED_EVENT = "lines_suppressed"
_SERIOUS = ("warning", "error", "critical")

Name = tuple[str, str, str]


class LogLimit:
    """A processor that drops lines of which there are too many.

    The next line of the same kind says how many were dropped (`suppressed`), and so does
    `lines_suppressed` where none follows. What succeeded is not limited here.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rates: TokenBuckets[Name] = TokenBuckets(BURST, LINES_PER_S, clock)
        self._reported_s = clock()

    def __call__(self, logger: Any, method: str, event: Any) -> Any:
        """The line, or `structlog.DropEvent`."""
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
        """Writes what was dropped and not told yet."""
        self._reported_s = self._clock()
        for (event, tenant, cause), number in self._rates.all_suppressed().items():
            fields = {"of": event, "tenant": tenant, "cause": cause, "suppressed": number}
            # In a context of its own: the line is not this call's.
            contextvars.Context().run(structlog.get_logger().warning, _SUPPRESSED_EVENT, **fields)


def bound_fields(logger: Any, method: str, event: Any) -> Any:
    """A processor that cuts each text of a line."""
    return {name: _bounded(name, value) for name, value in event.items()}


def _bounded(name: str, value: Any) -> Any:
    if isinstance(value, bytes):
        value = value[:_FIELD_BYTES].hex()
    if not isinstance(value, str):
        return value
    most = _TRACE_BYTES if name == "exception" else _FIELD_BYTES
    # Most texts are short and need no look at each character.
    return value if len(value) * 4 <= most and value.isprintable() else bounded(value, most)


class LibraryLimit(logging.Filter):
    """Drops lines of libraries of which there are too many: by who writes them, and their form."""

    def __init__(self) -> None:
        super().__init__()
        self._rates: TokenBuckets[Name] = TokenBuckets(BURST, LINES_PER_S)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write it."""
        return self._rates.take((record.name, str(record.msg)[:80], record.levelname))


limit = LogLimit()
"""This process's own."""
