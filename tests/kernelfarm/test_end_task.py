"""Tasks end, also those that lose a cancellation."""

from __future__ import annotations

import asyncio

from kernelfarm.end_task import end_task


async def test_a_task_that_loses_two_cancellations_ends() -> None:
    lost = 0
    began = asyncio.Event()

    async def work() -> None:
        nonlocal lost
        while True:
            began.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                lost += 1
                if lost > 2:
                    raise

    task = asyncio.create_task(work())
    await began.wait()
    await end_task(task)
    assert task.cancelled() and lost == 3


async def test_what_a_task_raised_is_not_reported_again() -> None:
    async def work() -> None:
        raise ValueError("reported elsewhere")

    task = asyncio.create_task(work())
    await end_task(task)
    assert task.done()
