"""What the log tells of calls: failures and slow ones each, quick successes together.

A gateway answers thousands of hits in a second: a line for each would cost as much as the answers.
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
    """Quick calls of one method since its last line."""

    calls: int = 0
    slowest_ms: float = 0.0


class CallLog:
    """Writes `call_done` for single calls, `calls_done` once a period for quick ones of a method.

    With `tells_each` every call has its line, to follow one by its id.
    """

    def __init__(self, *, logs_each: bool = False, period_s: float = _PERIOD_S) -> None:
        self._logs_each = logs_each
        self._period_s = period_s
        self._quick: dict[str, _Quick] = {}

    def done(self, method: str, status: str, elapsed_s: float) -> None:
        """Notes a call that ended, in its own context; to be called within an event loop."""
        elapsed_ms = elapsed_s * 1e3
        if self._logs_each or status != "OK" or elapsed_ms >= _QUICK_MS:
            get_logger().info("call_done", status=status, elapsed_ms=round(elapsed_ms, 3))
            return
        quick = self._quick.get(method)
        if quick is None:
            quick = self._quick[method] = _Quick()
            # In a context of its own: the line is not this call's alone.
            loop = asyncio.get_running_loop()
            loop.call_later(
                self._period_s, self._write_summary, method, context=contextvars.Context()
            )
        quick.calls += 1
        quick.slowest_ms = max(quick.slowest_ms, elapsed_ms)

    def flush(self) -> None:
        """Writes what is not told yet."""
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
