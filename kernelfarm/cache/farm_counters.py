"""Reads the counters and bytes of all namespaces of a farm at once, for metrics.

Unlike the other clients it never retries: whoever reads metrics must not wait long.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from kernelfarm.cache.connection import connect_without_retries, translated_errors
from kernelfarm.cache.quotas import FAILING_SPACES, FAILURE_BYTES
from kernelfarm.cache.redis_keys import RedisKeys, tenant_namespace


@dataclass(frozen=True, slots=True)
class FarmCounts:
    """The farm's counters by key space (`p`, `k`, `t`) and name, summed over its namespaces.

    `held_bytes` are by tenant, with recorded failures, as quotas count them; the farm's own
    namespace has an empty name. Counters only grow while `incarnation`, that of the epoch table,
    stays the same.
    """

    counters: Mapping[tuple[str, str], int]
    held_bytes: Mapping[str, int]
    incarnation: str


class FarmCounters:
    """The counters of one farm; may be used by one thread at a time."""

    def __init__(self, url: str, farm: str, timeout_s: float) -> None:
        """Connects lazily; each step of `read` may take `timeout_s`."""
        self._farm = farm
        self._client = connect_without_retries(url, timeout_s)

    def __enter__(self) -> FarmCounters:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()

    def read(self, tenants: Sequence[str]) -> FarmCounts:
        """The counts of the farm's own namespace and of these tenants, in one round trip.

        Raises:
            UnavailableError: the cache did not answer in time.
        """
        names = ["", *tenants]
        now_ms = round(time.time() * 1e3)  # of this machine: failures last for minutes
        with translated_errors(), self._client.pipeline(transaction=False) as pipeline:
            pipeline.hget(RedisKeys(self._farm).epochs, "@inc")
            for name in names:
                redis_keys = RedisKeys(tenant_namespace(self._farm, name))
                pipeline.hgetall(redis_keys.stats)
                pipeline.hget(redis_keys.quota_usage, "bytes")
                for space in FAILING_SPACES:
                    pipeline.zcount(redis_keys.failures(space), now_ms, "+inf")
            incarnation, *replies = pipeline.execute()
        counters: Counter[tuple[str, str]] = Counter()
        per_name = len(replies) // len(names)
        for stats in replies[::per_name]:
            for field, value in stats.items():
                space, _, name = field.decode().partition(".")
                counters[space, name] += int(value)
        held_bytes = {
            name: _held_bytes(*replies[first + 1 : first + per_name])
            for name, first in zip(names, range(0, len(replies), per_name), strict=True)
        }
        return FarmCounts(counters, held_bytes, (incarnation or b"").decode())


def _held_bytes(size: bytes | None, *failures: int) -> int:
    """The bytes of a namespace as its quota counts them."""
    return max(0, int(size or 0)) + sum(failures) * FAILURE_BYTES
