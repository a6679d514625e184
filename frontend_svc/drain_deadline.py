"""How much of a drain's grace is left: calls and programs share it."""

from __future__ import annotations

import time
from collections.abc import Callable

_LEAST_S = 1.0
"""Programs whose calls took all of the grace still get this much, to be published."""


class DrainDeadline:
    """Counts from `begin`; a supervisor kills what takes much longer than the grace."""

    def __init__(self, grace_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._grace_s = grace_s
        self._clock = clock
        self._ends_s: float | None = None

    def begin(self) -> None:
        """The drain begins."""
        self._ends_s = self._clock() + self._grace_s

    def left_s(self) -> float:
        """Seconds of the grace that are left, or a second for a last word."""
        if self._ends_s is None:
            return self._grace_s
        return max(self._ends_s - self._clock(), _LEAST_S)
