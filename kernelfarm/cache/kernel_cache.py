"""The asyncio client of the cache, for services."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar

from kernelfarm.cache import blobs, epoch_calls
from kernelfarm.cache.calls import MISSING_BLOB, ScriptCalls
from kernelfarm.cache.connection import connect_async, translated_errors
from kernelfarm.cache.epochs import EpochTable
from kernelfarm.cache.key_notifications import KeyNotifications
from kernelfarm.cache.limits import BLOB_TTL_S, MAX_FAILURES
from kernelfarm.cache.lookups import LookupClient
from kernelfarm.cache.lua_script import ScriptCall
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

# A notification may be lost, so a waiter checks its key at least this often.
_POLL_S = 1.0
# Redis removes a lease a little after its expiry; a check before that costs another iteration.
_LAPSE_MARGIN_S = 0.005
SUBSCRIBE_S = 1.0
"""How long a waiter waits for its subscription before it goes on without one."""

UNSIGNED = SigningPolicy()
"""The policy of a farm that signs nothing."""


class KernelCache:
    """One key space of the cache; every method raises UnavailableError if Redis does not serve.

    Callers that make missing results follow this pattern:

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
        self.client = connect_async(url, epoch_calls.handshake(self.redis_keys, may_write))
        self._scripts = AsyncScripts(self.client)
        self._lookups = LookupClient(self.client)
        self._signing = signing
        self._verified = VerifiedManifests(signing)
        self._notifications = KeyNotifications(self.client, self.redis_keys.channel)
        self.epochs = EpochTable(self.client, self.redis_keys)

    def for_namespace(
        self, namespace: str, salt: bytes = b"", most_failures: int = MAX_FAILURES
    ) -> Self:
        """The cache of another namespace of the farm.

        It shares the connections, so do not close it. At most `most_failures` of the failures that
        it records are kept.

        Raises:
            CallerError: the namespace belongs to another farm, or is malformed.
        """
        check_namespace(namespace, self.namespace.partition("/")[0])
        calls = replace(self._calls, namespace=namespace, salt=salt, most_failures=most_failures)
        if calls == self._calls:
            return self
        scoped = copy(self)
        scoped._calls = calls
        return scoped

    def for_space(self, space: Space, signing: SigningPolicy) -> KernelCache:
        """Another key space of the namespace; it shares the connections, so do not close it."""
        scoped = copy(self)
        scoped._calls = replace(self._calls, space=space)
        scoped._signing, scoped._verified = signing, VerifiedManifests(signing)
        return scoped

    @property
    def redis_keys(self) -> RedisKeys:
        """The names of the namespace's keys."""
        return self._calls.redis_keys

    @property
    def namespace(self) -> str:
        """The namespace of its keys."""
        return self._calls.namespace

    @property
    def space(self) -> Space:
        """Its key space."""
        return self._calls.space

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the subscription and the connections."""
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
        """A key's live variants, or the reason of the miss.

        All blobs that the variants name are stored; a variant with a missing blob is deleted. Stale
        variants are not returned. A variant that does not pass verification is deleted and counted
        by its fault. `tags` are the caller's own, such as its model: entries that are stale for
        these tags are not returned to this caller. Waiters that repeat a look-up pass
        `is_counted=False`.
        """
        found = await self._lookups.run(self._calls.lookup(key, tags, is_counted))
        return await self._verify(key, found)

    async def _verify(self, key: bytes, found: LookupResult) -> LookupResult:
        """Drops the variants that do not pass verification."""
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
            return LookupResult(tuple(verified), *found[1:])
        return found._replace(variants=(), reason="untrusted", detail=reason)

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
        """Acquires the lease of a key; None if it is held, or if there is a new result.

        `owner` is unique for each attempt. A lease with `is_queued` waits for a worker to adopt it;
        an attempt counts once it runs. `seen` is the stamp of the caller's last look-up, whose
        variants its guard facts did not match. `tags` are the caller's own, as in `lookup`.
        """
        return await self._run(self._calls.acquire(key, owner, ttl_s, is_queued, (seen, tags)))

    async def renew(self, lease: Lease) -> bool:
        """Extends a lease by its time to live; False if it lapsed or a worker adopted it."""
        return await self._run(self._calls.renew(lease))

    async def release(self, lease: Lease) -> bool:
        """Ends a lease without a result and wakes waiters; False if it has another owner."""
        return await self._run(self._calls.release(lease))

    async def publish(self, lease: Lease, variants: Sequence[UnsignedVariant]) -> PublishStatus:
        """Signs variants, adds them to the key's entry, ends the lease, wakes waiters.

        Their blobs must have been stored before. A stale variant with an equal guard is replaced.
        If it is live, the new variant must name the same blobs.
        """
        address = CacheAddress(self.namespace, self.space, lease.key)
        signed = self._signing.sign(address, lease, variants)
        return await self._run(self._calls.publish(lease, signed))

    async def refresh(self, key: bytes, variant: StoredVariant) -> StoredVariant:
        """Signs a variant again with a later expiry, and stores it if the variant still exists.

        Call it only with variants that `lookup` returned, which are verified.
        """
        signed = self._signing.renew(variant.manifest, variant.content)
        await self._run(self._calls.refresh(key, variant.manifest_bytes, signed))
        return StoredVariant(signed.manifest, variant.content, signed.facts)

    async def put_failure(
        self, key: bytes, facts: ErrorFacts, ttl_s: float, lease: Lease | None = None
    ) -> PublishStatus:
        """Records a failure for `ttl_s` and wakes waiters; also ends the lease, if one is given."""
        return await self._run(self._calls.fail(key, facts, ttl_s, lease))

    async def get_failure(self, key: bytes) -> ErrorFacts | None:
        """The failure recorded for a key, until it expires."""
        with translated_errors():
            stored = await self.client.get(self.redis_keys.failure(self.space, key))
        return None if stored is None else facts_from_json(stored)

    async def wait(self, key: bytes, timeout_s: float, *, seen: str = "") -> None:
        """Returns when the key was published, failed or released, or its lease lapsed.

        It also returns after the timeout. `seen` is the stamp of the caller's last look-up.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        with self._notifications.waiting(self._calls.message(key)) as watch:
            # Listen before the first check, so that no change between the two is missed.
            await self._notifications.listening(min(timeout_s, SUBSCRIBE_S))
            while True:
                watch.take()
                lapse_s = await self._run(self._calls.pending(key, seen))
                left_s = deadline - loop.time()
                if lapse_s < 0 or left_s <= 0:
                    return
                try:
                    pause_s = min(lapse_s + _LAPSE_MARGIN_S, left_s, _POLL_S)
                    await asyncio.wait_for(watch.event.wait(), pause_s)
                except TimeoutError:
                    continue

    async def is_in_progress(self, key: bytes, *, seen: str = "") -> bool:
        """True if the key's lease is held and nothing has changed since `seen`; see `wait`."""
        return await self._run(self._calls.pending(key, seen)) >= 0

    async def put_blobs(self, contents: Mapping[bytes, bytes]) -> None:
        """Stores blobs under their SHA-256 digests."""
        encoded = await asyncio.to_thread(blobs.encoded_all, contents, self.redis_keys)
        with translated_errors():
            pipeline = self.client.pipeline(transaction=False)
            for name, value in encoded:
                pipeline.set(name, value, ex=BLOB_TTL_S)
            await pipeline.execute()

    async def get_blob(self, sha256: bytes) -> bytes | None:
        """A blob's content, or None.

        Raises:
            PoisonedBlobError: the stored content has another digest. It is deleted, so that
                look-ups of the entries that name it miss.
        """
        return (await self.get_blobs([sha256]))[0]

    async def get_blobs(self, digests: Sequence[bytes]) -> list[bytes | None]:
        """The contents of several blobs, None for each that is not stored.

        This takes one round trip, and one more for each chunk of a large blob.

        Raises:
            PoisonedBlobError: see `get_blob`.
        """
        if not digests:
            return []
        with translated_errors():
            heads = await self.client.mget([self.redis_keys.blob(sha256) for sha256 in digests])
        return [await self._join_blob(sha, head) for sha, head in zip(digests, heads, strict=True)]

    async def copy_blobs(self, source: KernelCache, digests: Iterable[bytes]) -> bool:
        """Copies blobs from another namespace of the farm, within the server.

        Blobs that are stored here already stay, and their time to live begins again. Returns False
        if a blob is in neither namespace; variants that name it must not be published.
        """
        return await self._run(self._calls.copy_blobs(source.redis_keys, digests))

    async def report_missing_blob(self, sha256: bytes) -> bool:
        """Reports a missing blob to all gateways; False if it was reported or never stored.

        A request for a digest that never existed therefore evicts nothing from gateways.
        """
        return await self._run(self._calls.report_missing_blob(sha256))

    def on_missing_blob(self, callback: Callable[[bytes], object]) -> None:
        """Calls `callback` with the digest of each blob that a gateway reports as missing.

        Messages may be lost, see `KeyNotifications`.
        """
        self._notifications.subscribe(
            MISSING_BLOB,
            lambda message: callback(bytes.fromhex(message.removeprefix(MISSING_BLOB))),
        )

    async def advertise(self, toolchains: Sequence[str]) -> None:
        """Reports that toolchains (`backend@fingerprint`) are in use; call it periodically."""
        if toolchains:
            await self._run(epoch_calls.advertise(self.redis_keys, toolchains))

    async def count(self, counter: str, by: int = 1) -> None:
        """Adds to a counter of this key space (`merged`, `jobs`, ...)."""
        with translated_errors():
            name = self._calls.counter(counter)
            await self.client.hincrby(self.redis_keys.stats, name, by)

    async def stats(self) -> dict[str, int]:
        """The counters of this key space since the server started with an empty store.

        They are hits, misses, missing_blobs, published, failures, takeovers, fenced, and those that
        services `count`.
        """
        return (await self.counters())[self.space]

    async def counters(self) -> dict[Space, dict[str, int]]:
        """The counters of all key spaces."""
        with translated_errors():
            stored = await self.client.hgetall(self.redis_keys.stats)
        counters: dict[Space, dict[str, int]] = {space: {} for space in Space}
        counters[Space.PROGRAMS][STALE_SERVES_COUNTER] = 0
        for field, value in sorted(stored.items()):
            prefix, _, name = field.decode().partition(".")
            if name:
                counters[Space(prefix)][name] = int(value)
        return counters

    async def worker_reports(self) -> list[WorkerReport]:
        """The reports of all workers that are alive, sorted by queue and worker."""
        redis_keys = self.redis_keys
        with translated_errors():
            workers = sorted(await self.client.smembers(redis_keys.workers))
            if not workers:
                return []
            stored = await self.client.mget(
                [redis_keys.worker_report(worker.decode()) for worker in workers]
            )
            gone = [worker for worker, report in zip(workers, stored, strict=True) if not report]
            if gone:
                await self.client.srem(redis_keys.workers, *gone)
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
        key = self.redis_keys.blob(sha256)
        try:
            with translated_errors():
                chunks = [await self.client.get(name) for name in blobs.chunk_keys(key, head)]
            return await asyncio.to_thread(blobs.decoded, sha256, head, chunks)
        except PoisonedBlobError:
            if self._calls.may_write:
                await self.count("poisoned")
                with translated_errors():
                    await self.client.delete(key)
            raise

    async def _run(self, call: ScriptCall[T]) -> T:
        return await self._scripts.run(call)
