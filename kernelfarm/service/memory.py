"""Returns unused memory to the system after large requests; the C library would keep it."""

from __future__ import annotations

import asyncio
import ctypes

LARGE_BYTES = 1024 * 1024
"""After requests of this size, returning memory is worth its cost."""

_PAUSE_S = 2.0
_MOST_S = 20.0


class MemoryTrimmer:
    """Returns unused memory, in a thread, once no large request has arrived for two seconds.

    Until then the memory is kept for the next request: the system clears new memory page by page,
    which takes the event loop four times as long as the copy of the request. If large requests keep
    arriving, memory is returned every 20 s.
    """

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._latest_s = 0.0
        self._is_due = False

    def schedule(self) -> None:
        """Schedules a trim; call it within an event loop when a large object was freed."""
        if self._trim is None:
            return
        loop = asyncio.get_running_loop()
        self._latest_s = loop.time()
        if not self._is_due:
            self._is_due = True
            loop.call_later(_PAUSE_S, self._check, loop, self._latest_s + _MOST_S)

    def _check(self, loop: asyncio.AbstractEventLoop, latest_s: float) -> None:
        now_s = loop.time()
        left_s = min(self._latest_s + _PAUSE_S, latest_s) - now_s
        if left_s > 0:
            loop.call_later(left_s, self._check, loop, latest_s)
            return
        self._is_due = False
        if self._trim is not None:
            # ctypes releases the interpreter lock during the call.
            loop.run_in_executor(None, self._trim, 0)
