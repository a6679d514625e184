"""Which models the callers of a namespace have named: it hears of the invalidation of these alone.

kf:...:models   HASH  @since -> ms since when all are noted, 0: since the namespace began
                      @full -> 1 once there are too many to note; MODEL'S TAG -> 1

Who is not sure drops what it holds: a tag that is not noted is hidden only where all were noted for
as long as any program lives.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from kernelfarm.cache.calls import BLOB_TTL_S
from kernelfarm.cache.connection import translated_errors
from kernelfarm.cache.redis_keys import Names
from kernelfarm.errors import UnavailableError

MAX_MODELS = 10_000
"""Models that one namespace notes."""

_NOTE_AGAIN_S = 60.0
_SINCE, _FULL = "@since", "@full"


class Models:
    """Those of one namespace."""

    def __init__(
        self, client: Any, names: Names, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._names = names
        self._clock = clock
        self._noted_s: dict[str, float] = {}
        self._owed: set[str] = set()

    async def note(self, tags: Sequence[str]) -> None:
        """Notes the models that a caller named; a store that does not answer is told later."""
        now_s = self._clock()
        fresh_s = now_s - _NOTE_AGAIN_S
        if not tags and self._noted_s.get(_SINCE, fresh_s) > fresh_s:
            return  # as for most hits
        models = (tag for tag in tags if tag.startswith("model:"))
        wanted = [tag for tag in (_SINCE, *models) if self._noted_s.get(tag, fresh_s) <= fresh_s]
        if not wanted:
            return
        owed = self._owed.union(wanted) - {_SINCE}
        # One more than fit are enough to tell that they do not fit.
        self._owed = set(sorted(owed)[: MAX_MODELS + 1]) if len(owed) > MAX_MODELS else owed
        with suppress(UnavailableError):
            await self._store(sorted(self._owed))
            self._owed = set()
            if len(self._noted_s) > 2 * MAX_MODELS:
                self._noted_s.clear()
            self._noted_s.update(dict.fromkeys(wanted, now_s))

    async def hidden(self, tags: Sequence[str]) -> tuple[set[str], bool]:
        """Which of these models nobody here has named, and whether that is sure.

        Raises:
            UnavailableError: the store does not answer.
        """
        with translated_errors():
            since, is_full, *noted = await self._client.hmget(
                self._names.models, _SINCE, _FULL, *tags
            )
            is_new = since is None and not await self._client.exists(self._names.stats)
        hidden = {tag for tag, known in zip(tags, noted, strict=True) if known is None}
        old_ms = (time.time() - BLOB_TTL_S) * 1e3
        is_sure = is_new or (since is not None and not is_full and int(since) <= old_ms)
        return hidden, is_sure

    async def _store(self, tags: list[str]) -> None:
        name = self._names.models
        with translated_errors():
            pipeline = self._client.pipeline(transaction=False)
            pipeline.hlen(name)
            pipeline.exists(self._names.stats)
            held, was_used = await pipeline.execute()
            since_ms = round(time.time() * 1e3) if was_used else 0
            pipeline.hsetnx(name, _SINCE, since_ms)
            if held + len(tags) > MAX_MODELS:
                pipeline.hset(name, _FULL, 1)
            elif tags:
                pipeline.hset(name, mapping=dict.fromkeys(tags, 1))
            await pipeline.execute()
