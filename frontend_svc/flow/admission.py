"""Admission control: who may compile, how much at a time, and how often costly calls may come."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from frontend_svc.cache.tenant_caches import TenantCache
from kernelfarm.errors import (
    BytesQuotaError,
    CompilesQuotaError,
    EntriesQuotaError,
    FarmFullError,
    ReadOnlyRoleError,
    UnavailableError,
)

# A compilation whose frontend died counts for this many periods of its lease.
_LEASE_PERIODS = 3


@dataclass(frozen=True, slots=True)
class AdmissionControl:
    """Admits compilations of tenants, each under an id of its own.

    A refusal counts as no attempt at the program: its lease is acquired later. `max_per_tenant`
    is the limit of tenants that have none of their own.
    """

    max_per_tenant: int
    lease_ttl_s: float

    async def admit(self, tenant_cache: TenantCache, compile_id: str, *, may_compile: bool) -> None:
        """Admits a compilation in a tenant's namespace.

        Raises:
            ReadOnlyRoleError: the caller may only read.
            BytesQuotaError, EntriesQuotaError: the tenant's quota is used up; waiting does not
                help.
            CompilesQuotaError: the tenant has as many compilations in flight as it may; retry
                after the delay.
        """
        tenant = tenant_cache.namespace_config.tenant
        if not may_compile:
            raise ReadOnlyRoleError(
                "this program is not compiled yet, and the caller's role may only read: compile it"
                " with a token that has the role member, or warm it up"
            )
        if not tenant:
            return
        await self.check_quota(tenant_cache)
        most = self._max_compiles(tenant_cache)
        if not await tenant_cache.quotas.start_compile(
            compile_id, _LEASE_PERIODS * self.lease_ttl_s, most
        ):
            raise CompilesQuotaError(
                f"{most} compilations of tenant {tenant!r} are in flight, its limit"
            )

    async def renew(self, tenant_cache: TenantCache, compile_id: str) -> None:
        """Reports that a compilation is still in flight."""
        if tenant_cache.namespace_config.tenant:
            await tenant_cache.quotas.start_compile(
                compile_id, _LEASE_PERIODS * self.lease_ttl_s, self._max_compiles(tenant_cache)
            )

    async def release(self, tenant_cache: TenantCache, compile_id: str) -> None:
        """Ends a compilation; if the cache does not answer, its entry expires."""
        if tenant_cache.namespace_config.tenant:
            with suppress(UnavailableError):
                await tenant_cache.quotas.end_compile(compile_id)

    def _max_compiles(self, tenant_cache: TenantCache) -> int:
        return tenant_cache.namespace_config.quota.max_compiles or self.max_per_tenant

    async def check_quota(self, tenant_cache: TenantCache) -> None:
        """Checks that a tenant's namespace holds less than its quota.

        Raises:
            BytesQuotaError, EntriesQuotaError: see `admit`.
        """
        quota, tenant = tenant_cache.namespace_config.quota, tenant_cache.namespace_config.tenant
        if quota.max_bytes is None and quota.max_entries is None:
            return
        held = await tenant_cache.quotas.usage()
        advice = "ask the operator for a larger quota, or to invalidate unused entries"
        if quota.max_bytes is not None and held.size_bytes >= quota.max_bytes:
            raise BytesQuotaError(
                f"tenant {tenant!r} holds {held.size_bytes} bytes of {quota.max_bytes}; {advice}"
            )
        if quota.max_entries is not None and held.entries >= quota.max_entries:
            raise EntriesQuotaError(
                f"tenant {tenant!r} holds {held.entries} entries of {quota.max_entries}; {advice}"
            )


class RateLimiter:
    """Allows a number of calls per minute, and after a pause as many at once."""

    def __init__(self, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_minute / 60
        self._burst = max(1.0, per_minute)
        self._tokens = self._burst
        self._clock = clock
        self._last_s = clock()

    def take(self, what: str) -> None:
        """Counts a call.

        Raises:
            FarmFullError: too many calls; the error states when the next one is allowed.
        """
        now_s = self._clock()
        self._tokens = min(self._burst, self._tokens + (now_s - self._last_s) * self._per_s)
        self._last_s = now_s
        if self._tokens < 1:
            error = FarmFullError(f"too many {what}: at most {self._per_s * 60:g} in a minute")
            error.retry_after_s = (1 - self._tokens) / self._per_s
            raise error
        self._tokens -= 1
