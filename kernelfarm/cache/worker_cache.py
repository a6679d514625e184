"""The blocking client of the cache, for workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy

from kernelfarm.cache import blobs, epoch_calls
from kernelfarm.cache.calls import ScriptCalls
from kernelfarm.cache.connection import connect, translated_errors
from kernelfarm.cache.kernel_cache import UNSIGNED
from kernelfarm.cache.lease_renewals import LeaseRenewals
from kernelfarm.cache.limits import BLOB_TTL_S, REPORT_TTL_S, SLOW_TTL_S
from kernelfarm.cache.records import (
    AdoptedJob,
    Lease,
    PublishStatus,
    Space,
    UnsignedVariant,
    WorkerReport,
)
from kernelfarm.cache.scripts import Command, Scripts
from kernelfarm.cache.signing_policy import SigningPolicy
from kernelfarm.errors import ErrorFacts
from kernelfarm.signing import CacheAddress


class WorkerCache:
    """The key space of kernels; every method raises UnavailableError if Redis does not serve.

    It may be shared by threads.
    """

    def __init__(
        self, url: str, *, namespace: str = "default", signing: SigningPolicy = UNSIGNED
    ) -> None:
        self._calls = ScriptCalls(namespace, Space.KERNELS)
        self._client = connect(url, epoch_calls.handshake(self._calls.redis_keys, may_write=True))
        self._scripts = Scripts(self._client)
        self._signing = signing
        self._renewals = LeaseRenewals()

    def for_namespace(self, namespace: str) -> WorkerCache:
        """The cache of another namespace; it shares the connections, so do not close it."""
        scoped = copy(self)
        scoped._calls = ScriptCalls(namespace, Space.KERNELS)
        return scoped

    def close(self) -> None:
        """Closes the connections."""
        self._renewals.close()
        self._client.close()

    def adopt(self, lease: Lease) -> AdoptedJob | None:
        """Takes over the queued lease with this fence for its owner, and returns the job.

        Returns None if the fence is old or another worker owns the lease; the job then counts as
        dropped.
        """
        return self._scripts.run(self._calls.adopt(lease))

    def get_jobs(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The inputs of jobs, None for each that was evicted."""
        with translated_errors():
            pipeline = self._client.pipeline(transaction=False)
            for key in keys:
                pipeline.get(self._calls.redis_keys.job(key))
            found: list[bytes | None] = pipeline.execute()
        return found

    def renew(self, lease: Lease) -> bool:
        """Extends a lease by its time to live; False if it lapsed or has another owner."""
        return self._scripts.run(self._calls.renew(lease))

    def release(self, lease: Lease) -> bool:
        """Ends a lease without a result and wakes waiters; False if it has another owner."""
        return self._scripts.run(self._calls.release(lease))

    def mark_slow(self, key: bytes) -> None:
        """Marks a key whose compilation takes long, for `SLOW_TTL_S`."""
        redis_key = self._calls.redis_keys.slow(self._calls.space, key)
        with translated_errors():
            self._client.set(redis_key, b"1", ex=SLOW_TTL_S)

    def count(self, counter: str, by: int) -> None:
        """Adds to a counter of the namespace."""
        with translated_errors():
            self._client.hincrby(self._calls.redis_keys.stats, self._calls.counter(counter), by)

    def put_blobs(self, contents: Mapping[bytes, bytes]) -> None:
        """Stores blobs under their SHA-256 digests."""
        with translated_errors():
            pipeline = self._client.pipeline(transaction=False)
            for name, value in blobs.encoded_all(contents, self._calls.redis_keys):
                pipeline.set(name, value, ex=BLOB_TTL_S)
            pipeline.execute()

    def publish(
        self,
        lease: Lease,
        variants: Sequence[UnsignedVariant],
        *,
        key: bytes | None = None,
        contents: Mapping[bytes, bytes] | None = None,
        counts: Mapping[str, int] | None = None,
    ) -> PublishStatus:
        """Signs variants, adds them to the lease's entry, ends the lease, wakes waiters.

        `key` is the kernel key if the lease is for a storage key: workers do not know the salt of a
        tenant, so its jobs name both. `contents` are blobs to store before, and `counts` is added
        to counters, in the same round trip.
        """
        redis_keys = self._calls.redis_keys
        before: list[Command] = [
            ("SET", name, value, "EX", BLOB_TTL_S)
            for name, value in blobs.encoded_all(contents or {}, redis_keys)
        ]
        for counter, by in (counts or {}).items():
            before.append(("HINCRBY", redis_keys.stats, self._calls.counter(counter), by))
        address = CacheAddress(
            self._calls.namespace, self._calls.space, lease.key if key is None else key
        )
        signed = self._signing.sign(address, lease, variants)
        return self._scripts.run(self._calls.publish(lease, signed), before)

    def put_failure(self, lease: Lease, facts: ErrorFacts, ttl_s: float) -> PublishStatus:
        """Records a failure for `ttl_s`, ends the lease, wakes waiters.

        Returns FENCED, and records nothing, if the lease has another holder.
        """
        return self._scripts.run(self._calls.fail(lease.key, facts, ttl_s, lease))

    def report(self, report: WorkerReport) -> None:
        """Stores a worker's report for `REPORT_TTL_S`, and advertises its toolchain."""
        redis_keys = self._calls.redis_keys
        with translated_errors():
            pipeline = self._client.pipeline(transaction=False)
            pipeline.set(redis_keys.worker_report(report.worker), report.to_json(), ex=REPORT_TTL_S)
            pipeline.sadd(redis_keys.workers, report.worker)
            pipeline.execute()
        if report.toolchain:
            self._scripts.run(epoch_calls.advertise(redis_keys, [report.toolchain]))

    def withdraw(self, worker: str) -> None:
        """Deletes a worker's report."""
        with translated_errors():
            self._client.delete(self._calls.redis_keys.worker_report(worker))

    def keep(self, lease: Lease) -> None:
        """Renews a lease from a thread, until `drop`.

        The loss of the lease is not reported here; the publication is then fenced.
        """
        self._renewals.keep(lease, self.renew)

    def drop(self, lease: Lease) -> None:
        """Ends `keep`."""
        self._renewals.drop(lease)

    @contextmanager
    def lease_renewal(self, lease: Lease) -> Iterator[None]:
        """Renews a lease from a thread while the block runs; see `keep`."""
        self.keep(lease)
        try:
            yield
        finally:
            self.drop(lease)
