"""What a namespace holds and has in flight, beside what it may: for quotas of tenants.

kf:...:held     HASH  bytes, entries: added up by publications, counted anew by sweeps
kf:...:sizes    HASH  blob -> its stored bytes, for each blob that `held` counts
kf:...:flying   ZSET  compilations in flight, by the time at which they lapse, ms

`held` and `flying` do not expire: the server's policy would evict them and, with them, the quotas.
Without `sizes`, a blob that is published again counts twice until the next sweep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernelfarm.cache.calls import Call
from kernelfarm.cache.connection import translated_errors
from kernelfarm.cache.names import Names
from kernelfarm.cache.scripts import AsyncScripts


@dataclass(frozen=True, slots=True)
class Held:
    """What a namespace holds: manifests, contents and blobs as stored; entries of both spaces."""

    size_bytes: int
    entries: int


class Quotas:
    """Counts for one namespace. Every method raises UnavailableError if Redis does not serve."""

    def __init__(self, client: Any, names: Names) -> None:
        self._client = client
        self._names = names
        self._scripts = AsyncScripts(client)

    async def held(self) -> Held:
        """What it holds now; what was evicted meanwhile counts until the next sweep."""
        with translated_errors():
            size_bytes, entries = await self._client.hmget(self._names.held, "bytes", "entries")
        return Held(max(0, int(size_bytes or 0)), max(0, int(entries or 0)))

    async def take_off(self, flight: str, ttl_s: float, most: int) -> bool:
        """Begins a compilation, or prolongs one that this name began; False if `most` fly."""
        return await self._scripts.run(self._fly(flight, ttl_s, most))

    async def in_flight(self) -> int:
        """How many compilations fly."""
        with translated_errors():
            seconds, microseconds = await self._client.time()
            now_ms = seconds * 1000 + microseconds // 1000
            return int(await self._client.zcount(self._names.in_flight, now_ms, "+inf"))

    async def land(self, flight: str) -> None:
        """Ends a compilation; one whose frontend died ends by itself."""
        with translated_errors():
            await self._client.zrem(self._names.in_flight, flight)

    def _fly(self, flight: str, ttl_s: float, most: int) -> Call[bool]:
        keys = (self._names.in_flight,)
        return Call("take_off", keys, (flight, round(ttl_s * 1e3), most), bool)
