"""Sweeps all namespaces of a farm, one after the other, and counts their usage."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from kernelfarm.cache import Space
from kernelfarm.cache.redis_keys import tenant_namespace
from kernelfarm.cache.sweeper import NamespaceUsage, Sweeper, SweepResult
from kernelfarm.service.tenants.authentication import TenantsFile
from kernelfarm.service.tenants.identity import SHARED_TENANT


class FarmSweeper:
    """Sweeps the farm's own namespace and its tenants'; methods raise the errors of `Sweeper`."""

    def __init__(
        self, client: Any, farm: str, keys_per_s: float, tenants: TenantsFile | None
    ) -> None:
        self._client = client
        self._farm = farm
        self._keys_per_s = keys_per_s
        self._tenants = tenants

    async def sweep(self) -> SweepResult:
        """Deletes stale entries and unreferenced blobs in every namespace."""
        total = SweepResult()
        for sweeper in self._sweepers():
            swept = await sweeper.sweep()
            sums = {
                f.name: getattr(total, f.name) + getattr(swept, f.name) for f in fields(SweepResult)
            }
            total = SweepResult(**sums)
        return total

    async def usage(self, namespace: str) -> NamespaceUsage | None:
        """The usage that the last sweep counted in a namespace; None before the first sweep."""
        return await Sweeper(self._client, namespace, self._keys_per_s).usage()

    async def count_hit(self, space: Space, tags: frozenset[str]) -> int:
        """The entries of a space, in all namespaces, that depend on one of the tags."""
        return sum([await sweeper.count_dependents(space, tags) for sweeper in self._sweepers()])

    def _sweepers(self) -> list[Sweeper]:
        tenants = ["", *self._tenants.current().tenants, SHARED_TENANT] if self._tenants else [""]
        namespaces = [tenant_namespace(self._farm, tenant) for tenant in tenants]
        return [Sweeper(self._client, name, self._keys_per_s) for name in namespaces]
