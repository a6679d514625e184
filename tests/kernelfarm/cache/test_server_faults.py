"""Clients that work while their servers are flushed, killed, restarted and failed over.

Makers, callers and an operator work at once. Each content names a moment after its lease was
given: what an invalidation from later on hits, nobody may see once that has returned.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import redis

from kernelfarm.cache import KernelCache, PublishStatus, Space, UnsignedVariant
from kernelfarm.cache.embedded import ServerProgram
from kernelfarm.errors import UnavailableError
from tests.support.farm import TIMEOUT_S
from tests.support.redis_process import redis_process, replicate
from tests.support.redis_proxy import RedisProxy

KEYS = tuple(hashlib.sha256(b"key %d" % number).digest() for number in range(4))
TAG = "pass:fuse-nests"
ROUNDS = 4


@dataclass
class Fleet:
    """Clients over one URL, what they saw, and what they may not see any more."""

    url: str
    clock: itertools.count[int] = field(default_factory=itertools.count)
    invalidated: int = -1
    hits: int = 0
    bumps: int = 0
    last_hit_s: float = 0.0
    is_ending: bool = False
    stale: list[tuple[int, int]] = field(default_factory=list)

    async def make(self, cache: KernelCache, key: bytes) -> None:
        seen = (await cache.lookup(key, is_counted=False)).stamp
        lease = await cache.acquire(key, uuid.uuid4().hex, 0.5, seen=seen)
        if lease is not None:
            began = next(self.clock)
            content = b"%d" % began
            await cache.put_blobs({hashlib.sha256(content).digest(): content})
            published = await cache.publish(lease, [UnsignedVariant(content, tags=(TAG,))])
            assert published is not PublishStatus.MISSING_BLOB

    async def ask(self, cache: KernelCache, key: bytes) -> None:
        before = self.invalidated
        found = await cache.lookup(key, is_counted=False)
        for variant in found.variants:
            began = int(variant.content)
            self.hits += 1
            self.last_hit_s = time.monotonic()
            if began < before:
                self.stale.append((began, before))

    async def invalidate(self, cache: KernelCache, key: bytes) -> None:
        moment = next(self.clock)
        await cache.epochs.invalidate([TAG])
        self.invalidated = max(self.invalidated, moment)
        self.bumps += 1
        # Until somebody found something again: on a slow machine it would never be made in between.
        before = self.hits
        while self.hits == before and not self.is_ending:
            await asyncio.sleep(0.02)

    async def work(self, what: Callable[[KernelCache, bytes], Awaitable[None]]) -> None:
        """Does something again and again; what the server does not do is done later."""
        async with KernelCache(self.url, space=Space.PROGRAMS) as cache:
            for key in itertools.cycle(KEYS):
                if self.is_ending:
                    return
                try:
                    await what(cache, key)
                except UnavailableError:
                    await asyncio.sleep(0.01)

    async def serves_again(self) -> float:
        """Seconds until somebody finds something; an invalidation returns, too."""
        began_s, bumps = time.monotonic(), self.bumps
        while self.last_hit_s < began_s or self.bumps == bumps:
            assert time.monotonic() - began_s < TIMEOUT_S, "service does not resume"
            await asyncio.sleep(0.01)
        return self.last_hit_s - began_s


class Servers:
    """The server behind a proxy, and what may happen to it."""

    def __init__(self, program: ServerProgram, folder: Path, stack: ExitStack) -> None:
        self._program = program
        self._folder = folder
        self._stack = stack
        self._numbers = itertools.count()
        self._home = folder / "0"
        self._running = ExitStack()
        self.raw = self._start(self._home)
        self.proxy = stack.enter_context(RedisProxy(folder / "proxy", self._home / "s"))
        stack.callback(self._close)

    def _start(self, home: Path) -> redis.Redis:
        return self._running.enter_context(redis_process(self._program, home))

    def _close(self) -> None:
        self._running.close()

    def flush(self) -> None:
        self.raw.flushall()

    def flush_scripts(self) -> None:
        self.raw.script_flush()

    def restart_empty(self) -> None:
        self._running.close()
        (self._home / "dump.rdb").unlink(missing_ok=True)
        self.raw = self._start(self._home)

    def restart_from_file(self) -> None:
        """From a file of some time ago: what was invalidated since is not in it."""
        self.raw.save()
        time.sleep(0.1)  # while the fleet works on
        self._running.close()
        self.raw = self._start(self._home)

    def fail_over(self) -> None:
        """To a replica that stopped to follow some time ago."""
        home = self._folder / f"replica {next(self._numbers)}"
        replica = self._start(home)
        replicate(replica, self.raw, self._folder)
        replica.replicaof("NO", "ONE")
        time.sleep(0.1)  # while the fleet works on
        self.proxy.lead_to(home / "s")
        self.raw, self._home = replica, home


@pytest.mark.one_server
@pytest.mark.parametrize(
    "happens",
    [
        Servers.flush,
        Servers.flush_scripts,
        Servers.restart_empty,
        Servers.restart_from_file,
        Servers.fail_over,
    ],
    ids=lambda happens: happens.__name__,
)
async def test_nothing_stale_is_served_and_service_resumes_when(
    program: ServerProgram, tmp_path: Path, happens: Callable[[Servers], None]
) -> None:
    with ExitStack() as stack:
        servers = Servers(program, tmp_path, stack)
        fleet = Fleet(servers.proxy.url)
        work = [fleet.make, fleet.make, fleet.ask, fleet.ask, fleet.ask, fleet.invalidate]
        tasks = [asyncio.create_task(fleet.work(what)) for what in work]
        recoveries = []
        for _ in range(ROUNDS):
            await fleet.serves_again()
            await asyncio.to_thread(happens, servers)
            recoveries.append(await fleet.serves_again())
        fleet.is_ending = True
        await asyncio.gather(*tasks)
        print(happens.__name__, [round(s, 2) for s in recoveries], fleet.hits, fleet.bumps)
        assert fleet.stale == []
