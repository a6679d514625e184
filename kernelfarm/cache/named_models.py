"""The models that the callers of a namespace have named. Its watchers see only their invalidations.

kf:...:models   HASH  @since -> since when all named models are recorded, ms since 1970; 0: always
                      @full -> 1 once there are too many to record; MODEL'S TAG -> 1

A tag is hidden from watchers only if the record is complete: it is not full, and it reaches back as
far as any stored program. Otherwise watchers are asked to drop all programs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from kernelfarm.cache.connection import translated_errors
from kernelfarm.cache.limits import BLOB_TTL_S
from kernelfarm.cache.redis_keys import RedisKeys
from kernelfarm.errors import UnavailableError

MAX_MODELS = 10_000
"""Models that are recorded for one namespace."""

_RECORD_INTERVAL_S = 60.0
_SINCE, _FULL = "@since", "@full"


class NamedModels:
    """The named models of one namespace."""

    def __init__(
        self, client: Any, redis_keys: RedisKeys, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._redis_keys = redis_keys
        self._clock = clock
        self._recorded_s: dict[str, float] = {}
        self._unsaved: set[str] = set()

    async def record(self, tags: Sequence[str]) -> None:
        """Records the models that a caller named; a later call repeats it if the store fails."""
        now_s = self._clock()
        fresh_s = now_s - _RECORD_INTERVAL_S
        if not tags and self._recorded_s.get(_SINCE, fresh_s) > fresh_s:
            return  # most hits end here
        models = (tag for tag in tags if tag.startswith("model:"))
        due = [tag for tag in (_SINCE, *models) if self._recorded_s.get(tag, fresh_s) <= fresh_s]
        if not due:
            return
        unsaved = self._unsaved.union(due) - {_SINCE}
        # One tag above the limit is enough for `_store` to mark the record as full.
        self._unsaved = (
            set(sorted(unsaved)[: MAX_MODELS + 1]) if len(unsaved) > MAX_MODELS else unsaved
        )
        with suppress(UnavailableError):
            await self._store(sorted(self._unsaved))
            self._unsaved = set()
            if len(self._recorded_s) > 2 * MAX_MODELS:
                self._recorded_s.clear()
            self._recorded_s.update(dict.fromkeys(due, now_s))

    async def unnamed(self, tags: Sequence[str]) -> tuple[set[str], bool]:
        """The tags of models that no caller has named, and whether the record is complete.

        Raises:
            UnavailableError: the store does not answer.
        """
        with translated_errors():
            since, is_full, *recorded = await self._client.hmget(
                self._redis_keys.models, _SINCE, _FULL, *tags
            )
            is_new = since is None and not await self._client.exists(self._redis_keys.stats)
        unnamed = {tag for tag, found in zip(tags, recorded, strict=True) if found is None}
        old_ms = (time.time() - BLOB_TTL_S) * 1e3
        is_complete = is_new or (since is not None and not is_full and int(since) <= old_ms)
        return unnamed, is_complete

    async def _store(self, tags: list[str]) -> None:
        name = self._redis_keys.models
        with translated_errors():
            pipeline = self._client.pipeline(transaction=False)
            pipeline.hlen(name)
            pipeline.exists(self._redis_keys.stats)
            held, was_used = await pipeline.execute()
            since_ms = round(time.time() * 1e3) if was_used else 0
            pipeline.hsetnx(name, _SINCE, since_ms)
            if held + len(tags) > MAX_MODELS:
                pipeline.hset(name, _FULL, 1)
            elif tags:
                pipeline.hset(name, mapping=dict.fromkeys(tags, 1))
            await pipeline.execute()
