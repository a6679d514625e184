"""Renews a lease while its holder works."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from kernelfarm.cache import KernelCache, Lease
from kernelfarm.end_task import end_task
from kernelfarm.errors import UnavailableError
from kernelfarm.service.logs.logger import get_logger


@asynccontextmanager
async def lease_renewal(
    cache: KernelCache, lease: Lease, also: Callable[[], Awaitable[None]]
) -> AsyncIterator[None]:
    """Renews the lease three times within its time to live; if the holder dies, it lapses.

    `also` is called at each renewal; it may raise UnavailableError.
    """
    renewal = asyncio.create_task(_renew(cache, lease, also))
    try:
        yield
    finally:
        await end_task(renewal)


async def _renew(cache: KernelCache, lease: Lease, also: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(lease.ttl_s / 3)
        try:
            await cache.renew(lease)
            await also()
        except UnavailableError as error:  # the next renewal may succeed
            get_logger().warning("lease_renewal_failed", message=str(error))
