"""Look-ups: on a line that all callers share, else by redis-py, which bridges what goes wrong."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import hiredis
from redis.exceptions import NoScriptError, RedisError

from kernelfarm.cache.calls import LookupCall, Value, script_sha1, script_source
from kernelfarm.cache.pipelined_connection import PipelinedConnection
from kernelfarm.cache.records import LookupResult
from kernelfarm.cache.scripts import AsyncScripts
from kernelfarm.end_task import end_task

_SCRIPT = "lookup"
_MULTI, _EXEC = (hiredis.pack_command((word,)) for word in ("MULTI", "EXEC"))
# To MULTI, to both commands (QUEUED), to EXEC.
_REPLIES = 4


class LookupClient:
    """Runs look-ups; each is sent after it was asked for, and none is answered by another's."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._scripts = AsyncScripts(client)
        self._connection: PipelinedConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._returning: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def is_pipelined(self) -> bool:
        """True while there is a line for those that come now."""
        return self._connection is not None

    async def run(self, call: LookupCall) -> LookupResult:
        """What a look-up met.

        Raises:
            UnavailableError: the server does not serve.
        """
        # What does not write would not notice that its connection leads to a demoted server.
        answered = await self._pipelined(call) if call.writes else None
        if answered is None:
            answered = await self._scripts.retried(lambda: self._by_client(call))
        return call.read(*answered)

    async def close(self) -> None:
        """Ends the line."""
        self._is_closed = True
        if self._connecting is not None:
            await end_task(self._connecting)
        if self._connection is not None:
            self._connection.abort()
            while self._connection is not None:
                await asyncio.sleep(0)
        await asyncio.gather(*self._returning)

    async def _pipelined(self, call: LookupCall) -> list[Any] | None:
        """Verdict and entry; None if there is no line, or it ended, or the server refused."""
        connection = self._connection
        if connection is None:
            self._connect()
            return None
        replies = await connection.send(_packed(call), _REPLIES)
        if replies is None:
            return None
        done = replies[-1]
        parts = done if isinstance(done, list) else [done]
        refused = [part for part in parts if isinstance(part, hiredis.ReplyError)]
        if not refused:
            return parts
        if not str(refused[0]).startswith("NOSCRIPT"):
            connection.abort()  # a server that refuses may be another one for the next connection
        return None

    async def _by_client(self, call: LookupCall) -> list[Any]:
        try:
            return await self._transaction(call, "EVALSHA", script_sha1(_SCRIPT))
        except NoScriptError:
            return await self._transaction(call, "EVAL", script_source(_SCRIPT))

    async def _transaction(self, call: LookupCall, command: str, script: str) -> list[Any]:
        async with self._client.pipeline(transaction=True) as pipeline:
            pipeline.execute_command(command, script, len(call.keys), *call.keys, *call.args)
            pipeline.hgetall(call.entry)
            answered: list[Any] = await pipeline.execute()
        return answered

    def _connect(self) -> None:
        if self._connecting is None and not self._is_closed:
            self._connecting = asyncio.create_task(self._open_pipelined())

    async def _open_pipelined(self) -> None:
        """Takes a connection out of the pool, greeted as all are, for the line's life."""
        try:
            with suppress(RedisError, OSError):  # then the next look-up tries again
                connection = await self._client.connection_pool.get_connection()
                transport = connection._writer.transport
                self._connection = PipelinedConnection(transport, lambda: self._lost(connection))
        finally:
            self._connecting = None

    def _lost(self, connection: Any) -> None:
        self._connection = None
        returning = asyncio.create_task(self._return_to_pool(connection))
        self._returning.add(returning)
        returning.add_done_callback(self._returning.discard)

    async def _return_to_pool(self, connection: Any) -> None:
        with suppress(RedisError, OSError):
            await connection.disconnect()
        await self._client.connection_pool.release(connection)


def _packed(call: LookupCall) -> bytes:
    evaluate = _pack("EVALSHA", script_sha1(_SCRIPT), len(call.keys), *call.keys, *call.args)
    return b"".join((_MULTI, evaluate, _pack("HGETALL", call.entry), _EXEC))


def _pack(*command: Value) -> bytes:
    packed: bytes = hiredis.pack_command(command)  # type: ignore[arg-type] # typed for one part
    return packed
