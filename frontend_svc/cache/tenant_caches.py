"""The namespaces of a farm's cache: one for each tenant and a shared one, or the farm's own."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

from frontend_svc.cache.gateway_tier import GatewayTier
from frontend_svc.cache.tenant_tuning import TenantTuning
from frontend_svc.cache.tiered_programs import TieredProgramCache
from frontend_svc.cache.traces import Traces, trace_signing
from kernelfarm.cache import KernelCache, SigningPolicy, Space
from kernelfarm.cache.key_index import KeyIndex
from kernelfarm.cache.named_models import NamedModels
from kernelfarm.cache.quotas import Quotas, most_failures
from kernelfarm.cache.redis_keys import RedisKeys, tenant_namespace
from kernelfarm.cache.tuning_records import TuningRecords
from kernelfarm.service.tenants.identity import SHARED_TENANT, NamespaceConfig
from kernelfarm.signing.tags import tenant_tag


@dataclass(frozen=True, slots=True)
class TenantCache:
    """The cache as one tenant uses it; `kernel_salt` is the salt of its kernels' storage keys."""

    namespace_config: NamespaceConfig
    cache: KernelCache
    programs: TieredProgramCache
    traces: Traces
    index: KeyIndex
    quotas: Quotas
    tuning: TenantTuning
    kernel_salt: bytes = field(repr=False)

    @property
    def namespace(self) -> str:
        """The namespace that its manifests name."""
        return self.cache.namespace

    @property
    def tags(self) -> tuple[str, ...]:
        """Epoch tags of everything that is published in this namespace."""
        tenant = self.namespace_config.tenant
        return (tenant_tag(tenant),) if tenant else ()


class TenantCaches:
    """The tenant caches of one farm; they share connections, the memory tier and epochs."""

    def __init__(self, cache: KernelCache, tier: GatewayTier, signing: SigningPolicy) -> None:
        self._cache = cache
        self._tier = tier
        self.signing = signing
        self._caches: dict[tuple[str, bytes], TenantCache] = {}

    def of(self, namespace_config: NamespaceConfig) -> TenantCache:
        """The tenant cache of a caller."""
        name = (namespace_config.tenant, namespace_config.salt)
        found = self._caches.get(name)
        # The configuration contains the quota, which may have changed.
        if found is None or found.namespace_config != namespace_config:
            found = self._caches[name] = self._create(namespace_config)
        return found

    @property
    def shared_namespace(self) -> str:
        """The namespace that warmers fill and every tenant reads."""
        return tenant_namespace(self._cache.namespace, SHARED_TENANT)

    def shared_models(self) -> NamedModels:
        """The models that warmers have named."""
        return NamedModels(self._cache.client, RedisKeys(self.shared_namespace))

    def _create(self, namespace_config: NamespaceConfig) -> TenantCache:
        namespace = tenant_namespace(self._cache.namespace, namespace_config.tenant)
        salt, quota = namespace_config.salt, namespace_config.quota
        failures = most_failures(quota.max_bytes, quota.max_entries)
        cache = self._cache.for_namespace(namespace, salt, failures)
        return TenantCache(
            namespace_config,
            cache,
            TieredProgramCache(
                cache, self._tier, self.signing, self._shared_programs(namespace_config)
            ),
            self._traces(cache, namespace_config),
            KeyIndex(cache.client, cache.redis_keys, Space.PROGRAMS),
            Quotas(cache.client, cache.redis_keys),
            self._tuning(cache, namespace_config),
            hmac.digest(salt, b"kernels", hashlib.sha256) if salt else b"",
        )

    def _shared_programs(self, namespace_config: NamespaceConfig) -> TieredProgramCache | None:
        shared = self._shared(namespace_config)
        return None if shared is None else TieredProgramCache(shared, self._tier, self.signing)

    def _traces(self, cache: KernelCache, namespace_config: NamespaceConfig) -> Traces:
        signing, shared = trace_signing(self.signing), self._shared(namespace_config)
        shared_traces = None if shared is None else shared.for_space(Space.TRACES, signing)
        return Traces(cache.for_space(Space.TRACES, signing), signing, shared_traces)

    def _tuning(self, cache: KernelCache, namespace_config: NamespaceConfig) -> TenantTuning:
        shared = self._shared(namespace_config)
        return TenantTuning(
            TuningRecords(cache.client, cache.redis_keys),
            None if shared is None else TuningRecords(shared.client, shared.redis_keys),
        )

    def _shared(self, namespace_config: NamespaceConfig) -> KernelCache | None:
        """The shared namespace, which a tenant reads after its own; None without tenants."""
        if namespace_config.tenant in ("", SHARED_TENANT):
            return None
        return self._cache.for_namespace(self.shared_namespace)
