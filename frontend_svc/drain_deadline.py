"""The time that is left of a drain's grace, which calls and builds share."""

from __future__ import annotations

import time
from collections.abc import Callable

_LEAST_S = 1.0
"""If calls used up the grace, builds still get this much time to publish."""


class DrainDeadline:
    """Starts with `begin`; a supervisor kills a process that takes much longer than the grace."""

    def __init__(self, grace_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._grace_s = grace_s
        self._clock = clock
        self._ends_s: float | None = None

    def begin(self) -> None:
        """Starts the drain."""
        self._ends_s = self._clock() + self._grace_s

    def left_s(self) -> float:
        """The seconds that are left of the grace; at least one second."""
        if self._ends_s is None:
            return self._grace_s
        return max(self._ends_s - self._clock(), _LEAST_S)
