"""Which programs there are, by the parts of their keys: for explanations of misses alone.

kf:{ns}:x:key:<key>           STR   a key's parts as JSON
kf:{ns}:x:<part>:<value>      ZSET  the newest keys with a value of a part, by time
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from kernelfarm.cache.calls import MANIFEST_TTL_S
from kernelfarm.cache.connection import translated_errors
from kernelfarm.cache.names import Names
from kernelfarm.cache.records import Space

# By these parts a near entry is looked for; the others are compared only.
_INDEXED = {"graph": 8, "operators": 4, "target": 2}
_WEIGHTS = {**_INDEXED, "options": 2, "abi": 1}
_KEYS_KEPT = 32


class KeyIndex:
    """Every method raises UnavailableError if Redis does not serve."""

    def __init__(self, client: Any, names: Names) -> None:
        self._client = client
        self._names = names

    async def add(self, key: bytes, parts: Mapping[str, str]) -> None:
        """Remembers a published key by its parts."""
        with translated_errors():
            pipeline = self._client.pipeline(transaction=False)
            pipeline.set(self._record(key), json.dumps(dict(parts)), ex=MANIFEST_TTL_S)
            for part in _INDEXED:
                index = self._names.name("x", part, parts[part])
                pipeline.zadd(index, {key: time.time()})
                pipeline.zremrangebyrank(index, 0, -_KEYS_KEPT - 1)
                pipeline.expire(index, MANIFEST_TTL_S)
            await pipeline.execute()

    async def parts(self, key: bytes) -> dict[str, str] | None:
        """The parts of a key that was published once."""
        with translated_errors():
            stored = await self._client.get(self._record(key))
        return None if stored is None else json.loads(stored)

    async def nearest(self, key: bytes, parts: Mapping[str, str]) -> bytes | None:
        """The stored program, other than the key's own, that shares most with these parts."""
        with translated_errors():
            pipeline = self._client.pipeline(transaction=False)
            for part in _INDEXED:
                pipeline.zrevrange(self._names.name("x", part, parts[part]), 0, _KEYS_KEPT - 1)
            found = {near for keys in await pipeline.execute() for near in keys} - {key}
            candidates = sorted(found)
            for near in candidates:
                pipeline.exists(self._names.entry(Space.PROGRAMS, near))
                pipeline.get(self._record(near))
            told = await pipeline.execute()
        best, most = None, 0
        for near, exists, stored in zip(candidates, told[::2], told[1::2], strict=True):
            score = _shared(parts, json.loads(stored)) if exists and stored else 0
            if score > most:
                best, most = near, score
        return best

    def _record(self, key: bytes) -> str:
        return self._names.name("x", "key", key.hex())


def _shared(asked: Mapping[str, str], near: Mapping[str, str]) -> int:
    return sum(weight for part, weight in _WEIGHTS.items() if asked.get(part) == near.get(part))
