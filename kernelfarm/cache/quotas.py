"""What a namespace holds and has in flight, for the quotas of tenants.

kf:...:quota    HASH  bytes, entries: changed by publications, counted again by sweeps
kf:...:sizes    HASH  blob -> its stored bytes, for each blob that `quota` counts
kf:...:neg:S:index  ZSET  the failures of a space, by the time at which they expire; they count as
                          entries
kf:...:compiles ZSET  compilations in flight, by the time at which they expire, ms since 1970

`quota` and `compiles` have no time to live, because the server's policy would evict them.
If `sizes` is lost, a blob that is published again counts twice until the next sweep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernelfarm.cache import script_declarations as lua
from kernelfarm.cache.connection import translated_errors
from kernelfarm.cache.limits import MAX_FAILURES
from kernelfarm.cache.lua_script import ScriptCall
from kernelfarm.cache.redis_keys import RedisKeys
from kernelfarm.cache.scripts import AsyncScripts
from kernelfarm.signing import Space

FAILURE_BYTES = 2560
"""The size that one recorded failure counts as: about the maximum of its message and keys."""

FAILURES_SHARE = 10
"""Recorded failures may take one tenth of a tenant's quota."""

FAILING_SPACES = (Space.PROGRAMS, Space.KERNELS)
"""The key spaces whose failures are recorded."""


def most_failures(max_bytes: int | None, max_entries: int | None) -> int:
    """How many failures are recorded for each key space of a namespace with this quota."""
    limits = [MAX_FAILURES]
    if max_bytes is not None:
        limits.append(max_bytes // FAILURE_BYTES // FAILURES_SHARE)
    if max_entries is not None:
        limits.append(max_entries // FAILURES_SHARE)
    return max(1, min(limits))


@dataclass(frozen=True, slots=True)
class QuotaUsage:
    """What a namespace holds: bytes of manifests, contents and stored blobs; entries."""

    size_bytes: int
    entries: int


class Quotas:
    """The counts of one namespace; every method raises UnavailableError if Redis does not serve."""

    def __init__(self, client: Any, redis_keys: RedisKeys) -> None:
        self._client = client
        self._redis_keys = redis_keys
        self._scripts = AsyncScripts(client)

    async def usage(self) -> QuotaUsage:
        """What the namespace holds now, including recorded failures.

        Evicted entries and blobs count until the next sweep.
        """
        with translated_errors():
            seconds, microseconds = await self._client.time()
            now_ms = seconds * 1000 + microseconds // 1000
            pipeline = self._client.pipeline(transaction=False)
            pipeline.hmget(self._redis_keys.quota_usage, "bytes", "entries")
            for space in FAILING_SPACES:
                pipeline.zcount(self._redis_keys.failures(space), now_ms, "+inf")
            (size_bytes, entries), *failures = await pipeline.execute()
        failed = sum(int(count) for count in failures)
        return QuotaUsage(
            max(0, int(size_bytes or 0)) + failed * FAILURE_BYTES,
            max(0, int(entries or 0)) + failed,
        )

    async def start_compile(self, compile_id: str, ttl_s: float, most: int) -> bool:
        """Starts a compilation, or extends the one of this id; False if `most` are in flight."""
        return await self._scripts.run(self._start_call(compile_id, ttl_s, most))

    async def compiles_in_flight(self) -> int:
        """The number of compilations in flight."""
        with translated_errors():
            seconds, microseconds = await self._client.time()
            now_ms = seconds * 1000 + microseconds // 1000
            return int(await self._client.zcount(self._redis_keys.compiles, now_ms, "+inf"))

    async def end_compile(self, compile_id: str) -> None:
        """Ends a compilation; one whose frontend died expires."""
        with translated_errors():
            await self._client.zrem(self._redis_keys.compiles, compile_id)

    def _start_call(self, compile_id: str, ttl_s: float, most: int) -> ScriptCall[bool]:
        parameters = lua.StartCompile(
            compiles=self._redis_keys.compiles,
            compile_id=compile_id,
            ttl_ms=round(ttl_s * 1e3),
            most=most,
        )
        return lua.START_COMPILE.call(parameters, bool)
