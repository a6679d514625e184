"""The retries of batch jobs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from tenacity.wait import wait_random_exponential

from kernelfarm.client.warming import retry
from kernelfarm.client.warming.retry import Retry
from kernelfarm.errors import CallerError, FarmFullError, KernelfarmError, UnavailableError


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_backoff_s", wait_random_exponential(multiplier=0.01, max=0.1))


def failing(*errors: KernelfarmError) -> tuple[list[float], Callable[[], str]]:
    """The times of calls, and a call that fails with each of the errors before it succeeds."""
    times: list[float] = []

    def call() -> str:
        times.append(time.monotonic())
        if len(times) <= len(errors):
            raise errors[len(times) - 1]
        return "done"

    return times, call


def away(message: str) -> UnavailableError:
    """The error of a farm that asks for a short pause."""
    error = UnavailableError(message)
    error.retry_after_s = 0.01
    return error


def test_a_call_is_repeated_while_the_farm_is_away() -> None:
    times, call = failing(away("away"), away("away"))
    assert Retry(3)(call) == "done"
    assert len(times) == 3


def test_the_last_error_is_raised_after_the_last_attempt() -> None:
    times, call = failing(away("away"), away("still away"))
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
    full.retry_after_s = 0.25  # longer than the pauses that nobody asks for
    times, call = failing(full)
    assert Retry(2)(call) == "done"
    assert times[1] - times[0] >= 0.25


def test_the_end_of_a_job_ends_pauses_and_repetitions() -> None:
    full = FarmFullError("full")
    full.retry_after_s = 600.0
    _, call = failing(full, full)
    ended = Retry(9)
    threading.Timer(0.05, ended.end).start()
    with pytest.raises(FarmFullError):
        ended(call)
