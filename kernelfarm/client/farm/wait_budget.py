"""Limits how long one graph waits for the farm, over all calls of its compilation.

A compilation fetches keys, a trace, a program and binaries, and may repeat some of these calls. The
timeout of each call is the rest of the graph's budget, so a farm that does not answer costs the
limit once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_ends_s: ContextVar[float] = ContextVar("_ends_s", default=math.inf)


class WaitBudget:
    """The remaining wait time of one graph; only time inside `charged` counts."""

    def __init__(self, limit_s: float) -> None:
        self._left_s = limit_s

    @contextmanager
    def charged(self) -> Iterator[None]:
        """Charges the time inside the `with` block; calls of this thread end with the budget."""
        began_s = time.monotonic()
        token = _ends_s.set(began_s + self._left_s)
        try:
            yield
        finally:
            _ends_s.reset(token)
            self._left_s = max(0.0, self._left_s - (time.monotonic() - began_s))


def remaining_timeout(limit_s: float) -> float:
    """The smaller of a wait's own limit and the graph's remaining budget; at least 0."""
    return max(0.0, min(limit_s, _ends_s.get() - time.monotonic()))
