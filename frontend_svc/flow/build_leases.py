"""The right to compile a program: admission of the tenant, and the lease on the program's key."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

from frontend_svc.cache.tenant_caches import TenantCache
from frontend_svc.flow.admission import AdmissionControl
from frontend_svc.flow.events import CompileJob
from frontend_svc.flow.in_flight_builds import InFlightBuilds
from frontend_svc.flow.lease_renewal import lease_renewal
from frontend_svc.settings import FrontendSettings
from kernelfarm.cache import KernelCache, Lease
from kernelfarm.cache.preemption import WARM_UP_OWNER
from kernelfarm.errors import (
    FarmFullError,
    InternalError,
    QuotaError,
    UnavailableError,
    error_facts,
)


class BuildLeases:
    """Acquires, renews and releases what a build holds: its admission and its lease.

    The owner of a lease is also the name of the compilation in the tenant's quota.
    """

    def __init__(self, builds: InFlightBuilds, settings: FrontendSettings) -> None:
        self._builds = builds
        self._settings = settings
        self._admission = AdmissionControl(settings.max_compiles_per_tenant, settings.lease_ttl_s)

    async def try_to_acquire(self, job: CompileJob, key: bytes, seen: str) -> Lease | None:
        """The lease on a program that is missing in the entry with the stamp `seen`.

        None if another request holds the lease, or published since.

        Raises:
            PermissionDeniedError, QuotaError: the caller may not compile, or not as much.
            FarmFullError: this frontend compiles as many programs as it may. This counts as no
                attempt at the program.
            InternalError: earlier attempts ended their frontends; the program is quarantined.
        """
        tenant_cache = job.tenant_cache
        compile_id = f"{WARM_UP_OWNER if job.is_warm_up else ''}{uuid.uuid4().hex}"
        try:
            self._builds.check_capacity(is_warm_up=job.is_warm_up)
            await self._admission.admit(tenant_cache, compile_id, may_compile=job.may_compile)
        except (FarmFullError, QuotaError):
            if await tenant_cache.cache.is_in_progress(key, seen=seen):
                return None  # waiting for the build of another request needs no admission
            raise
        lease = None
        try:
            lease = await tenant_cache.cache.acquire(
                key, compile_id, self._settings.lease_ttl_s, seen=seen, tags=job.caller.tags
            )
            if lease is not None and lease.attempts >= self._settings.max_attempts:
                await self._quarantine(tenant_cache.cache, lease)
        except Exception:
            await self._admission.release(tenant_cache, compile_id)
            raise
        if lease is None:
            await self._admission.release(tenant_cache, compile_id)
        return lease

    async def _quarantine(self, cache: KernelCache, lease: Lease) -> None:
        ttl_s = self._settings.quarantine_ttl_s
        error = InternalError(
            f"program {lease.key.hex()[:16]} ended its frontend {lease.attempts} times while it was"
            f" compiled; it is refused for {ttl_s:.0f} s. Report it with the graph"
        )
        await cache.put_failure(lease.key, error_facts(error), ttl_s, lease)
        await cache.count("quarantined")
        raise error

    @asynccontextmanager
    async def held(self, tenant_cache: TenantCache, lease: Lease) -> AsyncIterator[None]:
        """Renews the lease and the admission while the block runs, then releases both."""
        cache = tenant_cache.cache
        renew_admission = partial(self._admission.renew, tenant_cache, lease.owner)
        try:
            async with lease_renewal(cache, lease, renew_admission):
                yield
        finally:
            with suppress(UnavailableError):  # then the lease lapses
                await cache.release(lease)
            await self._admission.release(tenant_cache, lease.owner)
