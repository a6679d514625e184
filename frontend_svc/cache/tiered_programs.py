"""Finds programs in the memory of this gateway, else in the store; selects a variant."""

from __future__ import annotations

import enum
from typing import NamedTuple

from frontend_svc.cache.gateway_tier import GatewayTier
from kernelfarm.cache import Epoch, KernelCache, SigningPolicy, StoredVariant
from kernelfarm.cache.named_models import NamedModels
from kernelfarm.cache.records import STALE_SERVES_COUNTER, TAGS_DISCARDED
from kernelfarm.errors import NotFoundError, PoisonedBlobError, UnavailableError
from kernelfarm.ir.guards import NO_FACTS, CallerFacts, first_failing
from kernelfarm.service.logs.logger import get_logger


class CacheTier(enum.Enum):
    """The tier that a program was found in."""

    GATEWAY = "gateway"
    STORE = "store"


class Caller(NamedTuple):
    """A caller: its own tags (its model), and its facts."""

    tags: tuple[str, ...] = ()
    facts: CallerFacts = NO_FACTS


UNKNOWN_CALLER = Caller()
"""A caller that names no model and states no facts."""


class SelectedVariant(NamedTuple):
    """The variant whose guard holds for the caller."""

    variant: StoredVariant
    tier: CacheTier


class ProgramLookup(NamedTuple):
    """The result of a look-up, and the stamp of the entry."""

    program: SelectedVariant | None
    stamp: str


class TieredProgramCache:
    """Both tiers of one namespace; `signing` is the signing policy of this frontend.

    Programs of the shared namespace (`shared`) are found too.
    """

    def __init__(
        self,
        cache: KernelCache,
        tier: GatewayTier,
        signing: SigningPolicy,
        shared: TieredProgramCache | None = None,
    ) -> None:
        self._cache = cache
        self._tier = tier
        self._signing = signing
        self._shared = shared
        # Namespaces share the memory tier, where equal keys of two tenants are two programs.
        self._prefix = cache.namespace.encode() + b"\0"
        self.models = NamedModels(cache.client, cache.redis_keys)

    async def find(self, key: bytes, caller: Caller, *, is_counted: bool = True) -> ProgramLookup:
        """The program of a key for a caller; the stamp is that of the entry in this namespace.

        Raises:
            UnavailableError: the program is not in memory, and the store does not answer.
        """
        # Before a program is returned: its client must be notified if its model is invalidated.
        await self.models.record(caller.tags)
        if self._shared is not None:
            await self._shared.models.record(())
        near = self._in_memory(key, caller) or (
            self._shared._in_memory(key, caller) if self._shared else None
        )
        if near is not None:
            if is_counted:
                self._tier.count_hit(near.variant.manifest.cost_ms)
            return ProgramLookup(near, "")
        own = await self._in_store(key, caller, is_counted=is_counted)
        if own.program is not None or self._shared is None:
            return own
        shared = await self._shared._in_store(key, caller, is_counted=is_counted)
        if shared.program is not None and is_counted:
            await self._cache.count("shared_hits")
        return ProgramLookup(shared.program, own.stamp)

    def _in_memory(self, key: bytes, caller: Caller) -> SelectedVariant | None:
        cached = self._tier.get(self._prefix + key, caller.tags)
        fitting = fitting_variant(cached.variants, caller.facts) if cached else None
        if cached is None or fitting is None:
            return None
        self._tier.last_served = (self, key, caller.tags)
        return SelectedVariant(fitting, CacheTier.GATEWAY)

    async def _in_store(self, key: bytes, caller: Caller, *, is_counted: bool) -> ProgramLookup:
        changes = self._tier.changes()
        found = await self._cache.lookup(key, tags=caller.tags, is_counted=is_counted)
        fitting = fitting_variant(found.variants, caller.facts)
        if fitting is None:
            if found.is_hit and is_counted:
                await self._count_guard_miss()
            return ProgramLookup(None, found.stamp)
        variants = found.variants
        if self._signing.is_to_renew(fitting.manifest):
            renewed = await self._renew(key, fitting)
            variants = tuple(renewed if v is fitting else v for v in variants)
            fitting = renewed
        self._tier.put(self._prefix + key, variants, caller.tags, changes)
        if is_counted:
            self._tier.count_store_hit(fitting.manifest.cost_ms)
        return ProgramLookup(SelectedVariant(fitting, CacheTier.STORE), found.stamp)

    async def blob(self, sha256: bytes) -> bytes:
        """The content of a blob, from this namespace or the shared one.

        Raises:
            NotFoundError: the blob is not stored; programs in memory that name it are dropped.
            PoisonedBlobError: other content was stored under the digest; it is deleted.
        """
        content = await self._own_blob(sha256)
        if content is None and self._shared is not None:
            content = await self._shared._own_blob(sha256)
        if content is None:
            await self._report_missing_blob(sha256)
            if self._shared is not None:
                await self._shared._report_missing_blob(sha256)
            raise NotFoundError(f"no blob with SHA-256 {sha256.hex()}; compile the program again")
        return content

    async def _own_blob(self, sha256: bytes) -> bytes | None:
        try:
            return await self._cache.get_blob(sha256)
        except PoisonedBlobError:
            self._tier.drop_referencing(sha256, self._prefix)
            raise

    async def _report_missing_blob(self, sha256: bytes) -> None:
        """Drops programs that name a missing blob from memory, in other gateways too."""
        self._tier.drop_referencing(sha256, self._prefix)
        await self._cache.report_missing_blob(sha256)

    async def verify_against_store(self, key: bytes, tags: tuple[str, ...], seen: Epoch) -> None:
        """Checks that the store would serve a program that was served from memory.

        If the program is not in the store any more, it is dropped. If it is stale as of the epoch
        that this gateway has applied, it should not have been served, and is counted.
        """
        found = await self._cache.lookup(key, tags=tags, is_counted=False)
        name = self._prefix + key
        if found.is_hit or self._tier.get(name, tags) is None:
            return
        self._tier.drop(name)
        is_stale = found.reason in {"epoch", "incarnation"} and found.detail != TAGS_DISCARDED
        if is_stale and Epoch(found.incarnation, found.epoch) == seen:
            await self._cache.count(STALE_SERVES_COUNTER)
            get_logger().error("stale_serve", key=key.hex(), reason=found.detail)

    async def _renew(self, key: bytes, variant: StoredVariant) -> StoredVariant:
        """The variant with its full validity again; unchanged if that cannot be stored."""
        try:
            return await self._cache.refresh(key, variant)
        except UnavailableError as error:
            get_logger().warning("refresh_failed", key=key.hex(), message=str(error))
            return variant

    async def _count_guard_miss(self) -> None:
        """Corrects the counters: the store counted a hit, but no guard holds."""
        await self._cache.count("hits", -1)
        await self._cache.count("misses")
        await self._cache.count("guard_misses")


def fitting_variant(
    variants: tuple[StoredVariant, ...], facts: CallerFacts
) -> StoredVariant | None:
    """The first variant whose guard holds."""
    for variant in variants:
        guard = variant.manifest.guard
        if not guard or first_failing(guard, facts) is None:
            return variant
    return None
