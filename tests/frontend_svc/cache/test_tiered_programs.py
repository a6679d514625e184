"""Programs from two tiers: the variant for each caller, and invalidation of all gateways."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator

import pytest

from frontend_svc.cache.gateway_tier import GatewayTier
from frontend_svc.cache.invalidation_feed import FeedEvent, InvalidationFeed
from frontend_svc.cache.tiered_programs import UNKNOWN_CALLER, CacheTier, Caller, TieredProgramCache
from kernelfarm.cache import KernelCache, PublishStatus, SigningPolicy, Space, UnsignedVariant
from kernelfarm.cache.embedded import EmbeddedServer, ServerRole, start_server
from kernelfarm.end_task import end_task
from kernelfarm.errors import NotFoundError, UnavailableError
from kernelfarm.ir.artifact import GuardOp
from kernelfarm.ir.guards import CallerFacts, FactAtom, FactSubject, Guard
from kernelfarm.signing.manifest import blob_ref
from tests.support.farm import TIMEOUT_S

KEY = hashlib.sha256(b"a program").digest()
TAG = "op:aten.gelu.default"
DIVISIBLE: Guard = (FactAtom(FactSubject.SYMBOL, "s0", GuardOp.DIVISIBLE, 16),)


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    started = start_server(ServerRole.CACHE)
    yield started
    started.stop()


class Gateway:
    """The tiers of one frontend over a server."""

    def __init__(self, url: str, name: str) -> None:
        self.cache = KernelCache(url, space=Space.PROGRAMS)
        self.tier = GatewayTier(1_000_000, 60)
        self.feed = InvalidationFeed(self.cache, self.tier, name)
        self.programs = TieredProgramCache(self.cache, self.tier, SigningPolicy())

    async def close(self) -> None:
        await self.feed.close()
        await self.cache.close()


@pytest.fixture
async def gateways(server: EmbeddedServer) -> AsyncIterator[tuple[Gateway, Gateway]]:
    both = Gateway(server.url, "one"), Gateway(server.url, "two")
    # As if the table had existed for a while: a new one makes each invalidation wait, because it
    # does not know which gateways serve.
    await both[0].cache.epochs.current()
    await both[0].cache.client.hincrby("kf:{default}:ep", "@born", -10_000)
    for gateway in both:
        gateway.feed.start()
    yield both
    for gateway in both:
        await gateway.close()


async def publish(cache: KernelCache, content: bytes, guard: Guard = (), *blobs: bytes) -> None:
    seen = (await cache.lookup(KEY, is_counted=False)).stamp
    lease = await cache.acquire(KEY, f"maker of {content!r}", 30, seen=seen)
    assert lease is not None
    await cache.put_blobs({hashlib.sha256(blob).digest(): blob for blob in blobs})
    variant = UnsignedVariant(content, tuple(map(blob_ref, blobs)), guard, (TAG,))
    assert await cache.publish(lease, [variant]) is PublishStatus.OK


def caller(size: int) -> Caller:
    return Caller(facts=CallerFacts({"s0": size}))


async def content_for(gateway: Gateway, asking: Caller) -> tuple[bytes, CacheTier] | None:
    lookup = await gateway.programs.find(KEY, asking)
    return lookup.program and (lookup.program.variant.content, lookup.program.tier)


async def until_in_memory(gateway: Gateway, asking: Caller = UNKNOWN_CALLER) -> bytes:
    """The content, after this gateway may serve it from memory; waits for events of the feed."""
    async for _ in gateway.feed.watch(None):
        found = await content_for(gateway, asking)
        assert found is not None
        if found[1] is CacheTier.GATEWAY:
            return found[0]
    raise AssertionError("the feed ended")


async def test_each_caller_gets_the_most_specific_variant_that_fits(
    gateways: tuple[Gateway, Gateway],
) -> None:
    gateway = gateways[0]
    await publish(gateway.cache, b"general")
    await publish(gateway.cache, b"special", DIVISIBLE)
    for _ in range(2):  # from the store, then from memory
        for asking, content in (
            (caller(32), b"special"),
            (caller(33), b"general"),
            (UNKNOWN_CALLER, b"general"),
        ):
            found = await content_for(gateway, asking)
            assert found is not None and found[0] == content
        await until_in_memory(gateway)


async def test_three_sizes_that_each_add_a_variant_all_hit_from_the_second_round(
    gateways: tuple[Gateway, Gateway],
) -> None:
    gateway = gateways[0]
    misses = 0
    for round_number in range(4):
        for size in (3, 4, 5):
            found = await content_for(gateway, caller(size))
            if found is None:
                assert round_number == 0
                misses += 1
                guard = (FactAtom(FactSubject.SYMBOL, "s0", GuardOp.EQ, size),)
                await publish(gateway.cache, b"%d" % size, guard)
            else:
                assert found[0] == b"%d" % size
    assert misses == 3
    assert (await gateway.cache.stats())["guard_misses"] == 2  # the first look-up found no entry


async def test_no_gateway_serves_an_invalidated_program_after_the_call_returned(
    gateways: tuple[Gateway, Gateway],
) -> None:
    one, two = gateways
    await publish(one.cache, b"old")
    for gateway in gateways:
        assert await until_in_memory(gateway) == b"old"
    epoch = await one.cache.epochs.invalidate([TAG])
    assert await two.cache.epochs.wait_for_gateways(epoch) == 2
    for gateway in gateways:
        assert await content_for(gateway, UNKNOWN_CALLER) is None
    await publish(one.cache, b"new")
    assert await content_for(two, UNKNOWN_CALLER) == (b"new", CacheTier.STORE)


async def test_an_invalidation_waits_until_a_hung_gateway_may_not_serve_any_more(
    gateways: tuple[Gateway, Gateway],
) -> None:
    one, two = gateways
    await publish(one.cache, b"old")
    await until_in_memory(two)
    assert two.feed._task is not None
    await end_task(two.feed._task)  # it hangs
    epoch = await one.cache.epochs.invalidate([TAG])
    assert await one.cache.epochs.wait_for_gateways(epoch) == 1
    assert two.tier.get(KEY, ()) is None


async def test_a_lost_table_flushes_memory_and_watchers(
    gateways: tuple[Gateway, Gateway],
) -> None:
    gateway = gateways[0]
    await publish(gateway.cache, b"old")
    await until_in_memory(gateway)
    received: list[FeedEvent] = []

    async def listen() -> None:
        async for event in gateway.feed.watch(None):
            received.append(event)
            if event.is_flush:
                return

    listening = asyncio.create_task(listen())
    await gateway.cache.client.delete("kf:{default}:ep")
    await asyncio.wait_for(listening, TIMEOUT_S)
    assert len(gateway.tier) == 0
    assert received[-1].epoch.incarnation == (await gateway.cache.epochs.current()).incarnation


async def test_a_missing_blob_is_not_found_and_its_programs_are_dropped(
    gateways: tuple[Gateway, Gateway],
) -> None:
    gateway = gateways[0]
    await publish(gateway.cache, b"with a blob", (), b"blob")
    await until_in_memory(gateway)
    sha256 = hashlib.sha256(b"blob").digest()
    assert await gateway.programs.blob(sha256) == b"blob"
    await gateway.cache.client.delete(f"kf:{{default}}:b:{sha256.hex()}")
    with pytest.raises(NotFoundError):
        await gateway.programs.blob(sha256)
    assert await content_for(gateway, UNKNOWN_CALLER) is None
    assert (await gateway.cache.stats())["missing_blobs"] == 1


async def test_a_blob_that_one_gateway_misses_is_dropped_by_all(
    gateways: tuple[Gateway, Gateway],
) -> None:
    one, two = gateways
    await publish(one.cache, b"with a blob", (), b"blob")
    await until_in_memory(two)
    sha256 = hashlib.sha256(b"blob").digest()
    await one.cache.client.delete(f"kf:{{default}}:b:{sha256.hex()}")
    with pytest.raises(NotFoundError):
        await one.programs.blob(sha256)
    async for _ in two.feed.watch(None):
        if not len(two.tier):
            break
    assert await content_for(two, UNKNOWN_CALLER) is None
    assert not await one.cache.report_missing_blob(sha256)  # one report is enough
    assert not await one.cache.report_missing_blob(hashlib.sha256(b"never stored").digest())


async def test_a_stale_program_that_memory_serves_is_found_and_counted(
    gateways: tuple[Gateway, Gateway],
) -> None:
    gateway = gateways[0]
    await publish(gateway.cache, b"old")
    (stored,) = (await gateway.cache.lookup(KEY)).variants
    epoch = await gateway.cache.epochs.invalidate([TAG])
    assert await gateway.cache.epochs.wait_for_gateways(epoch) == 2
    assert (await gateway.cache.stats())["stale_serves"] == 0
    async for _ in gateway.feed.watch(None):
        # Put a program back that the invalidation dropped.
        name = gateway.programs._prefix + KEY
        gateway.tier.put(name, (stored,), (), gateway.tier.changes())
        if await content_for(gateway, UNKNOWN_CALLER) == (b"old", CacheTier.GATEWAY):
            break
    async for _ in gateway.feed.watch(None):
        if counted := (await gateway.cache.stats())["stale_serves"]:
            break
    assert (counted, len(gateway.tier)) == (1, 0)
    assert await content_for(gateway, UNKNOWN_CALLER) is None


async def test_watches_end_when_the_gateway_drains(gateways: tuple[Gateway, Gateway]) -> None:
    gateway = gateways[0]

    async def listen() -> None:
        async for _ in gateway.feed.watch(None):
            gateway.feed.end_watches()

    with pytest.raises(UnavailableError, match="gateway drains"):
        await asyncio.wait_for(listen(), TIMEOUT_S)
