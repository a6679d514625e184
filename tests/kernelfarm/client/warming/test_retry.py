"""The retries of batch jobs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from kernelfarm.client.warming.retry import Retry
from kernelfarm.errors import CallerError, FarmFullError, KernelfarmError, UnavailableError


def failing(*errors: KernelfarmError) -> tuple[list[float], Callable[[], str]]:
    """The times of calls, and a call that fails with each of the errors before it succeeds."""
    times: list[float] = []

    def call() -> str:
        times.append(time.monotonic())
        if len(times) <= len(errors):
            raise errors[len(times) - 1]
        return "done"

    return times, call


def test_a_call_is_repeated_while_the_farm_is_away() -> None:
    times, call = failing(UnavailableError("away"), UnavailableError("away"))
    assert Retry(3)(call) == "done"
    assert len(times) == 3


def test_the_last_error_is_raised_after_the_last_attempt() -> None:
    times, call = failing(UnavailableError("away"), UnavailableError("still away"))
    with pytest.raises(UnavailableError, match="still away"):
        Retry(2)(call)
    assert len(times) == 2


def test_an_error_of_the_caller_is_not_repeated() -> None:
    times, call = failing(CallerError("wrong"))
    with pytest.raises(CallerError, match="wrong"):
        Retry(9)(call)
    assert len(times) == 1


def test_a_pause_is_as_long_as_the_farm_asks_for() -> None:
    full = FarmFullError("full")
    full.retry_after_s = 1.25
    times, call = failing(full)
    assert Retry(2)(call) == "done"
    assert times[1] - times[0] >= 1.25


def test_the_end_of_a_job_ends_pauses_and_repetitions() -> None:
    full = FarmFullError("full")
    full.retry_after_s = 600.0
    _, call = failing(full, full)
    retry = Retry(9)
    threading.Timer(0.05, retry.end).start()
    with pytest.raises(FarmFullError):
        retry(call)
