"""Gives memory back to the system after large requests: the C library keeps it otherwise."""

from __future__ import annotations

import asyncio
import ctypes

LARGE_BYTES = 1024 * 1024
"""Requests of this size leave memory that is worth to be given back."""

_PAUSE_S = 1.0
_MMAP_THRESHOLD = -3
"""mallopt's parameter (malloc.h): what is larger is a mapping of its own, gone when it is freed."""


def map_large_blocks() -> None:
    """Lets large blocks be mappings of their own, whatever was freed before.

    glibc raises the threshold, up to 32 MiB, each time that such a block is freed. Other C
    libraries do without.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, LARGE_BYTES)


class MemoryReturn:
    """Gives unused memory back, a second after it was asked to, in a thread."""

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._is_due = False

    def soon(self) -> None:
        """To be called within an event loop when something large was freed."""
        if self._trim is not None and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(_PAUSE_S, self._begin)

    def _begin(self) -> None:
        self._is_due = False
        if self._trim is not None:
            # A call of a C function lets go of the interpreter's lock.
            asyncio.get_running_loop().run_in_executor(None, self._trim, 0)
