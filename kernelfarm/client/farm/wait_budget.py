"""How long one graph waits for the farm: one limit over all calls that its compile makes.

A compile asks for keys, a trace, a program and binaries, and may ask for some of them again. Each
call takes what is left of the graph's time, so a farm that answers nothing is waited for once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_ends_s: ContextVar[float] = ContextVar("_ends_s", default=math.inf)


class WaitBudget:
    """The time of one graph, in seconds; only what passes within `spent` counts."""

    def __init__(self, limit_s: float) -> None:
        self._left_s = limit_s

    @contextmanager
    def charged(self) -> Iterator[None]:
        """Takes what passes from the graph's time; calls of this thread end with it."""
        began_s = time.monotonic()
        token = _ends_s.set(began_s + self._left_s)
        try:
            yield
        finally:
            _ends_s.reset(token)
            self._left_s = max(0.0, self._left_s - (time.monotonic() - began_s))


def remaining_timeout(limit_s: float) -> float:
    """A wait's own limit, or what is left of the graph's time where that is less; at least 0."""
    return max(0.0, min(limit_s, _ends_s.get() - time.monotonic()))
