"""Look-ups on the pipelined connection: each gets its own reply, and failures are hidden."""

from __future__ import annotations

import asyncio
import hashlib
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import redis

from kernelfarm.cache import KernelCache, UnsignedVariant, epoch_calls, pipelined_connection
from kernelfarm.cache.calls import ScriptCalls
from kernelfarm.cache.connection import connect_async, transport_of
from kernelfarm.cache.embedded import EmbeddedServer, ServerProgram, ServerRole, start_server
from kernelfarm.cache.lookups import LookupClient
from kernelfarm.cache.records import LookupResult
from kernelfarm.errors import UnavailableError
from tests.support.farm import TIMEOUT_S

TAG = "op:aten.gelu.default"

CHECKED_REDIS_PY = (8, 1)
"""The version of redis-py whose connections have the private `_writer` of `transport_of`."""


def key_of(number: int) -> bytes:
    return hashlib.sha256(b"program %d" % number).digest()


class Reader:
    """Look-ups of one namespace, on connections of their own."""

    def __init__(self, cache: KernelCache, server: EmbeddedServer) -> None:
        self.calls = ScriptCalls(cache.namespace, cache.space)
        self.client = connect_async(
            server.url, epoch_calls.handshake(cache.redis_keys, may_write=True)
        )
        self.lookups = LookupClient(self.client)

    async def found(self, number: int) -> LookupResult:
        return await self.lookups.run(self.calls.lookup(key_of(number), (), is_counted=True))

    async def content(self, number: int) -> bytes:
        (variant,) = (await self.found(number)).variants
        return variant.content

    async def pipelined(self) -> None:
        await self.found(0)
        await until(lambda: self.lookups.is_pipelined)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not holds():
            await asyncio.sleep(0.01)


@pytest.fixture
async def reader(cache: KernelCache, server: EmbeddedServer) -> AsyncIterator[Reader]:
    opened = Reader(cache, server)
    yield opened
    await opened.lookups.close()
    await opened.client.connection_pool.disconnect()


async def publish(cache: KernelCache, number: int, content: bytes) -> None:
    lease = await cache.acquire(key_of(number), f"maker {number}", 30)
    assert lease is not None
    await cache.publish(lease, [UnsignedVariant(content, tags=(TAG,))])


def clients(raw: redis.Redis) -> int:
    return len(raw.client_list())


async def test_many_look_ups_share_a_connection_and_each_gets_its_own_reply(
    cache: KernelCache, server: EmbeddedServer, reader: Reader
) -> None:
    for number in range(20):
        await publish(cache, number, b"%d" % number * 10_000)
    await reader.pipelined()
    with redis.Redis.from_url(server.url) as raw:
        before = clients(raw)
        numbers = [number % 20 for number in range(400)]
        found = await asyncio.gather(*map(reader.content, numbers))
        assert found == [b"%d" % number * 10_000 for number in numbers]
        assert clients(raw) == before


async def test_a_reply_larger_than_the_buffer_is_complete(
    cache: KernelCache, reader: Reader
) -> None:
    await publish(cache, 1, b"x" * 3_000_000)
    await reader.pipelined()
    assert await reader.content(1) == b"x" * 3_000_000


async def test_an_entry_invalidated_before_the_look_up_is_not_found(
    cache: KernelCache, reader: Reader
) -> None:
    await publish(cache, 1, b"v")
    await reader.pipelined()
    earlier = [asyncio.create_task(reader.found(1)) for _ in range(200)]
    await cache.epochs.invalidate([TAG])
    later = await asyncio.gather(*(reader.found(1) for _ in range(200)))
    assert {found.reason for found in later} == {"epoch"}
    assert {found.reason for found in await asyncio.gather(*earlier)} <= {"hit", "epoch"}


async def test_cancelled_callers_do_not_take_replies_of_others(
    cache: KernelCache, reader: Reader
) -> None:
    for number in range(4):
        await publish(cache, number, b"%d" % number)
    await reader.pipelined()
    asked = [asyncio.create_task(reader.content(number % 4)) for number in range(200)]
    await asyncio.sleep(0)
    for task in asked[::2]:
        task.cancel()
    done = await asyncio.gather(*asked, return_exceptions=True)
    assert done[1::2] == [b"%d" % (number % 4) for number in range(1, 200, 2)]


async def test_a_pipelined_connection_that_is_cut_is_replaced_without_an_error(
    cache: KernelCache, server: EmbeddedServer, reader: Reader
) -> None:
    await publish(cache, 1, b"v")
    await reader.pipelined()
    with redis.Redis.from_url(server.url) as raw:
        for _ in range(3):
            asked = [asyncio.create_task(reader.content(1)) for _ in range(200)]
            await asyncio.sleep(0)
            raw.client_kill_filter(_type="normal", skipme=True)
            assert set(await asyncio.gather(*asked)) == {b"v"}
            await reader.pipelined()


async def test_a_server_without_the_script_gets_it_again(
    cache: KernelCache, server: EmbeddedServer, reader: Reader
) -> None:
    await publish(cache, 1, b"v")
    await reader.pipelined()
    with redis.Redis.from_url(server.url) as raw:
        raw.script_flush()
    assert await reader.content(1) == b"v"
    assert reader.lookups.is_pipelined


async def test_a_refused_look_up_is_an_error_of_its_own_caller_only(
    cache: KernelCache, server: EmbeddedServer, reader: Reader
) -> None:
    await publish(cache, 1, b"v")
    await reader.pipelined()
    with redis.Redis.from_url(server.url) as raw:
        raw.set(cache.redis_keys.entry(cache.space, key_of(2)), "no hash")
    asked = (reader.found(number) for number in (1, 2, 1))
    first, refused, last = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(refused, UnavailableError)
    assert isinstance(first, LookupResult)
    assert isinstance(last, LookupResult)
    assert first.is_hit
    assert last.is_hit


async def test_a_pipelined_connection_without_replies_ends(
    program: ServerProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelined_connection, "_REPLY_TIMEOUT_S", 0.05)
    server = start_server(ServerRole.CACHE, program=program, socket_path=tmp_path / "s")
    _, writer = await asyncio.open_unix_connection(tmp_path / "s")
    ended = asyncio.Event()
    asked = pipelined_connection.PipelinedConnection(writer.transport, ended.set)
    assert await asked.send(b"PING\r\n", 1) == [b"PONG"]
    server.process.send_signal(signal.SIGSTOP)
    try:
        waiting = [asked.send(b"PING\r\n", 1) for _ in range(200)]
        assert await asyncio.wait_for(asyncio.gather(*waiting), TIMEOUT_S) == [None] * 200
        await asyncio.wait_for(ended.wait(), TIMEOUT_S)
        assert await asked.send(b"PING\r\n", 1) is None
    finally:
        server.process.send_signal(signal.SIGCONT)
        server.stop()


async def test_the_transport_of_a_connection_is_that_of_the_installed_redis_py(
    server: EmbeddedServer,
) -> None:
    """A new version may rename `_writer`: check `transport_of` first, then change the number."""
    assert tuple(int(part) for part in redis.__version__.split(".")[:2]) == CHECKED_REDIS_PY
    client = connect_async(server.url)
    connection = await client.connection_pool.get_connection()
    peer = transport_of(connection).get_extra_info("peername")
    await client.connection_pool.release(connection)
    await client.connection_pool.disconnect()
    assert f"unix://{peer}" == server.url
