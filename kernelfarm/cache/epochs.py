"""The epoch table of a farm: invalidations, their log, and the epochs that gateways applied."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kernelfarm.cache import epoch_calls
from kernelfarm.cache.connection import translated_errors
from kernelfarm.cache.epoch_calls import INVALIDATIONS_COUNTER, Epoch
from kernelfarm.cache.redis_keys import RedisKeys
from kernelfarm.cache.scripts import AsyncScripts
from kernelfarm.signing import Manifest

# After this time without a report, a gateway serves nothing from its memory.
GATEWAY_LEASE_S = 3.0
_POLL_INTERVAL_S = 0.01
_GATEWAY_EXPIRY_S = 3600.0


@dataclass(frozen=True, slots=True)
class InvalidationRecord:
    """One invalidation: entries that depend on a tag and began before `epoch` are stale."""

    epoch: Epoch
    tags: tuple[str, ...]


class EpochTable:
    """The epoch table; every method raises UnavailableError if Redis does not serve."""

    def __init__(self, client: Any, redis_keys: RedisKeys) -> None:
        self._client = client
        self._redis_keys = redis_keys
        self._scripts = AsyncScripts(client)

    async def current(self) -> Epoch:
        """The current epoch."""
        return await self._scripts.run(epoch_calls.current(self._redis_keys))

    async def invalidate(self, tags: Sequence[str]) -> Epoch:
        """Makes every entry stale that depends on one of the tags, and returns the new epoch.

        The time does not depend on the number of entries. It is safe to repeat.
        """
        return await self._scripts.run(epoch_calls.invalidate(self._redis_keys, tags))

    async def invalidations(self) -> int:
        """The number of invalidations since the server started with an empty store."""
        with translated_errors():
            counted = await self._client.hget(self._redis_keys.stats, INVALIDATIONS_COUNTER)
        return int(counted or 0)

    async def is_current(self, manifests: Iterable[Manifest]) -> bool:
        """True if no dependency of the manifests was invalidated since they were made."""
        checked = tuple(manifests)
        tags = sorted({tag for manifest in checked for tag in manifest.tags})
        with translated_errors():
            incarnation, floor, *epochs = await self._client.hmget(
                self._redis_keys.epochs, "@inc", "@floor", *tags
            )
        invalidated = {tag: int(epoch) for tag, epoch in zip(tags, epochs, strict=True) if epoch}
        return all(
            manifest.incarnation.encode() == incarnation
            and manifest.epoch >= int(floor or 0)
            and all(invalidated.get(tag, 0) <= manifest.epoch for tag in manifest.tags)
            for manifest in checked
        )

    async def invalidated_tags(self, tags: Sequence[str], after: int) -> list[str]:
        """Those of the tags that were invalidated after an epoch, if the table still knows it."""
        if not tags:
            return []
        with translated_errors():
            epochs = await self._client.hmget(self._redis_keys.epochs, *tags)
        return [
            tag for tag, epoch in zip(tags, epochs, strict=True) if epoch and int(epoch) > after
        ]

    async def acknowledge(self, gateway: str, epoch: Epoch) -> Epoch:
        """Records that a gateway has applied all invalidations up to an epoch.

        Returns the current epoch.
        """
        return await self._scripts.run(epoch_calls.current(self._redis_keys, gateway, epoch))

    async def leave(self, gateway: str) -> None:
        """Removes a gateway that no longer serves."""
        with translated_errors():
            await self._client.hdel(self._redis_keys.gateways, gateway)

    async def wait_for_gateways(self, epoch: Epoch) -> int:
        """The number of gateways that have applied an epoch, once no gateway serves an older one.

        A gateway that does not report is waited for until the lease of its memory has ended.
        """
        deadline = time.monotonic() + GATEWAY_LEASE_S
        while True:
            applied, late = await self._count_gateways(epoch)
            if not late or time.monotonic() > deadline:
                return applied
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def invalidations_after(self, seen: Epoch) -> list[InvalidationRecord] | None:
        """The invalidations after an epoch, or None if the log no longer has them all."""
        with translated_errors():
            pipeline = self._client.pipeline(transaction=True)
            pipeline.hmget(self._redis_keys.epochs, "@inc", "@epoch")
            pipeline.xrange(self._redis_keys.invalidation_log, min=f"({seen.number}-0")
            (incarnation, number), entries = await pipeline.execute()
        if incarnation is None or incarnation.decode() != seen.incarnation:
            return None
        found = [_invalidation_record(entry) for entry in entries]
        # The log has one record for each epoch. A gap means that records were trimmed.
        if len(found) != int(number) - seen.number:
            return None
        return found

    async def wait_for_invalidation(self, seen: Epoch, timeout_s: float) -> None:
        """Returns when there is an invalidation after an epoch, or after the timeout."""
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
        # A new table does not know yet which gateways served before the old one was lost.
        late = int(now_s - int(born_ms or 0) / 1e3 < GATEWAY_LEASE_S)
        applied = 0
        expired = []
        for gateway, stored_text in stored.items():
            reported_ms, incarnation, number = stored_text.decode().split(":")
            age_s = now_s - int(reported_ms) / 1e3
            if age_s >= _GATEWAY_EXPIRY_S:
                expired.append(gateway)
            if age_s >= GATEWAY_LEASE_S:
                continue
            has_applied = incarnation == epoch.incarnation and int(number) >= epoch.number
            applied += has_applied
            late += not has_applied
        if expired:  # killed gateways, which did not call `leave`
            with translated_errors():
                await self._client.hdel(self._redis_keys.gateways, *expired)
        return applied, late


def _invalidation_record(entry: tuple[bytes, dict[bytes, bytes]]) -> InvalidationRecord:
    number, fields = entry
    epoch = Epoch(fields[b"inc"].decode(), int(number.partition(b"-")[0]))
    return InvalidationRecord(epoch, tuple(fields[b"tags"].decode().split()))
