"""Errors that were reported hold no frames."""

from __future__ import annotations

import asyncio
import gc
import weakref

from kernelfarm.errors import InternalError, InvalidGraphError
from kernelfarm.service.tracebacks import clear_tracebacks


class Held:
    """A large object to which a frame refers."""


def test_an_error_releases_its_frames_without_the_collector() -> None:
    def fail(held: Held) -> None:
        kept: list[BaseException] = []
        try:
            try:
                raise ValueError("inner")
            except ValueError as inner:
                kept.append(inner)
                raise InternalError("outer") from inner
        except InternalError as outer:
            kept.append(outer)
            raise ExceptionGroup("both", [outer, InternalError("other")]) from None

    held = Held()
    alive = weakref.ref(held)
    gc.disable()
    try:
        try:
            fail(held)
        except ExceptionGroup as group:
            clear_tracebacks(group)
        del held
        assert alive() is None
    finally:
        gc.enable()


async def test_an_error_that_several_tasks_share_is_cleared_for_each() -> None:
    async def fail() -> None:
        raise InvalidGraphError("shared")

    task = asyncio.create_task(fail())
    results = await asyncio.gather(
        *(asyncio.shield(task) for _ in range(3)), return_exceptions=True
    )
    for error in results:
        assert isinstance(error, InvalidGraphError)
        clear_tracebacks(error)
        assert error.__traceback__ is None
