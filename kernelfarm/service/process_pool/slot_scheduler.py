"""Which job runs next: turns among tenants, and heavy jobs apart from light ones.

A job of a large message is heavy; any other one begins in the light lane, and is heavy once it has
used a quarter of a second of processor time. If others wait for the light lane, it then goes on in
the heavy lane, at a lower priority; if that is full too, it is ended and begins again when the
heavy lane has room for it. So whoever sends small graphs waits for a fraction of a second, whatever
others send.

While others call, jobs of a tenant whose latest ones were mostly heavy begin in the heavy lane: a
job that is ended and begins again costs a process.

Within a lane free slots go to tenants in turn. A tenant that used much processor time lately leaves
one light slot free while others call, and its light jobs have the heavy ones' priority. A tenant
without a heavy job gets a slot from one that has two: its youngest is ended, and begins again
later. A tenant's last heavy job is never ended for others, so each makes progress.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

from kernelfarm.errors import FarmFullError
from kernelfarm.service.process_pool.usage import Habits, Usage
from kernelfarm.service.recent_callers import RecentCallers

_RETRY_AFTER_S = 1.0


class SlotRequest:
    """One job's place: where it runs, what it has used, and whether it must give way."""

    def __init__(self, tenant: str) -> None:
        loop = asyncio.get_running_loop()
        self.tenant = tenant
        self.is_heavy = False
        self.used_s = 0.0
        self.queue: SlotQueue | None = None
        self.granted: asyncio.Future[None] = loop.create_future()
        self.preempted: asyncio.Future[None] = loop.create_future()

    def preempt(self) -> None:
        """Tells the job to give way."""
        if not self.preempted.done():
            self.preempted.set_result(None)


class SlotQueue:
    """Slots of one kind, and who waits for them: tenant after tenant, each in order."""

    def __init__(self, slots: int, may_enter: Callable[[str], bool] = lambda tenant: True) -> None:
        self.slots = slots
        self._may_enter = may_enter
        self.running: list[SlotRequest] = []
        self._waiting: dict[str, deque[SlotRequest]] = {}

    @property
    def is_full(self) -> bool:
        """True if no slot is free."""
        return len(self.running) >= self.slots

    @property
    def has_waiting(self) -> bool:
        """True if somebody waits."""
        return bool(self._waiting)

    def waiting_of(self, tenant: str) -> int:
        """How many jobs of a tenant wait."""
        return len(self._waiting.get(tenant, ()))

    def tenants_waiting(self) -> Iterator[str]:
        """Tenants that wait, in the order of their turns."""
        return iter(tuple(self._waiting))

    def running_of(self, tenant: str) -> list[SlotRequest]:
        """The jobs of a tenant that run, in the order of their start."""
        return [request for request in self.running if request.tenant == tenant]

    def add(self, request: SlotRequest) -> None:
        """Lets a job wait."""
        self._waiting.setdefault(request.tenant, deque()).append(request)

    def drop(self, request: SlotRequest) -> None:
        """A job waits no longer."""
        waiting = self._waiting.get(request.tenant)
        if waiting is not None and request in waiting:
            waiting.remove(request)
            if not waiting:
                del self._waiting[request.tenant]

    def serve(self) -> None:
        """Gives free slots to the first of each tenant, one tenant after the other."""
        while not self.is_full:
            tenant = next(filter(self._may_enter, self._waiting), None)
            if tenant is None:
                return
            waiting = self._waiting.pop(tenant)
            request = waiting.popleft()
            if waiting:
                self._waiting[tenant] = waiting  # now the last in turn
            if not request.granted.done():  # its caller may have been cancelled a moment ago
                self.enter(request)
                request.granted.set_result(None)

    def enter(self, request: SlotRequest) -> None:
        """A job runs here."""
        request.queue = self
        self.running.append(request)


class SlotScheduler:
    """Both lanes of a pool."""

    def __init__(self, slots: int, max_waiting: int, heavy_after_s: float = 0.25) -> None:
        self.light = SlotQueue(slots, self._may_enter_light)
        self.heavy = SlotQueue(slots)
        self._max_waiting = max_waiting
        self._heavy_after_s = heavy_after_s
        self._usage = Usage()
        self._habits = Habits()
        self._callers = RecentCallers()

    async def enter(self, request: SlotRequest) -> None:
        """Waits for a slot.

        Raises:
            FarmFullError: too many jobs of this tenant wait.
        """
        self._callers.note(request.tenant, _now_s())
        if self._habits.are_heavy(request.tenant) and self.must_stand_back(request.tenant):
            request.is_heavy = True
        queue = self.heavy if request.is_heavy else self.light
        waiting = self.light.waiting_of(request.tenant) + self.heavy.waiting_of(request.tenant)
        if waiting >= self._max_waiting:
            error = FarmFullError(
                f"{waiting} pieces of work of this tenant wait for a process, the limit"
            )
            error.retry_after_s = _RETRY_AFTER_S
            raise error
        queue.add(request)
        self._settle()
        try:
            await request.granted
        except BaseException:
            self.leave(request)
            raise

    def leave(self, request: SlotRequest) -> None:
        """A job has ended, or waits no longer."""
        if request.queue is not None:
            request.queue.running.remove(request)
            request.queue = None
            self._usage.charge(request.tenant, request.used_s, _now_s())
            self._habits.note(request.tenant, was_heavy=request.used_s >= self._heavy_after_s)
        else:
            self.light.drop(request)
            self.heavy.drop(request)
        self._settle()

    def mark_heavy(self, request: SlotRequest) -> None:
        """A job has used as much as makes it heavy."""
        request.is_heavy = True
        self._settle()

    def _settle(self) -> None:
        self.heavy.serve()
        self.light.serve()
        if self.light.has_waiting:
            self._move_heavy_jobs()
        if self.heavy.has_waiting:
            self._preempt_for_waiting_tenants()

    def must_stand_back(self, tenant: str) -> bool:
        """True if a tenant used much processor time lately, and others call."""
        now_s = _now_s()
        is_busy = bool(self.heavy.running_of(tenant)) or self._usage.is_much(tenant, now_s)
        return is_busy and self._callers.has_others(tenant, now_s)

    def _may_enter_light(self, tenant: str) -> bool:
        """False if this tenant has to leave the last light slot to others."""
        if len(self.light.running) + 1 < max(2, self.light.slots):
            return True
        return not self.must_stand_back(tenant)

    def _move_heavy_jobs(self) -> None:
        """Moves heavy jobs out of the light lane, where somebody waits."""
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
        """Ends one of a tenant's several heavy jobs where a tenant that has none waits."""
        preempted = [request for request in self.heavy.running if request.preempted.done()]
        for tenant in self.heavy.tenants_waiting():
            if preempted:  # its slot is on the way
                preempted.pop()
            elif not self.heavy.running_of(tenant):
                several = [t for t in self.heavy.running if len(self._not_preempted(t.tenant)) > 1]
                if several:
                    several[-1].preempt()

    def _not_preempted(self, tenant: str) -> list[SlotRequest]:
        return [t for t in self.heavy.running_of(tenant) if not t.preempted.done()]


def _now_s() -> float:
    return asyncio.get_running_loop().time()
