"""Streams of invalidations: how many there may be, and what each may show to whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from frontend_svc.cache.invalidation_feed import FeedEvent
from frontend_svc.cache.tenant_caches import Parts
from kernelfarm.errors import WatchesQuotaError
from kernelfarm.service.tenants.identity import SHARED_TENANT, Identity, Role
from kernelfarm.signing.tags import tenant_tag

_REMEMBERED = 1024


class Watches:
    """Those of one gateway; a tenant may have `most_of_one` of them."""

    def __init__(self, parts: Parts, most: int, most_of_one: int) -> None:
        self._parts = parts
        self._shared = parts.shared_models()
        self._most = most
        self._most_of_one = most_of_one
        self._open: Counter[str] = Counter()
        self._shown: dict[tuple[str, FeedEvent], FeedEvent] = {}

    @contextmanager
    def watching(self, tenant: str) -> Iterator[None]:
        """Counts a stream while it is open.

        Raises:
            WatchesQuotaError: there are too many.
        """
        if self._open.total() >= self._most:
            raise WatchesQuotaError(
                f"{self._most} streams of invalidations are open at this gateway, its limit"
            )
        # An empty tenant is a farm that knows none: it has all of them.
        if tenant and self._open[tenant] >= self._most_of_one:
            raise WatchesQuotaError(
                f"{self._most_of_one} streams of invalidations of tenant {tenant!r} are open at"
                " this gateway, its limit: close one, or share one between processes"
            )
        self._open[tenant] += 1
        try:
            yield
        finally:
            self._open[tenant] -= 1
            if not self._open[tenant]:
                del self._open[tenant]

    async def shown(self, identity: Identity, event: FeedEvent) -> FeedEvent:
        """An event as a caller may see it: without other tenants and their models.

        Where it is not sure that a model is none of the caller's, it is told to drop everything.

        Raises:
            UnavailableError: the cache does not answer.
        """
        if not event.tags or not identity.tenant or Role.ADMINISTRATOR in identity.roles:
            return event
        name = (identity.tenant, event)
        known = self._shown.get(name)
        if known is None:
            if len(self._shown) >= _REMEMBERED:
                self._shown.clear()
            known = self._shown[name] = await self._filtered(identity, event)
        return known

    async def _filtered(self, identity: Identity, event: FeedEvent) -> FeedEvent:
        visible = {tenant_tag(identity.tenant), tenant_tag(SHARED_TENANT)}
        # Who the others are is nobody's business.
        tags = tuple(t for t in event.tags if t in visible or not t.startswith("tenant:"))
        hidden = {tag for tag in tags if tag.startswith("model:")}
        is_sure = True
        own = self._parts.of(identity.partition).programs.models
        for models in (own, self._shared):
            if hidden:
                hidden, is_known = await models.hidden(sorted(hidden))
                is_sure = is_sure and is_known
        if hidden and not is_sure:
            return FeedEvent(event.epoch, is_flush=True)
        return FeedEvent(event.epoch, tuple(tag for tag in tags if tag not in hidden))
