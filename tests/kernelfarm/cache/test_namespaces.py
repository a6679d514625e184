"""Tenants' namespaces: separate entries, a common epoch table, counted usage."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from typing import TypeVar

import pytest
import redis

from kernelfarm.cache import (
    EdgeCache,
    KernelCache,
    Lease,
    PublishStatus,
    Space,
    UnsignedVariant,
    WorkerCache,
)
from kernelfarm.cache.blobs import CHUNK_BYTES
from kernelfarm.cache.embedded import EmbeddedServer
from kernelfarm.cache.limits import BLOB_TTL_S
from kernelfarm.cache.quotas import Quotas, QuotaUsage
from kernelfarm.cache.redis_keys import RedisKeys, tenant_namespace
from kernelfarm.cache.signing_policy import SigningPolicy
from kernelfarm.cache.sweeper import Sweeper
from kernelfarm.errors import CallerError
from kernelfarm.signing import Keyring, new_signer
from kernelfarm.signing.manifest import blob_ref
from tests.support.farm import TIMEOUT_S

CacheT = TypeVar("CacheT", bound=KernelCache)

KEY = hashlib.sha256(b"a program").digest()
SALT = b"s" * 32
TAG = "op:aten.gelu.default"
SIGNER = new_signer(Space.PROGRAMS)
TRUST = SigningPolicy(SIGNER, Keyring([SIGNER.trusted]))


@pytest.fixture
async def farm(
    server: EmbeddedServer, request: pytest.FixtureRequest
) -> AsyncIterator[KernelCache]:
    name = "farm-" + hashlib.sha256(request.node.name.encode()).hexdigest()[:12]
    async with KernelCache(
        server.url, namespace=name, space=Space.PROGRAMS, signing=TRUST
    ) as cache:
        yield cache


def namespace_of(farm: CacheT, tenant: str, salt: bytes = SALT) -> CacheT:
    return farm.for_namespace(tenant_namespace(farm.namespace, tenant), salt)


async def publish(cache: KernelCache, content: bytes, *blobs: bytes, tag: str = TAG) -> None:
    found = await cache.lookup(KEY, is_counted=False)
    lease = await cache.acquire(KEY, content.hex(), 30, seen=found.stamp)
    assert lease is not None
    contents = {hashlib.sha256(blob).digest(): blob for blob in blobs}
    await cache.put_blobs(contents)
    variant = UnsignedVariant(content, tuple(blob_ref(blob) for blob in blobs), tags=(tag,))
    assert await cache.publish(lease, [variant]) is PublishStatus.OK


async def test_a_tenant_finds_only_its_own_entries(farm: KernelCache) -> None:
    acme, beta = namespace_of(farm, "acme"), namespace_of(farm, "beta", b"t" * 32)
    await publish(acme, b"acme's", b"acme's binary")
    (found,) = (await acme.lookup(KEY)).variants
    assert (found.content, found.manifest.key) == (b"acme's", KEY)
    assert found.manifest.namespace == f"{farm.namespace}/acme"
    sha256 = hashlib.sha256(b"acme's binary").digest()
    assert await acme.get_blob(sha256) == b"acme's binary"
    for other in (beta, farm, namespace_of(farm, "shared", b"")):
        assert (await other.lookup(KEY)).reason == "absent"
        assert await other.get_blob(sha256) is None


async def test_the_storage_key_of_an_entry_needs_the_salt(
    farm: KernelCache, server: EmbeddedServer
) -> None:
    acme = namespace_of(farm, "acme")
    await publish(acme, b"v")
    with redis.Redis.from_url(server.url) as raw:
        own = raw.keys(f"kf:{{{farm.namespace}}}:t:acme:*")
        assert own and not any(KEY.hex() in key.decode() for key in own)
    assert not (await namespace_of(farm, "acme", b"another salt").lookup(KEY)).is_hit
    assert acme.redis_keys.storage_key(KEY) != KEY == farm.redis_keys.storage_key(KEY)


async def test_a_manifest_replayed_in_another_namespace_is_refused_and_counted(
    farm: KernelCache, server: EmbeddedServer
) -> None:
    acme, beta = namespace_of(farm, "acme"), namespace_of(farm, "beta")
    await publish(acme, b"v")
    positions = (namespace.redis_keys.entry(Space.PROGRAMS, KEY) for namespace in (acme, beta))
    with redis.Redis.from_url(server.url) as raw:
        raw.copy(*positions)
    assert (await beta.lookup(KEY)).reason == "untrusted"
    assert (await beta.stats())["mismatched"] == 1


async def test_one_invalidation_reaches_all_tenants(farm: KernelCache) -> None:
    namespaces = [farm, namespace_of(farm, "acme"), namespace_of(farm, "shared", b"")]
    for namespace in namespaces:
        await publish(namespace, b"v")
    await farm.epochs.invalidate([TAG])
    for namespace in namespaces:
        assert (await namespace.lookup(KEY)).reason == "epoch"


async def test_tenants_are_woken_by_their_own_keys(farm: KernelCache) -> None:
    acme = namespace_of(farm, "acme")
    lease = await acme.acquire(KEY, "owner", 30)
    assert lease is not None
    waiting = asyncio.create_task(acme.wait(KEY, 20))
    await acme.put_blobs({})
    assert await namespace_of(farm, "beta").acquire(KEY, "other", 30) is not None
    assert await acme.publish(lease, [UnsignedVariant(b"v")]) is PublishStatus.OK
    await asyncio.wait_for(waiting, TIMEOUT_S)


async def test_a_worker_signs_the_kernel_key_of_an_entry_under_a_salted_key(
    farm: KernelCache, server: EmbeddedServer
) -> None:
    signer = new_signer(Space.KERNELS)
    trust = SigningPolicy(keyring=Keyring([signer.trusted]))
    async with EdgeCache(
        server.url, namespace=farm.namespace, space=Space.KERNELS, signing=trust
    ) as edge:
        acme = namespace_of(edge, "acme")
        queued = await acme.acquire(KEY, "edge", 30, is_queued=True)
        assert queued is not None
        await acme.put_jobs({KEY: b"job"})
        workers = WorkerCache(server.url, namespace=farm.namespace, signing=SigningPolicy(signer))
        worker = workers.for_namespace(acme.namespace)
        adopted = worker.adopt(
            Lease(acme.redis_keys.storage_key(KEY), "worker", queued.fence, 30, 0)
        )
        assert adopted is not None and adopted.job == b"job"
        assert worker.publish(adopted.lease, [UnsignedVariant(b"v")], key=KEY) is PublishStatus.OK
        (found,) = (await acme.lookup(KEY)).variants
        assert found.manifest.key == KEY
        workers.close()


async def test_blobs_are_copied_from_another_namespace_completely_or_not_at_all(
    farm: KernelCache,
) -> None:
    acme, shared = namespace_of(farm, "acme"), namespace_of(farm, "shared", b"")
    small, large = b"small" * 99, random.Random(0).randbytes(3 * CHUNK_BYTES)
    await publish(shared, b"v", small, large)
    (found,) = (await shared.lookup(KEY)).variants
    digests = [blob.sha256 for blob in found.manifest.blobs]
    assert await acme.copy_blobs(shared, digests)
    assert await acme.get_blobs(digests) == [small, large]
    lifes = [await farm.client.ttl(acme.redis_keys.blob(sha256)) for sha256 in digests]
    assert min(lifes) > BLOB_TTL_S - TIMEOUT_S, "a sweep leaves them for a publication"
    await publish(acme, b"w", small, large)  # what names them counts them
    assert (await Quotas(farm.client, acme.redis_keys).usage()).size_bytes > len(large)

    beta = namespace_of(farm, "beta")
    await farm.client.delete(f"{shared.redis_keys.blob(hashlib.sha256(large).digest())}:1")
    assert not await beta.copy_blobs(shared, digests)
    assert not await beta.copy_blobs(shared, [b"x" * 32])
    assert await beta.get_blob(hashlib.sha256(large).digest()) is None
    assert await acme.copy_blobs(shared, digests), "what is here is not looked for there"


async def test_usage_counts_each_blob_once_and_sweeps_count_it_anew(farm: KernelCache) -> None:
    acme = namespace_of(farm, "acme")
    quotas = Quotas(farm.client, acme.redis_keys)
    assert await quotas.usage() == QuotaUsage(0, 0)
    shared_blob, large = b"x" * 100, bytes(range(256)) * 4096
    await publish(acme, b"v", shared_blob)
    first = await quotas.usage()
    assert first.entries == 1 and first.size_bytes > 100
    await publish(namespace_of(farm, "beta"), b"v", shared_blob)
    assert await quotas.usage() == first
    await farm.epochs.invalidate([TAG])
    await publish(acme, b"w", shared_blob, large)
    second = await quotas.usage()
    assert second.entries == 1 and second.size_bytes > first.size_bytes
    sweeper = Sweeper(farm.client, acme.namespace, 1e9)
    await sweeper.sweep()
    assert await quotas.usage() == second
    await farm.epochs.invalidate([TAG])
    await sweeper.sweep()
    left = await quotas.usage()
    assert left.entries == 0 and left.size_bytes < second.size_bytes


async def test_a_sweep_of_the_farms_namespace_leaves_those_of_tenants_alone(
    farm: KernelCache, server: EmbeddedServer
) -> None:
    acme, blob = namespace_of(farm, "acme"), b"old but named"
    await publish(acme, b"v", blob)
    sha256 = hashlib.sha256(blob).digest()
    with redis.Redis.from_url(server.url) as raw:
        raw.expire(acme.redis_keys.blob(sha256), BLOB_TTL_S - 7200)
    swept = await Sweeper(farm.client, farm.namespace, 1e9).sweep()
    assert (swept.entries, swept.orphan_blobs) == (0, 0)
    assert await acme.get_blob(sha256) == blob


async def test_the_number_of_compilations_in_flight_is_limited(farm: KernelCache) -> None:
    quotas = Quotas(farm.client, namespace_of(farm, "acme").redis_keys)
    assert await quotas.start_compile("a", 30, 2)
    assert await quotas.start_compile("b", 30, 2)
    assert not await quotas.start_compile("c", 30, 2)
    assert await quotas.start_compile("a", 30, 2), "its own is extended"
    assert await quotas.compiles_in_flight() == 2
    await quotas.end_compile("a")
    assert await quotas.start_compile("c", 0.05, 2)
    async with asyncio.timeout(TIMEOUT_S):  # the compilation of a frontend that died expires
        while not await quotas.start_compile("d", 30, 2):
            await asyncio.sleep(0.01)


def test_namespaces_of_other_farms_are_refused() -> None:
    for bad in ("other/acme", "farm/", "farm/A", "farm/a/b", "farm/a:b", "farm}", ""):
        with pytest.raises(CallerError, match="expected 'farm' or 'farm/TENANT'"):
            KernelCache("redis://x", namespace="farm", space=Space.KERNELS).for_namespace(bad)
    assert RedisKeys("farm/acme").redis_key("b") == "kf:{farm}:t:acme:b"


async def test_a_full_server_does_not_evict_the_counts_of_quotas(
    farm: KernelCache, server: EmbeddedServer
) -> None:
    """The policy evicts keys that expire, and no others."""
    acme = namespace_of(farm, "acme")
    await publish(acme, b"v", b"a binary")
    assert await Quotas(farm.client, acme.redis_keys).start_compile("a", 30, 2)
    with redis.Redis.from_url(server.url) as raw:
        assert raw.config_get("maxmemory-policy") == {"maxmemory-policy": "volatile-lfu"}
        assert raw.ttl(acme.redis_keys.quota_usage) == raw.ttl(acme.redis_keys.compiles) == -1
