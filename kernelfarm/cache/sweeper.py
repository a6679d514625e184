"""Deletes stale variants, variants with missing blobs, and orphan blobs, at a bounded rate.

A sweep reads all entries, removes their stale and incomplete variants, and collects the blobs that
the others name. Then it reads all blobs and deletes those that no entry names. Blobs that were
stored within the last hour stay, because a publisher stores blobs before it publishes. The sweep
also counts what the namespace holds.
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

from kernelfarm.cache import script_declarations as lua
from kernelfarm.cache.calls import new_incarnation
from kernelfarm.cache.connection import translated_errors
from kernelfarm.cache.limits import BLOB_TTL_S, TOOLCHAIN_WINDOW_MS
from kernelfarm.cache.lua_script import ScriptCall
from kernelfarm.cache.records import Space
from kernelfarm.cache.redis_keys import RedisKey, RedisKeys
from kernelfarm.cache.scripts import AsyncScripts
from kernelfarm.end_task import end_task
from kernelfarm.errors import FarmFullError, UnavailableError

# A blob that was stored within this time may belong to a publication in progress.
_YOUNG_S = 3600
_KEYS_A_STEP = 100
_LOCK_S = 60


@dataclass(frozen=True, slots=True)
class SpaceUsage:
    """What a key space holds; `size_bytes` counts manifests and contents."""

    entries: int = 0
    variants: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class NamespaceUsage:
    """What a namespace held at `counted_s`, in seconds since 1970.

    `blob_bytes` is the stored size.
    """

    counted_s: float
    programs: SpaceUsage
    kernels: SpaceUsage
    blobs: int
    blob_bytes: int
    traces: SpaceUsage = SpaceUsage()

    @property
    def spaces(self) -> dict[Space, SpaceUsage]:
        """What each key space holds."""
        return {
            Space.PROGRAMS: self.programs,
            Space.KERNELS: self.kernels,
            Space.TRACES: self.traces,
        }


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What a sweep read and deleted.

    `entries` counts the entries that were read, `dead_variants` the stale variants that were
    removed, `incomplete_variants` the removed variants with a missing blob, and `orphan_blobs` the
    deleted blobs. A variant of a toolchain that is not advertised stays.
    """

    entries: int = 0
    dead_variants: int = 0
    incomplete_variants: int = 0
    orphan_blobs: int = 0


class Sweeper:
    """Sweeps one namespace in steps; `keys_per_s` bounds the load on the server.

    Every method raises UnavailableError if Redis does not serve.
    """

    def __init__(self, client: Any, namespace: str, keys_per_s: float) -> None:
        self._client = client
        self._redis_keys = RedisKeys(namespace)
        self._scripts = AsyncScripts(client)
        self._keys_per_s = keys_per_s

    async def sweep(self) -> SweepResult:
        """Deletes what cannot be used, and counts what is left.

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
            # After a long time, an entry that was published since may name a blob.
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
        """What the last sweep counted; None before the first sweep."""
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
            SpaceUsage(**fields.get("traces", {})),  # older sweeps did not write it
        )

    async def count_dependents(self, space: Space, tags: frozenset[str]) -> int:
        """The number of entries of a space of which a variant depends on one of the tags."""
        parameters = lua.CountDependents(tags=" ".join(sorted(tags)))
        dependents = 0
        async for keys in self._steps(self._redis_keys.entry_prefix(space)):
            if keys:
                entries = tuple(RedisKey(key.decode()) for key in keys)
                call = lua.COUNT_DEPENDENTS.call(parameters, int, more_keys=entries)
                dependents += await self._scripts.run(call)
        return dependents

    async def _sweep_space(
        self, space: Space, result: SweepResult, named: set[bytes]
    ) -> tuple[SweepResult, SpaceUsage]:
        usage = SpaceUsage()
        async for keys in self._steps(self._redis_keys.entry_prefix(space)):
            for key in keys:
                call = self._sweep_call(RedisKey(key.decode()))
                live, size, dead, incomplete, digests = await self._scripts.run(call)
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
        """Replaces the sums of publications by what was counted."""
        redis_keys, spaces = self._redis_keys, counted.spaces.values()
        usage = {
            "bytes": counted.blob_bytes + sum(space.size_bytes for space in spaces),
            "entries": sum(space.entries for space in spaces),
        }
        with translated_errors():
            await self._client.hset(redis_keys.quota_usage, mapping=usage)
            sized = [digest.decode() for digest in await self._client.hkeys(redis_keys.sizes)]
            gone = [digest for digest in sized if digest not in present]
            for first in range(0, len(gone), _KEYS_A_STEP):
                await self._client.hdel(redis_keys.sizes, *gone[first : first + _KEYS_A_STEP])

    async def _sweep_blobs(self, named: set[bytes] | None, present: set[str]) -> tuple[int, int]:
        """The number of deleted orphans, and the stored bytes of the other blobs.

        Adds the hex digests of the other blobs to `present`. Deletes nothing if `named` is None.
        """
        prefix = self._redis_keys.blob_prefix
        freed = size = 0
        async for keys in self._steps(prefix):
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
        """Deletes orphans and returns them; one that was stored recently may be published soon."""
        gone = set()
        for key in orphans:
            parameters = lua.Free(RedisKey(key.decode()), most_ttl_s=BLOB_TTL_S - _YOUNG_S)
            if await self._scripts.run(lua.FREE.call(parameters, bool)):
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

    def _sweep_call(self, entry: RedisKey) -> ScriptCall[tuple[int, int, int, int, bytes]]:
        redis_keys = self._redis_keys
        parameters = lua.Sweep(
            entry=entry,
            epochs=redis_keys.epochs,
            invalidation_log=redis_keys.invalidation_log,
            toolchains=redis_keys.toolchains,
            blob_prefix=redis_keys.blob_prefix,
            new_incarnation=new_incarnation(),
            toolchain_window_ms=TOOLCHAIN_WINDOW_MS,
        )
        return lua.SWEEP.call(parameters, tuple)

    async def _steps(self, prefix: str) -> AsyncIterator[list[bytes]]:
        """The keys with a prefix, some at a time; pauses between the steps keep the rate."""
        cursor, pattern = 0, f"{_quoted(prefix)}*"
        while True:
            with translated_errors():
                cursor, keys = await self._client.scan(cursor, match=pattern, count=_KEYS_A_STEP)
            yield keys
            if not cursor:
                return
            # A step reads this many keys of all namespaces, whether they match or not.
            await asyncio.sleep(_KEYS_A_STEP / self._keys_per_s)

    @asynccontextmanager
    async def _sweep_lock(self) -> AsyncIterator[None]:
        """Holds the lock of the namespace's sweep, which expires if this process dies."""
        lock, owner = self._redis_keys.sweep_lock, uuid.uuid4().hex
        with translated_errors():
            if not await self._client.set(lock, owner, nx=True, ex=_LOCK_S):
                raise FarmFullError("another sweep of this namespace runs; try again later")
        renewing = asyncio.create_task(self._renew_lock(lock, owner))
        try:
            yield
        finally:
            await end_task(renewing)
            with translated_errors():
                # If the server did not answer for a while, another sweep may hold the lock now.
                if await self._client.get(lock) == owner.encode():
                    await self._client.delete(lock)

    async def _renew_lock(self, lock: str, owner: str) -> None:
        while True:
            await asyncio.sleep(_LOCK_S / 3)
            with suppress(UnavailableError), translated_errors():  # the next renewal tries again
                if await self._client.get(lock) == owner.encode():
                    await self._client.expire(lock, _LOCK_S)


def _quoted(text: str) -> str:
    """Text with the special characters of a pattern escaped."""
    return "".join(f"\\{c}" if c in "*?[]\\" else c for c in text)
