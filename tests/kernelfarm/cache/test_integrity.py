"""Contents of the store that an attacker wrote: refused, counted by fault, and made again."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest
import redis
import zstandard

from kernelfarm.cache import (
    KernelCache,
    Lease,
    PublishStatus,
    SigningPolicy,
    Space,
    StoredVariant,
    UnsignedVariant,
)
from kernelfarm.cache.embedded import EmbeddedServer
from kernelfarm.cache.redis_keys import RedisKeys
from kernelfarm.cache.verified_manifests import VerifiedManifests
from kernelfarm.errors import ManifestMismatchError, PoisonedBlobError, UntrustedKeyError
from kernelfarm.signing import CacheAddress, Keyring, Manifest, Signer, new_signer
from kernelfarm.signing import Space as SignedSpace
from kernelfarm.wire.manifest import manifest_to_bytes

KEY, OTHER = hashlib.sha256(b"a kernel").digest(), hashlib.sha256(b"another").digest()
SIGNER = Signer(bytes(range(32)), SignedSpace.KERNELS)
TRUST = SigningPolicy(signer=SIGNER, keyring=Keyring([SIGNER.trusted]))
UNTRUSTED_SIGNER = new_signer(SignedSpace.KERNELS)


@pytest.fixture
async def signed(
    server: EmbeddedServer, request: pytest.FixtureRequest
) -> AsyncIterator[KernelCache]:
    """A cache that signs and trusts its own signatures only."""
    async with KernelCache(
        server.url, namespace=request.node.name, space=Space.KERNELS, signing=TRUST
    ) as opened:
        yield opened


async def published(cache: KernelCache, key: bytes = KEY) -> StoredVariant:
    lease = await cache.acquire(key, "maker", 30)
    assert lease is not None
    assert await cache.publish(lease, [UnsignedVariant(b"the artifact")]) is PublishStatus.OK
    return (await cache.lookup(key, is_counted=False)).variants[0]


def put_manifest(server: EmbeddedServer, cache: KernelCache, manifest: Manifest) -> None:
    """Replaces the manifest of KEY, as an attacker with access to Redis might."""
    entry = RedisKeys(cache.namespace).entry(Space.KERNELS, KEY)
    with redis.Redis.from_url(server.url) as raw:
        order = raw.hget(entry, "order")
        assert order is not None
        raw.hset(entry, f"{order.decode()}:m", manifest_to_bytes(manifest))


def forged(manifest: Manifest) -> Manifest:
    return replace(manifest, tags=("op:nothing",))


def strange(manifest: Manifest) -> Manifest:
    return UNTRUSTED_SIGNER.sign(manifest)


def unsigned(manifest: Manifest) -> Manifest:
    return replace(manifest, key_id="", signature=b"")


def replayed(manifest: Manifest) -> Manifest:
    return SIGNER.sign(replace(manifest, key=OTHER))


def expired(manifest: Manifest) -> Manifest:
    return SIGNER.sign(replace(manifest, not_after_s=1_000_000))


@pytest.mark.parametrize(
    ("change", "counter"),
    [
        (forged, "forged"),
        (strange, "untrusted"),
        (unsigned, "untrusted"),
        (replayed, "mismatched"),
        (expired, "expired_manifests"),
    ],
)
async def test_a_manifest_that_fails_verification_is_dropped_and_counted(
    signed: KernelCache,
    server: EmbeddedServer,
    change: Callable[[Manifest], Manifest],
    counter: str,
) -> None:
    put_manifest(server, signed, change((await published(signed)).manifest))
    found = await signed.lookup(KEY)
    assert (found.is_hit, found.reason) == (False, "untrusted")
    assert (await signed.stats())[counter] == 1
    await published(signed)  # nothing stands in the way of making it anew
    assert (await signed.lookup(KEY)).is_hit


@pytest.mark.parametrize(
    ("part", "value"), [("e", b"1"), ("t", b""), ("t", b"op:nothing"), ("i", None)]
)
async def test_changed_facts_beside_a_manifest_do_not_revive_an_invalidated_variant(
    signed: KernelCache, server: EmbeddedServer, part: str, value: bytes | None
) -> None:
    lease = await signed.acquire(KEY, "maker", 30)
    assert lease is not None
    assert (
        await signed.publish(lease, [UnsignedVariant(b"wrong", tags=("op:a",))]) is PublishStatus.OK
    )
    assert (await signed.lookup(KEY)).is_hit
    names = RedisKeys(signed.namespace)
    with redis.Redis.from_url(server.url) as raw:
        if part == "i":
            raw.delete(names.epochs)
            value = (await signed.epochs.current()).incarnation.encode()
        else:
            await signed.epochs.invalidate(["op:a"])
        entry = names.entry(Space.KERNELS, KEY)
        raw.hset(entry, f"{raw.hget(entry, 'order').decode()}:{part}", value)
    found = await signed.lookup(KEY)
    assert (found.is_hit, found.reason) == (False, "untrusted")
    assert (await signed.stats())["mismatched"] == 1
    await published(signed)
    assert (await signed.lookup(KEY)).is_hit


async def test_an_exchanged_content_is_poisoned(
    signed: KernelCache, server: EmbeddedServer
) -> None:
    await published(signed)
    entry = RedisKeys(signed.namespace).entry(Space.KERNELS, KEY)
    with redis.Redis.from_url(server.url) as raw:
        raw.hset(entry, f"{raw.hget(entry, 'order').decode()}:c", b"something else")
    assert (await signed.lookup(KEY)).reason == "untrusted"
    assert (await signed.stats())["poisoned"] == 1


async def test_an_entry_copied_to_another_key_is_a_mismatch(
    signed: KernelCache, server: EmbeddedServer
) -> None:
    await published(signed)
    names = RedisKeys(signed.namespace)
    with redis.Redis.from_url(server.url) as raw:
        raw.copy(names.entry(Space.KERNELS, KEY), names.entry(Space.KERNELS, OTHER))
    assert (await signed.lookup(OTHER)).reason == "untrusted"
    assert (await signed.stats())["mismatched"] == 1
    assert (await signed.lookup(KEY)).is_hit


async def test_bytes_that_are_no_manifest_are_dropped(
    signed: KernelCache, server: EmbeddedServer
) -> None:
    await published(signed)
    entry = RedisKeys(signed.namespace).entry(Space.KERNELS, KEY)
    with redis.Redis.from_url(server.url) as raw:
        raw.hset(entry, f"{raw.hget(entry, 'order').decode()}:m", b"\xff\xff")
    assert not (await signed.lookup(KEY)).is_hit
    assert (await signed.stats())["malformed"] == 1


async def test_a_farm_that_signs_nothing_verifies_address_and_expiry(
    server: EmbeddedServer, cache: KernelCache
) -> None:
    put_manifest(server, cache, replace((await published(cache)).manifest, key=OTHER))
    assert not (await cache.lookup(KEY)).is_hit
    assert (await cache.stats())["mismatched"] == 1


async def test_a_refreshed_manifest_has_its_full_validity_and_is_signed(
    signed: KernelCache, server: EmbeddedServer
) -> None:
    aged = SIGNER.sign(replace((await published(signed)).manifest, not_after_s=2_000_000_000))
    put_manifest(server, signed, aged)
    with redis.Redis.from_url(server.url) as raw:
        entry = RedisKeys(signed.namespace).entry(Space.KERNELS, KEY)
        raw.hset(entry, f"{aged.variant_id.hex()}:x", aged.not_after_s)
    (before,) = (await signed.lookup(KEY)).variants
    after = await signed.refresh(KEY, before)
    assert (await signed.lookup(KEY)).variants == (after,)
    assert after.manifest.not_after_s != aged.not_after_s
    assert (await signed.refresh(KEY, before)).content == before.content  # too late: not stored
    assert (await signed.lookup(KEY)).variants == (after,)


BOMB = zstandard.ZstdCompressor().compress(b"\0" * 100_000_000)
SHA = hashlib.sha256(b"content").digest()


@pytest.mark.parametrize(
    "stored",
    [
        b"\x00" + struct.pack(">Q", 7) + b"CONTENT",
        b"\x00" + struct.pack(">Q", 8) + b"content",
        b"\x02" + struct.pack(">Q", 7) + b"content",
        b"\x02" + struct.pack(">Q", 7) + zstandard.ZstdCompressor().compress(b"CONTENT"),
        b"\x02" + struct.pack(">Q", 7) + BOMB,
        b"\x02" + struct.pack(">Q", 1 << 40) + BOMB,
        b"\x01one 7",
        b"\x03999999999 7",
        b"\x03-1 7",
        b"\x07content",
    ],
    ids=range(10),
)
async def test_a_poisoned_blob_is_an_error_of_its_own_counted_and_deleted(
    cache: KernelCache, server: EmbeddedServer, stored: bytes
) -> None:
    with redis.Redis.from_url(server.url) as raw:
        raw.set(RedisKeys(cache.namespace).blob(SHA), stored)
    with pytest.raises(PoisonedBlobError):
        await cache.get_blob(SHA)
    assert (await cache.stats())["poisoned"] == 1
    assert await cache.get_blob(SHA) is None


async def test_blobs_are_stored_compressed(cache: KernelCache, server: EmbeddedServer) -> None:
    content = b"; an instruction\n" * 10_000
    sha256 = hashlib.sha256(content).digest()
    await cache.put_blobs({sha256: content})
    with redis.Redis.from_url(server.url) as raw:
        assert raw.strlen(RedisKeys(cache.namespace).blob(sha256)) < len(content) / 100
    assert await cache.get_blob(sha256) == content


async def test_a_verified_manifest_is_verified_again_after_its_expiry_or_at_another_address() -> (
    None
):
    now_s = [1_000.0]
    ended = replace(SIGNER.trusted, not_after_s=1_050)
    trust = SigningPolicy(SIGNER, Keyring([ended]), validity_s=100, clock=lambda: now_s[0])
    lease = Lease(KEY, "maker", 1, 30, 0, "ab" * 16, 0)
    address = CacheAddress("default", Space.KERNELS, KEY)
    (made,) = trust.sign(address, lease, [UnsignedVariant(b"v")])
    variant, verified = StoredVariant(made.manifest, made.content), VerifiedManifests(trust)
    verified.verify(address, variant)
    verified.verify(address, variant)
    with pytest.raises(ManifestMismatchError):
        verified.verify(address._replace(key=OTHER), variant)
    with pytest.raises(PoisonedBlobError):
        verified.verify(address, StoredVariant(made.manifest, b"w"))
    now_s[0] = 1_051  # the manifest is good until 1,100, its key is not
    with pytest.raises(UntrustedKeyError):
        verified.verify(address, variant)


def test_an_entry_that_lacks_a_kernel_because_of_a_limit_is_not_renewed() -> None:
    now_s = [1_000.0]
    trust = SigningPolicy(validity_s=100, clock=lambda: now_s[0])
    lease = Lease(KEY, "maker", 1, 30, 0, "ab" * 16, 0)
    address = CacheAddress("default", Space.PROGRAMS, KEY)

    def manifest(*tags: str) -> Manifest:
        (made,) = trust.sign(address, lease, [UnsignedVariant(b"v", tags=tags)])
        return StoredVariant(made.manifest, made.content).manifest

    whole, lacking = manifest("driver:cuda"), manifest("driver:cuda", "limit:cuda")
    assert not any(map(trust.is_to_renew, (whole, lacking)))
    now_s[0] = 1_060
    assert trust.is_to_renew(whole)
    assert not trust.is_to_renew(lacking)


async def test_verified_manifests_stay_within_their_memory() -> None:
    trust = SigningPolicy(SIGNER, Keyring([SIGNER.trusted]), verified_bytes=20_000)
    verified, lease = VerifiedManifests(trust), Lease(KEY, "maker", 1, 30, 0, "ab" * 16, 0)
    address = CacheAddress("default", Space.KERNELS, KEY)
    found = []
    for number in range(8):
        (made,) = trust.sign(address, lease, [UnsignedVariant(b"%d" % number * 5_000)])
        found.append(StoredVariant(made.manifest, made.content))
        assert verified.verify(address, found[-1]) is found[-1]
    again = [StoredVariant(variant.manifest_bytes, variant.content) for variant in found]
    known = [verified.verify(address, variant) is not variant for variant in reversed(again)]
    assert known[0] and not any(known[3:])
