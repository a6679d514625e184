"""The blocking face of the store, for workers."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from kernelfarm.cache import blobs
from kernelfarm.cache.calls import BLOB_TTL_S, REPORT_TTL_S, Call, Calls, script_source
from kernelfarm.cache.connection import connect, translated_errors
from kernelfarm.cache.records import Lease, Published, Space, Variant, WorkerReport
from kernelfarm.errors import ErrorFacts, UnavailableError

T = TypeVar("T")


class WorkerCache:
    """The kernel space of the store. Every method raises UnavailableError if Redis does not serve.

    May be shared by threads.
    """

    def __init__(self, url: str, *, namespace: str = "default") -> None:
        self._client = connect(url)
        self._calls = Calls(namespace, Space.KERNELS)
        self._scripts: dict[str, Any] = {}

    def close(self) -> None:
        """Ends the connections."""
        self._client.close()

    def adopt(self, lease: Lease) -> bytes | None:
        """Makes a queued lease of this fence the owner's, and gives the job.

        None if the fence is old or another worker runs it; empty if the job's input was evicted.
        """
        return self._run(self._calls.adopt(lease))

    def renew(self, lease: Lease) -> bool:
        """Prolongs a lease by its time to live; False if it is not ours any more."""
        return self._run(self._calls.renew(lease))

    def release(self, lease: Lease) -> bool:
        """Gives a lease back without a result and wakes waiters; False if it was not ours."""
        return self._run(self._calls.release(lease))

    def put_blobs(self, contents: Mapping[bytes, bytes]) -> None:
        """Stores blobs under their SHA-256 digests."""
        with translated_errors():
            pipeline = self._client.pipeline(transaction=False)
            for sha256, content in contents.items():
                for name, part in blobs.stored_parts(self._calls.blob_key(sha256), content):
                    pipeline.set(name, part, ex=BLOB_TTL_S)
            pipeline.execute()

    def publish(self, lease: Lease, variants: Sequence[Variant]) -> Published:
        """Makes variants (most specific first) the key's result, ends the lease, wakes waiters."""
        return self._run(self._calls.publish(lease, variants))

    def put_failure(self, lease: Lease, facts: ErrorFacts, ttl_s: float) -> Published:
        """Records a failure for a time, ends the lease, wakes waiters; FENCED if not ours."""
        return self._run(self._calls.fail(lease.key, facts, ttl_s, lease))

    def report(self, report: WorkerReport) -> None:
        """Tells that a worker lives, for `REPORT_TTL_S`."""
        with translated_errors():
            pipeline = self._client.pipeline(transaction=False)
            key = self._calls.name("w", report.worker)
            pipeline.set(key, report.to_json(), ex=REPORT_TTL_S)
            pipeline.sadd(self._calls.name("workers"), report.worker)
            pipeline.execute()

    def withdraw(self, worker: str) -> None:
        """Takes a worker's report back."""
        with translated_errors():
            self._client.delete(self._calls.name("w", worker))

    @contextmanager
    def kept(self, lease: Lease) -> Iterator[None]:
        """Renews a lease from a thread while the block runs.

        A lease that is lost in the meantime is not reported here: the publication is fenced.
        """
        stop = threading.Event()
        keeper = threading.Thread(target=self._keep, args=(lease, stop), daemon=True)
        keeper.start()
        try:
            yield
        finally:
            stop.set()
            keeper.join()

    def _keep(self, lease: Lease, stop: threading.Event) -> None:
        while not stop.wait(lease.ttl_s / 3):
            try:
                if not self.renew(lease):
                    return
            except UnavailableError:
                continue  # the next turn tries again; the lease decides in the end

    def _run(self, call: Call[T]) -> T:
        script = self._scripts.get(call.script)
        if script is None:
            script = self._client.register_script(script_source(call.script))
            self._scripts[call.script] = script
        with translated_errors():
            return call.read(script(keys=call.keys, args=call.args))
