"""Follows the announcements of invalidations for this gateway: its memory, and who watches.

Each turn tells Redis how far this gateway has obeyed and asks for the present epoch. While they
agree, the gateway may serve from its memory for a moment longer; whoever invalidates waits until
every gateway has obeyed, or until the time of those that do not answer has passed. So no gateway
serves what was invalidated once that call has returned. Each turn checks that on one program, by
asking the store for it: `stale_serves` counts what should not have been served, and must stay 0.
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

# Shorter than others wait for a gateway that does not answer, by room for the clocks' drift.
_MEMORY_LEASE_S = GATEWAY_LEASE_S - 1.0
_POLL_S = 0.5
_PAUSE_S = 0.2
# A watcher that does not read loses its place and must resume.
_MAX_QUEUED_EVENTS = 1000


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """What a watcher is told: obey, flush, or (without either) that nothing was missed."""

    epoch: Epoch
    tags: tuple[str, ...] = ()
    is_flush: bool = False


# What wakes watchers up to see that they are none any more.
_END = FeedEvent(Epoch("", 0))


class InvalidationFeed:
    """One for the whole service; `name` is the gateway's own."""

    def __init__(self, cache: KernelCache, tier: GatewayTier, name: str) -> None:
        self._cache = cache
        self._tier = tier
        self._name = name
        self._applied: Epoch | None = None
        self._watchers: set[asyncio.Queue[FeedEvent]] = set()
        self._is_draining = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to follow."""
        self._cache.on_missing_blob(self._tier.drop_referencing)
        self._task = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """Stops to follow; the memory may serve no more."""
        self._tier.set_lease_end(float("-inf"))
        if self._task is not None:
            await end_task(self._task)
        with suppress(UnavailableError):  # then its lease lapses
            await self._cache.epochs.leave(self._name)

    def end_watches(self) -> None:
        """Ends all watches: this gateway drains, and they go on at another."""
        self._is_draining = True
        for queue in self._watchers:
            if not queue.full():
                queue.put_nowait(_END)
        self._watchers.clear()

    async def watch(self, resumed: Epoch | None) -> AsyncGenerator[FeedEvent]:
        """Events after an epoch, those of the past first; of an unknown past it is a flush.

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
                    why = "this gateway ends" if self._is_draining else "this watcher is too slow"
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
        for announcement in past:
            yield FeedEvent(announcement.epoch, announcement.tags)

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
        asked_s = time.monotonic()
        present = await epochs.acknowledge(self._name, self._applied)
        if present != self._applied:
            await self._catch_up(self._applied, present)
            return
        self._tier.set_lease_end(asked_s + _MEMORY_LEASE_S)
        self._publish(FeedEvent(present))
        await self._count_hits()
        await self._verify_last_served(present)
        await epochs.wait_for_invalidation(self._applied, _POLL_S)

    async def _catch_up(self, seen: Epoch, present: Epoch) -> None:
        past = await self._cache.epochs.invalidations_after(seen)
        if past is None:
            self._flush(present)
            return
        for announcement in past:
            self._apply(announcement)

    def _apply(self, announcement: InvalidationRecord) -> None:
        self._tier.apply_invalidation(announcement)
        self._applied = announcement.epoch
        self._publish(FeedEvent(announcement.epoch, announcement.tags))

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
        hits, self._tier.hits = self._tier.hits, 0
        if hits:
            await self._cache.count("gateway_hits", hits)

    async def _verify_last_served(self, seen: Epoch) -> None:
        """Compares the program that was served last with what the store holds of it."""
        served, self._tier.last_served = self._tier.last_served, None
        if served is not None:
            checker, key, tags = served
            await checker.verify_against_store(key, tags, seen)
