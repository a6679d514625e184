"""How long Redis commands are repeated while no server answers: about 5 s, longer than a restart.

redis-py retries a command, and within each attempt it retries to connect. The product of both would
be most of a minute, so each attempt here connects once. If a server accepts connections and hangs,
each attempt ends by its timeout; no attempt begins after `_LAST_ATTEMPT_S`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import redis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.retry import Retry

_RETRIES = 9
_BACKOFF_BASE_S = 0.02
_BACKOFF_CAP_S = 1.0
# About the time after which a supervisor replaces a server that hangs.
_LAST_ATTEMPT_S = 12.0

_LOST: tuple[type[redis.exceptions.RedisError], ...] = (
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.BusyLoadingError,
)

_is_attempt: ContextVar[bool] = ContextVar("is_attempt", default=False)
"""True within an attempt that an outer retry repeats."""


def retry_policy() -> Retry:
    """The retry policy of a blocking client."""
    return _RetryPolicy(_backoff(), _RETRIES, supported_errors=_LOST)


def async_retry_policy() -> AsyncRetry:
    """The retry policy of an asyncio client."""
    return _AsyncRetryPolicy(_backoff(), _RETRIES, supported_errors=_LOST)


class _RetryPolicy(Retry):
    def call_with_retry(
        self,
        do: Callable[[], Any],
        fail: Callable[..., Any],
        is_retryable: Callable[[Exception], bool] | None = None,
        with_failure_count: bool = False,
    ) -> Any:
        if _is_attempt.get():
            once = Retry(NoBackoff(), 0, supported_errors=_LOST)
            return once.call_with_retry(do, fail, is_retryable, with_failure_count)
        began_s = time.monotonic()

        def fail_in_time(error: Exception, failures: int) -> None:
            fail(error, failures) if with_failure_count else fail(error)
            if time.monotonic() - began_s > _LAST_ATTEMPT_S:
                raise error

        def attempt() -> Any:
            token = _is_attempt.set(True)
            try:
                return do()
            finally:
                _is_attempt.reset(token)

        return super().call_with_retry(attempt, fail_in_time, is_retryable, with_failure_count=True)


class _AsyncRetryPolicy(AsyncRetry):
    async def call_with_retry(
        self,
        do: Callable[[], Awaitable[Any]],
        fail: Callable[..., Awaitable[Any]],
        is_retryable: Callable[[Exception], bool] | None = None,
        with_failure_count: bool = False,
    ) -> Any:
        if _is_attempt.get():
            once = AsyncRetry(NoBackoff(), 0, supported_errors=_LOST)
            return await once.call_with_retry(do, fail, is_retryable, with_failure_count)
        began_s = time.monotonic()

        async def fail_in_time(error: Exception, failures: int) -> None:
            await (fail(error, failures) if with_failure_count else fail(error))
            if time.monotonic() - began_s > _LAST_ATTEMPT_S:
                raise error

        async def attempt() -> Any:
            token = _is_attempt.set(True)
            try:
                return await do()
            finally:
                _is_attempt.reset(token)

        return await super().call_with_retry(
            attempt, fail_in_time, is_retryable, with_failure_count=True
        )


def _backoff() -> ExponentialBackoff:
    return ExponentialBackoff(cap=_BACKOFF_CAP_S, base=_BACKOFF_BASE_S)
