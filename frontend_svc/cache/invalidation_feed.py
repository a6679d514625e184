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

from frontend_svc.cache.gateway_tier import ProgramTier
from kernelfarm.cache import Announcement, Epoch, KernelCache
from kernelfarm.cache.epochs import GATEWAY_LEASE_S
from kernelfarm.end_task import end_task
from kernelfarm.errors import UnavailableError
from kernelfarm.service.logs.logger import get_logger

# Shorter than others wait for a gateway that does not answer, by room for the clocks' drift.
_SURE_S = GATEWAY_LEASE_S - 1.0
_TURN_S = 0.5
_PAUSE_S = 0.2
# A watcher that does not read loses its place and must resume.
_MAX_WAITING = 1000


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

    def __init__(self, cache: KernelCache, tier: ProgramTier, name: str) -> None:
        self._cache = cache
        self._tier = tier
        self._name = name
        self._seen: Epoch | None = None
        self._watchers: set[asyncio.Queue[FeedEvent]] = set()
        self._is_draining = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to follow."""
        self._cache.follow_lost(self._tier.drop_naming)
        self._task = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """Stops to follow; the memory may serve no more."""
        self._tier.be_sure_until(float("-inf"))
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
        queue: asyncio.Queue[FeedEvent] = asyncio.Queue(_MAX_WAITING)
        self._watchers.add(queue)
        try:
            told = await self._cache.epochs.current()
            if resumed is not None and resumed != told:
                async for event in self._past(resumed):
                    told = event.epoch
                    yield event
            yield FeedEvent(told)
            while True:
                event = await queue.get()
                if queue not in self._watchers:
                    why = "this gateway ends" if self._is_draining else "this watcher is too slow"
                    raise UnavailableError(f"{why}; resume with the last token")
                is_old = (
                    event.epoch.incarnation == told.incarnation and event.epoch.number < told.number
                )
                if is_old or (event.tags and event.epoch == told):
                    continue
                told = event.epoch
                yield event
        finally:
            self._watchers.discard(queue)

    async def _past(self, resumed: Epoch) -> AsyncIterator[FeedEvent]:
        past = await self._cache.epochs.announcements_after(resumed)
        if past is None:
            yield FeedEvent(await self._cache.epochs.current(), is_flush=True)
            return
        for announcement in past:
            yield FeedEvent(announcement.epoch, announcement.tags)

    async def _follow(self) -> None:
        while True:
            try:
                await self._turn()
            except UnavailableError as error:
                get_logger().warning("invalidations_not_followed", message=str(error))
                await asyncio.sleep(_PAUSE_S)

    async def _turn(self) -> None:
        epochs = self._cache.epochs
        if self._seen is None:
            self._seen = await epochs.current()
            self._flush(self._seen)
        asked_s = time.monotonic()
        present = await epochs.obeyed(self._name, self._seen)
        if present != self._seen:
            await self._catch_up(self._seen, present)
            return
        self._tier.be_sure_until(asked_s + _SURE_S)
        self._tell(FeedEvent(present))
        await self._count_hits()
        await self._check_last(present)
        await epochs.next_announcements(self._seen, _TURN_S)

    async def _catch_up(self, seen: Epoch, present: Epoch) -> None:
        past = await self._cache.epochs.announcements_after(seen)
        if past is None:
            self._flush(present)
            return
        for announcement in past:
            self._obey(announcement)

    def _obey(self, announcement: Announcement) -> None:
        self._tier.obey(announcement)
        self._seen = announcement.epoch
        self._tell(FeedEvent(announcement.epoch, announcement.tags))

    def _flush(self, epoch: Epoch) -> None:
        self._tier.flush()
        self._seen = epoch
        self._tell(FeedEvent(epoch, is_flush=True))

    def _tell(self, event: FeedEvent) -> None:
        for queue in list(self._watchers):
            if queue.full():
                self._watchers.discard(queue)
            else:
                queue.put_nowait(event)

    async def _count_hits(self) -> None:
        hits, self._tier.hits = self._tier.hits, 0
        if hits:
            await self._cache.count("gateway_hits", hits)

    async def _check_last(self, seen: Epoch) -> None:
        """Compares the program that was served last with what the store holds of it."""
        served, self._tier.last_served = self._tier.last_served, None
        if served is not None:
            checker, key, tags = served
            await checker.check_again(key, tags, seen)
