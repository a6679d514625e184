"""Who makes a missing trace: one of several processes claims it, and the others may wait for it.

kf:...:claims     ZSET  traces in the making, by the time at which the claim ends, ms since 1970
kf:...:claimants  HASH  trace -> the process that makes it

A claim reserves nothing. A process that dies delays the others until its claim ends.
"""

from __future__ import annotations

from typing import Any

from kernelfarm.cache import script_declarations as lua
from kernelfarm.cache.connection import translated_errors
from kernelfarm.cache.redis_keys import RedisKeys
from kernelfarm.cache.scripts import AsyncScripts

MAX_CLAIMS = 1024
"""Of one namespace. Above it, processes make traces without knowing of each other."""


class TraceClaims:
    """The claims of one namespace; every method raises UnavailableError if Redis does not serve."""

    def __init__(self, client: Any, redis_keys: RedisKeys) -> None:
        self._client = client
        self._redis_keys = redis_keys
        self._scripts = AsyncScripts(client)

    async def claim(self, digest: bytes, claimant: bytes, ttl_ms: int) -> int:
        """The milliseconds that another claimant may still take to make a trace; 0 if none does.

        Then the caller has the claim for `ttl_ms`, unless the namespace has too many. With 0, the
        caller takes none, and a claim that it has ends.
        """
        parameters = lua.ClaimTrace(
            claims=self._redis_keys.trace_claims,
            claimants=self._redis_keys.trace_claimants,
            digest=self._member(digest),
            claimant=claimant,
            ttl_ms=ttl_ms,
            most=MAX_CLAIMS,
        )
        return await self._scripts.run(lua.CLAIM_TRACE.call(parameters, int))

    async def end(self, digest: bytes) -> None:
        """Ends the claim of a trace that was published, whoever has it."""
        member = self._member(digest)
        with translated_errors():
            pipeline = self._client.pipeline(transaction=False)
            pipeline.zrem(self._redis_keys.trace_claims, member)
            pipeline.hdel(self._redis_keys.trace_claimants, member)
            await pipeline.execute()

    def _member(self, digest: bytes) -> str:
        return self._redis_keys.storage_key(digest).hex()
