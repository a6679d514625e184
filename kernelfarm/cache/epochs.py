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
from kernelfarm.cache.redis_keys import Names
from kernelfarm.cache.scripts import AsyncScripts
from kernelfarm.signing import Manifest

# A gateway whose last sign is older has stopped to serve from its memory by itself.
GATEWAY_LEASE_S = 3.0
_ASK_AGAIN_S = 0.01
_FORGET_GATEWAY_S = 3600.0


@dataclass(frozen=True, slots=True)
class Announcement:
    """One invalidation: what depends on a tag and began before `epoch` is stale."""

    epoch: Epoch
    tags: tuple[str, ...]


class EpochTable:
    """Every method raises UnavailableError if Redis does not serve."""

    def __init__(self, client: Any, names: Names) -> None:
        self._client = client
        self._names = names
        self._scripts = AsyncScripts(client)

    async def current(self) -> Epoch:
        """The present epoch."""
        return await self._scripts.run(epoch_calls.current(self._names))

    async def bump(self, tags: Sequence[str]) -> Epoch:
        """Makes every entry stale that depends on one of the tags; the epoch that this began.

        Constant time, whatever the number of entries. Repeating it does no harm.
        """
        return await self._scripts.run(epoch_calls.bump(self._names, tags))

    async def is_current(self, manifests: Iterable[Manifest]) -> bool:
        """True if nothing was invalidated that these statements depend on, since they were made."""
        made = tuple(manifests)
        tags = sorted({tag for manifest in made for tag in manifest.tags})
        with translated_errors():
            incarnation, floor, *epochs = await self._client.hmget(
                self._names.epochs, "@inc", "@floor", *tags
            )
        bumped = {tag: int(epoch) for tag, epoch in zip(tags, epochs, strict=True) if epoch}
        return all(
            manifest.incarnation.encode() == incarnation
            and manifest.epoch >= int(floor or 0)
            and all(bumped.get(tag, 0) <= manifest.epoch for tag in manifest.tags)
            for manifest in made
        )

    async def obeyed(self, gateway: str, epoch: Epoch) -> Epoch:
        """Tells how far a gateway has obeyed; the present epoch."""
        return await self._scripts.run(epoch_calls.current(self._names, gateway, epoch))

    async def leave(self, gateway: str) -> None:
        """Tells that a gateway serves no more."""
        with translated_errors():
            await self._client.hdel(self._names.gateways, gateway)

    async def wait_for_gateways(self, epoch: Epoch) -> int:
        """Gateways that obeyed an epoch, once none is left that might not have.

        One that does not answer is waited for until its memory has ended by itself.
        """
        deadline = time.monotonic() + GATEWAY_LEASE_S
        while True:
            obeyed, late = await self._count_gateways(epoch)
            if not late or time.monotonic() > deadline:
                return obeyed
            await asyncio.sleep(_ASK_AGAIN_S)

    async def announcements_after(self, seen: Epoch) -> list[Announcement] | None:
        """What was announced after an epoch, or None if that is not known any more."""
        with translated_errors():
            pipeline = self._client.pipeline(transaction=True)
            pipeline.hmget(self._names.epochs, "@inc", "@epoch")
            pipeline.xrange(self._names.announcements, min=f"({seen.number}-0")
            (incarnation, number), entries = await pipeline.execute()
        if incarnation is None or incarnation.decode() != seen.incarnation:
            return None
        found = [_announcement(entry) for entry in entries]
        # Every epoch is announced once: a gap is what was trimmed, or an older table.
        if len(found) != int(number) - seen.number:
            return None
        return found

    async def next_announcements(self, seen: Epoch, timeout_s: float) -> None:
        """Returns when something was announced after an epoch, or after the timeout."""
        with translated_errors():
            await self._client.xread(
                {self._names.announcements: f"{seen.number}-0"},
                count=1,
                block=max(1, round(timeout_s * 1e3)),
            )

    async def _count_gateways(self, epoch: Epoch) -> tuple[int, int]:
        with translated_errors():
            pipeline = self._client.pipeline(transaction=False)
            pipeline.hgetall(self._names.gateways)
            pipeline.hget(self._names.epochs, "@born")
            pipeline.time()
            stored, born_ms, (seconds, microseconds) = await pipeline.execute()
        now_s = seconds + microseconds / 1e6
        # A young table knows not yet which gateways served before it was lost.
        late = int(now_s - int(born_ms or 0) / 1e3 < GATEWAY_LEASE_S)
        obeyed = 0
        gone = []
        for gateway, told in stored.items():
            told_ms, incarnation, number = told.decode().split(":")
            silent_s = now_s - int(told_ms) / 1e3
            if silent_s >= _FORGET_GATEWAY_S:
                gone.append(gateway)
            if silent_s >= GATEWAY_LEASE_S:
                continue
            has_obeyed = incarnation == epoch.incarnation and int(number) >= epoch.number
            obeyed += has_obeyed
            late += not has_obeyed
        if gone:  # they were killed, or they would have taken their leave
            with translated_errors():
                await self._client.hdel(self._names.gateways, *gone)
        return obeyed, late


def _announcement(entry: tuple[bytes, dict[bytes, bytes]]) -> Announcement:
    number, fields = entry
    epoch = Epoch(fields[b"inc"].decode(), int(number.partition(b"-")[0]))
    return Announcement(epoch, tuple(fields[b"tags"].decode().split()))
