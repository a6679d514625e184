"""The asyncio client of the cache for the code generators' edge: many kernels in a round trip."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

from kernelfarm.cache.connection import translated_errors
from kernelfarm.cache.kernel_cache import SUBSCRIBE_S, KernelCache
from kernelfarm.cache.key_notifications import KeyWatch
from kernelfarm.cache.limits import JOB_TTL_S
from kernelfarm.cache.records import KernelLookup, Lease, facts_from_json

JOBS_COUNTER = "jobs"
"""The counter of jobs that were queued."""


class EdgeCache(KernelCache):
    """The key space of kernels; every method raises UnavailableError if Redis does not serve."""

    async def find(self, key: bytes, *, is_counted: bool = True) -> KernelLookup:
        """What is stored of a kernel: variants, failure, and whether it compiles long.

        This is `lookup`, `get_failure` and `is_slow` in one round trip.
        """
        found, more = await self._lookups.run_with_more(self._calls.find(key, is_counted))
        facts = None if more[0] is None else facts_from_json(more[0])
        return KernelLookup(await self._verify(key, found), facts, bool(more[1]))

    async def acquire_queued(
        self, seen: Mapping[bytes, str], owner: str, ttl_s: float
    ) -> list[Lease | None]:
        """Acquires the queued leases of several keys, in their order; see `acquire`.

        `seen` has the stamp of the caller's last look-up for each key.
        """
        calls = [
            self._calls.acquire(key, owner, ttl_s, True, (stamp, ())) for key, stamp in seen.items()
        ]
        return await self._scripts.run_all(calls)

    async def renew_all(self, leases: Sequence[Lease]) -> list[bool]:
        """Extends several leases; see `renew`."""
        return await self._scripts.run_all([self._calls.renew(lease) for lease in leases])

    @asynccontextmanager
    async def watching(self, keys: Iterable[bytes]) -> AsyncIterator[KeyWatch]:
        """Watches for the ends of several keys: publications, failures and releases.

        The watch has the `end_message` of each. Messages may be lost, see `KeyNotifications`.
        """
        with self._notifications.waiting(*map(self._calls.message, keys)) as watch:
            await self._notifications.listening(SUBSCRIBE_S)
            yield watch

    def end_message(self, key: bytes) -> str:
        """The message of a key's end; see `watching`."""
        return self._calls.message(key)

    async def lapse_s(self, seen: Mapping[bytes, str]) -> list[float]:
        """When the leases of several keys lapse, in seconds from now.

        It is negative if a key's lease is not held, or something has changed since the stamp that
        the caller has `seen`; see `wait`.
        """
        calls = [self._calls.pending(key, stamp) for key, stamp in seen.items()]
        return await self._scripts.run_all(calls)

    async def put_jobs(self, jobs: Mapping[bytes, bytes]) -> None:
        """Stores the inputs of kernel jobs until their keys are published, and counts them."""
        with translated_errors():
            pipeline = self.client.pipeline(transaction=False)
            for key, job in jobs.items():
                pipeline.set(self.redis_keys.job(key), job, ex=JOB_TTL_S)
            pipeline.hincrby(self.redis_keys.stats, self._calls.counter(JOBS_COUNTER), len(jobs))
            await pipeline.execute()
