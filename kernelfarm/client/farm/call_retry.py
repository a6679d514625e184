"""Repeats calls that got no answer, for as long as a server takes to restart.

gRPC's own retry policy loses calls: with it, a call of grpcio 1.85 hangs forever if its server is
killed; neither its deadline nor `cancel` ends it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from kernelfarm.client.process.exit import pause
from kernelfarm.errors import KernelfarmError, NoAnswerError

ResultT = TypeVar("ResultT")

_PAUSES_S = (0.1, 0.2, 0.4)
"""A missing farm must not make an inference server wait."""


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
