"""What a namespace holds and has in flight, beside what it may: for quotas of tenants.

kf:...:quota    HASH  bytes, entries: added up by publications, counted anew by sweeps
kf:...:sizes    HASH  blob -> its stored bytes, for each blob that `held` counts
kf:...:neg:S:index  ZSET  failures of a space by the end of their time: they count as entries
kf:...:compiles ZSET  compilations in flight, by the time at which they lapse, ms

`quota` and `compiles` do not expire: the server's policy would evict them, and the quotas with
them.
Without `sizes`, a blob that is published again counts twice until the next sweep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernelfarm.cache.calls import MAX_FAILURES, ScriptCall
from kernelfarm.cache.connection import translated_errors
from kernelfarm.cache.redis_keys import RedisKeys
from kernelfarm.cache.scripts import AsyncScripts
from kernelfarm.signing import Space

FAILURE_BYTES = 2560
"""What one remembered failure counts: about the most that its message and its keys take."""

FAILURES_SHARE = 10
"""One part in so many of what a tenant may hold may be remembered failures."""

_FAILING = (Space.PROGRAMS, Space.KERNELS)


def most_failures(max_bytes: int | None, max_entries: int | None) -> int:
    """How many failures a namespace of such a quota remembers in each space."""
    limits = [MAX_FAILURES]
    if max_bytes is not None:
        limits.append(max_bytes // FAILURE_BYTES // FAILURES_SHARE)
    if max_entries is not None:
        limits.append(max_entries // FAILURES_SHARE)
    return max(1, min(limits))


@dataclass(frozen=True, slots=True)
class QuotaUsage:
    """What a namespace holds: manifests, contents and blobs as stored; entries of both spaces."""

    size_bytes: int
    entries: int


class Quotas:
    """Counts for one namespace. Every method raises UnavailableError if Redis does not serve."""

    def __init__(self, client: Any, redis_keys: RedisKeys) -> None:
        self._client = client
        self._redis_keys = redis_keys
        self._scripts = AsyncScripts(client)

    async def usage(self) -> QuotaUsage:
        """What it holds now, remembered failures among it.

        What was evicted meanwhile counts until the next sweep.
        """
        with translated_errors():
            seconds, microseconds = await self._client.time()
            now_ms = seconds * 1000 + microseconds // 1000
            pipeline = self._client.pipeline(transaction=False)
            pipeline.hmget(self._redis_keys.quota_usage, "bytes", "entries")
            for space in _FAILING:
                pipeline.zcount(self._redis_keys.failures(space), now_ms, "+inf")
            (size_bytes, entries), *failures = await pipeline.execute()
        failed = sum(int(count) for count in failures)
        return QuotaUsage(
            max(0, int(size_bytes or 0)) + failed * FAILURE_BYTES,
            max(0, int(entries or 0)) + failed,
        )

    async def start_compile(self, compile_id: str, ttl_s: float, most: int) -> bool:
        """Begins a compilation, or prolongs one that this name began; False if `most` fly."""
        return await self._scripts.run(self._start_call(compile_id, ttl_s, most))

    async def compiles_in_flight(self) -> int:
        """How many compilations fly."""
        with translated_errors():
            seconds, microseconds = await self._client.time()
            now_ms = seconds * 1000 + microseconds // 1000
            return int(await self._client.zcount(self._redis_keys.compiles, now_ms, "+inf"))

    async def end_compile(self, compile_id: str) -> None:
        """Ends a compilation; one whose frontend died ends by itself."""
        with translated_errors():
            await self._client.zrem(self._redis_keys.compiles, compile_id)

    def _start_call(self, compile_id: str, ttl_s: float, most: int) -> ScriptCall[bool]:
        keys = (self._redis_keys.compiles,)
        return ScriptCall("start_compile", keys, (compile_id, round(ttl_s * 1e3), most), bool)
