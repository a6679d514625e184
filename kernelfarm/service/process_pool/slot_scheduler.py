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


class Ticket:
    """One job's place: where it runs, what it has used, and whether it must give way."""

    def __init__(self, tenant: str) -> None:
        loop = asyncio.get_running_loop()
        self.tenant = tenant
        self.is_heavy = False
        self.used_s = 0.0
        self.lane: Lane | None = None
        self.called: asyncio.Future[None] = loop.create_future()
        self.revoked: asyncio.Future[None] = loop.create_future()

    def revoke(self) -> None:
        """Tells the job to give way."""
        if not self.revoked.done():
            self.revoked.set_result(None)


class Lane:
    """Slots of one kind, and who waits for them: tenant after tenant, each in order."""

    def __init__(self, slots: int, may_enter: Callable[[str], bool] = lambda tenant: True) -> None:
        self.slots = slots
        self._may_enter = may_enter
        self.running: list[Ticket] = []
        self._waiting: dict[str, deque[Ticket]] = {}

    @property
    def is_full(self) -> bool:
        """True if no slot is free."""
        return len(self.running) >= self.slots

    @property
    def is_wanted(self) -> bool:
        """True if somebody waits."""
        return bool(self._waiting)

    def waiting_of(self, tenant: str) -> int:
        """How many jobs of a tenant wait."""
        return len(self._waiting.get(tenant, ()))

    def tenants_waiting(self) -> Iterator[str]:
        """Tenants that wait, in the order of their turns."""
        return iter(tuple(self._waiting))

    def running_of(self, tenant: str) -> list[Ticket]:
        """The jobs of a tenant that run, in the order of their start."""
        return [ticket for ticket in self.running if ticket.tenant == tenant]

    def add(self, ticket: Ticket) -> None:
        """Lets a job wait."""
        self._waiting.setdefault(ticket.tenant, deque()).append(ticket)

    def drop(self, ticket: Ticket) -> None:
        """A job waits no longer."""
        line = self._waiting.get(ticket.tenant)
        if line is not None and ticket in line:
            line.remove(ticket)
            if not line:
                del self._waiting[ticket.tenant]

    def serve(self) -> None:
        """Gives free slots to the first of each tenant, one tenant after the other."""
        while not self.is_full:
            tenant = next(filter(self._may_enter, self._waiting), None)
            if tenant is None:
                return
            line = self._waiting.pop(tenant)
            ticket = line.popleft()
            if line:
                self._waiting[tenant] = line  # now the last in turn
            if not ticket.called.done():  # its caller may have been cancelled a moment ago
                self.enter(ticket)
                ticket.called.set_result(None)

    def enter(self, ticket: Ticket) -> None:
        """A job runs here."""
        ticket.lane = self
        self.running.append(ticket)


class Lanes:
    """Both lanes of a pool."""

    def __init__(self, slots: int, max_waiting: int, heavy_after_s: float = 0.25) -> None:
        self.light = Lane(slots, self._may_enter_light)
        self.heavy = Lane(slots)
        self._max_waiting = max_waiting
        self._heavy_after_s = heavy_after_s
        self._usage = Usage()
        self._habits = Habits()
        self._callers = RecentCallers()

    async def enter(self, ticket: Ticket) -> None:
        """Waits for a slot.

        Raises:
            FarmFullError: too many jobs of this tenant wait.
        """
        self._callers.note(ticket.tenant, _now_s())
        if self._habits.are_heavy(ticket.tenant) and self.must_stand_back(ticket.tenant):
            ticket.is_heavy = True
        lane = self.heavy if ticket.is_heavy else self.light
        waiting = self.light.waiting_of(ticket.tenant) + self.heavy.waiting_of(ticket.tenant)
        if waiting >= self._max_waiting:
            error = FarmFullError(
                f"{waiting} pieces of work of this tenant wait for a process, the limit"
            )
            error.retry_after_s = _RETRY_AFTER_S
            raise error
        lane.add(ticket)
        self._settle()
        try:
            await ticket.called
        except BaseException:
            self.leave(ticket)
            raise

    def leave(self, ticket: Ticket) -> None:
        """A job has ended, or waits no longer."""
        if ticket.lane is not None:
            ticket.lane.running.remove(ticket)
            ticket.lane = None
            self._usage.charge(ticket.tenant, ticket.used_s, _now_s())
            self._habits.note(ticket.tenant, was_heavy=ticket.used_s >= self._heavy_after_s)
        else:
            self.light.drop(ticket)
            self.heavy.drop(ticket)
        self._settle()

    def mark_heavy(self, ticket: Ticket) -> None:
        """A job has used as much as makes it heavy."""
        ticket.is_heavy = True
        self._settle()

    def _settle(self) -> None:
        self.heavy.serve()
        self.light.serve()
        if self.light.is_wanted:
            self._clear_light()
        if self.heavy.is_wanted:
            self._share_heavy()

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

    def _clear_light(self) -> None:
        """Moves heavy jobs out of the light lane, where somebody waits."""
        for ticket in tuple(self.light.running):
            if not ticket.is_heavy:
                continue
            if self.heavy.is_full:
                ticket.revoke()
                continue
            self.light.running.remove(ticket)
            self.heavy.enter(ticket)
        self.light.serve()

    def _share_heavy(self) -> None:
        """Ends one of a tenant's several heavy jobs where a tenant that has none waits."""
        giving = [ticket for ticket in self.heavy.running if ticket.revoked.done()]
        for tenant in self.heavy.tenants_waiting():
            if giving:  # its slot is on the way
                giving.pop()
            elif not self.heavy.running_of(tenant):
                several = [t for t in self.heavy.running if len(self._kept(t.tenant)) > 1]
                if several:
                    several[-1].revoke()

    def _kept(self, tenant: str) -> list[Ticket]:
        return [t for t in self.heavy.running_of(tenant) if not t.revoked.done()]


def _now_s() -> float:
    return asyncio.get_running_loop().time()
