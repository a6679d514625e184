"""The asyncio face of the store, for services."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from kernelfarm.cache import blobs
from kernelfarm.cache.calls import BLOB_TTL_S, JOB_TTL_S, Call, Calls, script_source
from kernelfarm.cache.connection import connect_async, translated_errors
from kernelfarm.cache.records import (
    Lease,
    Published,
    Space,
    Variant,
    WorkerReport,
    facts_from_json,
)
from kernelfarm.cache.wakeups import Wakeups
from kernelfarm.errors import ErrorFacts

T = TypeVar("T")

# The net under lost messages: a waiter looks again at least this often.
_POLL_S = 1.0
# A lapsed lease is gone a little after its time; looking too early costs one more turn.
_LAPSE_MARGIN_S = 0.005
_SUBSCRIBE_S = 1.0


class KernelCache:
    """One key space of the store. Every method raises UnavailableError if Redis does not serve.

    The pattern of a maker:

        while True:
            if (found := await cache.lookup(key)) is not None: return found
            if (facts := await cache.get_failure(key)) is not None: raise error_from_facts(facts)
            if (lease := await cache.acquire(key, owner, ttl_s)) is not None: make and publish
            else: await cache.wait(key, timeout_s)
    """

    def __init__(self, url: str, *, namespace: str = "default", space: Space) -> None:
        self._client = connect_async(url)
        self._calls = Calls(namespace, space)
        self._scripts: dict[str, Any] = {}
        self._wakeups = Wakeups(self._client, self._calls.channel)

    @property
    def namespace(self) -> str:
        """The namespace whose keys it uses."""
        return self._calls.namespace

    async def __aenter__(self) -> KernelCache:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the subscription and the connections."""
        await self._wakeups.close()
        await self._client.aclose()
        await self._client.connection_pool.disconnect()

    async def ping(self) -> None:
        """Returns if the server answers."""
        with translated_errors():
            await self._client.ping()

    async def lookup(self, key: bytes, *, is_counted: bool = True) -> list[bytes] | None:
        """The payloads of a key's variants in published order, or None.

        All blobs that they name are stored: a manifest with a hole is deleted and counted as a hole
        and a miss. Waiters that look again pass `is_counted=False`.
        """
        return await self._run(self._calls.lookup(key, is_counted))

    async def acquire(
        self, key: bytes, owner: str, ttl_s: float, *, is_queued: bool = False
    ) -> Lease | None:
        """The right to make a key's result, or None if somebody has it or the result is there.

        `owner` is unique for each attempt. A lease with `is_queued` waits for a worker to adopt it;
        only what runs counts as an attempt.
        """
        return await self._run(self._calls.acquire(key, owner, ttl_s, is_queued))

    async def renew(self, lease: Lease) -> bool:
        """Prolongs a lease by its time to live; False if it lapsed or a worker adopted it."""
        return await self._run(self._calls.renew(lease))

    async def release(self, lease: Lease) -> bool:
        """Gives a lease back without a result and wakes waiters; False if it was not ours."""
        return await self._run(self._calls.release(lease))

    async def publish(self, lease: Lease, variants: Sequence[Variant]) -> Published:
        """Makes variants (most specific first) the key's result, ends the lease, wakes waiters.

        Their blobs must have been stored before.
        """
        return await self._run(self._calls.publish(lease, variants))

    async def put_failure(
        self, key: bytes, facts: ErrorFacts, ttl_s: float, lease: Lease | None = None
    ) -> Published:
        """Records a failure for a time and wakes waiters; given a lease, also ends it."""
        return await self._run(self._calls.fail(key, facts, ttl_s, lease))

    async def get_failure(self, key: bytes) -> ErrorFacts | None:
        """The failure recorded for a key, until it expires."""
        with translated_errors():
            stored = await self._client.get(self._calls.failure_key(key))
        return None if stored is None else facts_from_json(stored)

    async def wait(self, key: bytes, timeout_s: float) -> None:
        """Returns when the key has a result or a failure or no lease, or after the timeout."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        with self._wakeups.waiting(self._calls.message(key)) as event:
            # Listen first, look second: what happens between the two is then not missed.
            await self._wakeups.listening(min(timeout_s, _SUBSCRIBE_S))
            while True:
                event.clear()
                lapse_s = await self._run(self._calls.pending(key))
                left_s = deadline - loop.time()
                if lapse_s < 0 or left_s <= 0:
                    return
                try:
                    pause_s = min(lapse_s + _LAPSE_MARGIN_S, left_s, _POLL_S)
                    await asyncio.wait_for(event.wait(), pause_s)
                except TimeoutError:
                    continue

    async def put_blobs(self, contents: Mapping[bytes, bytes]) -> None:
        """Stores blobs under their SHA-256 digests."""
        with translated_errors():
            pipeline = self._client.pipeline(transaction=False)
            for sha256, content in contents.items():
                for name, part in blobs.stored_parts(self._calls.blob_key(sha256), content):
                    pipeline.set(name, part, ex=BLOB_TTL_S)
            await pipeline.execute()

    async def get_blob(self, sha256: bytes) -> bytes | None:
        """A blob's content, or None; readers check the digest."""
        return (await self.get_blobs([sha256]))[0]

    async def get_blobs(self, digests: Sequence[bytes]) -> list[bytes | None]:
        """Contents of several blobs in one round trip (more for large ones), None where absent."""
        if not digests:
            return []
        keys = [self._calls.blob_key(sha256) for sha256 in digests]
        with translated_errors():
            heads = await self._client.mget(keys)
            return [await self._whole(key, head) for key, head in zip(keys, heads, strict=True)]

    async def put_job(self, key: bytes, job: bytes) -> None:
        """Stores the input of a kernel job until its key is published."""
        with translated_errors():
            await self._client.set(self._calls.job_key(key), job, ex=JOB_TTL_S)

    async def count(self, counter: str, by: int = 1) -> None:
        """Adds to a counter of this key space (`merged`, `jobs`, ...)."""
        with translated_errors():
            await self._client.hincrby(self._calls.stats_key, self._calls.counter(counter), by)

    async def stats(self) -> dict[str, int]:
        """Counters of this key space since the server started with an empty store.

        hits, misses, holes, published, failures, takeovers, fenced, and what services `count`.
        """
        with translated_errors():
            stored = await self._client.hgetall(self._calls.stats_key)
        prefix = self._calls.counter()
        return {
            name.decode().removeprefix(prefix): int(value)
            for name, value in sorted(stored.items())
            if name.decode().startswith(prefix)
        }

    async def worker_reports(self) -> list[WorkerReport]:
        """Reports of the workers that live, sorted by queue and worker."""
        with translated_errors():
            names = sorted(await self._client.smembers(self._calls.name("workers")))
            if not names:
                return []
            keys = [self._calls.name("w", name.decode()) for name in names]
            stored = await self._client.mget(keys)
            gone = [name for name, report in zip(names, stored, strict=True) if report is None]
            if gone:
                await self._client.srem(self._calls.name("workers"), *gone)
        reports = [WorkerReport.from_json(report) for report in stored if report is not None]
        return sorted(reports, key=lambda report: (report.queue, report.worker))

    async def _whole(self, key: str, head: bytes | None) -> bytes | None:
        if head is None:
            return None
        names = blobs.chunk_keys(key, head)
        return blobs.joined(head, [await self._client.get(name) for name in names])

    async def _run(self, call: Call[T]) -> T:
        script = self._scripts.get(call.script)
        if script is None:
            script = self._client.register_script(script_source(call.script))
            self._scripts[call.script] = script
        with translated_errors():
            return call.read(await script(keys=call.keys, args=call.args))
