"""The blocking face of the store, for workers."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy

from kernelfarm.cache import blobs, epoch_calls
from kernelfarm.cache.calls import BLOB_TTL_S, REPORT_TTL_S, SLOW_TTL_S, ScriptCalls
from kernelfarm.cache.connection import connect, translated_errors
from kernelfarm.cache.kernel_cache import UNSIGNED
from kernelfarm.cache.records import (
    AdoptedJob,
    Lease,
    PublishStatus,
    Space,
    UnsignedVariant,
    WorkerReport,
)
from kernelfarm.cache.scripts import Scripts
from kernelfarm.cache.signing_policy import SigningPolicy
from kernelfarm.errors import ErrorFacts, UnavailableError
from kernelfarm.signing import CacheAddress


class WorkerCache:
    """The kernel space of the store. Every method raises UnavailableError if Redis does not serve.

    May be shared by threads.
    """

    def __init__(
        self, url: str, *, namespace: str = "default", signing: SigningPolicy = UNSIGNED
    ) -> None:
        self._calls = ScriptCalls(namespace, Space.KERNELS)
        self._client = connect(url, epoch_calls.handshake(self._calls.redis_keys, may_write=True))
        self._scripts = Scripts(self._client)
        self._signing = signing

    def for_namespace(self, namespace: str) -> WorkerCache:
        """The same store for another namespace; it shares connections: do not close it."""
        scoped = copy(self)
        scoped._calls = ScriptCalls(namespace, Space.KERNELS)
        return scoped

    def close(self) -> None:
        """Ends the connections."""
        self._client.close()

    def adopt(self, lease: Lease) -> AdoptedJob | None:
        """Makes a queued lease of this fence the owner's, and gives the job.

        None, counted as dropped, if the fence is old or another worker runs it.
        """
        return self._scripts.run(self._calls.adopt(lease))

    def renew(self, lease: Lease) -> bool:
        """Prolongs a lease by its time to live; False if it is not ours any more."""
        return self._scripts.run(self._calls.renew(lease))

    def release(self, lease: Lease) -> bool:
        """Gives a lease back without a result and wakes waiters; False if it was not ours."""
        return self._scripts.run(self._calls.release(lease))

    def mark_slow(self, key: bytes) -> None:
        """Remembers for a while that compiling a key takes long."""
        with translated_errors():
            self._client.set(self._calls.slow_key(key), b"1", ex=SLOW_TTL_S)

    def count(self, counter: str, by: int) -> None:
        """Adds to a counter of the namespace."""
        with translated_errors():
            self._client.hincrby(self._calls.redis_keys.stats, self._calls.counter(counter), by)

    def put_blobs(self, contents: Mapping[bytes, bytes]) -> None:
        """Stores blobs under their SHA-256 digests."""
        with translated_errors():
            pipeline = self._client.pipeline(transaction=False)
            for sha256, content in contents.items():
                for name, part in blobs.stored_parts(self._calls.redis_keys.blob(sha256), content):
                    pipeline.set(name, part, ex=BLOB_TTL_S)
            pipeline.execute()

    def publish(
        self, lease: Lease, variants: Sequence[UnsignedVariant], *, key: bytes | None = None
    ) -> PublishStatus:
        """Signs variants, adds them to the lease's entry, ends the lease, wakes waiters.

        `key` is the kernel's own, where the entry lies elsewhere: at the salted key of a tenant,
        whose salt no worker knows.
        """
        address = CacheAddress(
            self._calls.namespace, self._calls.space, lease.key if key is None else key
        )
        made = self._signing.sign(address, lease, variants)
        return self._scripts.run(self._calls.publish(lease, made))

    def put_failure(self, lease: Lease, facts: ErrorFacts, ttl_s: float) -> PublishStatus:
        """Records a failure for a time, ends the lease, wakes waiters; FENCED if not ours."""
        return self._scripts.run(self._calls.fail(lease.key, facts, ttl_s, lease))

    def report(self, report: WorkerReport) -> None:
        """Tells that a worker lives, for `REPORT_TTL_S`, and advertises its toolchain."""
        name = self._calls.redis_keys.farm_key
        with translated_errors():
            pipeline = self._client.pipeline(transaction=False)
            pipeline.set(name("w", report.worker), report.to_json(), ex=REPORT_TTL_S)
            pipeline.sadd(name("workers"), report.worker)
            pipeline.execute()
        if report.toolchain:
            self._scripts.run(epoch_calls.advertise(self._calls.redis_keys, [report.toolchain]))

    def withdraw(self, worker: str) -> None:
        """Takes a worker's report back."""
        with translated_errors():
            self._client.delete(self._calls.redis_keys.farm_key("w", worker))

    @contextmanager
    def lease_renewal(self, lease: Lease) -> Iterator[None]:
        """Renews a lease from a thread while the block runs.

        A lease that is lost in the meantime is not reported here: the publication is fenced.
        """
        stop = threading.Event()
        keeper = threading.Thread(target=self._renew_until, args=(lease, stop), daemon=True)
        keeper.start()
        try:
            yield
        finally:
            stop.set()
            keeper.join()

    def _renew_until(self, lease: Lease, stop: threading.Event) -> None:
        while not stop.wait(lease.ttl_s / 3):
            try:
                if not self.renew(lease):
                    return
            except UnavailableError:
                continue  # the next turn tries again; the lease decides in the end
