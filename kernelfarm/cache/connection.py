"""Connections to Redis: retries across a restart, and errors of our own.

Clients are typed Any: redis-py's types do not tell that replies are bytes, which ours always are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from redis import asyncio as async_redis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from kernelfarm.errors import UnavailableError

# Together about 5 s of patience: what a restart of the server takes, with room.
_RETRIES = 9
_BACKOFF_BASE_S = 0.02
_BACKOFF_CAP_S = 1.0

# Bursts of look-ups queue for a connection instead of opening a thousand.
_MAX_CONNECTIONS = 32
_WAIT_FOR_CONNECTION_S = 30
_SOCKET_TIMEOUT_S = 10.0

_LOST: tuple[type[redis.exceptions.RedisError], ...] = (
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.BusyLoadingError,
)


def connect_async(url: str) -> Any:
    """An asyncio client for a server's URL (`redis://`, `unix://`, ...); connects lazily."""
    pool = async_redis.BlockingConnectionPool.from_url(
        url,
        max_connections=_MAX_CONNECTIONS,
        timeout=_WAIT_FOR_CONNECTION_S,
        retry=AsyncRetry(_backoff(), _RETRIES, supported_errors=_LOST),
        **_socket_options(),
    )
    return async_redis.Redis(connection_pool=pool)


def connect(url: str) -> Any:
    """A blocking client for a server's URL; connects lazily, may be shared by threads."""
    retry = Retry(_backoff(), _RETRIES, supported_errors=_LOST)
    return redis.Redis.from_url(url, retry=retry, **_socket_options())


@contextmanager
def translated_errors() -> Iterator[None]:
    """Runs commands; what Redis raises becomes an error of our own.

    Raises:
        UnavailableError: the server does not answer, or is full.
    """
    try:
        yield
    except redis.exceptions.RedisError as error:
        raise UnavailableError(f"the cache does not serve: {error}") from error
    except OSError as error:
        raise UnavailableError(f"the cache does not answer: {error}") from error


def _backoff() -> ExponentialBackoff:
    return ExponentialBackoff(cap=_BACKOFF_CAP_S, base=_BACKOFF_BASE_S)


def _socket_options() -> dict[str, Any]:
    return {"socket_timeout": _SOCKET_TIMEOUT_S, "socket_connect_timeout": 2.0, "protocol": 2}
