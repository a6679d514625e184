"""What a farm's page shows beside its entries: queues as edges report them, recent failures."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kernelfarm.cache.connection import translated_errors
from kernelfarm.cache.limits import REPORT_TTL_S
from kernelfarm.cache.records import Space, facts_from_json
from kernelfarm.cache.redis_keys import RedisKeys
from kernelfarm.errors import ErrorFacts


@dataclass(frozen=True, slots=True)
class QueueReport:
    """An edge's view of one queue: workers, its jobs at the broker or a worker, jobs that wait."""

    queue: str
    workers: int
    sent: int
    waiting: int


@dataclass(frozen=True, slots=True)
class RecordedFailure:
    """A failure by the hex digits of its storage key; it expires at `expires_s` (since 1970)."""

    storage_key: str
    expires_s: float
    facts: ErrorFacts


class FarmReports:
    """Reports of one namespace; every method raises UnavailableError if Redis does not serve."""

    def __init__(self, client: Any, redis_keys: RedisKeys) -> None:
        self._client = client
        self._redis_keys = redis_keys

    async def report_queues(self, reporter: str, reports: Sequence[QueueReport]) -> None:
        """Stores an edge's view of its queues for a short time; call it periodically."""
        view = json.dumps({"at_s": time.time(), "queues": [asdict(report) for report in reports]})
        with translated_errors():
            pipeline = self._client.pipeline(transaction=False)
            pipeline.hset(self._redis_keys.queues, reporter, view)
            pipeline.expire(self._redis_keys.queues, REPORT_TTL_S)
            await pipeline.execute()

    async def queues(self) -> list[QueueReport]:
        """The queues as all edges reported them within the last seconds, sorted by queue."""
        with translated_errors():
            stored = await self._client.hgetall(self._redis_keys.queues)
        since_s = time.time() - REPORT_TTL_S
        views = [json.loads(view) for view in stored.values()]
        reports = [r for view in views if view["at_s"] >= since_s for r in view["queues"]]
        return sorted((QueueReport(**report) for report in reports), key=lambda r: r.queue)

    async def failures(self, space: Space, count: int) -> list[RecordedFailure]:
        """The failures of a key space that expire last, at most `count`."""
        index, prefix = self._redis_keys.failures(space), self._redis_keys.failure_prefix(space)
        with translated_errors():
            found = await self._client.zrevrange(index, 0, count - 1, withscores=True)
            names = [prefix + name.decode() for name, _ in found]
            stored = await self._client.mget(names) if names else []
        return [
            RecordedFailure(name.decode(), expires_ms / 1000, facts_from_json(facts))
            for (name, expires_ms), facts in zip(found, stored, strict=True)
            if facts is not None
        ]
