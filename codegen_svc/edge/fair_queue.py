"""Who may send the next job to a queue: whoever used the workers least lately.

A queue's messages are served in their order, so a flood of one tenant would make all others wait
for its end. Therefore few jobs are sent at a time, and each counts until it has ended; the others
wait here. Four bounds hold, where a queue's workers have `slots` processes:

- all jobs together: two for each slot, so that a worker that ends a job finds the next one;
- one tenant's, while another was active within the last minute: all slots but one, so that whoever
  comes next finds a free slot at once;
- kernels that take long: all slots but one, so that quick ones never wait for them alone;
- warm-up: half of all jobs; it is served when nobody else waits.

With one slot there is none to keep free. Whoever used much, and more than the others that are
active, has its compilations run at a lower priority. A tenant's use is the time that its jobs ran;
half of it is forgotten in a minute.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

_FORGETS_HALF_IN_S = 60.0
_ACTIVE_S = 60.0
_REMEMBERED_TENANTS = 1024
_MUCH_S = 1.0


@dataclass(frozen=True, slots=True)
class Claim:
    """Whose job it is, and of which kind."""

    tenant: str
    is_warm_up: bool = False
    is_slow: bool = False


@dataclass(slots=True)
class Turn:
    """A job that was let through."""

    claim: Claim
    clock: Callable[[], float]
    begun_s: float | None = None

    def begin(self) -> None:
        """Tells that a worker took the job: from now on it is charged."""
        self.begun_s = self.clock()

    @property
    def spent_s(self) -> float:
        """For how long it ran."""
        return 0.0 if self.begun_s is None else self.clock() - self.begun_s


@dataclass(slots=True)
class _Account:
    """What a tenant used, as of a time."""

    used_s: float = 0.0
    at_s: float = 0.0

    def at(self, now_s: float) -> float:
        return self.used_s * math.pow(0.5, (now_s - self.at_s) / _FORGETS_HALF_IN_S)


class FairTurns:
    """Turns of one queue; `slots` and `places` tell how many there are now."""

    def __init__(
        self,
        slots: Callable[[], int],
        places: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slots = slots
        self._places = places
        self._clock = clock
        self._held: Counter[Claim] = Counter()
        self._lines: dict[Claim, deque[asyncio.Future[None]]] = {}
        self._accounts: dict[str, _Account] = {}

    @property
    def waiting(self) -> int:
        """How many wait for a turn."""
        return sum(len(line) for line in self._lines.values())

    def must_wait(self, claim: Claim) -> bool:
        """True if whoever comes now with such a job waits."""
        return bool(self._lines) or not self._may_pass(claim)

    def used_s(self, tenant: str) -> float:
        """The time that a tenant's jobs ran lately."""
        account = self._accounts.get(tenant)
        return 0.0 if account is None else account.at(self._clock())

    def must_stand_back(self, tenant: str) -> bool:
        """True if a tenant's jobs ran longer than a few small ones do, and not shorter than those
        of the other active ones on average: its compilations yield to theirs.
        """
        used_s = self.used_s(tenant)
        if used_s <= _MUCH_S or not self._is_another_active(tenant):
            return False
        since_s = self._clock() - _ACTIVE_S
        active = [self.used_s(name) for name, a in self._accounts.items() if a.at_s >= since_s]
        return used_s >= sum(active) / max(1, len(active))

    @asynccontextmanager
    async def turn(self, claim: Claim) -> AsyncIterator[Turn]:
        """Holds a turn while the block runs; waits for it behind the tenant's own others."""
        await self._take(claim)
        turn = Turn(claim, self._clock)
        try:
            yield turn
        finally:
            self._charge(claim.tenant, turn.spent_s)
            self._give_back(claim)

    async def _take(self, claim: Claim) -> None:
        self._charge(claim.tenant, 0.0)
        if not self._lines and self._may_pass(claim):
            self._held[claim] += 1
            return
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(claim, deque()).append(called)
        self._serve()  # it may pass those who wait; and slots may have been added since
        try:
            await called
        except asyncio.CancelledError:
            if called.done() and not called.cancelled():
                self._give_back(claim)
            else:
                self._leave(claim, called)
            raise

    def _give_back(self, claim: Claim) -> None:
        self._held[claim] -= 1
        if not self._held[claim]:
            del self._held[claim]
        self._serve()

    def _charge(self, tenant: str, spent_s: float) -> None:
        now_s = self._clock()
        used_s = self.used_s(tenant)
        self._accounts.pop(tenant, None)  # the last active one stands last
        self._accounts[tenant] = _Account(used_s + spent_s, now_s)
        while len(self._accounts) > _REMEMBERED_TENANTS:
            del self._accounts[next(iter(self._accounts))]

    def _may_pass(self, claim: Claim) -> bool:
        places = max(1, self._places())
        all_but_one = max(1, self._slots() - 1)
        of_tenant = all_but_one if self._is_another_active(claim.tenant) else places
        bounds = (
            (places, lambda held: True),
            (of_tenant, lambda held: held.tenant == claim.tenant),
            (all_but_one if claim.is_slow else places, lambda held: held.is_slow),
            (max(1, places // 2) if claim.is_warm_up else places, lambda held: held.is_warm_up),
        )
        return all(
            sum(count for held, count in self._held.items() if is_meant(held)) < bound
            for bound, is_meant in bounds
        )

    def _is_another_active(self, tenant: str) -> bool:
        since_s = self._clock() - _ACTIVE_S
        return any(
            name != tenant and account.at_s >= since_s for name, account in self._accounts.items()
        )

    def _serve(self) -> None:
        """Gives turns to those who may pass: interactive before warm-up, least used first."""
        while self._lines:
            allowed = [claim for claim in self._lines if self._may_pass(claim)]
            if not allowed:
                return
            claim = min(allowed, key=lambda c: (c.is_warm_up, self.used_s(c.tenant)))
            line = self._lines.pop(claim)
            called = line.popleft()
            if line:
                self._lines[claim] = line  # now the last of all lines: equals take turns
            if not called.done():
                self._held[claim] += 1
                called.set_result(None)

    def _leave(self, claim: Claim, called: asyncio.Future[None]) -> None:
        line = self._lines.get(claim, deque())
        if called in line:
            line.remove(called)
        if not line:
            self._lines.pop(claim, None)
