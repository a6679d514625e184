"""The memory tier of a gateway: bounded, silent without a lease, and invalidated."""

from __future__ import annotations

import hashlib

import pytest

from frontend_svc.cache.gateway_tier import GatewayTier
from frontend_svc.flow.admission import RateLimiter
from kernelfarm.cache import (
    Epoch,
    InvalidationRecord,
    Lease,
    SigningPolicy,
    Space,
    StoredVariant,
    UnsignedVariant,
)
from kernelfarm.errors import FarmFullError
from kernelfarm.signing import CacheAddress
from kernelfarm.signing.manifest import blob_ref

KEY, OTHER = b"k" * 32, b"o" * 32
GELU, MODEL = "op:aten.gelu.default", "model:llama@3"
INCARNATION = "ab" * 16


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def stored(*tags: str, epoch: int = 5, size: int = 10, key: bytes = KEY) -> StoredVariant:
    lease = Lease(key, "maker", 1, 30, 0, INCARNATION, epoch)
    variant = UnsignedVariant(b"x" * size, (blob_ref(b"blob"),), tags=tags)
    (made,) = SigningPolicy(clock=lambda: 1000.0, validity_s=600).sign(
        CacheAddress("default", Space.PROGRAMS, key), lease, [variant]
    )
    return StoredVariant(made.manifest, made.content)


def bumped(epoch: int, *tags: str) -> InvalidationRecord:
    return InvalidationRecord(Epoch(INCARNATION, epoch), tags)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tier(clock: Clock) -> GatewayTier:
    made = GatewayTier(100_000, 60, clock, clock)
    made.set_lease_end(clock.now_s + 1e6)
    return made


def keep(tier: GatewayTier, variant: StoredVariant, key: bytes = KEY, *tags: str) -> object:
    return tier.put(key, (variant,), tags, tier.changes())


def test_a_cached_program_is_found(tier: GatewayTier) -> None:
    keep(tier, stored(GELU))
    kept = tier.get(KEY, ())
    assert kept is not None and kept.variants == (stored(GELU),)
    assert tier.get(OTHER, ()) is None


def test_a_tier_whose_lease_has_ended_serves_nothing(tier: GatewayTier, clock: Clock) -> None:
    keep(tier, stored(GELU))
    tier.set_lease_end(clock.now_s + 2)
    assert tier.get(KEY, ())
    clock.now_s += 2
    assert tier.get(KEY, ()) is None
    tier.set_lease_end(clock.now_s + 2)
    assert tier.get(KEY, ())


def test_an_invalidation_drops_older_programs_that_depend_on_the_tag(tier: GatewayTier) -> None:
    keep(tier, stored(GELU, epoch=5))
    tier.apply_invalidation(bumped(6, "op:other"))
    assert tier.get(KEY, ())
    tier.apply_invalidation(bumped(5, GELU))  # made after that invalidation
    assert tier.get(KEY, ())
    tier.apply_invalidation(bumped(7, "op:other", GELU))
    assert tier.get(KEY, ()) is None and len(tier) == 0


def test_the_store_must_have_confirmed_a_callers_tag(tier: GatewayTier) -> None:
    keep(tier, stored(GELU))
    assert tier.get(KEY, (MODEL,)) is None
    keep(tier, stored(GELU), KEY, MODEL)
    assert tier.get(KEY, (MODEL,)) and tier.get(KEY, ())
    tier.apply_invalidation(bumped(9, MODEL))
    assert tier.get(KEY, ()) is None


def test_a_program_that_was_looked_up_before_an_invalidation_is_not_cached(
    tier: GatewayTier,
) -> None:
    before = tier.changes()
    tier.apply_invalidation(bumped(6, GELU))
    assert tier.put(KEY, (stored(GELU),), (), before) is None
    before = tier.changes()
    tier.flush()
    assert tier.put(KEY, (stored(GELU),), (), before) is None


def test_a_flush_and_a_missing_blob_drop_programs(tier: GatewayTier) -> None:
    keep(tier, stored(GELU))
    tier.drop_referencing(hashlib.sha256(b"another blob").digest())
    assert tier.get(KEY, ())
    tier.drop_referencing(hashlib.sha256(b"blob").digest())
    assert tier.get(KEY, ()) is None
    keep(tier, stored(GELU))
    tier.flush()
    assert tier.get(KEY, ()) is None


def test_nothing_stays_longer_than_its_age_or_its_manifest_allows(
    tier: GatewayTier, clock: Clock
) -> None:
    keep(tier, stored(GELU))
    clock.now_s += 60
    assert tier.get(KEY, ()) is None
    clock.now_s = 1000 + 599
    keep(tier, stored(GELU))
    assert tier.get(KEY, ())
    clock.now_s += 2  # now after the end of the manifest's validity
    assert tier.get(KEY, ()) is None


def test_the_least_recently_used_programs_are_evicted_and_the_limit_holds(clock: Clock) -> None:
    tier = GatewayTier(20_000, 60, clock, clock)
    tier.set_lease_end(clock.now_s + 9)
    keys = [bytes([number]) * 32 for number in range(4)]
    for key in keys[:3]:
        keep(tier, stored(size=4000, key=key), key)
    assert tier.get(keys[0], ())
    keep(tier, stored(size=4000, key=keys[3]), keys[3])
    assert [bool(tier.get(key, ())) for key in keys] == [True, False, True, True]
    assert keep(tier, stored(size=20_000, key=OTHER), OTHER) is None  # larger than the whole tier


def test_a_rate_limit_states_when_to_retry(clock: Clock) -> None:
    rate = RateLimiter(2, clock)
    rate.take("walks")
    rate.take("walks")
    with pytest.raises(FarmFullError, match="walks") as caught:
        rate.take("walks")
    assert caught.value.retry_after_s == pytest.approx(30)
    clock.now_s += 30
    rate.take("walks")
