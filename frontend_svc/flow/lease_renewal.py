"""Keeps a lease while its holder works."""

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
    """Renews the lease three times in its life; a holder that dies loses it by itself.

    `also` is done at each beat; it may raise UnavailableError.
    """
    beat = asyncio.create_task(_renew(cache, lease, also))
    try:
        yield
    finally:
        await end_task(beat)


async def _renew(cache: KernelCache, lease: Lease, also: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(lease.ttl_s / 3)
        try:
            await cache.renew(lease)
            await also()
        except UnavailableError as error:  # the next beat may reach it again
            get_logger().warning("lease_renewal_failed", message=str(error))
