"""Ends a task reliably."""

from __future__ import annotations

import asyncio
from typing import Any

_RETRY_S = 0.1


async def end_task(task: asyncio.Task[Any]) -> None:
    """Cancels a task repeatedly until it has ended, and discards what it raised.

    Before Python 3.12, `asyncio.wait_for` loses a cancellation that arrives at the moment at which
    the awaited future completes (https://github.com/python/cpython/issues/81839), and redis-py
    sends every command by it.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=_RETRY_S)
    if not task.cancelled():
        task.exception()
