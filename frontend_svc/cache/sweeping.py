"""Sweeps all parts of the cache, one after the other, and counts what they hold."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from kernelfarm.cache import Space
from kernelfarm.cache.redis_keys import tenant_namespace
from kernelfarm.cache.sweeper import NamespaceUsage, Sweeper, SweepResult
from kernelfarm.service.tenants.authentication import TenantsFile
from kernelfarm.service.tenants.identity import SHARED_TENANT


class FarmSweeper:
    """Sweeps the farm's own part and its tenants'; methods raise what `Sweeper`'s raise."""

    def __init__(
        self, client: Any, farm: str, keys_per_s: float, tenants: TenantsFile | None
    ) -> None:
        self._client = client
        self._farm = farm
        self._keys_per_s = keys_per_s
        self._tenants = tenants

    async def sweep(self) -> SweepResult:
        """Frees what is dead in every part."""
        total = SweepResult()
        for sweeper in self._sweepers():
            swept = await sweeper.sweep()
            sums = {
                f.name: getattr(total, f.name) + getattr(swept, f.name) for f in fields(SweepResult)
            }
            total = SweepResult(**sums)
        return total

    async def usage(self, namespace: str) -> NamespaceUsage | None:
        """What the last sweep counted in a part."""
        return await Sweeper(self._client, namespace, self._keys_per_s).usage()

    async def count_hit(self, space: Space, tags: frozenset[str]) -> int:
        """Entries of a space, in all parts, of which a variant depends on one of the tags."""
        return sum([await sweeper.count_dependents(space, tags) for sweeper in self._sweepers()])

    def _sweepers(self) -> list[Sweeper]:
        parts = ["", *self._tenants.current().tenants, SHARED_TENANT] if self._tenants else [""]
        namespaces = [tenant_namespace(self._farm, tenant) for tenant in parts]
        return [Sweeper(self._client, name, self._keys_per_s) for name in namespaces]
