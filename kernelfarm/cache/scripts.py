"""Runs script calls by EVALSHA; sends a script's text if the server has not loaded it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from redis.exceptions import NoScriptError, ResponseError

from kernelfarm.cache.connection import is_demoted, translated_errors
from kernelfarm.cache.lua_script import ScriptCall

T = TypeVar("T")

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

    def run(self, call: ScriptCall[T]) -> T:
        """The call's result.

        Raises:
            UnavailableError: the server does not serve.
        """
        with translated_errors():
            for pause_s in _PAUSES_S:
                try:
                    return call.read(self._reply(call))
                except ResponseError as error:
                    if not is_demoted(error):
                        raise
                    self._client.connection_pool.disconnect(inuse_connections=False)
                    time.sleep(pause_s)
            return call.read(self._reply(call))

    def _reply(self, call: ScriptCall[T]) -> Any:
        script, count = call.script, len(call.keys)
        try:
            return self._client.evalsha(script.sha1, count, *call.keys, *call.args)
        except NoScriptError:
            return self._client.eval(script.source, count, *call.keys, *call.args)
