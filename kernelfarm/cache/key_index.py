"""An index of programs and traces by the parts of their keys, used to explain misses.

kf:{ns}:x:<space>:key:<key>           STR   a key's parts as JSON
kf:{ns}:x:<space>:<part>:<value>      ZSET  the newest keys with this value of a part, by time
kf:{ns}:x:<space>:recent              ZSET  the newest keys, by time
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernelfarm.cache.connection import translated_errors
from kernelfarm.cache.limits import MANIFEST_TTL_S
from kernelfarm.cache.records import Space
from kernelfarm.cache.redis_keys import RedisKeys

# The indexed parts, with their weights when keys are compared. Other parts have weight 1.
_INDEXED = {
    Space.PROGRAMS: {"graph": 8, "operators": 4, "target": 2},
    # Traces of graphs have the first two, packages of models the third.
    Space.TRACES: {"graph": 8, "calls": 4, "function": 16, "target": 2},
}
_WEIGHTS = {"options": 2}
_KEYS_KEPT = 32
_RECENT_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class PublishedKey:
    """A key that was published at `published_s` (seconds since 1970), with its parts.

    It is not `stored` if its entry has expired or was deleted.
    """

    key: bytes
    published_s: float
    parts: Mapping[str, str]
    stored: bool


class KeyIndex:
    """The index of one key space; every method raises UnavailableError if Redis does not serve."""

    def __init__(self, client: Any, redis_keys: RedisKeys, space: Space) -> None:
        self._client = client
        self._redis_keys = redis_keys
        self._space = space
        self._indexed = _INDEXED[space]

    async def add(self, key: bytes, parts: Mapping[str, str]) -> None:
        """Adds a published key with its parts."""
        with translated_errors():
            pipeline = self._client.pipeline(transaction=False)
            pipeline.set(self._record(key), json.dumps(dict(parts)), ex=MANIFEST_TTL_S)
            for part in self._indexed.keys() & parts.keys():
                index = self._name(part, parts[part])
                pipeline.zadd(index, {key: time.time()})
                pipeline.zremrangebyrank(index, 0, -_KEYS_KEPT - 1)
                pipeline.expire(index, MANIFEST_TTL_S)
            pipeline.zadd(self._recent, {key: time.time()})
            pipeline.zremrangebyrank(self._recent, 0, -_RECENT_KEPT - 1)
            pipeline.expire(self._recent, MANIFEST_TTL_S)
            await pipeline.execute()

    async def recent(self, first: int, count: int) -> list[PublishedKey]:
        """The newest keys, newest first, without the `first` newest ones."""
        with translated_errors():
            found = await self._client.zrevrange(
                self._recent, first, first + count - 1, withscores=True
            )
            pipeline = self._client.pipeline(transaction=False)
            for key, _ in found:
                pipeline.exists(self._redis_keys.entry(self._space, key))
                pipeline.get(self._record(key))
            rows = await pipeline.execute()
        return [
            PublishedKey(key, published_s, json.loads(parts or "{}"), bool(exists))
            for (key, published_s), exists, parts in zip(found, rows[::2], rows[1::2], strict=True)
        ]

    async def parts(self, key: bytes) -> dict[str, str] | None:
        """The parts of a key that was published, or None."""
        with translated_errors():
            stored = await self._client.get(self._record(key))
        return None if stored is None else json.loads(stored)

    async def nearest(self, key: bytes, parts: Mapping[str, str]) -> bytes | None:
        """The key, other than `key`, that has an entry and shares most of these parts, or None."""
        with translated_errors():
            pipeline = self._client.pipeline(transaction=False)
            for part in self._indexed.keys() & parts.keys():
                pipeline.zrevrange(self._name(part, parts[part]), 0, _KEYS_KEPT - 1)
            found = {near for keys in await pipeline.execute() for near in keys} - {key}
            candidates = sorted(found)
            for near in candidates:
                pipeline.exists(self._redis_keys.entry(self._space, near))
                pipeline.get(self._record(near))
            rows = await pipeline.execute()
        best, most = None, 0
        for near, exists, stored in zip(candidates, rows[::2], rows[1::2], strict=True):
            score = self._shared(parts, json.loads(stored)) if exists and stored else 0
            if score > most:
                best, most = near, score
        return best

    @property
    def _recent(self) -> str:
        return self._redis_keys.redis_key("x", self._space.value, "recent")

    def _record(self, key: bytes) -> str:
        return self._name("key", key.hex())

    def _name(self, part: str, value: str) -> str:
        return self._redis_keys.redis_key("x", self._space.value, part, value)

    def _shared(self, requested: Mapping[str, str], near: Mapping[str, str]) -> int:
        weights = {**dict.fromkeys(requested, 1), **_WEIGHTS, **self._indexed}
        return sum(weights[part] for part, value in requested.items() if value == near.get(part))
