"""How long clients of Redis go on while no server answers: about 5 s, a restart with room.

redis-py retries a command, and within each attempt it retries the connecting: taken together that
would be their product, most of a minute. So what an attempt connects with is tried once.
"""

from __future__ import annotations

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

_LOST: tuple[type[redis.exceptions.RedisError], ...] = (
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.BusyLoadingError,
)

_is_attempt: ContextVar[bool] = ContextVar("is_attempt", default=False)
"""True within what is tried again by an outer retry."""


def patience() -> Retry:
    """For a blocking client."""
    return _Patience(_backoff(), _RETRIES, supported_errors=_LOST)


def async_patience() -> AsyncRetry:
    """For an asyncio client."""
    return _AsyncPatience(_backoff(), _RETRIES, supported_errors=_LOST)


class _Patience(Retry):
    def call_with_retry(self, do: Callable[[], Any], *args: Any, **options: Any) -> Any:
        if _is_attempt.get():
            once = Retry(NoBackoff(), 0, supported_errors=_LOST)
            return once.call_with_retry(do, *args, **options)

        def attempt() -> Any:
            token = _is_attempt.set(True)
            try:
                return do()
            finally:
                _is_attempt.reset(token)

        return super().call_with_retry(attempt, *args, **options)


class _AsyncPatience(AsyncRetry):
    async def call_with_retry(
        self, do: Callable[[], Awaitable[Any]], *args: Any, **options: Any
    ) -> Any:
        if _is_attempt.get():
            once = AsyncRetry(NoBackoff(), 0, supported_errors=_LOST)
            return await once.call_with_retry(do, *args, **options)

        async def attempt() -> Any:
            token = _is_attempt.set(True)
            try:
                return await do()
            finally:
                _is_attempt.reset(token)

        return await super().call_with_retry(attempt, *args, **options)


def _backoff() -> ExponentialBackoff:
    return ExponentialBackoff(cap=_BACKOFF_CAP_S, base=_BACKOFF_BASE_S)
