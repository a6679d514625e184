"""Runs calls by EVALSHA; sends a script's text when the server does not know it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from redis.exceptions import NoScriptError, ResponseError

from kernelfarm.cache.calls import ScriptCall, script_sha1, script_source
from kernelfarm.cache.connection import is_demoted, translated_errors

T = TypeVar("T")

# Together 3 s: by then whoever leads to the server knows the new one.
_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.5)


class AsyncScripts:
    """Scripts over an asyncio client."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def run(self, call: ScriptCall[T]) -> T:
        """The call's result.

        Raises:
            UnavailableError: the server does not serve.
        """
        return call.read(await self.retried(lambda: self._reply(call)))

    async def retried(self, send: Callable[[], Awaitable[T]]) -> T:
        """What `ask` gives, which is asked again while the server that leads changes.

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
                    # Our connections lead to what was the primary: new ones may lead elsewhere.
                    await self._client.connection_pool.disconnect(inuse_connections=False)
                    await asyncio.sleep(pause_s)
            return await send()

    async def _reply(self, call: ScriptCall[T]) -> Any:
        count = len(call.keys)
        try:
            sha1 = script_sha1(call.script)
            return await self._client.evalsha(sha1, count, *call.keys, *call.args)
        except NoScriptError:
            return await self._client.eval(
                script_source(call.script), count, *call.keys, *call.args
            )


class Scripts:
    """Scripts over a blocking client."""

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
        count = len(call.keys)
        try:
            return self._client.evalsha(script_sha1(call.script), count, *call.keys, *call.args)
        except NoScriptError:
            return self._client.eval(script_source(call.script), count, *call.keys, *call.args)
