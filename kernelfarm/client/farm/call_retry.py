"""Repeats calls that got no answer, for as long as a server takes to restart.

gRPC's own retry policy loses calls: with it, a call of grpcio 1.85 hangs forever if its server is
killed; neither its deadline nor `cancel` ends it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from kernelfarm.client.process.exit import pause
from kernelfarm.errors import KernelfarmError, NoAnswerError, NotFoundError, UnavailableError

ResultT = TypeVar("ResultT")

_PAUSES_S = (0.1, 0.2, 0.4)
"""A missing farm must not make an inference server wait."""

_LOST_PAUSES_S = (0.0, 0.2, 0.5, 1.0)
"""If a cache was lost, gateways may serve a program from memory until they know: a second or so."""


class CallRetry:
    """Limits the repetitions of a call that got no answer: a few, and none after `ends_s`."""

    def __init__(self, ends_s: float) -> None:
        self._ends_s = ends_s
        self._pauses_s = list(_PAUSES_S)

    def wait(self, error: KernelfarmError) -> None:
        """Waits until the call may be repeated.

        Raises:
            KernelfarmError: `error`, if repeating the call does not help or it is too late.
        """
        if not isinstance(error, NoAnswerError) or not self._pauses_s:
            raise error
        pause_s = self._pauses_s.pop(0)
        if time.monotonic() + pause_s >= self._ends_s or pause(pause_s):
            raise error


def retried(call: Callable[[], ResultT], timeout_s: float) -> ResultT:
    """The result of a call, which is repeated if it got no answer.

    Raises:
        KernelfarmError: the error of the last repetition.
    """
    repeats = CallRetry(time.monotonic() + timeout_s)
    while True:
        try:
            return call()
        except KernelfarmError as error:
            repeats.wait(error)


def repeated_while_lost(ask: Callable[[], ResultT]) -> ResultT:
    """The result of `ask`, which compiles a program and reads its blobs.

    It is called again if the cache has lost a blob in between: the farm then makes the program
    again.

    Raises:
        UnavailableError: blobs are missing again and again.
        KernelfarmError: any other error of `ask`.
    """
    for pause_s in _LOST_PAUSES_S:
        try:
            return ask()
        except NotFoundError:
            if pause(pause_s):
                break
    try:
        return ask()
    except NotFoundError as error:
        raise UnavailableError(
            f"the farm's cache keeps losing what was compiled; try again later: {error}"
        ) from error
