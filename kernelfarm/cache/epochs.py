"""The epoch table of a namespace: invalidation, its announcements, and who has obeyed them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kernelfarm.cache import epoch_calls
from kernelfarm.cache.connection import translated_errors
from kernelfarm.cache.epoch_calls import Epoch
from kernelfarm.cache.redis_keys import RedisKeys
from kernelfarm.cache.scripts import AsyncScripts
from kernelfarm.signing import Manifest

# A gateway whose last sign is older has stopped to serve from its memory by itself.
GATEWAY_LEASE_S = 3.0
_POLL_INTERVAL_S = 0.01
_GATEWAY_EXPIRY_S = 3600.0


@dataclass(frozen=True, slots=True)
class InvalidationRecord:
    """One invalidation: what depends on a tag and began before `epoch` is stale."""

    epoch: Epoch
    tags: tuple[str, ...]


class EpochTable:
    """Every method raises UnavailableError if Redis does not serve."""

    def __init__(self, client: Any, redis_keys: RedisKeys) -> None:
        self._client = client
        self._redis_keys = redis_keys
        self._scripts = AsyncScripts(client)

    async def current(self) -> Epoch:
        """The present epoch."""
        return await self._scripts.run(epoch_calls.current(self._redis_keys))

    async def invalidate(self, tags: Sequence[str]) -> Epoch:
        """Makes every entry stale that depends on one of the tags; the epoch that this began.

        Constant time, whatever the number of entries. Repeating it does no harm.
        """
        return await self._scripts.run(epoch_calls.invalidate(self._redis_keys, tags))

    async def is_current(self, manifests: Iterable[Manifest]) -> bool:
        """True if nothing was invalidated that these statements depend on, since they were made."""
        made = tuple(manifests)
        tags = sorted({tag for manifest in made for tag in manifest.tags})
        with translated_errors():
            incarnation, floor, *epochs = await self._client.hmget(
                self._redis_keys.epochs, "@inc", "@floor", *tags
            )
        bumped = {tag: int(epoch) for tag, epoch in zip(tags, epochs, strict=True) if epoch}
        return all(
            manifest.incarnation.encode() == incarnation
            and manifest.epoch >= int(floor or 0)
            and all(bumped.get(tag, 0) <= manifest.epoch for tag in manifest.tags)
            for manifest in made
        )

    async def acknowledge(self, gateway: str, epoch: Epoch) -> Epoch:
        """Tells how far a gateway has obeyed; the present epoch."""
        return await self._scripts.run(epoch_calls.current(self._redis_keys, gateway, epoch))

    async def leave(self, gateway: str) -> None:
        """Tells that a gateway serves no more."""
        with translated_errors():
            await self._client.hdel(self._redis_keys.gateways, gateway)

    async def wait_for_gateways(self, epoch: Epoch) -> int:
        """Gateways that obeyed an epoch, once none is left that might not have.

        One that does not answer is waited for until its memory has ended by itself.
        """
        deadline = time.monotonic() + GATEWAY_LEASE_S
        while True:
            applied, late = await self._count_gateways(epoch)
            if not late or time.monotonic() > deadline:
                return applied
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def invalidations_after(self, seen: Epoch) -> list[InvalidationRecord] | None:
        """What was announced after an epoch, or None if that is not known any more."""
        with translated_errors():
            pipeline = self._client.pipeline(transaction=True)
            pipeline.hmget(self._redis_keys.epochs, "@inc", "@epoch")
            pipeline.xrange(self._redis_keys.invalidation_log, min=f"({seen.number}-0")
            (incarnation, number), entries = await pipeline.execute()
        if incarnation is None or incarnation.decode() != seen.incarnation:
            return None
        found = [_invalidation_record(entry) for entry in entries]
        # Every epoch is announced once: a gap is what was trimmed, or an older table.
        if len(found) != int(number) - seen.number:
            return None
        return found

    async def wait_for_invalidation(self, seen: Epoch, timeout_s: float) -> None:
        """Returns when something was announced after an epoch, or after the timeout."""
        with translated_errors():
            await self._client.xread(
                {self._redis_keys.invalidation_log: f"{seen.number}-0"},
                count=1,
                block=max(1, round(timeout_s * 1e3)),
            )

    async def _count_gateways(self, epoch: Epoch) -> tuple[int, int]:
        with translated_errors():
            pipeline = self._client.pipeline(transaction=False)
            pipeline.hgetall(self._redis_keys.gateways)
            pipeline.hget(self._redis_keys.epochs, "@born")
            pipeline.time()
            stored, born_ms, (seconds, microseconds) = await pipeline.execute()
        now_s = seconds + microseconds / 1e6
        # A young table knows not yet which gateways served before it was lost.
        late = int(now_s - int(born_ms or 0) / 1e3 < GATEWAY_LEASE_S)
        applied = 0
        gone = []
        for gateway, stored_text in stored.items():
            reported_ms, incarnation, number = stored_text.decode().split(":")
            silent_s = now_s - int(reported_ms) / 1e3
            if silent_s >= _GATEWAY_EXPIRY_S:
                gone.append(gateway)
            if silent_s >= GATEWAY_LEASE_S:
                continue
            has_applied = incarnation == epoch.incarnation and int(number) >= epoch.number
            applied += has_applied
            late += not has_applied
        if gone:  # they were killed, or they would have taken their leave
            with translated_errors():
                await self._client.hdel(self._redis_keys.gateways, *gone)
        return applied, late


def _invalidation_record(entry: tuple[bytes, dict[bytes, bytes]]) -> InvalidationRecord:
    number, fields = entry
    epoch = Epoch(fields[b"inc"].decode(), int(number.partition(b"-")[0]))
    return InvalidationRecord(epoch, tuple(fields[b"tags"].decode().split()))
