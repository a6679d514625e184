"""Keeps a lease while its holder works."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kernelfarm.cache import KernelCache, Lease
from kernelfarm.errors import UnavailableError
from kernelfarm.service.logs import get_logger


@asynccontextmanager
async def kept_alive(cache: KernelCache, lease: Lease) -> AsyncIterator[None]:
    """Renews the lease three times in its life; a holder that dies loses it by itself."""
    beat = asyncio.create_task(_renew(cache, lease))
    try:
        yield
    finally:
        beat.cancel()
        await asyncio.gather(beat, return_exceptions=True)


async def _renew(cache: KernelCache, lease: Lease) -> None:
    while True:
        await asyncio.sleep(lease.ttl_s / 3)
        try:
            await cache.renew(lease)
        except UnavailableError as error:  # the next beat may reach it again
            get_logger().warning("lease_renewal_failed", message=str(error))
