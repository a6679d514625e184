"""Repeats calls that got no answer, for as long as a listener takes to start again.

gRPC could do it by itself, but loses calls: with a retry policy, grpcio 1.85 lets calls hang for
ever whose server is killed; neither their deadline nor `cancel` ends them.
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
    """Lets a call that got no answer be made again a few times, until a moment."""

    def __init__(self, ends_s: float) -> None:
        self._ends_s = ends_s
        self._pauses_s = list(_PAUSES_S)

    def wait(self, error: KernelfarmError) -> None:
        """Returns when the call may be made again.

        Raises:
            KernelfarmError: the error, where repeating it does not help or it is too late.
        """
        if not isinstance(error, NoAnswerError) or not self._pauses_s:
            raise error
        pause_s = self._pauses_s.pop(0)
        if time.monotonic() + pause_s >= self._ends_s or pause(pause_s):
            raise error


def retried(call: Callable[[], ResultT], timeout_s: float) -> ResultT:
    """What a call answers; it is made again if nobody answered.

    Raises:
        KernelfarmError: what it failed with at last.
    """
    repeats = CallRetry(time.monotonic() + timeout_s)
    while True:
        try:
            return call()
        except KernelfarmError as error:
            repeats.wait(error)
