"""Lets go of what an error holds: its tracebacks name frames, and frames name requests."""

from __future__ import annotations


def clear_tracebacks(error: BaseException) -> None:
    """Drops the tracebacks of an error, of its causes and of what it came from.

    A frame that names an error which names the frame is freed by the cyclic collector alone, which
    services run rarely; until then it keeps the request, parsed and decoded. Frames are not cleared
    themselves: several calls may share an error, and one of them may still run.
    """
    seen: set[int] = set()
    found: list[BaseException | None] = [error]
    while found:
        one = found.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = None
        found += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            found += one.exceptions
        one.__cause__ = one.__context__ = None
