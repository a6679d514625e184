"""Ends a task for certain."""

from __future__ import annotations

import asyncio
from typing import Any

_RETRY_S = 0.1


async def end_task(task: asyncio.Task[Any]) -> None:
    """Cancels a task until it has ended; what it raised is not told.

    Before Python 3.12, `asyncio.wait_for` loses a cancellation that arrives in the moment in which
    the awaited thing is done (https://github.com/python/cpython/issues/81839), and redis-py sends
    every command by it.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=_RETRY_S)
    if not task.cancelled():
        task.exception()
