"""Frees slowly what nobody will find: dead variants, entries with missing blobs, orphan blobs.

A sweep walks all entries, drops their dead variants, and notes which blobs the living name; then it
walks all blobs and drops those that no entry names and that nobody stored within the last hour: a
publisher stores blobs before it publishes. On its way it counts what the namespace holds.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from kernelfarm.cache.calls import BLOB_TTL_S, TOOLCHAIN_WINDOW_S, ScriptCall
from kernelfarm.cache.connection import translated_errors
from kernelfarm.cache.records import Space
from kernelfarm.cache.redis_keys import RedisKeys
from kernelfarm.cache.scripts import AsyncScripts
from kernelfarm.end_task import end_task
from kernelfarm.errors import FarmFullError, UnavailableError

# Blobs stored within this time may belong to a publication that is under way.
_YOUNG_S = 3600
_KEYS_A_STEP = 100
_LOCK_S = 60


@dataclass(frozen=True, slots=True)
class SpaceUsage:
    """What a key space holds; bytes are those of manifests and contents."""

    entries: int = 0
    variants: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class NamespaceUsage:
    """What a namespace held when it was counted, seconds since 1970; blob bytes as stored."""

    counted_s: float
    programs: SpaceUsage
    kernels: SpaceUsage
    blobs: int
    blob_bytes: int
    traces: SpaceUsage = SpaceUsage()

    @property
    def spaces(self) -> dict[Space, SpaceUsage]:
        """What each space holds."""
        return {
            Space.PROGRAMS: self.programs,
            Space.KERNELS: self.kernels,
            Space.TRACES: self.traces,
        }


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What a sweep did."""

    entries: int = 0
    dead_variants: int = 0
    incomplete_variants: int = 0
    orphan_blobs: int = 0


class Sweeper:
    """Sweeps one namespace, a step at a time; `keys_per_s` bounds what it asks of the server.

    Every method raises UnavailableError if Redis does not serve.
    """

    def __init__(self, client: Any, namespace: str, keys_per_s: float) -> None:
        self._client = client
        self._redis_keys = RedisKeys(namespace)
        self._scripts = AsyncScripts(client)
        self._keys_per_s = keys_per_s

    async def sweep(self) -> SweepResult:
        """Frees what is dead and counts what is left.

        Raises:
            FarmFullError: another sweep of this namespace runs.
        """
        async with self._sweep_lock():
            began_s = time.monotonic()
            named: set[bytes] = set()
            result = SweepResult()
            usage: dict[Space, SpaceUsage] = {}
            for space in Space:
                result, usage[space] = await self._sweep_space(space, result, named)
            # After too long a walk, a blob may be named by an entry that came behind our back.
            may_free = time.monotonic() - began_s < _YOUNG_S / 2
            present: set[str] = set()
            orphans, blob_bytes = await self._sweep_blobs(named if may_free else None, present)
            counted = NamespaceUsage(
                time.time(),
                usage[Space.PROGRAMS],
                usage[Space.KERNELS],
                len(present),
                blob_bytes,
                usage[Space.TRACES],
            )
            with translated_errors():
                await self._client.set(self._redis_keys.usage, json.dumps(asdict(counted)))
            await self._recount(counted, present)
        return replace(result, orphan_blobs=orphans)

    async def usage(self) -> NamespaceUsage | None:
        """What the last sweep counted, None before the first."""
        with translated_errors():
            stored = await self._client.get(self._redis_keys.usage)
        if stored is None:
            return None
        fields = json.loads(stored)
        return NamespaceUsage(
            fields["counted_s"],
            SpaceUsage(**fields["programs"]),
            SpaceUsage(**fields["kernels"]),
            fields["blobs"],
            fields["blob_bytes"],
            SpaceUsage(**fields.get("traces", {})),  # absent in what an older sweep wrote
        )

    async def count_hit(self, space: Space, tags: frozenset[str]) -> int:
        """Entries of a space of which a variant depends on one of the tags."""
        hits = 0
        async for keys in self._steps(
            f"{_quoted(self._redis_keys.redis_key('m', space.value, ''))}*"
        ):
            if keys:
                names = tuple(key.decode() for key in keys)
                hits += await self._scripts.run(ScriptCall("hits", names, tuple(sorted(tags)), int))
        return hits

    async def _sweep_space(
        self, space: Space, result: SweepResult, named: set[bytes]
    ) -> tuple[SweepResult, SpaceUsage]:
        usage = SpaceUsage()
        async for keys in self._steps(
            f"{_quoted(self._redis_keys.redis_key('m', space.value, ''))}*"
        ):
            for key in keys:
                live, size, dead, incomplete, digests = await self._scripts.run(self._call(key))
                named.update(bytes.fromhex(digest) for digest in digests.decode().split())
                result = replace(
                    result,
                    entries=result.entries + 1,
                    dead_variants=result.dead_variants + dead,
                    incomplete_variants=result.incomplete_variants + incomplete,
                )
                usage = SpaceUsage(
                    usage.entries + (live > 0), usage.variants + live, usage.size_bytes + size
                )
        return result, usage

    async def _recount(self, counted: NamespaceUsage, present: set[str]) -> None:
        """Puts what was counted in the place of what publications added up."""
        redis_keys, spaces = self._redis_keys, counted.spaces.values()
        held = {
            "bytes": counted.blob_bytes + sum(space.size_bytes for space in spaces),
            "entries": sum(space.entries for space in spaces),
        }
        with translated_errors():
            await self._client.hset(redis_keys.quota_usage, mapping=held)
            known = [digest.decode() for digest in await self._client.hkeys(redis_keys.sizes)]
            gone = [digest for digest in known if digest not in present]
            for first in range(0, len(gone), _KEYS_A_STEP):
                await self._client.hdel(redis_keys.sizes, *gone[first : first + _KEYS_A_STEP])

    async def _sweep_blobs(self, named: set[bytes] | None, present: set[str]) -> tuple[int, int]:
        """Orphans freed, and the stored bytes of what is left; tells the digests `present`."""
        prefix = self._redis_keys.blobs
        freed = size = 0
        async for keys in self._steps(f"{_quoted(prefix)}*"):
            stored = [key.decode().removeprefix(prefix).partition(":") for key in keys]
            orphans = [
                key
                for key, (digest, _, _) in zip(keys, stored, strict=True)
                if named is not None and bytes.fromhex(digest) not in named
            ]
            gone = await self._free(orphans)
            freed += sum(not key.decode().removeprefix(prefix).count(":") for key in gone)
            left = [key for key in keys if key not in gone]
            names = (key.decode().removeprefix(prefix) for key in left)
            present.update(name for name in names if ":" not in name)
            size += await self._stored_bytes(left)
        return freed, size

    async def _free(self, orphans: list[bytes]) -> set[bytes]:
        """Orphans that were freed: a young one may be about to be published."""
        gone = set()
        for key in orphans:
            call = ScriptCall("free", (key.decode(),), (BLOB_TTL_S - _YOUNG_S,), bool)
            if await self._scripts.run(call):
                gone.add(key)
        return gone

    async def _stored_bytes(self, keys: list[bytes]) -> int:
        if not keys:
            return 0
        with translated_errors():
            pipeline = self._client.pipeline(transaction=False)
            for key in keys:
                pipeline.strlen(key)
            return sum(await pipeline.execute())

    def _call(self, key: bytes) -> ScriptCall[tuple[int, int, int, int, bytes]]:
        redis_keys = self._redis_keys
        keys = (key.decode(), redis_keys.epochs, redis_keys.invalidation_log, redis_keys.toolchains)
        args = (redis_keys.blobs, uuid.uuid4().hex, TOOLCHAIN_WINDOW_S * 1000, 1)
        return ScriptCall("sweep", keys, args, tuple)

    async def _steps(self, pattern: str) -> AsyncIterator[list[bytes]]:
        """Keys of a pattern, some at a time; pauses so as to stay within the rate."""
        cursor = 0
        while True:
            with translated_errors():
                cursor, keys = await self._client.scan(cursor, match=pattern, count=_KEYS_A_STEP)
            yield keys
            if not cursor:
                return
            # A step looks at so many keys of all namespaces, whether they match or not.
            await asyncio.sleep(_KEYS_A_STEP / self._keys_per_s)

    @asynccontextmanager
    async def _sweep_lock(self) -> AsyncIterator[None]:
        """Holds the namespace's sweep; it lapses by itself if this process dies."""
        lock, owner = self._redis_keys.redis_key("sweep"), uuid.uuid4().hex
        with translated_errors():
            if not await self._client.set(lock, owner, nx=True, ex=_LOCK_S):
                raise FarmFullError("another sweep of this namespace runs; try again later")
        beat = asyncio.create_task(self._renew_lock(lock, owner))
        try:
            yield
        finally:
            await end_task(beat)
            with translated_errors():
                # One that lapsed while this server was away may be somebody else's by now.
                if await self._client.get(lock) == owner.encode():
                    await self._client.delete(lock)

    async def _renew_lock(self, lock: str, owner: str) -> None:
        while True:
            await asyncio.sleep(_LOCK_S / 3)
            with suppress(UnavailableError), translated_errors():  # the next turn tries again
                if await self._client.get(lock) == owner.encode():
                    await self._client.expire(lock, _LOCK_S)


def _quoted(text: str) -> str:
    """Text as a part of a pattern."""
    return "".join(f"\\{c}" if c in "*?[]\\" else c for c in text)
