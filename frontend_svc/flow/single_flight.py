"""One call whose result all concurrent callers share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """The first caller starts it; it is cancelled when its last caller is cancelled."""

    def __init__(self, call: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._call = call
        self._task: asyncio.Task[T] | None = None
        self._waiting = 0

    async def result(self) -> T:
        """The result of the call, or its error, for every caller."""
        if self._task is None:
            self._task = asyncio.create_task(self._call())
            self._task.add_done_callback(_discard_error)
        task = self._task
        self._waiting += 1
        try:
            return await asyncio.shield(task)
        finally:
            self._waiting -= 1
            if not self._waiting and not task.done():
                self._task = None  # a later caller starts it again
                task.cancel()


def _discard_error(task: asyncio.Task[Any]) -> None:
    """Reads the error: every caller received it, and asyncio must not log it as unread."""
    if not task.cancelled():
        task.exception()
