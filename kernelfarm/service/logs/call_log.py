"""Logs calls: one line for each failed or slow call, one line a period for quick successes.

A gateway serves thousands of hits a second; a line for each would cost as much as the hit itself.
"""

from __future__ import annotations

import asyncio
import contextvars
from dataclasses import dataclass

from kernelfarm.service.logs.logger import get_logger

_QUICK_MS = 100.0
_PERIOD_S = 1.0


@dataclass(slots=True)
class _Quick:
    """The quick calls of one method since its last line."""

    calls: int = 0
    slowest_ms: float = 0.0


class CallLog:
    """Logs `call_done` for one call, and `calls_done` once a period for quick calls of a method.

    With `logs_each`, every call has its own line, with its request id.
    """

    def __init__(self, *, logs_each: bool = False, period_s: float = _PERIOD_S) -> None:
        self._logs_each = logs_each
        self._period_s = period_s
        self._quick: dict[str, _Quick] = {}

    def done(self, method: str, status: str, elapsed_s: float) -> None:
        """Logs or counts a call that ended; call it in the call's own context."""
        elapsed_ms = elapsed_s * 1e3
        if self._logs_each or status != "OK" or elapsed_ms >= _QUICK_MS:
            get_logger().info("call_done", status=status, elapsed_ms=round(elapsed_ms, 3))
            return
        quick = self._quick.get(method)
        if quick is None:
            quick = self._quick[method] = _Quick()
            # In a new context, because the line is about several calls.
            loop = asyncio.get_running_loop()
            loop.call_later(
                self._period_s, self._write_summary, method, context=contextvars.Context()
            )
        quick.calls += 1
        quick.slowest_ms = max(quick.slowest_ms, elapsed_ms)

    def flush(self) -> None:
        """Logs the quick calls that are not logged yet."""
        for method in list(self._quick):
            self._write_summary(method)

    def _write_summary(self, method: str) -> None:
        quick = self._quick.pop(method, None)
        if quick is not None:
            get_logger().info(
                "calls_done",
                method=method,
                calls=quick.calls,
                slowest_ms=round(quick.slowest_ms, 3),
            )
