"""What the page shows of a farm, for one caller: its tenant's programs and failures, and itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from frontend_svc.cache.tenant_caches import TenantCache
from frontend_svc.flow.services import FlowServices
from kernelfarm.cache import KernelCache, Space, StoredVariant, WorkerReport
from kernelfarm.cache.farm_reports import FarmReports, QueueReport, RecordedFailure
from kernelfarm.cache.key_index import PublishedKey
from kernelfarm.cache.quotas import QuotaUsage
from kernelfarm.errors import MessageTooLargeError, NotFoundError
from kernelfarm.pages.farm_pages import text_digests
from kernelfarm.service.process_pool.pool import ProcessPool, WorkItem
from kernelfarm.service.tenants.access import AccessControl
from kernelfarm.service.tenants.identity import (
    CACHE_USERS,
    SHARED_TENANT,
    Identity,
    NamespaceConfig,
    Role,
)
from kernelfarm.signing import Manifest

PROGRAMS_A_PAGE = 50
MAX_FAILURES = 50
MAX_TEXT_BYTES = 64 * 1024 * 1024
"""Stages of a program that a page may have; `kernelfarm explain --html` takes more."""


@dataclass(frozen=True, slots=True)
class Overview:
    """The page of a farm for one caller.

    `queues` and `workers` are for administrators; they are None for others. `tenants` are those
    that the caller may look at, `tenant` is the one that is shown.
    """

    tenant: str
    tenants: tuple[str, ...]
    programs: Sequence[PublishedKey]
    first: int
    failures: Sequence[RecordedFailure]
    usage: QuotaUsage
    compiles_in_flight: int
    queues: Sequence[QueueReport] | None
    workers: Sequence[WorkerReport] | None

    @property
    def following(self) -> int:
        """Where the next page of programs begins; 0 if this is the last."""
        is_full = len(self.programs) == PROGRAMS_A_PAGE
        return self.first + PROGRAMS_A_PAGE if is_full else 0


@dataclass(frozen=True, slots=True)
class FarmData:
    """Reads what the page shows; methods raise UnavailableError if the cache does not answer."""

    services: FlowServices
    pool: ProcessPool
    access: AccessControl

    async def overview(self, identity: Identity, tenant: str, first: int) -> Overview:
        """The page of a tenant (empty: the caller's own) from program number `first`.

        Raises:
            PermissionDeniedError: the caller asks for another tenant and is no administrator.
            NotFoundError: the farm has no such tenant.
        """
        own = self._tenant_cache(identity, tenant)
        is_administrator = Role.ADMINISTRATOR in identity.roles
        reports = FarmReports(own.cache.client, own.cache.redis_keys)
        held = await own.quotas.usage()
        return Overview(
            own.namespace_config.tenant,
            self._visible(identity),
            await own.index.recent(first, PROGRAMS_A_PAGE),
            first,
            await reports.failures(Space.PROGRAMS, MAX_FAILURES),
            held,
            await own.quotas.compiles_in_flight(),
            await reports.queues() if is_administrator else None,
            await own.cache.worker_reports() if is_administrator else None,
        )

    async def program_page(self, identity: Identity, tenant: str, key: bytes) -> bytes:
        """The HTML page of a program; a child process makes it, within the limits of its jobs.

        Raises:
            NotFoundError: the tenant has no such program, or one of its stages was evicted.
            MessageTooLargeError: its stages have more text than a page may have.
        """
        own = self._tenant_cache(identity, tenant)
        variant, cache, tier = await self._found(own, key)
        manifest = variant.manifest
        digests = _text_digests(variant, manifest)
        texts = await cache.get_blobs(digests)
        missing = [d.hex() for d, text in zip(digests, texts, strict=True) if text is None]
        if missing:
            raise NotFoundError(f"stage {missing[0][:16]} of program {key.hex()[:16]} was evicted")
        facts = json.dumps({"found": f"hit in the {tier}", "digests": [d.hex() for d in digests]})
        parts = (facts.encode(), variant.content, variant.manifest_bytes, *filter(None, texts))
        (page,) = await self.pool.run(WorkItem("program_page", parts, identity.tenant))
        return page

    async def _found(self, own: TenantCache, key: bytes) -> tuple[StoredVariant, KernelCache, str]:
        """The general variant of a program in the tenant's namespace, else in the shared one."""
        shared = self.services.tenant_caches.of(NamespaceConfig(SHARED_TENANT))
        caches = [(own.cache, "store")]
        if own.namespace_config.tenant:
            caches.append((shared.cache, "shared namespace"))
        for cache, tier in caches:
            found = await cache.lookup(key, is_counted=False)
            if found.is_hit:
                return found.variants[-1], cache, tier
        raise NotFoundError(f"no program {key.hex()[:16]} in the cache; it may have expired")

    def _tenant_cache(self, identity: Identity, tenant: str) -> TenantCache:
        identity.require(*CACHE_USERS, Role.ADMINISTRATOR)
        if not tenant or tenant == identity.namespace_config.tenant:
            return self.services.tenant_caches.of(identity.namespace_config)
        identity.require(Role.ADMINISTRATOR)
        tenants = self.access.authenticator.tenants
        known = tenants.current().namespace_config_of(tenant) if tenants else None
        if known is None:
            raise NotFoundError(f"this farm has no tenant {tenant[:80]!r}")
        return self.services.tenant_caches.of(known)

    def _visible(self, identity: Identity) -> tuple[str, ...]:
        tenants = self.access.authenticator.tenants
        if tenants is None or Role.ADMINISTRATOR not in identity.roles:
            return ()
        return (*sorted(tenants.current().tenants), SHARED_TENANT)


def _text_digests(variant: StoredVariant, manifest: Manifest) -> list[bytes]:
    sizes = {blob.sha256: blob.size_bytes for blob in manifest.blobs}
    digests = text_digests(variant.content)
    total = sum(sizes.get(sha256, 0) for sha256 in digests)
    if total > MAX_TEXT_BYTES:
        raise MessageTooLargeError(
            f"the stages of this program have {total} bytes of text; a page holds at most"
            f" {MAX_TEXT_BYTES}: use `kernelfarm explain KEY --html FILE`"
        )
    return digests
