"""Who may compile, how much at a time, and how often one may ask for what costs a walk."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from frontend_svc.cache.tenant_caches import Part
from kernelfarm.errors import (
    BytesQuotaError,
    CompilesQuotaError,
    EntriesQuotaError,
    FarmFullError,
    ReadOnlyRoleError,
    UnavailableError,
)

# A compilation whose frontend died counts for so many lives of its lease.
_LIVES = 3


@dataclass(frozen=True, slots=True)
class Gate:
    """Lets compilations of tenants begin, each under a name (`flight`) of its own.

    A refusal costs the program no attempt: no lease was taken yet. `most_of_a_tenant` holds for
    tenants without a limit of their own.
    """

    most_of_a_tenant: int
    lease_ttl_s: float

    async def enter(self, part: Part, flight: str, *, may_compile: bool) -> None:
        """Begins a compilation in a part.

        Raises:
            ReadOnlyRoleError: the caller may find programs only.
            BytesQuotaError, EntriesQuotaError: the tenant holds as much as it may; waiting does not
                help.
            CompilesQuotaError: as many compilations fly as may; retry after the delay.
        """
        tenant = part.partition.tenant
        if not may_compile:
            raise ReadOnlyRoleError(
                "this program is not compiled yet, and the caller's role only reads: compile it"
                " with a token that has the role member, or warm it up"
            )
        if not tenant:
            return
        await self.check_held(part)
        most = self._most(part)
        if not await part.quotas.take_off(flight, _LIVES * self.lease_ttl_s, most):
            raise CompilesQuotaError(
                f"{most} compilations of tenant {tenant!r} are in flight, its limit"
            )

    async def keep(self, part: Part, flight: str) -> None:
        """Tells that a compilation still flies."""
        if part.partition.tenant:
            await part.quotas.take_off(flight, _LIVES * self.lease_ttl_s, self._most(part))

    async def leave(self, part: Part, flight: str) -> None:
        """Ends a compilation; one that cannot be told ends by itself."""
        if part.partition.tenant:
            with suppress(UnavailableError):
                await part.quotas.land(flight)

    def _most(self, part: Part) -> int:
        return part.partition.quota.max_compiles or self.most_of_a_tenant

    async def check_held(self, part: Part) -> None:
        """Passes if a part holds less than it may.

        Raises:
            BytesQuotaError, EntriesQuotaError: see `enter`.
        """
        quota, tenant = part.partition.quota, part.partition.tenant
        if quota.max_bytes is None and quota.max_entries is None:
            return
        held = await part.quotas.held()
        advice = "ask the operator for more, or for what is not used any more to be invalidated"
        if quota.max_bytes is not None and held.size_bytes >= quota.max_bytes:
            raise BytesQuotaError(
                f"tenant {tenant!r} holds {held.size_bytes} bytes of {quota.max_bytes}; {advice}"
            )
        if quota.max_entries is not None and held.entries >= quota.max_entries:
            raise EntriesQuotaError(
                f"tenant {tenant!r} holds {held.entries} entries of {quota.max_entries}; {advice}"
            )


class Rate:
    """Allows so many calls in a minute, with as many at once after a pause."""

    def __init__(self, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_minute / 60
        self._most = max(1.0, per_minute)
        self._left = self._most
        self._clock = clock
        self._last_s = clock()

    def take(self, what: str) -> None:
        """Counts a call.

        Raises:
            FarmFullError: there were too many; the error tells when the next is allowed.
        """
        now_s = self._clock()
        self._left = min(self._most, self._left + (now_s - self._last_s) * self._per_s)
        self._last_s = now_s
        if self._left < 1:
            error = FarmFullError(f"too many {what}: at most {self._per_s * 60:g} in a minute")
            error.retry_after_s = (1 - self._left) / self._per_s
            raise error
        self._left -= 1
