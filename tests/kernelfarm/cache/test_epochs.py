"""Invalidation: invalidated entries and those before the loss of the table are stale."""

from __future__ import annotations

import hashlib

import pytest
import redis

from kernelfarm.cache import (
    KernelCache,
    Lease,
    PublishStatus,
    SigningPolicy,
    Space,
    UnsignedVariant,
    WorkerCache,
)
from kernelfarm.cache.embedded import EmbeddedServer
from kernelfarm.cache.records import WorkerReport
from kernelfarm.cache.redis_keys import RedisKeys
from kernelfarm.cache.sweeper import Sweeper
from kernelfarm.errors import CallerError, FarmFullError, InternalError
from kernelfarm.ir.artifact import GuardOp
from kernelfarm.ir.guards import FactAtom, FactSubject, Guard
from kernelfarm.signing.manifest import blob_ref
from kernelfarm.signing.tags import check_tag, model_tag

KEY = hashlib.sha256(b"some program").digest()
GELU, MODEL = "op:aten.gelu.default", "model:llama@3"


async def leased(cache: KernelCache, key: bytes = KEY, seen: str = "", *tags: str) -> Lease:
    lease = await cache.acquire(key, "maker", 30, seen=seen, tags=tags)
    assert lease is not None
    return lease


async def published(
    cache: KernelCache, *tags: str, key: bytes = KEY, content: bytes = b"v", guard: Guard = ()
) -> PublishStatus:
    found = await cache.lookup(key, is_counted=False)
    lease = await leased(cache, key, found.stamp)
    return await cache.publish(lease, [UnsignedVariant(content, guard=guard, tags=tags)])


def size_is(value: int) -> Guard:
    return (FactAtom(FactSubject.SYMBOL, "s0", GuardOp.EQ, value),)


async def test_an_entry_with_an_invalidated_tag_is_a_counted_epoch_miss(cache: KernelCache) -> None:
    await published(cache, GELU, "pass:fuse-nests")
    await cache.epochs.invalidate(["op:aten.add.Tensor"])
    assert (await cache.lookup(KEY)).is_hit
    await cache.epochs.invalidate(["pass:fuse-nests"])
    found = await cache.lookup(KEY)
    assert (found.reason, found.detail) == ("epoch", "pass:fuse-nests")
    stats = await cache.stats()
    assert (stats["hits"], stats["misses"], stats["epoch_misses"]) == (1, 1, 1)


async def test_an_entry_made_after_an_invalidation_is_found(cache: KernelCache) -> None:
    await published(cache, GELU, content=b"old")
    await cache.epochs.invalidate([GELU])
    assert await published(cache, GELU, content=b"new") is PublishStatus.OK
    found = await cache.lookup(KEY)
    assert [variant.content for variant in found.variants] == [b"new"]


async def test_a_compilation_that_began_before_an_invalidation_is_not_published(
    cache: KernelCache,
) -> None:
    lease = await leased(cache)
    await cache.epochs.invalidate([GELU])
    stale = await cache.publish(lease, [UnsignedVariant(b"v", tags=(GELU,))])
    assert stale is PublishStatus.STALE_EPOCH
    assert not (await cache.lookup(KEY)).is_hit
    again = await leased(cache)  # the refusal ended the lease, and it was no failed attempt
    assert again.attempts == 0
    assert await cache.publish(again, [UnsignedVariant(b"v", tags=(GELU,))]) is PublishStatus.OK
    assert (await cache.stats())["stale_epochs"] == 1


async def test_an_invalidation_of_another_tag_does_not_prevent_a_publication(
    cache: KernelCache,
) -> None:
    lease = await leased(cache)
    await cache.epochs.invalidate([MODEL])
    assert await cache.publish(lease, [UnsignedVariant(b"v", tags=(GELU,))]) is PublishStatus.OK


async def test_all_entries_are_stale_after_the_loss_of_the_epoch_table(
    cache: KernelCache, server: EmbeddedServer
) -> None:
    await cache.epochs.invalidate([GELU])
    await published(cache, GELU)
    other = hashlib.sha256(b"under way").digest()
    lease = await leased(cache, other)
    with redis.Redis.from_url(server.url) as raw:
        raw.delete(RedisKeys(cache.namespace).epochs)
    assert (await cache.lookup(KEY)).reason == "incarnation"
    assert await cache.publish(lease, [UnsignedVariant(b"v")]) is PublishStatus.STALE_INC
    assert await published(cache, GELU) is PublishStatus.OK
    assert (await cache.lookup(KEY)).is_hit


async def test_entries_newer_than_an_older_copy_of_the_epoch_table_are_stale(
    cache: KernelCache, server: EmbeddedServer
) -> None:
    await cache.epochs.invalidate([GELU])
    await cache.epochs.invalidate([MODEL])
    await published(cache, "driver:cuda")
    with redis.Redis.from_url(server.url) as raw:
        raw.hset(RedisKeys(cache.namespace).epochs, "@epoch", 1)
    assert (await cache.lookup(KEY)).reason == "incarnation"


async def test_a_callers_own_tag_makes_an_entry_stale_for_that_caller_only(
    cache: KernelCache,
) -> None:
    await published(cache, GELU)
    await cache.epochs.invalidate([MODEL])
    stale = await cache.lookup(KEY, tags=[MODEL])
    assert (stale.reason, stale.detail) == ("epoch", MODEL)
    assert (await cache.lookup(KEY)).is_hit
    lease = await leased(cache, KEY, stale.stamp, MODEL)
    assert (
        await cache.publish(lease, [UnsignedVariant(b"v", tags=(GELU, MODEL))]) is PublishStatus.OK
    )
    assert (await cache.lookup(KEY, tags=[MODEL])).is_hit


async def test_entries_of_an_unadvertised_toolchain_are_stale_and_two_toolchains_coexist(
    cache: KernelCache, server: EmbeddedServer
) -> None:
    old, new = hashlib.sha256(b"old").digest(), hashlib.sha256(b"new").digest()
    await published(cache, "toolchain:cuda@0123", key=old)
    await published(cache, "toolchain:cuda@4567", key=new)
    assert (await cache.lookup(old)).is_hit and (await cache.lookup(new)).is_hit
    workers = WorkerCache(server.url, namespace=cache.namespace)
    workers.report(WorkerReport("w", "cuda", "cuda@4567", True))
    workers.close()
    assert (await cache.lookup(old)).is_hit
    with redis.Redis.from_url(server.url) as raw:  # both were advertised long ago
        for toolchain in ("cuda@0123", "cuda@4567"):
            raw.hset(RedisKeys(cache.namespace).toolchains, toolchain, 1)
    cold = await cache.lookup(old)
    assert (cold.reason, cold.detail) == ("toolchain", "cuda@0123")
    assert (await cache.lookup(new)).is_hit  # the newest of its backend stays
    assert (await cache.stats())["toolchain_misses"] == 1


async def test_variants_are_ordered_by_specificity_and_the_general_one_stays(
    cache: KernelCache,
) -> None:
    await published(cache, content=b"general")
    for value in range(20):
        assert (
            await published(cache, content=b"%d" % value, guard=size_is(value)) is PublishStatus.OK
        )
    contents = [variant.content for variant in (await cache.lookup(KEY)).variants]
    assert contents == [b"%d" % value for value in range(5, 20)] + [b"general"]


async def test_a_lease_beside_live_variants_needs_the_latest_stamp(cache: KernelCache) -> None:
    await published(cache, content=b"general")
    seen = (await cache.lookup(KEY)).stamp
    assert await cache.acquire(KEY, "blind", 30) is None
    await published(cache, content=b"special", guard=size_is(3))
    assert await cache.acquire(KEY, "late", 30, seen=seen) is None
    assert await cache.acquire(KEY, "maker", 30, seen=(await cache.lookup(KEY)).stamp)


async def test_a_different_result_of_one_toolchain_is_refused_while_the_first_is_live(
    cache: KernelCache,
) -> None:
    blobs = {hashlib.sha256(content).digest(): content for content in (b"one", b"two")}
    await cache.put_blobs(blobs)
    tags = (GELU, "toolchain:cpu@0123")

    async def publish(content: bytes, *more: str) -> PublishStatus:
        stamp = (await cache.lookup(KEY, is_counted=False)).stamp
        variant = UnsignedVariant(content, (blob_ref(content),), tags=(*tags, *more))
        return await cache.publish(await leased(cache, KEY, stamp), [variant])

    assert await publish(b"one") is PublishStatus.OK
    assert await publish(b"two") is PublishStatus.NONDET
    assert [v.content for v in (await cache.lookup(KEY)).variants] == [b"one"]
    assert (await cache.stats())["nondeterministic"] == 1
    await cache.epochs.invalidate([GELU])
    assert await publish(b"two") is PublishStatus.OK  # compared with the living only
    await cache.epochs.invalidate([MODEL])
    assert await publish(b"one", MODEL) is PublishStatus.OK  # dead for this publisher


async def test_results_that_differ_only_in_their_cost_are_equal(cache: KernelCache) -> None:
    await cache.put_blobs({hashlib.sha256(b"binary").digest(): b"binary"})
    for cost_ms in (12.5, 800.0):
        stamp = (await cache.lookup(KEY, is_counted=False)).stamp
        variant = UnsignedVariant(
            b"cost %f" % cost_ms,  # artifacts state it too
            (blob_ref(b"binary"),),
            tags=(GELU, "toolchain:cpu@0123"),
            cost_ms=cost_ms,
        )
        lease = await leased(cache, KEY, stamp)
        assert await cache.publish(lease, [variant]) is PublishStatus.OK
    (found,) = (await cache.lookup(KEY)).variants
    assert found.manifest.cost_ms == 800.0
    assert "nondeterministic" not in await cache.stats()


async def test_variants_with_equal_guards_are_our_bug(cache: KernelCache) -> None:
    with pytest.raises(InternalError, match="equal guards"):
        await cache.publish(await leased(cache), [UnsignedVariant(b"a"), UnsignedVariant(b"b")])


async def test_invalidations_can_be_read_again_until_the_log_is_trimmed(
    cache: KernelCache, server: EmbeddedServer
) -> None:
    epochs = cache.epochs
    begin = await epochs.current()
    await epochs.invalidate([GELU, MODEL])
    second = await epochs.invalidate([MODEL])
    replayed = await epochs.invalidations_after(begin)
    assert replayed is not None
    assert [a.tags for a in replayed] == [(GELU, MODEL), (MODEL,)]
    assert replayed[-1].epoch == second
    assert await epochs.invalidations_after(second) == []
    with redis.Redis.from_url(server.url) as raw:
        raw.xtrim(RedisKeys(cache.namespace).invalidation_log, maxlen=1, approximate=False)
        assert await epochs.invalidations_after(begin) is None
        raw.delete(RedisKeys(cache.namespace).epochs)
    assert await epochs.invalidations_after(second) is None


# No step of an invalidation or a sweep takes more than 1,000 keys at once.
@pytest.mark.one_server
@pytest.mark.parametrize("number", [2_500, pytest.param(20_000, marks=pytest.mark.slow)])
async def test_thousands_of_kernels_are_invalidated_by_one_call(
    cache: KernelCache, number: int
) -> None:
    keys = [hashlib.sha256(b"%d" % each).digest() for each in range(number)]
    await _publish_many(cache, keys)
    sweeper = Sweeper(cache.client, cache.namespace, 1e9)
    assert await sweeper.count_dependents(Space.KERNELS, frozenset([GELU])) == len(keys)
    await cache.epochs.invalidate([GELU])
    for key in keys[::1000]:
        assert (await cache.lookup(key)).reason == "epoch"
    swept = await sweeper.sweep()
    assert (swept.entries, swept.dead_variants) == (len(keys), len(keys))
    assert await sweeper.count_dependents(Space.KERNELS, frozenset([GELU])) == 0


async def _publish_many(cache: KernelCache, keys: list[bytes]) -> None:
    """Entries in the form of a publication, copied on the server, which is faster."""
    await published(cache, GELU, key=keys[0])
    names = RedisKeys(cache.namespace)
    source = names.entry(Space.KERNELS, keys[0])
    copy = "for i = 2, #KEYS do redis.call('COPY', KEYS[1], KEYS[i]) end"
    for first in range(1, len(keys), 1000):
        copies = [names.entry(Space.KERNELS, key) for key in keys[first : first + 1000]]
        await cache.client.eval(copy, len(copies) + 1, source, *copies)


async def test_a_sweep_deletes_stale_and_incomplete_variants_and_orphan_blobs_and_counts_the_rest(
    cache: KernelCache, server: EmbeddedServer
) -> None:
    contents = [b"kept" * 99, b"dead" * 99, b"missing_blob" * 99, b"young" * 99]
    digests = [hashlib.sha256(content).digest() for content in contents]
    await cache.put_blobs(dict(zip(digests, contents, strict=True)))
    for tag, content in zip(("op:kept", "op:dead", "op:hole"), contents, strict=False):
        key = hashlib.sha256(tag.encode()).digest()
        variant = UnsignedVariant(b"v", (blob_ref(content),), tags=(tag,))
        await cache.publish(await leased(cache, key), [variant])
    await cache.epochs.invalidate(["op:dead"])
    names = RedisKeys(cache.namespace)
    with redis.Redis.from_url(server.url) as raw:
        raw.delete(names.blob(digests[2]))
        raw.expire(names.blob(digests[0]), 1000)  # stored long ago, all but the young one
        raw.expire(names.blob(digests[1]), 1000)
    sweeper = Sweeper(cache.client, cache.namespace, 1e9)
    assert await sweeper.usage() is None
    swept = await sweeper.sweep()
    assert (swept.dead_variants, swept.incomplete_variants, swept.orphan_blobs) == (1, 1, 1)
    assert await cache.get_blobs(digests) == [contents[0], None, None, contents[3]]
    usage = await sweeper.usage()
    assert usage is not None
    assert (usage.kernels.entries, usage.kernels.variants, usage.blobs) == (1, 1, 2)
    assert 0 < usage.blob_bytes < sum(map(len, contents))


async def test_only_one_sweep_of_a_namespace_runs_at_a_time(cache: KernelCache) -> None:
    sweeper = Sweeper(cache.client, cache.namespace, 1e9)
    await cache.client.set(RedisKeys(cache.namespace).redis_key("sweep"), "other", ex=9)
    with pytest.raises(FarmFullError):
        await sweeper.sweep()


async def test_a_reader_changes_nothing(cache: KernelCache, server: EmbeddedServer) -> None:
    await published(cache, GELU)
    before = await cache.stats()
    async with KernelCache(
        server.url, namespace=cache.namespace, space=Space.KERNELS, may_write=False
    ) as reader:
        assert (await reader.lookup(KEY)).is_hit
        await cache.epochs.invalidate([GELU])
        assert (await reader.lookup(KEY)).reason == "epoch"
        with redis.Redis.from_url(server.url) as raw:
            raw.delete(RedisKeys(cache.namespace).epochs)
        assert not (await reader.lookup(KEY)).is_hit
        with redis.Redis.from_url(server.url) as raw:
            assert not raw.exists(RedisKeys(cache.namespace).epochs)
    assert await cache.stats() == before


async def test_an_entry_past_its_expiry_is_not_found(server: EmbeddedServer) -> None:
    trust = SigningPolicy(validity_s=-10)
    async with KernelCache(
        server.url, namespace="past", space=Space.KERNELS, signing=trust
    ) as cache:
        await published(cache)
        assert (await cache.lookup(KEY)).reason == "expired"
        assert (await cache.stats())["expired_misses"] == 1


@pytest.mark.parametrize("tag", ["", "op", "op:", "op:a b", "color:red", "op:" + "x" * 201, "op:ä"])
def test_a_tag_outside_of_the_grammar_is_refused(tag: str) -> None:
    with pytest.raises(CallerError, match="KIND:NAME"):
        check_tag(tag)


def test_a_model_with_a_space_is_refused() -> None:
    assert model_tag("llama@3") == MODEL
    with pytest.raises(CallerError, match="id@revision"):
        model_tag("my llama")
