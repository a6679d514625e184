"""The asyncio face of the store, for services."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from types import TracebackType
from typing import TypeVar

from kernelfarm.cache import blobs, epoch_calls
from kernelfarm.cache.calls import (
    BLOB_TTL_S,
    JOB_TTL_S,
    MAX_FAILURES,
    MISSING_BLOB,
    ScriptCall,
    ScriptCalls,
)
from kernelfarm.cache.connection import connect_async, translated_errors
from kernelfarm.cache.epochs import EpochTable
from kernelfarm.cache.key_notifications import KeyNotifications
from kernelfarm.cache.lookups import LookupClient
from kernelfarm.cache.records import (
    STALE_SERVES_COUNTER,
    Lease,
    LookupResult,
    PublishStatus,
    Space,
    StoredVariant,
    UnsignedVariant,
    WorkerReport,
    facts_from_json,
)
from kernelfarm.cache.redis_keys import RedisKeys, check_namespace
from kernelfarm.cache.scripts import AsyncScripts
from kernelfarm.cache.signing_policy import SigningPolicy, counter_of
from kernelfarm.cache.verified_manifests import VerifiedManifests
from kernelfarm.errors import ErrorFacts, IntegrityError, MalformedMessageError, PoisonedBlobError
from kernelfarm.signing import CacheAddress

T = TypeVar("T")

# The net under lost messages: a waiter looks again at least this often.
_POLL_S = 1.0
# A lapsed lease is gone a little after its time; looking too early costs one more turn.
_LAPSE_MARGIN_S = 0.005
_SUBSCRIBE_S = 1.0

UNSIGNED = SigningPolicy()
"""For farms that state that they sign nothing."""


class KernelCache:
    """One key space of the store. Every method raises UnavailableError if Redis does not serve.

    The pattern of a maker:

        while True:
            if (found := await cache.lookup(key)).is_hit: return found
            if (facts := await cache.get_failure(key)) is not None: raise error_from_facts(facts)
            lease = await cache.acquire(key, owner, ttl_s, seen=found.stamp)
            if lease is not None: make and publish
            else: await cache.wait(key, timeout_s, seen=found.stamp)
    """

    def __init__(
        self,
        url: str,
        *,
        namespace: str = "default",
        space: Space,
        signing: SigningPolicy = UNSIGNED,
        may_write: bool = True,
        salt: bytes = b"",
    ) -> None:
        self._calls = ScriptCalls(namespace, space, may_write, salt)
        self.client = connect_async(url, epoch_calls.handshake(self._calls.redis_keys, may_write))
        self._scripts = AsyncScripts(self.client)
        self._lookups = LookupClient(self.client)
        self._signing = signing
        self._verified = VerifiedManifests(signing)
        self._notifications = KeyNotifications(self.client, self._calls.channel)
        self.epochs = EpochTable(self.client, self._calls.redis_keys)

    def for_namespace(
        self, namespace: str, salt: bytes = b"", most_failures: int = MAX_FAILURES
    ) -> KernelCache:
        """The same store for a tenant of the same farm; it shares connections: do not close it.

        Of the failures that this one is told, `most_failures` are remembered.

        Raises:
            CallerError: the namespace is not of this farm.
        """
        check_namespace(namespace, self.namespace.partition("/")[0])
        calls = replace(self._calls, namespace=namespace, salt=salt, most_failures=most_failures)
        if calls == self._calls:
            return self
        scoped = copy(self)
        scoped._calls = calls
        return scoped

    def for_space(self, space: Space, signing: SigningPolicy) -> KernelCache:
        """Another key space of the same part; it shares connections: do not close it."""
        scoped = copy(self)
        scoped._calls = replace(self._calls, space=space)
        scoped._signing, scoped._verified = signing, VerifiedManifests(signing)
        return scoped

    @property
    def redis_keys(self) -> RedisKeys:
        """The names of its keys."""
        return self._calls.redis_keys

    @property
    def namespace(self) -> str:
        """The namespace whose keys it uses."""
        return self._calls.namespace

    @property
    def space(self) -> Space:
        """Its key space."""
        return self._calls.space

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
        await self._notifications.close()
        await self._lookups.close()
        await self.client.aclose()
        await self.client.connection_pool.disconnect()

    async def ping(self) -> None:
        """Returns if the server answers."""
        with translated_errors():
            await self.client.ping()

    async def lookup(
        self, key: bytes, *, tags: Sequence[str] = (), is_counted: bool = True
    ) -> LookupResult:
        """A key's live variants, or why there are none.

        All blobs that they name are stored; a variant with a hole is deleted. What is stale, too
        old, or of a toolchain that nobody advertises is not given, and what is not believed is
        deleted and counted by its fault. `tags` are the caller's own (its model): what is stale for
        them is not given to this caller. Waiters that look again pass `is_counted=False`.
        """
        found = await self._lookups.run(self._calls.lookup(key, tags, is_counted))
        if not found.is_hit:
            return found
        address, reason = CacheAddress(self.namespace, self.space, key), ""
        verified: list[StoredVariant] = []
        for variant in found.variants:
            try:
                verified.append(self._verified.verify(address, variant))
            except (IntegrityError, MalformedMessageError) as error:
                reason = f"{error.reason}: {error}"
                if self._calls.may_write:
                    await self._drop(key, variant, counter_of(error))
        if verified:
            return replace(found, variants=tuple(verified))
        return replace(found, variants=(), reason="untrusted", detail=reason)

    async def acquire(
        self,
        key: bytes,
        owner: str,
        ttl_s: float,
        *,
        is_queued: bool = False,
        seen: str = "",
        tags: Sequence[str] = (),
    ) -> Lease | None:
        """The right to make a key's result, or None if somebody has it or a result is there.

        `owner` is unique for each attempt. A lease with `is_queued` waits for a worker to adopt it;
        only what runs counts as an attempt. `seen` is the stamp of a look-up whose variants did not
        fit: they do not stand in the way.
        """
        return await self._run(self._calls.acquire(key, owner, ttl_s, is_queued, (seen, tags)))

    async def renew(self, lease: Lease) -> bool:
        """Prolongs a lease by its time to live; False if it lapsed or a worker adopted it."""
        return await self._run(self._calls.renew(lease))

    async def release(self, lease: Lease) -> bool:
        """Gives a lease back without a result and wakes waiters; False if it was not ours."""
        return await self._run(self._calls.release(lease))

    async def publish(self, lease: Lease, variants: Sequence[UnsignedVariant]) -> PublishStatus:
        """Signs variants, adds them to the key's entry, ends the lease, wakes waiters.

        Their blobs must have been stored before. A variant with an equal guard is replaced if it is
        stale; if it is live, the new one must name the same blobs.
        """
        address = CacheAddress(self.namespace, self.space, lease.key)
        made = self._signing.sign(address, lease, variants)
        return await self._run(self._calls.publish(lease, made))

    async def refresh(self, key: bytes, variant: StoredVariant) -> StoredVariant:
        """A variant of ours under a statement that is good for longer, stored if it is still there.

        Only what `lookup` gave may be refreshed: that was checked.
        """
        made = self._signing.renew(variant.manifest, variant.content)
        await self._run(self._calls.refresh(key, variant.manifest_bytes, made))
        return StoredVariant(made.manifest, variant.content, made.facts)

    async def put_failure(
        self, key: bytes, facts: ErrorFacts, ttl_s: float, lease: Lease | None = None
    ) -> PublishStatus:
        """Records a failure for a time and wakes waiters; given a lease, also ends it."""
        return await self._run(self._calls.fail(key, facts, ttl_s, lease))

    async def get_failure(self, key: bytes) -> ErrorFacts | None:
        """The failure recorded for a key, until it expires."""
        with translated_errors():
            stored = await self.client.get(self._calls.failure_key(key))
        return None if stored is None else facts_from_json(stored)

    async def wait(self, key: bytes, timeout_s: float, *, seen: str = "") -> None:
        """Returns when there is something new to see: a publication, a failure, a lapsed lease.

        Also after the timeout. `seen` is the stamp of the caller's last look-up.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        with self._notifications.waiting(self._calls.message(key)) as event:
            # Listen first, look second: what happens between the two is then not missed.
            await self._notifications.listening(min(timeout_s, _SUBSCRIBE_S))
            while True:
                event.clear()
                lapse_s = await self._run(self._calls.pending(key, seen))
                left_s = deadline - loop.time()
                if lapse_s < 0 or left_s <= 0:
                    return
                try:
                    pause_s = min(lapse_s + _LAPSE_MARGIN_S, left_s, _POLL_S)
                    await asyncio.wait_for(event.wait(), pause_s)
                except TimeoutError:
                    continue

    async def is_in_progress(self, key: bytes, *, seen: str = "") -> bool:
        """True if somebody has the key's lease, and there is nothing new to see; see `wait`."""
        return await self._run(self._calls.pending(key, seen)) >= 0

    async def put_blobs(self, contents: Mapping[bytes, bytes]) -> None:
        """Stores blobs under their SHA-256 digests."""
        parts = await asyncio.to_thread(self._blob_chunks, contents)
        with translated_errors():
            pipeline = self.client.pipeline(transaction=False)
            for name, part in parts:
                pipeline.set(name, part, ex=BLOB_TTL_S)
            await pipeline.execute()

    async def get_blob(self, sha256: bytes) -> bytes | None:
        """A blob's content, or None.

        Raises:
            PoisonedBlobError: another content is stored there; it is deleted, so that the entries
                that name it become misses.
        """
        return (await self.get_blobs([sha256]))[0]

    async def get_blobs(self, digests: Sequence[bytes]) -> list[bytes | None]:
        """Contents of several blobs in one round trip (more for large ones), None where absent.

        Raises:
            PoisonedBlobError: see `get_blob`.
        """
        if not digests:
            return []
        with translated_errors():
            heads = await self.client.mget(
                [self._calls.redis_keys.blob(sha256) for sha256 in digests]
            )
        return [await self._join_blob(sha, head) for sha, head in zip(digests, heads, strict=True)]

    async def copy_blobs(self, source: KernelCache, digests: Iterable[bytes]) -> bool:
        """Copies blobs from another part of the farm, within the server.

        What is here already stays, and is as good as stored now. False if one is neither here nor
        there: nothing may be published then that names them.
        """
        return await self._run(self._calls.copy_blobs(source.redis_keys, digests))

    async def report_missing_blob(self, sha256: bytes) -> bool:
        """Tells all gateways that a blob is gone; False if it was told, or never was here.

        So whoever asks for digests that do not exist makes nobody forget anything.
        """
        return await self._run(self._calls.report_missing_blob(sha256))

    def on_missing_blob(self, callback: Callable[[bytes], object]) -> None:
        """Calls `obey` with each blob that a gateway tells to be lost, as far as messages come."""
        self._notifications.subscribe(
            MISSING_BLOB,
            lambda message: callback(bytes.fromhex(message.removeprefix(MISSING_BLOB))),
        )

    async def put_job(self, key: bytes, job: bytes) -> None:
        """Stores the input of a kernel job until its key is published."""
        with translated_errors():
            await self.client.set(self._calls.job_key(key), job, ex=JOB_TTL_S)

    async def advertise(self, toolchains: Sequence[str]) -> None:
        """Tells that these toolchains (`backend@fingerprint`) serve; to be repeated."""
        if toolchains:
            await self._run(epoch_calls.advertise(self._calls.redis_keys, toolchains))

    async def is_slow(self, key: bytes) -> bool:
        """True if a worker found out lately that compiling the key takes long."""
        with translated_errors():
            return bool(await self.client.exists(self._calls.slow_key(key)))

    async def count(self, counter: str, by: int = 1) -> None:
        """Adds to a counter of this key space (`merged`, `jobs`, ...)."""
        with translated_errors():
            name = self._calls.counter(counter)
            await self.client.hincrby(self._calls.redis_keys.stats, name, by)

    async def stats(self) -> dict[str, int]:
        """Counters of this key space since the server started with an empty store.

        hits, misses, holes, published, failures, takeovers, fenced, and what services `count`.
        """
        return (await self.counters())[self.space]

    async def counters(self) -> dict[Space, dict[str, int]]:
        """Counters of all key spaces."""
        with translated_errors():
            stored = await self.client.hgetall(self._calls.redis_keys.stats)
        counters: dict[Space, dict[str, int]] = {space: {} for space in Space}
        counters[Space.PROGRAMS][STALE_SERVES_COUNTER] = 0
        for field, value in sorted(stored.items()):
            prefix, _, name = field.decode().partition(".")
            if name:
                counters[Space(prefix)][name] = int(value)
        return counters

    async def worker_reports(self) -> list[WorkerReport]:
        """Reports of the workers that live, sorted by queue and worker."""
        name = self._calls.redis_keys.farm_key
        with translated_errors():
            workers = sorted(await self.client.smembers(name("workers")))
            if not workers:
                return []
            stored = await self.client.mget([name("w", worker.decode()) for worker in workers])
            gone = [worker for worker, report in zip(workers, stored, strict=True) if not report]
            if gone:
                await self.client.srem(name("workers"), *gone)
        reports = [WorkerReport.from_json(report) for report in stored if report is not None]
        return sorted(reports, key=lambda report: (report.queue, report.worker))

    async def _drop(self, key: bytes, variant: StoredVariant, counter: str) -> None:
        try:
            variant_id = variant.manifest.variant_id.hex()
        except MalformedMessageError:
            variant_id = ""
        call = self._calls.remove_variant(key, variant_id, variant.manifest_bytes, counter)
        await self._run(call)

    async def _join_blob(self, sha256: bytes, head: bytes | None) -> bytes | None:
        if head is None:
            return None
        key = self._calls.redis_keys.blob(sha256)
        try:
            with translated_errors():
                chunks = [await self.client.get(name) for name in blobs.chunk_keys(key, head)]
            return await asyncio.to_thread(blobs.joined, sha256, head, chunks)
        except PoisonedBlobError:
            if self._calls.may_write:
                await self.count("poisoned")
                with translated_errors():
                    await self.client.delete(key)
            raise

    def _blob_chunks(self, contents: Mapping[bytes, bytes]) -> list[tuple[str, bytes]]:
        name = self._calls.redis_keys.blob
        return [
            part
            for sha256, content in contents.items()
            for part in blobs.stored_parts(name(sha256), content)
        ]

    async def _run(self, call: ScriptCall[T]) -> T:
        return await self._scripts.run(call)
