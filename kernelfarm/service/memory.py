"""Gives memory back to the system after large requests: the C library keeps it otherwise."""

from __future__ import annotations

import asyncio
import ctypes

LARGE_BYTES = 1024 * 1024
"""Requests of this size leave memory that is worth to be given back."""

_PAUSE_S = 2.0
_MOST_S = 20.0


class MemoryTrimmer:
    """Gives unused memory back, in a thread, once no large request came for two seconds.

    While they come, memory that is kept serves the next one: what is new is first cleared by the
    system page by page, which takes the event loop four times as long as the copy itself. Under a
    flood without a pause it is given back every 20 s.
    """

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._latest_s = 0.0
        self._is_due = False

    def schedule(self) -> None:
        """To be called within an event loop when something large was freed."""
        if self._trim is None:
            return
        loop = asyncio.get_running_loop()
        self._latest_s = loop.time()
        if not self._is_due:
            self._is_due = True
            loop.call_later(_PAUSE_S, self._look, loop, self._latest_s + _MOST_S)

    def _look(self, loop: asyncio.AbstractEventLoop, latest_s: float) -> None:
        now_s = loop.time()
        left_s = min(self._latest_s + _PAUSE_S, latest_s) - now_s
        if left_s > 0:
            loop.call_later(left_s, self._look, loop, latest_s)
            return
        self._is_due = False
        if self._trim is not None:
            # A call of a C function lets go of the interpreter's lock.
            loop.run_in_executor(None, self._trim, 0)
