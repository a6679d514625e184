"""Ends the lease of a warm-up's build for a request whose user waits.

The build of a warm-up goes on at a low priority. Its kernels are stored under their own keys, so
the request compiles only those that are missing; the publication of the warm-up is fenced.
"""

from __future__ import annotations

from kernelfarm.cache.connection import translated_errors
from kernelfarm.cache.kernel_cache import KernelCache
from kernelfarm.cache.records import Lease

WARM_UP_OWNER = "warm-up-"
"""The owners of leases of warm-ups begin so."""


async def preempt_warm_up(cache: KernelCache, key: bytes) -> bool:
    """Ends a key's lease if a warm-up holds it; True if the lease is free now.

    Raises:
        UnavailableError: Redis does not serve.
    """
    with translated_errors():
        owner, fence = await cache.client.hmget(
            cache.redis_keys.lease(cache.space, key), "owner", "fence"
        )
    if owner is None or not owner.decode().startswith(WARM_UP_OWNER):
        return False
    return await cache.release(Lease(key, owner.decode(), int(fence), ttl_s=0.0, attempts=0))
