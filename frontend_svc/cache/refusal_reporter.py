"""Adds refused calls to the counters of the cache, which sum those of all gateways."""

from __future__ import annotations

import asyncio

from frontend_svc.cache.tenant_caches import TenantCaches
from kernelfarm.errors import UnavailableError
from kernelfarm.service.logs.logger import get_logger
from kernelfarm.service.tenants.access import AccessControl
from kernelfarm.service.tenants.identity import NamespaceConfig

_EVERY_S = 5.0


class RefusalReporter:
    """Counts refusals as `refused_<reason>` in the tenant's namespace, or in the farm's own."""

    def __init__(self, access: AccessControl, tenant_caches: TenantCaches) -> None:
        self._access = access
        self._tenant_caches = tenant_caches
        self._reloads_reported = 0

    async def run(self) -> None:
        """Reports periodically, until it is cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                await self.report()
            except UnavailableError as error:
                get_logger().warning("refusal_report_failed", message=str(error))

    async def report(self) -> None:
        """Reports the refusals since the last report.

        Raises:
            UnavailableError: the cache does not answer; the next report includes these refusals.
        """
        counts = self._access.refusals.drain()
        try:
            while counts:
                (tenant, reason), number = next(iter(counts.items()))
                cache = self._tenant_caches.of(self._namespace_config(tenant)).cache
                await cache.count(f"refused_{reason.lower()}", number)
                del counts[tenant, reason]
        finally:
            self._access.refusals.restore(counts)
        await self._report_failed_reloads()

    async def _report_failed_reloads(self) -> None:
        tenants = self._access.authenticator.tenants
        new = tenants.failed_reloads - self._reloads_reported if tenants else 0
        if new:
            await self._tenant_caches.of(NamespaceConfig()).cache.count("tenants_file_errors", new)
            self._reloads_reported += new

    def _namespace_config(self, tenant: str) -> NamespaceConfig:
        tenants = self._access.authenticator.tenants
        known = tenants.current().namespace_config_of(tenant) if tenants and tenant else None
        return known or NamespaceConfig()
