"""Another server process takes over: restarted from its file, a replica, a demoted primary."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path

import pytest
import redis

from kernelfarm.cache import (
    KernelCache,
    PublishStatus,
    Space,
    UnsignedVariant,
    WorkerCache,
    epoch_calls,
)
from kernelfarm.cache.connection import transport_of
from kernelfarm.cache.embedded import EmbeddedServer, ServerProgram
from kernelfarm.cache.redis_keys import RedisKeys
from kernelfarm.cache.scripts import AsyncScripts
from kernelfarm.errors import UnavailableError
from tests.support.farm import TIMEOUT_S, wait_until
from tests.support.redis_process import listen_by_tcp, redis_process, replicate
from tests.support.redis_proxy import RedisProxy

KEY = hashlib.sha256(b"a program").digest()
TAG = "op:aten.gelu.default"


async def publish(cache: KernelCache, content: bytes) -> PublishStatus:
    seen = (await cache.lookup(KEY, is_counted=False)).stamp
    lease = await cache.acquire(KEY, content.hex(), 30, seen=seen)
    assert lease is not None
    return await cache.publish(lease, [UnsignedVariant(content, tags=(TAG,))])


async def test_a_server_restarted_from_its_file_serves_nothing_from_before(
    program: ServerProgram, tmp_path: Path
) -> None:
    """Its file may lack the last invalidations, whose entries would then be live again."""
    async with KernelCache(f"unix://{tmp_path}/s", space=Space.PROGRAMS) as cache:
        with redis_process(program, tmp_path) as raw:
            await publish(cache, b"wrong")
            raw.save()
            await cache.epochs.invalidate([TAG])
            assert not (await cache.lookup(KEY)).is_hit
        with redis_process(program, tmp_path) as raw:
            assert raw.exists(cache.redis_keys.entry(Space.PROGRAMS, KEY))  # it is there again
            assert (await cache.lookup(KEY)).reason == "incarnation"
            assert await publish(cache, b"right") is PublishStatus.OK
            assert [v.content for v in (await cache.lookup(KEY)).variants] == [b"right"]


@pytest.mark.parametrize("is_cut", [True, False], ids=["cut", "demoted"])
async def test_a_replica_that_takes_over_without_the_last_invalidation_serves_nothing_from_before(
    program: ServerProgram, tmp_path: Path, is_cut: bool
) -> None:
    with (
        redis_process(program, tmp_path / "a") as first,
        redis_process(program, tmp_path / "b") as second,
        RedisProxy(tmp_path / "proxy", tmp_path / "a" / "s") as proxy,
    ):
        replicate(second, first, tmp_path)
        async with KernelCache(proxy.url, space=Space.PROGRAMS) as cache:
            await publish(cache, b"wrong")
            entry = cache.redis_keys.entry(Space.PROGRAMS, KEY)
            wait_until(lambda: second.exists(entry) == 1, TIMEOUT_S, "the replica has it")
            second.replicaof(
                "NO", "ONE"
            )  # it replicates no more, so the invalidation does not reach it
            await cache.epochs.invalidate([TAG])
            if is_cut:
                proxy.lead_to(tmp_path / "b" / "s")
            else:  # old connections stay, and what they lead to follows the new primary
                proxy.lead_to(tmp_path / "b" / "s", cuts=False)
                replicate(first, second, tmp_path)
            found = await cache.lookup(KEY)
            assert (found.is_hit, found.reason) == (False, "incarnation")
            assert await publish(cache, b"right") is PublishStatus.OK
            assert [v.content for v in (await cache.lookup(KEY)).variants] == [b"right"]
            assert second.exists(entry)


async def test_a_lease_from_before_a_takeover_publishes_nothing(
    program: ServerProgram, tmp_path: Path
) -> None:
    with redis_process(program, tmp_path) as raw:
        async with KernelCache(f"unix://{tmp_path}/s", space=Space.PROGRAMS) as cache:
            lease = await cache.acquire(KEY, "before", 30)
            assert lease is not None
            raw.save()
    with redis_process(program, tmp_path):
        async with KernelCache(f"unix://{tmp_path}/s", space=Space.PROGRAMS) as cache:
            refused = await cache.publish(lease, [UnsignedVariant(b"old", tags=(TAG,))])
            assert refused is PublishStatus.STALE_INC


async def test_a_reader_waits_until_a_new_incarnation_has_begun(
    program: ServerProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelfarm.cache.connection._HANDSHAKE_TIMEOUT_S", 0.1)
    monkeypatch.setattr("kernelfarm.cache.retry_policy._RETRIES", 1)
    url = f"unix://{tmp_path}/s"
    with redis_process(program, tmp_path):
        async with KernelCache(url, space=Space.PROGRAMS, may_write=False) as reader:
            with pytest.raises(UnavailableError, match="no client that may write"):
                await reader.lookup(KEY)
            async with KernelCache(url, space=Space.PROGRAMS) as cache:
                await publish(cache, b"v")
            assert (await reader.lookup(KEY)).is_hit


async def test_a_new_connection_to_the_same_process_changes_nothing(server: EmbeddedServer) -> None:
    epochs = set()
    for _ in range(3):
        async with KernelCache(server.url, namespace="same", space=Space.PROGRAMS) as cache:
            epochs.add(await cache.epochs.current())
    worker = WorkerCache(server.url, namespace="same")
    worker.withdraw("nobody")
    worker.close()
    async with KernelCache(server.url, namespace="same", space=Space.PROGRAMS) as cache:
        epochs.add(await cache.epochs.current())
    assert len(epochs) == 1


async def test_scripts_that_the_server_lost_are_sent_again(
    cache: KernelCache, server: EmbeddedServer
) -> None:
    worker = WorkerCache(server.url, namespace=cache.namespace)
    with redis.Redis.from_url(server.url) as raw:
        for content in (b"first", b"second"):
            raw.script_flush()
            key = hashlib.sha256(content).digest()
            lease = await cache.acquire(key, "maker", 30)
            raw.script_flush()
            assert lease is not None
            assert worker.publish(lease, [UnsignedVariant(content)]) is PublishStatus.OK
            raw.script_flush()
            assert (await cache.lookup(key)).is_hit
    worker.close()


async def test_a_table_with_too_many_tags_discards_the_oldest_and_entries_as_old_are_stale(
    cache: KernelCache, server: EmbeddedServer
) -> None:
    scripts, names = AsyncScripts(cache.client), RedisKeys(cache.namespace)
    most = 24

    async def invalidate_tag(tag: str) -> None:
        await scripts.run(epoch_calls.invalidate(names, [tag], most))

    await publish(cache, b"old")
    for number in range(5):
        await invalidate_tag(f"op:{number}")
    young = hashlib.sha256(b"young").digest()
    for number in range(5, 12):
        await invalidate_tag(f"op:{number}")
    lease = await cache.acquire(young, "maker", 30)
    assert lease is not None
    await cache.publish(lease, [UnsignedVariant(b"young", tags=("op:0", "pass:a"))])
    for number in range(12, 25):
        await invalidate_tag(f"op:{number}")
        with redis.Redis.from_url(server.url) as raw:
            assert raw.hlen(names.epochs) <= most
    reported = await cache.lookup(KEY)
    assert (reported.reason, reported.detail) == ("epoch", "discarded")
    assert (await cache.lookup(young)).is_hit
    await invalidate_tag("pass:a")
    assert not (await cache.lookup(young)).is_hit


async def test_a_lease_older_than_the_known_invalidations_publishes_nothing(
    cache: KernelCache,
) -> None:
    scripts, names = AsyncScripts(cache.client), RedisKeys(cache.namespace)
    lease = await cache.acquire(KEY, "maker", 30)
    assert lease is not None
    for number in range(12):
        await scripts.run(epoch_calls.invalidate(names, [f"op:{number}"], 8))
    assert (
        await cache.publish(lease, [UnsignedVariant(b"v", tags=(TAG,))])
        is PublishStatus.STALE_EPOCH
    )


async def test_tcp_connections_use_keepalive(program: ServerProgram, tmp_path: Path) -> None:
    with redis_process(program, tmp_path) as raw:
        port = listen_by_tcp(raw)
        async with KernelCache(f"redis://127.0.0.1:{port}", space=Space.PROGRAMS) as cache:
            await publish(cache, b"v")
            assert (await cache.lookup(KEY)).is_hit
            connection = await cache.client.connection_pool.get_connection()
            opened = transport_of(connection).get_extra_info("socket")
            assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            await cache.client.connection_pool.release(connection)
