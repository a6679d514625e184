"""Clears the tracebacks of errors, whose frames refer to requests."""

from __future__ import annotations


def clear_tracebacks(error: BaseException) -> None:
    """Clears the tracebacks, causes and contexts of an error and of all errors that it refers to.

    If a frame refers to an error whose traceback refers to the frame, only the cyclic collector
    frees them, and services run it rarely. Until then the frame keeps the request, parsed and
    decoded. The frames themselves are not cleared, because several calls may share an error, and
    one of them may still run.
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
