"""Runs look-ups on a pipelined connection that all callers share, or by redis-py if it fails."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import hiredis
from redis.exceptions import NoScriptError, RedisError

from kernelfarm.cache.calls import LookupCall
from kernelfarm.cache.connection import transport_of
from kernelfarm.cache.lua_script import Value
from kernelfarm.cache.pipelined_connection import PipelinedConnection
from kernelfarm.cache.records import LookupResult
from kernelfarm.cache.script_declarations import LOOKUP
from kernelfarm.cache.scripts import AsyncScripts
from kernelfarm.end_task import end_task

_MULTI, _EXEC = (hiredis.pack_command((word,)) for word in ("MULTI", "EXEC"))
# To MULTI, to both commands (QUEUED), to EXEC; each further command is answered by QUEUED.
_REPLIES = 4


class LookupClient:
    """Runs look-ups. Each is sent after its caller asked, and none shares another's reply."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._scripts = AsyncScripts(client)
        self._connection: PipelinedConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._returning: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def is_pipelined(self) -> bool:
        """True while a pipelined connection is open."""
        return self._connection is not None

    async def run(self, call: LookupCall) -> LookupResult:
        """The result of a look-up.

        Raises:
            UnavailableError: the server does not serve.
        """
        return (await self.run_with_more(call))[0]

    async def run_with_more(self, call: LookupCall) -> tuple[LookupResult, list[Any]]:
        """The result of a look-up, and the replies to its further commands.

        Raises:
            UnavailableError: the server does not serve.
        """
        # A call that does not write would not notice that its connection leads to a replica.
        replies = await self._pipelined(call) if call.writes else None
        if replies is None:
            replies = await self._scripts.retried(lambda: self._by_client(call))
        verdict, stored, *more = replies
        return call.read(verdict, stored), more

    async def close(self) -> None:
        """Closes the pipelined connection."""
        self._is_closed = True
        if self._connecting is not None:
            await end_task(self._connecting)
        if self._connection is not None:
            self._connection.abort()
            while self._connection is not None:
                await asyncio.sleep(0)
        await asyncio.gather(*self._returning)

    async def _pipelined(self, call: LookupCall) -> list[Any] | None:
        """Verdict and entry; None if no connection is open, or it ended, or the server refused."""
        connection = self._connection
        if connection is None:
            self._connect()
            return None
        replies = await connection.send(_packed(call), _REPLIES + len(call.more))
        if replies is None:
            return None
        executed = replies[-1]
        results = executed if isinstance(executed, list) else [executed]
        errors = [result for result in results if isinstance(result, hiredis.ReplyError)]
        if not errors:
            return results
        if not str(errors[0]).startswith("NOSCRIPT"):
            connection.abort()  # the next connection may lead to another server
        return None

    async def _by_client(self, call: LookupCall) -> list[Any]:
        try:
            return await self._transaction(call, "EVALSHA", LOOKUP.sha1)
        except NoScriptError:
            return await self._transaction(call, "EVAL", LOOKUP.source)

    async def _transaction(self, call: LookupCall, command: str, script: str) -> list[Any]:
        async with self._client.pipeline(transaction=True) as pipeline:
            pipeline.execute_command(command, script, len(call.keys), *call.keys, *call.args)
            pipeline.hgetall(call.entry)
            for each in call.more:
                pipeline.execute_command(*each)
            results: list[Any] = await pipeline.execute()
        return results

    def _connect(self) -> None:
        if self._connecting is None and not self._is_closed:
            self._connecting = asyncio.create_task(self._open_pipelined())

    async def _open_pipelined(self) -> None:
        """Takes a connection out of the pool, which has run its handshake."""
        try:
            with suppress(RedisError, OSError):  # the next look-up tries again
                connection = await self._client.connection_pool.get_connection()
                self._connection = PipelinedConnection(
                    transport_of(connection), lambda: self._lost(connection)
                )
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
    evaluate = _pack("EVALSHA", LOOKUP.sha1, len(call.keys), *call.keys, *call.args)
    more = (_pack(*command) for command in call.more)
    return b"".join((_MULTI, evaluate, _pack("HGETALL", call.entry), *more, _EXEC))


def _pack(*command: Value) -> bytes:
    packed: bytes = hiredis.pack_command(command)  # type: ignore[arg-type] # typed for one part
    return packed
