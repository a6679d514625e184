"""Tells the cache's counters which calls were refused, so that all gateways' add up."""

from __future__ import annotations

import asyncio

from frontend_svc.cache.tenant_caches import Parts
from kernelfarm.errors import UnavailableError
from kernelfarm.service.logs.logger import get_logger
from kernelfarm.service.tenants.access import Access
from kernelfarm.service.tenants.identity import Partition

_EVERY_S = 5.0


class RefusalTeller:
    """Refusals become counters `refused_<reason>` of the tenant's part, or of the farm's own."""

    def __init__(self, access: Access, parts: Parts) -> None:
        self._access = access
        self._parts = parts
        self._faults_told = 0

    async def run(self) -> None:
        """Tells now and then, until it is cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                await self.tell()
            except UnavailableError as error:
                get_logger().warning("refusals_not_told", message=str(error))

    async def tell(self) -> None:
        """Tells what was counted since the last time.

        Raises:
            UnavailableError: the cache does not answer; it is told the next time.
        """
        counts = self._access.refusals.take()
        try:
            while counts:
                (tenant, reason), number = next(iter(counts.items()))
                cache = self._parts.of(self._partition(tenant)).cache
                await cache.count(f"refused_{reason.lower()}", number)
                del counts[tenant, reason]
        finally:
            self._access.refusals.give_back(counts)
        await self._tell_faults()

    async def _tell_faults(self) -> None:
        tenants = self._access.authenticator.tenants
        new = tenants.faults - self._faults_told if tenants else 0
        if new:
            await self._parts.of(Partition()).cache.count("tenants_file_faults", new)
            self._faults_told += new

    def _partition(self, tenant: str) -> Partition:
        tenants = self._access.authenticator.tenants
        known = tenants.current().partition_of(tenant) if tenants and tenant else None
        return known or Partition()
