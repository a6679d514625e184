"""Decides which job runs next: round robin among tenants, with separate slots for heavy jobs.

A job with a large message is heavy. Any other job starts in a light slot, and becomes heavy once it
has used a quarter of a second of processor time. If others then wait for a light slot, it moves to
a heavy slot, with a lower priority. If no heavy slot is free, it is preempted: it is ended, and
starts again when a heavy slot is free. Small graphs therefore wait for a fraction of a second,
whatever others send.

While others call, jobs of a tenant whose latest jobs were mostly heavy start in heavy slots,
because a preemption costs a process.

Each queue gives free slots to tenants round robin. While others call, a tenant that used much
processor time recently leaves one light slot free, and its light jobs run with the priority of
heavy ones. If a tenant without a heavy job waits, the youngest heavy job of a tenant that has
several is preempted. A tenant's last heavy job is never preempted for others, so each tenant makes
progress.

Warm-up jobs are heavy from the start. They run in heavy slots that no other job waits for, and are
preempted if one does. They count neither as calls nor as usage of their tenant.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

from kernelfarm.errors import FarmFullError
from kernelfarm.service.process_pool.usage import HeavyShares, ProcessorUsage
from kernelfarm.service.recent_callers import RecentCallers

_RETRY_AFTER_S = 1.0


class SlotRequest:
    """One job's request for a slot: its queue, what it has used, and whether it is preempted."""

    def __init__(self, tenant: str, *, is_warm_up: bool = False) -> None:
        loop = asyncio.get_running_loop()
        self.tenant = tenant
        self.is_warm_up = is_warm_up
        self.is_heavy = is_warm_up
        self.used_s = 0.0
        self.queue: SlotQueue | None = None
        self.granted: asyncio.Future[None] = loop.create_future()
        self.preempted: asyncio.Future[None] = loop.create_future()

    def preempt(self) -> None:
        """Asks the job to end and to start again later."""
        if not self.preempted.done():
            self.preempted.set_result(None)


class SlotQueue:
    """The slots of one kind, and the requests that wait for them, in order for each tenant."""

    def __init__(self, slots: int, may_enter: Callable[[str], bool] = lambda tenant: True) -> None:
        self.slots = slots
        self._may_enter = may_enter
        self.running: list[SlotRequest] = []
        self._waiting: dict[str, deque[SlotRequest]] = {}
        self._warm_ups: deque[SlotRequest] = deque()

    @property
    def is_full(self) -> bool:
        """True if no slot is free."""
        return len(self.running) >= self.slots

    @property
    def has_waiting(self) -> bool:
        """True if a request waits that is no warm-up."""
        return bool(self._waiting)

    def waiting_of(self, tenant: str) -> int:
        """The number of waiting requests of a tenant, warm-ups left out."""
        return len(self._waiting.get(tenant, ()))

    @property
    def warm_ups_waiting(self) -> int:
        """The number of waiting warm-up requests of all tenants."""
        return len(self._warm_ups)

    def tenants_waiting(self) -> Iterator[str]:
        """The tenants with waiting requests, in the order in which they get slots."""
        return iter(tuple(self._waiting))

    def running_of(self, tenant: str) -> list[SlotRequest]:
        """The running jobs of a tenant, in the order of their start."""
        return [request for request in self.running if request.tenant == tenant]

    def add(self, request: SlotRequest) -> None:
        """Adds a request that waits."""
        if request.is_warm_up:
            self._warm_ups.append(request)
            return
        self._waiting.setdefault(request.tenant, deque()).append(request)

    def drop(self, request: SlotRequest) -> None:
        """Removes a request that no longer waits."""
        if request in self._warm_ups:
            self._warm_ups.remove(request)
        waiting = self._waiting.get(request.tenant)
        if waiting is not None and request in waiting:
            waiting.remove(request)
            if not waiting:
                del self._waiting[request.tenant]

    def serve(self) -> None:
        """Gives free slots to the first requests of tenants, round robin; then to warm-ups."""
        while not self.is_full:
            tenant = next(filter(self._may_enter, self._waiting), None)
            if tenant is None:
                break
            waiting = self._waiting.pop(tenant)
            request = waiting.popleft()
            if waiting:
                self._waiting[tenant] = waiting  # now the last tenant
            self._grant(request)
        while self._warm_ups and not self._waiting and not self.is_full:
            self._grant(self._warm_ups.popleft())

    def _grant(self, request: SlotRequest) -> None:
        if not request.granted.done():  # its caller may have been cancelled
            self.enter(request)
            request.granted.set_result(None)

    def enter(self, request: SlotRequest) -> None:
        """Gives a slot to a job."""
        request.queue = self
        self.running.append(request)


class SlotScheduler:
    """The light and the heavy slots of a pool."""

    def __init__(self, slots: int, max_waiting: int, heavy_after_s: float = 0.25) -> None:
        self.light = SlotQueue(slots, self._may_enter_light)
        self.heavy = SlotQueue(slots)
        self._max_waiting = max_waiting
        self._heavy_after_s = heavy_after_s
        self._usage = ProcessorUsage()
        self._heavy_shares = HeavyShares()
        self._callers = RecentCallers()

    async def enter(self, request: SlotRequest) -> None:
        """Waits for a slot.

        Raises:
            FarmFullError: too many jobs of this tenant wait.
        """
        if request.is_warm_up:
            self._check_waiting(self.heavy.warm_ups_waiting, "warm-up jobs")
            await self._wait_in(self.heavy, request)
            return
        self._callers.note(request.tenant, _now_s())
        if self._heavy_shares.is_mostly_heavy(request.tenant) and self.must_stand_back(
            request.tenant
        ):
            request.is_heavy = True
        queue = self.heavy if request.is_heavy else self.light
        waiting = self.light.waiting_of(request.tenant) + self.heavy.waiting_of(request.tenant)
        self._check_waiting(waiting, "jobs of this tenant")
        await self._wait_in(queue, request)

    def _check_waiting(self, waiting: int, what: str) -> None:
        if waiting >= self._max_waiting:
            error = FarmFullError(
                f"{waiting} {what} wait for a process, the limit; retry after the delay"
            )
            error.retry_after_s = _RETRY_AFTER_S
            raise error

    async def _wait_in(self, queue: SlotQueue, request: SlotRequest) -> None:
        queue.add(request)
        self._settle()
        try:
            await request.granted
        except BaseException:
            self.leave(request)
            raise

    def leave(self, request: SlotRequest) -> None:
        """Records that a job has ended, or no longer waits."""
        if request.queue is not None:
            request.queue.running.remove(request)
            request.queue = None
            if not request.is_warm_up:
                was_heavy = request.used_s >= self._heavy_after_s
                self._usage.charge(request.tenant, request.used_s, _now_s())
                self._heavy_shares.note(request.tenant, was_heavy=was_heavy)
        else:
            self.light.drop(request)
            self.heavy.drop(request)
        self._settle()

    def mark_heavy(self, request: SlotRequest) -> None:
        """Records that a job has become heavy."""
        request.is_heavy = True
        self._settle()

    def _settle(self) -> None:
        self.heavy.serve()
        self.light.serve()
        if self.light.has_waiting:
            self._move_heavy_jobs()
        if self.heavy.has_waiting and not self._preempt_warm_up():
            self._preempt_for_waiting_tenants()

    def must_stand_back(self, tenant: str) -> bool:
        """True if a tenant used much processor time recently, and others call."""
        now_s = _now_s()
        is_busy = bool(self.heavy.running_of(tenant)) or self._usage.is_much(tenant, now_s)
        return is_busy and self._callers.has_others(tenant, now_s)

    def _may_enter_light(self, tenant: str) -> bool:
        """False if the tenant must leave the last free light slot to others."""
        if len(self.light.running) + 1 < max(2, self.light.slots):
            return True
        return not self.must_stand_back(tenant)

    def _preempt_warm_up(self) -> bool:
        """Preempts the youngest warm-up job; False if none runs that was not preempted before."""
        running = [r for r in self.heavy.running if r.is_warm_up and not r.preempted.done()]
        if running:
            running[-1].preempt()
        return bool(running)

    def _move_heavy_jobs(self) -> None:
        """Moves heavy jobs out of the light slots, for which others wait."""
        for request in tuple(self.light.running):
            if not request.is_heavy:
                continue
            if self.heavy.is_full:
                request.preempt()
                continue
            self.light.running.remove(request)
            self.heavy.enter(request)
        self.light.serve()

    def _preempt_for_waiting_tenants(self) -> None:
        """Preempts a heavy job of a tenant with several, if a tenant without one waits."""
        preempted = [request for request in self.heavy.running if request.preempted.done()]
        for tenant in self.heavy.tenants_waiting():
            if preempted:  # its slot will be free soon
                preempted.pop()
            elif not self.heavy.running_of(tenant):
                several = [r for r in self.heavy.running if len(self._not_preempted(r.tenant)) > 1]
                if several:
                    several[-1].preempt()

    def _not_preempted(self, tenant: str) -> list[SlotRequest]:
        return [r for r in self.heavy.running_of(tenant) if not r.preempted.done()]


def _now_s() -> float:
    return asyncio.get_running_loop().time()
