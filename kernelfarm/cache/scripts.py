"""Runs script calls by EVALSHA; sends a script's text if the server has not loaded it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from redis.exceptions import NoScriptError, ResponseError

from kernelfarm.cache.connection import is_demoted, translated_errors
from kernelfarm.cache.lua_script import ScriptCall, Value

T = TypeVar("T")

Command = tuple[Value, ...]
"""The words of a Redis command."""

# 3 s in total. By then, the proxy or name that leads to the primary leads to the new one.
_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.5)


class AsyncScripts:
    """Runs scripts over an asyncio client."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def run(self, call: ScriptCall[T]) -> T:
        """The call's result.

        Raises:
            UnavailableError: the server does not serve.
        """
        return call.read(await self.retried(lambda: self._reply(call)))

    async def run_all(self, calls: Sequence[ScriptCall[T]]) -> list[T]:
        """The results of several calls, sent together; one does not wait for another.

        Raises:
            UnavailableError: the server does not serve.
        """
        if len(calls) == 1:
            return [await self.run(calls[0])]
        replies = await self.retried(lambda: self._replies(calls))
        return [call.read(reply) for call, reply in zip(calls, replies, strict=True)]

    async def retried(self, send: Callable[[], Awaitable[T]]) -> T:
        """The result of `send`, which is called again while another server becomes the primary.

        Raises:
            UnavailableError: the server does not serve.
        """
        with translated_errors():
            for pause_s in _PAUSES_S:
                try:
                    return await send()
                except ResponseError as error:
                    if not is_demoted(error):
                        raise
                    # The open connections lead to the old primary; new ones may lead elsewhere.
                    await self._client.connection_pool.disconnect(inuse_connections=False)
                    await asyncio.sleep(pause_s)
            return await send()

    async def _replies(self, calls: Sequence[ScriptCall[T]]) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for call in calls:
            pipeline.evalsha(call.script.sha1, len(call.keys), *call.keys, *call.args)
        replies: list[Any] = await pipeline.execute(raise_on_error=False)
        for number, (call, reply) in enumerate(zip(calls, replies, strict=True)):
            if isinstance(reply, NoScriptError):
                replies[number] = await self._reply(call)
            elif isinstance(reply, Exception):
                raise reply
        return replies

    async def _reply(self, call: ScriptCall[T]) -> Any:
        script, count = call.script, len(call.keys)
        try:
            return await self._client.evalsha(script.sha1, count, *call.keys, *call.args)
        except NoScriptError:
            return await self._client.eval(script.source, count, *call.keys, *call.args)


class Scripts:
    """Runs scripts over a blocking client."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def run(self, call: ScriptCall[T], before: Sequence[Command] = ()) -> T:
        """The call's result; it is sent together with the commands that come before it.

        Raises:
            UnavailableError: the server does not serve.
        """
        with translated_errors():
            for pause_s in _PAUSES_S:
                try:
                    return call.read(self._reply(call, before))
                except ResponseError as error:
                    if not is_demoted(error):
                        raise
                    self._client.connection_pool.disconnect(inuse_connections=False)
                    time.sleep(pause_s)
            return call.read(self._reply(call, before))

    def _reply(self, call: ScriptCall[T], before: Sequence[Command]) -> Any:
        script, count = call.script, len(call.keys)
        if before:
            pipeline = self._client.pipeline(transaction=False)
            for command in before:
                pipeline.execute_command(*command)
            pipeline.evalsha(script.sha1, count, *call.keys, *call.args)
            *replies, reply = pipeline.execute(raise_on_error=False)
            for each in (*replies, reply):
                if isinstance(each, Exception) and not isinstance(each, NoScriptError):
                    raise each
            if not isinstance(reply, NoScriptError):
                return reply
        try:
            return self._client.evalsha(script.sha1, count, *call.keys, *call.args)
        except NoScriptError:
            return self._client.eval(script.source, count, *call.keys, *call.args)
