"""A fair queue: the tenant that used the workers least recently may send the next job.

A queue's messages are served in order, so a flood of one tenant's jobs would delay all others.
Therefore few jobs are sent at a time, each counts until it has ended, and the others wait here. If
the workers of a queue have `slots` processes, four limits hold:

- all jobs together: two for each slot, so that a worker that ends a job finds the next one;
- jobs of one tenant, while another was active within the last minute: all slots but one, so that
  the next tenant finds a free slot at once;
- jobs of slow kernels: all slots but one, so that quick kernels never wait only for slow ones;
- warm-up jobs: half of all jobs, or all slots but one while other jobs were active within the last
  minute; they are served when no other job waits.

With one slot there is none to keep free. Kernels of warm-ups compile at a lower priority. So do
those of a tenant that used much, and more than the other active tenants. A tenant's
usage is the time that its jobs ran; it decays with a half-life of one minute.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

_HALF_LIFE_S = 60.0
_ACTIVE_S = 60.0
_REMEMBERED_TENANTS = 1024
_MUCH_S = 1.0


@dataclass(frozen=True, slots=True)
class JobClass:
    """The tenant of a job, and its kind."""

    tenant: str
    is_warm_up: bool = False
    is_slow: bool = False


@dataclass(slots=True)
class Permit:
    """The right to have one job, or one group of small jobs, in the queue."""

    job_class: JobClass
    clock: Callable[[], float]
    begun_s: float | None = None

    def begin(self, ran_s: float = 0.0) -> None:
        """Starts the time of its jobs, for which their tenant is charged.

        `ran_s`: for how long they have run when the edge notices that a worker took them.
        """
        self.begun_s = self.clock() - ran_s

    @property
    def spent_s(self) -> float:
        """For how long its jobs ran."""
        return 0.0 if self.begun_s is None else self.clock() - self.begun_s


@dataclass(slots=True)
class _UsageAccount:
    """A tenant's usage at a time."""

    used_s: float = 0.0
    at_s: float = 0.0

    def at(self, now_s: float) -> float:
        return self.used_s * math.pow(0.5, (now_s - self.at_s) / _HALF_LIFE_S)


class FairQueue:
    """The permits of one queue.

    `slots` gives the number of worker processes now, `max_sent` the most jobs that may be sent.
    """

    def __init__(
        self,
        slots: Callable[[], int],
        max_sent: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slots = slots
        self._max_sent = max_sent
        self._clock = clock
        self._held: Counter[JobClass] = Counter()
        self._waiting_by_class: dict[JobClass, deque[asyncio.Future[None]]] = {}
        self._accounts: dict[str, _UsageAccount] = {}
        self._interactive_s = float("-inf")

    @property
    def waiting(self) -> int:
        """The number of jobs that wait for a permit."""
        return sum(len(queue) for queue in self._waiting_by_class.values())

    @property
    def sent(self) -> int:
        """The number of jobs that hold a permit."""
        return self._held.total()

    def must_wait(self, job_class: JobClass) -> bool:
        """True if a job of this class would have to wait now."""
        return bool(self._waiting_by_class) or not self._may_send(job_class)

    def used_s(self, tenant: str) -> float:
        """The decayed time that a tenant's jobs ran."""
        account = self._accounts.get(tenant)
        return 0.0 if account is None else account.at(self._clock())

    def must_stand_back(self, tenant: str) -> bool:
        """True if a tenant's kernels should compile at a lower priority.

        Its jobs ran longer than a few small ones, and at least as long as those of the active
        tenants on average.
        """
        used_s = self.used_s(tenant)
        if used_s <= _MUCH_S or not self._is_another_active(tenant):
            return False
        since_s = self._clock() - _ACTIVE_S
        active = [self.used_s(name) for name, a in self._accounts.items() if a.at_s >= since_s]
        return used_s >= sum(active) / max(1, len(active))

    @asynccontextmanager
    async def permit(self, job_class: JobClass) -> AsyncIterator[Permit]:
        """Holds a permit while the block runs; waits for it behind earlier jobs of its class."""
        await self._acquire(job_class)
        permit = Permit(job_class, self._clock)
        try:
            yield permit
        finally:
            if not job_class.is_warm_up:
                self._charge(job_class.tenant, permit.spent_s)
            self._release(job_class)

    async def _acquire(self, job_class: JobClass) -> None:
        if not job_class.is_warm_up:  # else a warm-up would take slots from the tenants
            self._charge(job_class.tenant, 0.0)
            self._interactive_s = self._clock()
        if not self._waiting_by_class and self._may_send(job_class):
            self._held[job_class] += 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting_by_class.setdefault(job_class, deque()).append(waiter)
        self._serve()  # it may overtake jobs that wait, and slots may have been added
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._release(job_class)
            else:
                self._cancel_wait(job_class, waiter)
            raise

    def _release(self, job_class: JobClass) -> None:
        self._held[job_class] -= 1
        if not self._held[job_class]:
            del self._held[job_class]
        self._serve()

    def _charge(self, tenant: str, spent_s: float) -> None:
        now_s = self._clock()
        used_s = self.used_s(tenant)
        self._accounts.pop(tenant, None)  # the order is by last activity
        self._accounts[tenant] = _UsageAccount(used_s + spent_s, now_s)
        while len(self._accounts) > _REMEMBERED_TENANTS:
            del self._accounts[next(iter(self._accounts))]

    def _may_send(self, job_class: JobClass) -> bool:
        max_sent = max(1, self._max_sent())
        all_but_one = max(1, self._slots() - 1)
        of_tenant = all_but_one if self._is_another_active(job_class.tenant) else max_sent
        bounds = (
            (max_sent, lambda held: True),
            (of_tenant, lambda held: held.tenant == job_class.tenant),
            (all_but_one if job_class.is_slow else max_sent, lambda held: held.is_slow),
            (
                self._most_warm_ups(max_sent) if job_class.is_warm_up else max_sent,
                lambda held: held.is_warm_up,
            ),
        )
        return all(
            sum(count for held, count in self._held.items() if is_meant(held)) < bound
            for bound, is_meant in bounds
        )

    def _most_warm_ups(self, max_sent: int) -> int:
        """The most warm-up jobs in the queue: one slot stays free while users call."""
        half = max(1, max_sent // 2)
        if self._clock() - self._interactive_s > _ACTIVE_S:
            return half
        return min(half, max(1, self._slots() - 1))

    def _is_another_active(self, tenant: str) -> bool:
        since_s = self._clock() - _ACTIVE_S
        return any(
            name != tenant and account.at_s >= since_s for name, account in self._accounts.items()
        )

    def _serve(self) -> None:
        """Gives permits: interactive jobs before warm-up, then by least usage of the tenant."""
        while self._waiting_by_class:
            allowed = [
                job_class for job_class in self._waiting_by_class if self._may_send(job_class)
            ]
            if not allowed:
                return
            job_class = min(allowed, key=lambda c: (c.is_warm_up, self.used_s(c.tenant)))
            queue = self._waiting_by_class.pop(job_class)
            called = queue.popleft()
            if queue:
                self._waiting_by_class[job_class] = queue  # now last, so that equals alternate
            if not called.done():
                self._held[job_class] += 1
                called.set_result(None)

    def _cancel_wait(self, job_class: JobClass, waiter: asyncio.Future[None]) -> None:
        queue = self._waiting_by_class.get(job_class, deque())
        if waiter in queue:
            queue.remove(waiter)
        if not queue:
            self._waiting_by_class.pop(job_class, None)
