"""Connections to Redis: retries across a restart, and errors of our own.

Clients are typed Any: redis-py's types do not tell that replies are bytes, which ours always are.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import redis
from redis import asyncio as async_redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from kernelfarm.cache.retry_policy import async_retry_policy, retry_policy
from kernelfarm.errors import UnavailableError

# How long connections that end as they begin are tried again, and how often.
_HANDSHAKE_TIMEOUT_S = 4.0
_HANDSHAKE_RETRY_S = 0.1

# A host that does not answer for about a minute is gone.
_KEEPALIVE = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)  # not everywhere
}

# Bursts of look-ups queue for a connection instead of opening a thousand.
_MAX_CONNECTIONS = 32
_WAIT_FOR_CONNECTION_S = 30
_SOCKET_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Handshake:
    """A script that each connection runs first; it answers 1 where the server is fit for us."""

    source: str
    sha1: str
    keys: tuple[str, ...]
    fresh: Callable[[], str]

    def args(self) -> tuple[str | int, ...]:
        """What follows the script in its command."""
        return (len(self.keys), *self.keys, self.fresh())


def connect_async(url: str, handshake: Handshake | None = None) -> Any:
    """An asyncio client for a server's URL (`redis://`, `unix://`, ...); connects lazily.

    Each connection begins with the greeting.
    """
    pool = _RetryingAsyncPool.from_url(
        url,
        max_connections=_MAX_CONNECTIONS,
        timeout=_WAIT_FOR_CONNECTION_S,
        retry=async_retry_policy(),
        redis_connect_func=None if handshake is None else partial(_run_handshake_async, handshake),
        **_socket_options(url),
    )
    return async_redis.Redis(connection_pool=pool)


def connect(url: str, handshake: Handshake | None = None) -> Any:
    """A blocking client for a server's URL; connects lazily, may be shared by threads.

    Each connection begins with the greeting.
    """
    greet = None if handshake is None else partial(_run_handshake, handshake)
    pool = _RetryingPool.from_url(
        url, retry=retry_policy(), redis_connect_func=greet, **_socket_options(url)
    )
    return redis.Redis.from_pool(pool)


def server_answers(url: str, timeout_s: float) -> bool:
    """True if the server answers a ping on a new connection, each step of it within the time."""
    options: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
    }
    try:
        with redis.Redis.from_url(url, **options) as client:
            return bool(client.ping())
    except (redis.exceptions.RedisError, OSError):
        return False


def is_demoted(error: redis.exceptions.ResponseError) -> bool:
    """True if the server is a replica now: within scripts, old servers tell it in their words."""
    return isinstance(error, redis.exceptions.ReadOnlyError) or "READONLY" in str(error)


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


class _RetryingAsyncPool(async_redis.BlockingConnectionPool):
    """Asks again where a connection ends as it begins: what leads to the server has no server."""

    async def get_connection(self, *args: Any, **options: Any) -> Any:
        began_s = time.monotonic()
        while True:
            try:
                return await super().get_connection(  # type: ignore[no-untyped-call] # redis's
                    *args, **options
                )
            except redis.exceptions.ConnectionError:
                if time.monotonic() - began_s > _HANDSHAKE_TIMEOUT_S:
                    raise
            await asyncio.sleep(_HANDSHAKE_RETRY_S)


class _RetryingPool(redis.ConnectionPool):
    """The same for blocking clients."""

    def get_connection(self, *args: Any, **options: Any) -> Any:
        began_s = time.monotonic()
        while True:
            try:
                return super().get_connection(*args, **options)
            except redis.exceptions.ConnectionError:
                if time.monotonic() - began_s > _HANDSHAKE_TIMEOUT_S:
                    raise
            time.sleep(_HANDSHAKE_RETRY_S)


async def _run_handshake_async(handshake: Handshake, connection: Any) -> None:
    await connection.on_connect()
    try:
        try:
            await connection.send_command("EVALSHA", handshake.sha1, *handshake.args())
            reply = await connection.read_response()
        except redis.exceptions.NoScriptError:
            await connection.send_command("EVAL", handshake.source, *handshake.args())
            reply = await connection.read_response()
    except redis.exceptions.ResponseError as error:
        raise _unfit(error) from error
    _check_handshake(reply)


def _run_handshake(handshake: Handshake, connection: Any) -> None:
    connection.on_connect()
    try:
        try:
            connection.send_command("EVALSHA", handshake.sha1, *handshake.args())
            reply = connection.read_response()
        except redis.exceptions.NoScriptError:
            connection.send_command("EVAL", handshake.source, *handshake.args())
            reply = connection.read_response()
    except redis.exceptions.ResponseError as error:
        raise _unfit(error) from error
    _check_handshake(reply)


def _unfit(error: redis.exceptions.ResponseError) -> redis.exceptions.RedisError:
    """What a refused greeting means: a replica may be the primary at the next attempt."""
    return redis.exceptions.ConnectionError(str(error)) if is_demoted(error) else error


def _check_handshake(reply: object) -> None:
    if reply != 1:
        raise redis.exceptions.ConnectionError(
            "this server took over, and nobody who may write has begun its life yet"
        )


def _socket_options(url: str) -> dict[str, Any]:
    options: dict[str, Any] = {
        "socket_timeout": _SOCKET_TIMEOUT_S,
        "socket_connect_timeout": 2.0,
        "protocol": 2,
    }
    if not url.startswith("unix:"):
        # A subscription only listens: without this it never sees that the server's host is gone.
        options |= {"socket_keepalive": True, "socket_keepalive_options": _KEEPALIVE}
    return options
