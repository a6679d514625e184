"""Clients of a Redis server: retries across a restart, and errors of our own.

Clients have the type `Any`, because redis-py's types do not say that replies are bytes, which ours
always are.
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

from kernelfarm.cache.lua_script import ScriptCall
from kernelfarm.cache.redis_library import NoBackoff, Retry, async_redis, redis
from kernelfarm.cache.retry_policy import async_retry_policy, retry_policy
from kernelfarm.errors import UnavailableError

# For how long a connection is opened again if it ends during the handshake, and the pause between.
_HANDSHAKE_TIMEOUT_S = 4.0
_HANDSHAKE_RETRY_S = 0.1

# A host that does not answer for about a minute is gone.
_KEEPALIVE = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)  # not on every system
}

# A burst of look-ups waits for one of these connections instead of opening a thousand.
_MAX_CONNECTIONS = 32
_WAIT_FOR_CONNECTION_S = 30
_SOCKET_TIMEOUT_S = 10.0


# redis-py would report its own name and version with CLIENT SETINFO. Users of a secure server may
# not run CLIENT commands, and the server records each refusal like an intrusion.
_PROTOCOL_OPTIONS: dict[str, Any] = {"protocol": 2, "driver_info": None}


@dataclass(frozen=True, slots=True)
class Handshake:
    """The script call that each connection runs first.

    The result 1 means that the server may be used.
    """

    call: Callable[[], ScriptCall[int]]


def connect_async(url: str, handshake: Handshake | None = None) -> Any:
    """An asyncio client for a server's URL (`redis://`, `unix://`, ...); connects lazily.

    Each new connection runs the handshake.
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

    Each new connection runs the handshake.
    """
    pool = _RetryingPool.from_url(
        url,
        retry=retry_policy(),
        redis_connect_func=None if handshake is None else partial(_run_handshake, handshake),
        **_socket_options(url),
    )
    return redis.Redis.from_pool(pool)


def connect_without_retries(url: str, timeout_s: float) -> Any:
    """A blocking client that never retries; connects lazily, each step may take `timeout_s`."""
    return redis.Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
        **_PROTOCOL_OPTIONS,
    )


def server_answers(url: str, timeout_s: float) -> bool:
    """True if the server answers a ping on a new connection; each step may take `timeout_s`."""
    try:
        with connect_without_retries(url, timeout_s) as client:
            return bool(client.ping())
    except (redis.exceptions.RedisError, OSError):
        return False


def transport_of(connection: Any) -> asyncio.WriteTransport:
    """The transport of an open asyncio connection of redis-py.

    redis-py has no public name for it. `PipelinedConnection` needs it to take over a connection
    that redis-py has opened, with its TLS, credentials and handshake. This is the only use of
    `_writer`; a test checks it against the installed version of redis-py.
    """
    transport: asyncio.WriteTransport = connection._writer.transport
    return transport


def is_demoted(error: redis.exceptions.ResponseError) -> bool:
    """True if the server has become a replica.

    For a script, old servers put READONLY into the text of another error.
    """
    return isinstance(error, redis.exceptions.ReadOnlyError) or "READONLY" in str(error)


@contextmanager
def translated_errors() -> Iterator[None]:
    """Runs commands, and translates the errors of redis-py.

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
    """Opens a connection again if it ends during the handshake: a proxy may have no server yet."""

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
    call = handshake.call()
    parameters = (len(call.keys), *call.keys, *call.args)
    try:
        try:
            await connection.send_command("EVALSHA", call.script.sha1, *parameters)
            reply = await connection.read_response()
        except redis.exceptions.NoScriptError:
            await connection.send_command("EVAL", call.script.source, *parameters)
            reply = await connection.read_response()
    except redis.exceptions.ResponseError as error:
        raise _handshake_error(error) from error
    _check_handshake(call.read(reply))


def _run_handshake(handshake: Handshake, connection: Any) -> None:
    connection.on_connect()
    call = handshake.call()
    parameters = (len(call.keys), *call.keys, *call.args)
    try:
        try:
            connection.send_command("EVALSHA", call.script.sha1, *parameters)
            reply = connection.read_response()
        except redis.exceptions.NoScriptError:
            connection.send_command("EVAL", call.script.source, *parameters)
            reply = connection.read_response()
    except redis.exceptions.ResponseError as error:
        raise _handshake_error(error) from error
    _check_handshake(call.read(reply))


def _handshake_error(error: redis.exceptions.ResponseError) -> redis.exceptions.RedisError:
    """The error of a refused handshake; a replica may be the primary at the next attempt."""
    return redis.exceptions.ConnectionError(str(error)) if is_demoted(error) else error


def _check_handshake(reply: int) -> None:
    if reply != 1:
        raise redis.exceptions.ConnectionError(
            "this server was restarted or promoted, and no client that may write has begun a new"
            " incarnation of its epoch table yet"
        )


def _socket_options(url: str) -> dict[str, Any]:
    options: dict[str, Any] = {
        "socket_timeout": _SOCKET_TIMEOUT_S,
        "socket_connect_timeout": 2.0,
        **_PROTOCOL_OPTIONS,
    }
    if not url.startswith("unix:"):
        # A subscription only reads, so only this option reveals that the server's host is gone.
        options |= {"socket_keepalive": True, "socket_keepalive_options": _KEEPALIVE}
    return options
