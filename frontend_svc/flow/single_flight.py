"""One call whose result several await."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Begun by the first who asks; cancelled when the last who waits for it is."""

    def __init__(self, call: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._call = call
        self._task: asyncio.Task[T] | None = None
        self._waiting = 0

    async def result(self) -> T:
        """What the call gives or raises, to all who ask."""
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
                self._task = None  # who asks from now on begins anew
                task.cancel()


def _discard_error(task: asyncio.Task[Any]) -> None:
    """Those who wait hear of it; if none is left, nobody needs to."""
    if not task.cancelled():
        task.exception()
