"""Programs in the memory of this gateway: the first tier of the cache, with a bounded size.

The tier does not access Redis. The invalidation feed drops stale programs from it, and sets the
time until which it may serve. If the tier may not serve a program, the program counts as missing.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from kernelfarm.cache import Epoch, InvalidationRecord, StoredVariant
from kernelfarm.service.metrics.declarations import COMPILE_SAVED_SECONDS

_BYTES_OF_AN_ENTRY = 1024
# A manifest is stored as bytes and, with several times their size, as decoded objects.
_DECODED_MANIFEST = 4


@dataclass(slots=True)
class CachedProgram:
    """The variants of a program as the store returned them.

    `tags` are those of all variants and of the callers for whom the store confirmed the program.
    `epoch` is that of the oldest variant.
    """

    variants: tuple[StoredVariant, ...]
    tags: set[str]
    epoch: int
    expires_s: float
    size_bytes: int


class StoreVerifier(Protocol):
    """Compares a program that was served from memory with the store."""

    async def verify_against_store(self, key: bytes, tags: tuple[str, ...], seen: Epoch) -> None:
        """Checks that the store would serve the program too, as of an epoch."""


class GatewayTier:
    """A cache that evicts the least recently used programs; no program stays beyond `max_age_s`.

    A limit of 0 bytes turns the tier off.
    """

    def __init__(
        self,
        max_bytes: int,
        max_age_s: float,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._clock = clock
        self._wall_clock = wall_clock
        self._programs: OrderedDict[bytes, CachedProgram] = OrderedDict()
        self._bytes = 0
        self._lease_ends_s = float("-inf")
        self._changes = 0
        self.hits = 0
        self._saved_ms = self._saved_by_store_ms = 0.0
        self.last_served: tuple[StoreVerifier, bytes, tuple[str, ...]] | None = None

    def __len__(self) -> int:
        return len(self._programs)

    def get(self, key: bytes, tags: Iterable[str]) -> CachedProgram | None:
        """A program, if it is confirmed to be live for a caller with these tags."""
        now_s = self._clock()
        cached = self._programs.get(key)
        if cached is None or now_s >= self._lease_ends_s:
            return None
        if now_s >= cached.expires_s:
            self.drop(key)
            return None
        if not cached.tags.issuperset(tags):
            return None
        self._programs.move_to_end(key)
        return cached

    def count_hit(self, cost_ms: float) -> None:
        """Counts a program that was found here; its kernels took `cost_ms` to compile."""
        self.hits += 1
        self._saved_ms += cost_ms

    def count_store_hit(self, cost_ms: float) -> None:
        """Counts the compile time of a program that was found in the store instead."""
        self._saved_by_store_ms += cost_ms

    def record_metrics(self) -> None:
        """Records the compile time that was saved since the last time."""
        COMPILE_SAVED_SECONDS.labels("gateway").inc(self._saved_ms / 1e3)
        COMPILE_SAVED_SECONDS.labels("store").inc(self._saved_by_store_ms / 1e3)
        self._saved_ms = self._saved_by_store_ms = 0.0

    def changes(self) -> int:
        """A counter of drops: a result that was looked up before a drop may not be cached."""
        return self._changes

    def put(
        self, key: bytes, variants: tuple[StoredVariant, ...], tags: Iterable[str], changes: int
    ) -> CachedProgram | None:
        """Caches the result of a look-up that began at `changes`; None if it may not be cached."""
        size = sum(len(v.content) + _DECODED_MANIFEST * len(v.manifest_bytes) for v in variants)
        size += _BYTES_OF_AN_ENTRY
        if changes != self._changes or size > self._max_bytes or not variants:
            return None
        before = self._programs.get(key)
        tags_served = {tag for v in variants for tag in v.manifest.tags}.union(tags)
        if before is not None and before.variants == variants:
            before.tags |= tags_served
            return before
        self.drop(key)
        left_s = min(v.manifest.not_after_s for v in variants) - self._wall_clock()
        cached = CachedProgram(
            variants,
            tags_served,
            min(v.manifest.epoch for v in variants),
            self._clock() + min(self._max_age_s, left_s),
            size,
        )
        self._programs[key] = cached
        self._bytes += size
        while self._bytes > self._max_bytes:
            self.drop(next(iter(self._programs)))
        return cached

    def apply_invalidation(self, invalidation: InvalidationRecord) -> None:
        """Drops the programs that an invalidation makes stale."""
        self._changes += 1
        tags = set(invalidation.tags)
        hit = [
            key
            for key, cached in self._programs.items()
            if cached.epoch < invalidation.epoch.number and not tags.isdisjoint(cached.tags)
        ]
        for key in hit:
            self.drop(key)

    def drop_referencing(self, sha256: bytes, prefix: bytes = b"") -> None:
        """Drops programs that name a missing blob; `prefix` restricts them to one namespace."""
        hit = [
            key
            for key, cached in self._programs.items()
            if key.startswith(prefix)
            and any(blob.sha256 == sha256 for v in cached.variants for blob in v.manifest.blobs)
        ]
        self._changes += bool(hit)  # requests for unknown digests must not prevent caching
        for key in hit:
            self.drop(key)

    def flush(self) -> None:
        """Drops all programs."""
        self._changes += 1
        self._programs.clear()
        self._bytes = 0

    def set_lease_end(self, time_s: float) -> None:
        """Sets the time of the clock until which programs may be served."""
        self._lease_ends_s = time_s

    def drop(self, key: bytes) -> None:
        """Drops a program, if it is cached."""
        cached = self._programs.pop(key, None)
        if cached is not None:
            self._bytes -= cached.size_bytes
