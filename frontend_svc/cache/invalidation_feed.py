"""Follows the log of invalidations for this gateway: for its memory tier and for watchers.

In a loop, this gateway acknowledges the last epoch that it has applied and reads the present epoch.
If both are equal, its memory lease is extended. A call of Invalidate waits until every gateway has
acknowledged the new epoch, or until the memory leases of the others have expired. So no gateway
serves an invalidated program after that call has returned. Each iteration checks this with one
program, by a look-up in the store: `stale_serves` counts violations and must stay 0.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

from frontend_svc.cache.gateway_tier import GatewayTier
from kernelfarm.cache import Epoch, InvalidationRecord, KernelCache
from kernelfarm.cache.epochs import GATEWAY_LEASE_S
from kernelfarm.end_task import end_task
from kernelfarm.errors import UnavailableError
from kernelfarm.service.logs.logger import get_logger

# Shorter than the wait for a gateway that does not answer, by a margin for the drift of clocks.
_MEMORY_LEASE_S = GATEWAY_LEASE_S - 1.0
_POLL_S = 0.5
_PAUSE_S = 0.2
# A watcher that does not read is removed, and must resume.
_MAX_QUEUED_EVENTS = 1000


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """An invalidation of tags, a flush, or (without either) a sign that nothing was missed."""

    epoch: Epoch
    tags: tuple[str, ...] = ()
    is_flush: bool = False


# Wakes watchers that were removed.
_END = FeedEvent(Epoch("", 0))


class InvalidationFeed:
    """The feed of one gateway; `name` is the name of the gateway."""

    def __init__(self, cache: KernelCache, tier: GatewayTier, name: str) -> None:
        self._cache = cache
        self._tier = tier
        self._name = name
        self._applied: Epoch | None = None
        self._watchers: set[asyncio.Queue[FeedEvent]] = set()
        self._is_draining = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts following the log."""
        self._cache.on_missing_blob(self._tier.drop_referencing)
        self._task = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """Stops following the log; the memory tier may not serve any more."""
        self._tier.set_lease_end(float("-inf"))
        if self._task is not None:
            await end_task(self._task)
        with suppress(UnavailableError):  # then the lease of the gateway expires
            await self._cache.epochs.leave(self._name)

    def end_watches(self) -> None:
        """Ends all watches, because this gateway drains; watchers continue at another gateway."""
        self._is_draining = True
        for queue in self._watchers:
            if not queue.full():
                queue.put_nowait(_END)
        self._watchers.clear()

    async def watch(self, resumed: Epoch | None) -> AsyncGenerator[FeedEvent]:
        """Events after an epoch, past ones first; if the past is unknown, a flush.

        Raises:
            UnavailableError: the past cannot be read, or this watcher is too slow.
        """
        queue: asyncio.Queue[FeedEvent] = asyncio.Queue(_MAX_QUEUED_EVENTS)
        self._watchers.add(queue)
        try:
            sent = await self._cache.epochs.current()
            if resumed is not None and resumed != sent:
                async for event in self._past(resumed):
                    sent = event.epoch
                    yield event
            yield FeedEvent(sent)
            while True:
                event = await queue.get()
                if queue not in self._watchers:
                    why = "this gateway drains" if self._is_draining else "this watcher is too slow"
                    raise UnavailableError(f"{why}; resume with the last token")
                is_old = (
                    event.epoch.incarnation == sent.incarnation and event.epoch.number < sent.number
                )
                if is_old or (event.tags and event.epoch == sent):
                    continue
                sent = event.epoch
                yield event
        finally:
            self._watchers.discard(queue)

    async def _past(self, resumed: Epoch) -> AsyncIterator[FeedEvent]:
        past = await self._cache.epochs.invalidations_after(resumed)
        if past is None:
            yield FeedEvent(await self._cache.epochs.current(), is_flush=True)
            return
        for invalidation in past:
            yield FeedEvent(invalidation.epoch, invalidation.tags)

    async def _follow(self) -> None:
        while True:
            try:
                await self._poll()
            except UnavailableError as error:
                get_logger().warning("invalidation_feed_failed", message=str(error))
                await asyncio.sleep(_PAUSE_S)

    async def _poll(self) -> None:
        epochs = self._cache.epochs
        if self._applied is None:
            self._applied = await epochs.current()
            self._flush(self._applied)
        began_s = time.monotonic()
        present = await epochs.acknowledge(self._name, self._applied)
        if present != self._applied:
            await self._catch_up(self._applied, present)
            return
        self._tier.set_lease_end(began_s + _MEMORY_LEASE_S)
        self._publish(FeedEvent(present))
        await self._count_hits()
        await self._verify_last_served(present)
        await epochs.wait_for_invalidation(self._applied, _POLL_S)

    async def _catch_up(self, seen: Epoch, present: Epoch) -> None:
        past = await self._cache.epochs.invalidations_after(seen)
        if past is None:
            self._flush(present)
            return
        for invalidation in past:
            self._apply(invalidation)

    def _apply(self, invalidation: InvalidationRecord) -> None:
        self._tier.apply_invalidation(invalidation)
        self._applied = invalidation.epoch
        self._publish(FeedEvent(invalidation.epoch, invalidation.tags))

    def _flush(self, epoch: Epoch) -> None:
        self._tier.flush()
        self._applied = epoch
        self._publish(FeedEvent(epoch, is_flush=True))

    def _publish(self, event: FeedEvent) -> None:
        for queue in list(self._watchers):
            if queue.full():
                self._watchers.discard(queue)
            else:
                queue.put_nowait(event)

    async def _count_hits(self) -> None:
        self._tier.record_metrics()
        hits, self._tier.hits = self._tier.hits, 0
        if hits:
            await self._cache.count("gateway_hits", hits)

    async def _verify_last_served(self, seen: Epoch) -> None:
        """Compares the program that was served last with the store."""
        served, self._tier.last_served = self._tier.last_served, None
        if served is not None:
            verifier, key, tags = served
            await verifier.verify_against_store(key, tags, seen)
