"""Results, blobs, leases and failures, against real servers."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis

from kernelfarm.cache import (
    EdgeCache,
    Lease,
    PublishStatus,
    Space,
    UnsignedVariant,
    WorkerCache,
    WorkerReport,
)
from kernelfarm.cache.blobs import CHUNK_BYTES
from kernelfarm.cache.embedded import EmbeddedServer
from kernelfarm.cache.redis_keys import RedisKeys
from kernelfarm.errors import (
    ErrorFacts,
    KernelfarmError,
    KernelRejectedError,
    UnavailableError,
    error_facts,
)
from kernelfarm.ir.artifact import GuardOp
from kernelfarm.ir.guards import FactAtom, FactSubject
from kernelfarm.signing.manifest import blob_ref
from tests.support.farm import TIMEOUT_S

KEY = hashlib.sha256(b"some kernel").digest()
FACTS = ErrorFacts("FAILED_PRECONDITION", "KERNEL_REJECTED", "too many axes", None)


SPECIAL = (FactAtom(FactSubject.SYMBOL, "s0", GuardOp.DIVISIBLE, 16),)


def sha(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


async def contents(cache: EdgeCache, key: bytes = KEY, *, is_counted: bool = True) -> list[bytes]:
    found = await cache.lookup(key, is_counted=is_counted)
    return [variant.content for variant in found.variants]


async def leased(cache: EdgeCache, owner: str = "edge", ttl_s: float = 30) -> Lease:
    lease = await cache.acquire(KEY, owner, ttl_s)
    assert lease is not None
    return lease


async def test_a_published_entry_is_found_with_its_variants_in_order(cache: EdgeCache) -> None:
    await cache.put_blobs({sha(b"cubin"): b"cubin", sha(b"ptx"): b"ptx"})
    lease = await leased(cache)
    general = UnsignedVariant(b"general", (blob_ref(b"ptx"),))
    special = UnsignedVariant(b"special", (blob_ref(b"cubin"),), SPECIAL)
    assert await cache.publish(lease, [general, special]) is PublishStatus.OK
    assert await contents(cache) == [b"special", b"general"]
    assert await cache.get_blob(sha(b"cubin")) == b"cubin"


async def test_eleven_variants_keep_their_order(cache: EdgeCache) -> None:
    guards = [(FactAtom(FactSubject.SYMBOL, "s0", GuardOp.EQ, n),) for n in range(11)]
    variants = [UnsignedVariant(str(n).encode(), guard=guard) for n, guard in enumerate(guards)]
    await cache.publish(await leased(cache), variants)
    assert await contents(cache) == [variant.content for variant in variants]


async def test_programs_and_kernels_do_not_share_keys(
    cache: EdgeCache, server: EmbeddedServer
) -> None:
    await cache.publish(await leased(cache), [UnsignedVariant(b"kernel")])
    async with EdgeCache(server.url, namespace=cache.namespace, space=Space.PROGRAMS) as programs:
        assert not (await programs.lookup(KEY)).is_hit


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
async def test_a_blob_of_any_size_comes_back_whole(cache: EdgeCache, size: int) -> None:
    even = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    uneven = random.Random(size).randbytes(size)
    await cache.put_blobs({sha(content): content for content in (even, uneven)})
    found = await cache.get_blobs([sha(even), sha(b"absent"), sha(uneven)])
    assert found == [even, None, uneven]


@pytest.mark.parametrize("missing_blob", ["whole", "chunk"])
async def test_a_manifest_with_a_missing_blob_is_counted_and_a_miss(
    cache: EdgeCache, server: EmbeddedServer, missing_blob: str
) -> None:
    content = random.Random(1).randbytes(2 * CHUNK_BYTES)  # does not shrink
    await cache.put_blobs({sha(content): content})
    await cache.publish(await leased(cache), [UnsignedVariant(b"v", (blob_ref(content),))])
    stored = RedisKeys(cache.namespace).blob(sha(content))
    with redis.Redis.from_url(server.url) as raw:
        raw.delete(stored if missing_blob == "whole" else f"{stored}:1")
    assert await contents(cache) == []
    stats = await cache.stats()
    assert (stats["missing_blobs"], stats["misses"]) == (1, 1)
    assert await leased(cache)  # it may be made again


async def test_a_publication_whose_blob_is_missing_is_refused(cache: EdgeCache) -> None:
    lease = await leased(cache)
    refused = await cache.publish(lease, [UnsignedVariant(b"v", (blob_ref(b"never stored"),))])
    assert refused is PublishStatus.MISSING_BLOB
    assert await cache.renew(lease)


async def test_one_of_64_gets_the_lease_and_the_result_reaches_all(cache: EdgeCache) -> None:
    makers = 0

    async def find_or_make(number: int) -> list[bytes]:
        nonlocal makers
        while True:
            if found := await contents(cache, is_counted=False):
                return found
            lease = await cache.acquire(KEY, f"maker-{number}", 30)
            if lease is None:
                await cache.wait(KEY, 30)
                continue
            makers += 1
            await cache.publish(lease, [UnsignedVariant(b"made once")])

    results = await asyncio.gather(*(find_or_make(number) for number in range(64)))
    assert makers == 1
    assert results == [[b"made once"]] * 64


async def test_a_lapsed_lease_goes_to_the_next_owner_and_the_first_is_fenced(
    cache: EdgeCache,
) -> None:
    first = await leased(cache, "first", ttl_s=0.05)
    await cache.wait(KEY, TIMEOUT_S)
    second = await leased(cache, "second")
    assert second.fence > first.fence
    assert second.attempts == 1
    assert not await cache.renew(first)
    assert not await cache.release(first)
    assert await cache.publish(first, [UnsignedVariant(b"late")]) is PublishStatus.FENCED
    assert await cache.put_failure(KEY, FACTS, 10, first) is PublishStatus.FENCED
    assert await cache.publish(second, [UnsignedVariant(b"current")]) is PublishStatus.OK
    assert await contents(cache) == [b"current"]
    stats = await cache.stats()
    assert (stats["takeovers"], stats["fenced"]) == (1, 2)


async def test_a_renewal_gives_a_lease_its_full_time_again(
    cache: EdgeCache, server: EmbeddedServer
) -> None:
    lease = await leased(cache, ttl_s=300)
    with redis.Redis.from_url(server.url) as raw:
        for _ in range(2):
            raw.pexpire(lease_name(cache), 100_000)  # most of its time went by
            assert await cache.renew(lease)
            assert 100_000 < raw.pttl(lease_name(cache)) <= 300_000
    assert await cache.acquire(KEY, "other", 1) is None


def lease_name(cache: EdgeCache) -> str:
    return cache.redis_keys.redis_key("l", "k", KEY.hex())


async def test_a_repeated_request_for_a_lease_gets_the_same_lease(cache: EdgeCache) -> None:
    assert await leased(cache, "me") == await leased(cache, "me")


async def test_a_repeated_publication_is_ok_again(cache: EdgeCache) -> None:
    lease = await leased(cache)
    assert await cache.publish(lease, [UnsignedVariant(b"v")]) is PublishStatus.OK
    assert await cache.publish(lease, [UnsignedVariant(b"v")]) is PublishStatus.OK


async def test_no_lease_is_given_for_what_is_published(cache: EdgeCache) -> None:
    await cache.publish(await leased(cache), [UnsignedVariant(b"v")])
    assert await cache.acquire(KEY, "late", 1) is None


async def test_an_orderly_release_is_no_failed_attempt(cache: EdgeCache) -> None:
    await cache.release(await leased(cache))
    assert (await leased(cache, "next")).attempts == 0


async def test_an_orderly_end_is_no_failed_attempt_though_its_lease_was_evicted(
    cache: EdgeCache, server: EmbeddedServer
) -> None:
    with redis.Redis.from_url(server.url) as raw:
        held = []
        for number in range(3):
            held.append(await leased(cache, f"holder {number}"))
            assert held[-1].attempts == number  # those before it go on
            raw.delete(lease_name(cache))
    assert not await cache.release(held[0])
    assert await cache.put_failure(KEY, FACTS, 10, held[1]) is PublishStatus.FENCED
    assert (await leased(cache, "next")).attempts == 1, "that of the holder that vanished"


@pytest.mark.parametrize("fails", [False, True])
async def test_a_full_server_accepts_an_orderly_end(
    cache: EdgeCache, server: EmbeddedServer, fails: bool
) -> None:
    for number in range(2):
        await leased(cache, f"dies {number}", ttl_s=0.05)
        await cache.wait(KEY, TIMEOUT_S)
    last = await leased(cache, "last")
    with redis.Redis.from_url(server.url) as raw, full(raw):
        if fails:
            facts = error_facts(UnavailableError("the cache is full"))
            assert await cache.put_failure(KEY, facts, 10, last) is PublishStatus.OK
        await cache.release(last)
    assert (await leased(cache, "next")).attempts == 2


@contextmanager
def full(raw: redis.Redis) -> Iterator[None]:
    """Makes a server refuse commands that need memory."""
    names = ("maxmemory", "maxmemory-policy")
    before = {name: raw.config_get(name)[name] for name in names}
    raw.config_set("maxmemory-policy", "noeviction")
    raw.config_set("maxmemory", 1)
    try:
        yield
    finally:
        for name, value in before.items():
            raw.config_set(name, value)


@pytest.mark.parametrize("is_queued", [False, True])
async def test_an_orderly_release_keeps_earlier_failed_attempts(
    cache: EdgeCache, is_queued: bool
) -> None:
    await leased(cache, "dies", ttl_s=0.05)
    await cache.wait(KEY, TIMEOUT_S)
    again = await cache.acquire(KEY, "gives back", 30, is_queued=is_queued)
    assert again is not None and again.attempts == 1
    await cache.release(again)
    assert (await leased(cache, "next")).attempts == 1


@pytest.mark.parametrize(
    ("error", "kept"),
    [(UnavailableError("no memory"), 1), (KernelRejectedError("too many axes"), 0)],
)
async def test_a_transient_failure_keeps_earlier_failed_attempts(
    cache: EdgeCache, error: KernelfarmError, kept: int
) -> None:
    await leased(cache, "dies", ttl_s=0.05)
    await cache.wait(KEY, TIMEOUT_S)
    again = await leased(cache, "fails")
    assert again.attempts == 1
    assert await cache.put_failure(KEY, error_facts(error), 0.05, again) is PublishStatus.OK
    while await cache.get_failure(KEY):
        await asyncio.sleep(0.01)
    assert (await leased(cache, "next")).attempts == kept


async def test_fences_grow_across_a_flush(cache: EdgeCache, server: EmbeddedServer) -> None:
    before = await leased(cache)
    with redis.Redis.from_url(server.url) as raw:
        raw.delete(*raw.keys(f"kf:{{{glob_quoted(cache.namespace)}}}:*"))
    assert (await leased(cache, "after")).fence > before.fence


def glob_quoted(text: str) -> str:
    return text.replace("[", "\\[").replace("]", "\\]")


async def test_waiters_are_woken_by_a_message(
    cache: EdgeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = await leased(cache, ttl_s=3000)
    monkeypatch.setattr("kernelfarm.cache.kernel_cache._POLL_S", 3000)  # nothing else wakes it
    woken = asyncio.create_task(cache.wait(KEY, 3000))
    await cache.wait(KEY, 0.1)  # by now the other waits too
    assert not woken.done()
    await cache.publish(lease, [UnsignedVariant(b"v")])
    await asyncio.wait_for(woken, TIMEOUT_S)


async def test_waiting_for_nothing_returns_at_once(cache: EdgeCache) -> None:
    await asyncio.wait_for(cache.wait(KEY, 3000), TIMEOUT_S)


async def test_a_failure_is_returned_until_it_expires(
    cache: EdgeCache, server: EmbeddedServer
) -> None:
    lease = await leased(cache)
    assert await cache.put_failure(KEY, FACTS, 300, lease) is PublishStatus.OK
    assert await cache.get_failure(KEY) == FACTS
    assert await cache.acquire(KEY, "again", 30) is not None  # the lease was given back
    name = cache.redis_keys.redis_key("neg", "k", KEY.hex())
    with redis.Redis.from_url(server.url) as raw:
        assert 0 < raw.pttl(name) <= 300_000
        raw.pexpire(name, 1)  # its time goes by
    async with asyncio.timeout(TIMEOUT_S):
        while await cache.get_failure(KEY) is not None:
            await asyncio.sleep(0.01)


async def test_a_failure_without_expiry_is_refused(cache: EdgeCache) -> None:
    with pytest.raises(ValueError, match="must expire"):
        await cache.put_failure(KEY, FACTS, 0)


async def test_a_publication_clears_the_failure(cache: EdgeCache) -> None:
    await cache.put_failure(KEY, FACTS, 60)
    await cache.publish(await leased(cache), [UnsignedVariant(b"v")])
    assert await cache.get_failure(KEY) is None


async def test_everything_but_counters_fences_and_sets_expires(
    cache: EdgeCache, server: EmbeddedServer
) -> None:
    content = random.Random(2).randbytes(CHUNK_BYTES + 1)
    await cache.put_blobs({sha(content): content})
    await cache.publish(await leased(cache), [UnsignedVariant(b"v", (blob_ref(content),))])
    await cache.put_jobs({sha(b"job"): b"input"})
    await cache.put_failure(sha(b"bad"), FACTS, 60)
    with redis.Redis.from_url(server.url) as raw:
        keys = raw.keys(f"kf:{{{glob_quoted(cache.namespace)}}}:*")
        lasting = {key.decode().rpartition(":")[2] for key in keys if raw.ttl(key) < 0}
        ttl = {key.decode().split(":")[2]: raw.ttl(key) for key in keys}
    assert lasting <= {"stats", "fence", "workers", "ep", "quota"}
    assert ttl["b"] > ttl["m"]


async def test_a_queued_lease_passes_to_one_worker_with_the_job(
    cache: EdgeCache, server: EmbeddedServer
) -> None:
    queued = await cache.acquire(KEY, "edge", 30, is_queued=True)
    assert queued is not None
    await cache.put_jobs({KEY: b"the kernel"})
    workers = WorkerCache(server.url, namespace=cache.namespace)
    mine = Lease(KEY, "worker-1", queued.fence, 30, 0)
    adopted = workers.adopt(mine)
    assert adopted is not None and adopted.job == b"the kernel"
    assert (adopted.lease.incarnation, adopted.lease.epoch) == (queued.incarnation, queued.epoch)
    assert workers.adopt(mine) == adopted  # a lost reply
    assert workers.adopt(Lease(KEY, "worker-2", queued.fence, 30, 0)) is None
    assert workers.adopt(Lease(KEY, "worker-2", queued.fence - 1, 30, 0)) is None
    assert not await cache.renew(queued)  # the edge's part is over
    assert workers.renew(mine)
    assert workers.publish(adopted.lease, [UnsignedVariant(b"v")]) is PublishStatus.OK
    assert (await cache.stats())["dropped"] == 2
    workers.close()


async def test_only_attempts_that_ran_count(cache: EdgeCache, server: EmbeddedServer) -> None:
    await cache.acquire(KEY, "edge-1", 0.05, is_queued=True)
    await cache.wait(KEY, TIMEOUT_S)
    queued = await cache.acquire(KEY, "edge-2", 30, is_queued=True)
    assert queued is not None and queued.attempts == 0
    workers = WorkerCache(server.url, namespace=cache.namespace)
    workers.adopt(Lease(KEY, "worker", queued.fence, 0.05, 0))
    workers.close()
    await cache.wait(KEY, TIMEOUT_S)
    third = await cache.acquire(KEY, "edge-3", 30, is_queued=True)
    assert third is not None and third.attempts == 1


@pytest.mark.one_server
async def test_a_renewed_lease_lasts_as_long_as_its_block(
    cache: EdgeCache, server: EmbeddedServer
) -> None:
    lease = await leased(cache, ttl_s=1.5)
    workers = WorkerCache(server.url, namespace=cache.namespace)
    name = lease_name(cache)
    with redis.Redis.from_url(server.url) as raw:
        with workers.lease_renewal(lease):
            for _ in range(2):
                raw.pexpire(name, 600_000)  # a renewal gives it its own, shorter time
                async with asyncio.timeout(TIMEOUT_S):
                    while raw.pttl(name) > 1500:
                        await asyncio.sleep(0.01)
            assert await cache.acquire(KEY, "other", 1) is None
        raw.pexpire(name, 1)
    await cache.wait(KEY, TIMEOUT_S)
    assert await cache.acquire(KEY, "other", 1) is not None
    workers.close()


async def test_workers_report_and_withdraw(cache: EdgeCache, server: EmbeddedServer) -> None:
    workers = WorkerCache(server.url, namespace=cache.namespace)
    report = WorkerReport("w1", "cpu", "cpu@abc", True)
    workers.report(report)
    workers.report(WorkerReport("w2", "cuda", "cuda@def", True))
    workers.withdraw("w2")
    assert await cache.worker_reports() == [report]
    workers.close()


async def test_scripts_survive_a_script_flush(cache: EdgeCache, server: EmbeddedServer) -> None:
    assert await contents(cache) == []
    with redis.Redis.from_url(server.url) as raw:
        raw.script_flush()
    assert await contents(cache) == []
