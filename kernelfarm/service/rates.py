"""Token buckets by name: each name has a burst and a rate of its own."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

NameT = TypeVar("NameT", bound=Hashable)

_MAX_NAMES = 4096
"""Names that have a bucket; beyond this number, the least recently used one is evicted."""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    last_s: float
    suppressed: int = 0


class TokenBuckets(Generic[NameT]):
    """One bucket for each name; names may come from clients, so their number is bounded."""

    def __init__(
        self, burst: int, per_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._burst = burst
        self._per_s = per_s
        self._clock = clock
        self._buckets: OrderedDict[NameT, _Bucket] = OrderedDict()

    def take(self, name: NameT) -> bool:
        """Takes a token; False if the bucket of the name is empty."""
        now_s = self._clock()
        bucket = self._bucket(name, now_s)
        grown = bucket.tokens + (now_s - bucket.last_s) * self._per_s
        bucket.tokens, bucket.last_s = min(float(self._burst), grown), now_s
        if bucket.tokens < 1:
            bucket.suppressed += 1
            return False
        bucket.tokens -= 1
        return True

    def retry_after_s(self, name: NameT) -> float:
        """When the next of this name is allowed."""
        bucket = self._buckets.get(name)
        if bucket is None:
            return 0.0
        grown = bucket.tokens + (self._clock() - bucket.last_s) * self._per_s
        return max(0.0, (1 - grown) / self._per_s)

    def suppressed(self, name: NameT) -> int:
        """How often the bucket of a name was empty since the last call of this method."""
        bucket = self._buckets.get(name)
        if bucket is None:
            return 0
        count, bucket.suppressed = bucket.suppressed, 0
        return count

    def all_suppressed(self) -> dict[NameT, int]:
        """The result of `suppressed` for every name where it is not 0."""
        names = [name for name, bucket in self._buckets.items() if bucket.suppressed]
        return {name: self.suppressed(name) for name in names}

    def _bucket(self, name: NameT, now_s: float) -> _Bucket:
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = _Bucket(float(self._burst), now_s)
            if len(self._buckets) > _MAX_NAMES:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(name)
        return bucket
