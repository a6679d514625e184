"""Repeats calls of a batch job: longer than an inference server may wait, and not for ever."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt
from tenacity.nap import sleep_using_event
from tenacity.stop import stop_when_event_set
from tenacity.wait import wait_random_exponential

from kernelfarm.errors import DeadlineError, KernelfarmError, UnavailableError

ResultT = TypeVar("ResultT")

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_backoff_s = wait_random_exponential(multiplier=_FIRST_PAUSE_S, max=_LONGEST_PAUSE_S)


class Retry:
    """Repeats calls, at most `most_attempts` times each, until `end`."""

    def __init__(self, most_attempts: int) -> None:
        self._most_attempts = most_attempts
        self._ended = Event()

    def __call__(self, call: Callable[[], ResultT]) -> ResultT:
        """The result of a call, which is repeated with growing pauses while the farm is away.

        A pause is at least as long as the farm asked for (`RetryInfo`).

        Raises:
            KernelfarmError: the error of the last attempt, or one that a repetition cannot help.
        """
        retrying = Retrying(
            retry=retry_if_exception(is_temporary),
            stop=stop_after_attempt(self._most_attempts) | stop_when_event_set(self._ended),
            wait=_pause_s,
            sleep=sleep_using_event(self._ended),
            reraise=True,
        )
        return retrying(call)

    def end(self) -> None:
        """Ends all pauses; no call is repeated any more."""
        self._ended.set()


def is_temporary(error: BaseException) -> bool:
    """True if the same call may succeed later."""
    return isinstance(error, UnavailableError | DeadlineError)


def _pause_s(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    stated_s = error.retry_after_s if isinstance(error, KernelfarmError) else None
    return max(_backoff_s(state), stated_s or 0.0)
