"""Streams of invalidations: their number is limited, and each caller sees only its own tags."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from frontend_svc.cache.invalidation_feed import FeedEvent
from frontend_svc.cache.tenant_caches import TenantCaches
from kernelfarm.errors import WatchesQuotaError
from kernelfarm.service.tenants.identity import SHARED_TENANT, Identity, Role
from kernelfarm.signing.tags import tenant_tag

_CACHED_EVENTS = 1024


class WatchStreams:
    """The streams of one gateway; one tenant may have `max_per_tenant` of them."""

    def __init__(self, tenant_caches: TenantCaches, max_streams: int, max_per_tenant: int) -> None:
        self._tenant_caches = tenant_caches
        self._shared = tenant_caches.shared_models()
        self._max_streams = max_streams
        self._max_per_tenant = max_per_tenant
        self._open: Counter[str] = Counter()
        self._visible: dict[tuple[str, FeedEvent], FeedEvent] = {}

    @contextmanager
    def watching(self, tenant: str) -> Iterator[None]:
        """Counts a stream while it is open.

        Raises:
            WatchesQuotaError: too many streams are open.
        """
        if self._open.total() >= self._max_streams:
            raise WatchesQuotaError(
                f"{self._max_streams} streams of invalidations are open at this gateway, its limit"
            )
        # Without tenants, one caller may have all streams.
        if tenant and self._open[tenant] >= self._max_per_tenant:
            raise WatchesQuotaError(
                f"{self._max_per_tenant} streams of invalidations of tenant {tenant!r} are open at"
                " this gateway, its limit: close one, or share one between processes"
            )
        self._open[tenant] += 1
        try:
            yield
        finally:
            self._open[tenant] -= 1
            if not self._open[tenant]:
                del self._open[tenant]

    async def visible_to(self, identity: Identity, event: FeedEvent) -> FeedEvent:
        """An event as a caller may see it: without other tenants and their models.

        If it is unknown whether the caller uses a model, the event is a flush.

        Raises:
            UnavailableError: the cache does not answer.
        """
        if not event.tags or not identity.tenant or Role.ADMINISTRATOR in identity.roles:
            return event
        name = (identity.tenant, event)
        known = self._visible.get(name)
        if known is None:
            if len(self._visible) >= _CACHED_EVENTS:
                self._visible.clear()
            known = self._visible[name] = await self._filtered(identity, event)
        return known

    async def _filtered(self, identity: Identity, event: FeedEvent) -> FeedEvent:
        visible = {tenant_tag(identity.tenant), tenant_tag(SHARED_TENANT)}
        # Callers may not learn the names of other tenants.
        tags = tuple(t for t in event.tags if t in visible or _kind_of(t) != "tenant")
        hidden = {tag for tag in tags if _kind_of(tag) == "model"}
        is_complete = True
        own = self._tenant_caches.of(identity.namespace_config).programs.models
        for models in (own, self._shared):
            if hidden:
                hidden, is_known = await models.unnamed(sorted(hidden))
                is_complete = is_complete and is_known
        if hidden and not is_complete:
            return FeedEvent(event.epoch, is_flush=True)
        return FeedEvent(event.epoch, tuple(tag for tag in tags if tag not in hidden))


def _kind_of(tag: str) -> str:
    """The kind of an epoch tag: `model` for `model:llama@3`."""
    return tag.partition(":")[0]
