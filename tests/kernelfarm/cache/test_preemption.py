"""A user's request takes the lease of a warm-up over; no other lease can be taken so."""

from __future__ import annotations

import hashlib

from kernelfarm.cache import KernelCache, PublishStatus, UnsignedVariant
from kernelfarm.cache.preemption import WARM_UP_OWNER, preempt_warm_up

KEY = hashlib.sha256(b"a program").digest()


async def test_the_lease_of_a_warm_up_ends_and_its_publication_is_fenced(
    cache: KernelCache,
) -> None:
    warm_up = await cache.acquire(KEY, f"{WARM_UP_OWNER}1", 30)
    assert warm_up is not None
    assert await preempt_warm_up(cache, KEY)
    lease = await cache.acquire(KEY, "a user", 30)
    assert lease is not None
    assert lease.attempts == 0  # an orderly end costs the key no attempt
    assert await cache.publish(warm_up, [UnsignedVariant(b"late")]) is PublishStatus.FENCED
    assert await cache.publish(lease, [UnsignedVariant(b"ours")]) is PublishStatus.OK


async def test_the_lease_of_a_users_request_stays(cache: KernelCache) -> None:
    lease = await cache.acquire(KEY, "a user", 30)
    assert lease is not None
    assert not await preempt_warm_up(cache, KEY)
    assert await cache.renew(lease)


async def test_a_key_without_a_lease_has_nothing_to_preempt(cache: KernelCache) -> None:
    assert not await preempt_warm_up(cache, KEY)
