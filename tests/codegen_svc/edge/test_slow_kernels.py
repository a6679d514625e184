"""Kernels that compile long leave a worker process free, and find it out by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis

from kernelfarm.errors import KernelRejectedError
from kernelfarm.internal.v1 import codegen_service_pb2 as pb
from kernelfarm.internal.v1.codegen_service_pb2_grpc import CodegenServiceStub
from kernelfarm.service.channels import open_channel, translated_errors
from tests.support.codegen_processes import CodegenRoom, codegen_room
from tests.support.farm import PATIENCE_S
from tests.support.fresh_kernels import fresh_kernel

TARGET = "echo:one"


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CodegenRoom]:
    """Two worker processes that take a kernel for slow after half a second."""
    folder = tmp_path_factory.mktemp("slow")
    with codegen_room(folder, quick_time_limit_s="0.5", job_time_limit_s="30") as started:
        started.start_edge()
        started.start_worker(concurrency=2)
        yield started


@pytest.fixture
async def stub(room: CodegenRoom) -> AsyncIterator[CodegenServiceStub]:
    async with open_channel(room.address) as channel:
        yield CodegenServiceStub(channel)


async def build(stub: CodegenServiceStub, name: str) -> pb.BuildKernelsResponse:
    request = pb.BuildKernelsRequest(kernels=[fresh_kernel(name)], target=TARGET)
    with translated_errors("codegen"):
        (response,) = [r async for r in stub.BuildKernels(request, timeout=PATIENCE_S)]
    return response


async def until(room: CodegenRoom, log: str, text: bytes, times: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while room.log(log).count(text) < times:
            await asyncio.sleep(0.01)


async def test_a_kernel_that_turns_out_slow_starts_again_and_counts_as_no_attempt(
    room: CodegenRoom, stub: CodegenServiceStub
) -> None:
    slow = asyncio.create_task(build(stub, "gated_slow"))
    await until(room, "worker", b"found to be slow", 1)
    await until(room, "edge", b'"is_slow": true', 1)
    while room.compilations("gated_slow") < 2:
        await asyncio.sleep(0.01)
    with redis.Redis.from_url(room.cache.url) as raw:
        (attempts,) = raw.keys("kf:{default}:tries:k:*")
        assert raw.scard(attempts) == 1, "the attempt that goes on, and no other"
    room.open_gate("gated_slow")
    assert (await slow).artifacts
    with redis.Redis.from_url(room.cache.url) as raw:
        assert raw.hget("kf:{default}:stats", "k.slow_found") == b"1"
        assert int(raw.hget("kf:{default}:stats", "k.processor_ms") or 0) > 0


async def test_quick_kernels_go_on_beside_slow_ones(
    room: CodegenRoom, stub: CodegenServiceStub
) -> None:
    names = [f"gated_slow{number}" for number in range(3)]
    found = room.log("worker").count(b"found to be slow")
    slow = [asyncio.create_task(build(stub, name)) for name in names]
    await until(room, "worker", b"found to be slow", found + len(names))
    for number in range(4):
        assert (await build(stub, f"plain_beside{number}")).artifacts
    assert not any(task.done() for task in slow)
    second = [name for name in names if room.compilations(name) > 1]
    assert len(second) <= 1, "one process stays free for quick kernels"
    for name in names:
        room.open_gate(name)
    assert all(built.artifacts for built in await asyncio.gather(*slow))


async def test_a_slow_kernel_has_a_limit_too(tmp_path: Path) -> None:
    with codegen_room(tmp_path, quick_time_limit_s="0.2", job_time_limit_s="1") as limited:
        limited.start_edge()
        limited.start_worker()
        async with open_channel(limited.address) as channel:
            with pytest.raises(KernelRejectedError, match="longer than 1 s"):
                await build(CodegenServiceStub(channel), "gated_limited")
        assert limited.compilations("gated_limited") == 2
