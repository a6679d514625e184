"""Programs in this gateway's memory: the first tier of the cache, bounded, kept honest by others.

It knows nothing of Redis: whoever follows the announcements tells it what to drop and until when it
may serve at all. What it is not sure of, it does not have.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from kernelfarm.cache import Announcement, Epoch, StoredVariant

_BYTES_OF_AN_ENTRY = 1024
# What a manifest takes as bytes and, several times that, once it is read.
_READ_MANIFEST = 4


@dataclass(slots=True)
class KeptProgram:
    """A program's variants as the store gave them.

    `tags` are those of all variants and of the callers for whom the store vouched; `epoch` is that
    of the oldest variant.
    """

    variants: tuple[StoredVariant, ...]
    tags: set[str]
    epoch: int
    good_until_s: float
    size_bytes: int


class Checker(Protocol):
    """Whoever served a program from memory, and can compare it with the store."""

    async def check_again(self, key: bytes, tags: tuple[str, ...], seen: Epoch) -> None:
        """Looks whether the store would serve it too, as of an epoch."""


class ProgramTier:
    """Least recently used programs go when it is full; none stays longer than `max_age_s`.

    A limit of 0 bytes turns it off.
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
        self._programs: OrderedDict[bytes, KeptProgram] = OrderedDict()
        self._bytes = 0
        self._sure_until_s = float("-inf")
        self._changes = 0
        self.hits = 0
        self.last_served: tuple[Checker, bytes, tuple[str, ...]] | None = None

    def __len__(self) -> int:
        return len(self._programs)

    def get(self, key: bytes, tags: Iterable[str]) -> KeptProgram | None:
        """A program, if it is certain to be live for a caller with these tags."""
        now_s = self._clock()
        kept = self._programs.get(key)
        if kept is None or now_s >= self._sure_until_s:
            return None
        if now_s >= kept.good_until_s:
            self.forget(key)
            return None
        if not kept.tags.issuperset(tags):
            return None
        self._programs.move_to_end(key)
        return kept

    def changes(self) -> int:
        """A number that moves with every drop: what was looked up before one may not be kept."""
        return self._changes

    def keep(
        self, key: bytes, variants: tuple[StoredVariant, ...], tags: Iterable[str], changes: int
    ) -> KeptProgram | None:
        """Keeps what a look-up gave that began at `changes`; None if it may not be kept."""
        size = sum(len(v.content) + _READ_MANIFEST * len(v.manifest_bytes) for v in variants)
        size += _BYTES_OF_AN_ENTRY
        if changes != self._changes or size > self._max_bytes or not variants:
            return None
        before = self._programs.get(key)
        vouched = {tag for v in variants for tag in v.manifest.tags}.union(tags)
        if before is not None and before.variants == variants:
            before.tags |= vouched
            return before
        self.forget(key)
        left_s = min(v.manifest.not_after_s for v in variants) - self._wall_clock()
        kept = KeptProgram(
            variants,
            vouched,
            min(v.manifest.epoch for v in variants),
            self._clock() + min(self._max_age_s, left_s),
            size,
        )
        self._programs[key] = kept
        self._bytes += size
        while self._bytes > self._max_bytes:
            self.forget(next(iter(self._programs)))
        return kept

    def obey(self, announcement: Announcement) -> None:
        """Drops what an invalidation hits."""
        self._changes += 1
        tags = set(announcement.tags)
        hit = [
            key
            for key, kept in self._programs.items()
            if kept.epoch < announcement.epoch.number and not tags.isdisjoint(kept.tags)
        ]
        for key in hit:
            self.forget(key)

    def drop_naming(self, sha256: bytes, prefix: bytes = b"") -> None:
        """Drops programs, of keys that begin so, whose blob the store does not hold any more."""
        hit = [
            key
            for key, kept in self._programs.items()
            if key.startswith(prefix)
            and any(blob.sha256 == sha256 for v in kept.variants for blob in v.manifest.blobs)
        ]
        self._changes += bool(hit)  # who asks for what never was must not keep us from keeping
        for key in hit:
            self.forget(key)

    def flush(self) -> None:
        """Drops everything."""
        self._changes += 1
        self._programs.clear()
        self._bytes = 0

    def be_sure_until(self, time_s: float) -> None:
        """Allows to serve until a time of its clock; the past forbids it at once."""
        self._sure_until_s = time_s

    def forget(self, key: bytes) -> None:
        """Drops a program, if it is here."""
        kept = self._programs.pop(key, None)
        if kept is not None:
            self._bytes -= kept.size_bytes
