"""Parts of the cache: each tenant's own, the one that all share, or a farm's only one."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

from frontend_svc.cache.gateway_tier import ProgramTier
from frontend_svc.cache.tiered_programs import Programs
from frontend_svc.cache.traces import Traces, trace_trust
from kernelfarm.cache import KernelCache, Space, Trust
from kernelfarm.cache.key_index import KeyIndex
from kernelfarm.cache.named_models import Models
from kernelfarm.cache.quotas import Quotas, most_failures
from kernelfarm.cache.redis_keys import Names, tenant_namespace
from kernelfarm.service.tenants.identity import SHARED_TENANT, Partition
from kernelfarm.signing.tags import tenant_tag


@dataclass(frozen=True, slots=True)
class Part:
    """What the requests of one tenant use; `kernel_salt` is for the places of its kernels."""

    partition: Partition
    cache: KernelCache
    programs: Programs
    traces: Traces
    index: KeyIndex
    quotas: Quotas
    kernel_salt: bytes = field(repr=False)

    @property
    def namespace(self) -> str:
        """The namespace that its manifests name."""
        return self.cache.namespace

    @property
    def tags(self) -> tuple[str, ...]:
        """Epoch tags of everything that is published here."""
        tenant = self.partition.tenant
        return (tenant_tag(tenant),) if tenant else ()


class Parts:
    """All parts of one farm's cache; they share connections, memory and epochs."""

    def __init__(self, cache: KernelCache, tier: ProgramTier, trust: Trust) -> None:
        self._cache = cache
        self._tier = tier
        self._trust = trust
        self._parts: dict[tuple[str, bytes], Part] = {}

    def of(self, partition: Partition) -> Part:
        """The part that a caller works in."""
        name = (partition.tenant, partition.salt)
        known = self._parts.get(name)
        if known is None or known.partition != partition:  # its quota may have changed
            known = self._parts[name] = self._made(partition)
        return known

    @property
    def shared_namespace(self) -> str:
        """The namespace that warmers fill and every tenant reads."""
        return tenant_namespace(self._cache.namespace, SHARED_TENANT)

    def shared_models(self) -> Models:
        """The models that warmers have named."""
        return Models(self._cache.client, Names(self.shared_namespace))

    def _made(self, partition: Partition) -> Part:
        namespace = tenant_namespace(self._cache.namespace, partition.tenant)
        salt, quota = partition.salt, partition.quota
        failures = most_failures(quota.max_bytes, quota.max_entries)
        cache = self._cache.within(namespace, salt, failures)
        return Part(
            partition,
            cache,
            Programs(cache, self._tier, self._trust, self._shared_programs(partition)),
            self._traces(cache, partition),
            KeyIndex(cache.client, cache.names, Space.PROGRAMS),
            Quotas(cache.client, cache.names),
            hmac.digest(salt, b"kernels", hashlib.sha256) if salt else b"",
        )

    def _shared_programs(self, partition: Partition) -> Programs | None:
        shared = self._shared(partition)
        return None if shared is None else Programs(shared, self._tier, self._trust)

    def _traces(self, cache: KernelCache, partition: Partition) -> Traces:
        trust, shared = trace_trust(self._trust), self._shared(partition)
        theirs = None if shared is None else shared.in_space(Space.TRACES, trust)
        return Traces(cache.in_space(Space.TRACES, trust), trust, theirs)

    def _shared(self, partition: Partition) -> KernelCache | None:
        """Where a tenant looks after its own part; a farm without tenants has nothing beside."""
        if partition.tenant in ("", SHARED_TENANT):
            return None
        return self._cache.within(self.shared_namespace)
