"""Workers prove that they take jobs; one that hangs or takes none is replaced."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis

from kernelfarm.internal.v1 import codegen_service_pb2 as pb
from kernelfarm.internal.v1.codegen_service_pb2_grpc import CodegenServiceStub
from kernelfarm.service.channels import open_channel, translated_errors
from tests.farm.kernels import fresh_kernel
from tests.farm.processes import CodegenRoom, codegen_room
from tests.farm_process import PATIENCE_S, wait_until

TARGET = "echo:one"

# What the project promises after a fault, start of processes included.
RECOVERY_S = 30


@pytest.fixture
def room(tmp_path: Path) -> Iterator[CodegenRoom]:
    """A room of the test's own, without a worker."""
    with codegen_room(tmp_path) as started:
        started.start_edge()
        yield started


@pytest.fixture
async def stub(room: CodegenRoom) -> AsyncIterator[CodegenServiceStub]:
    async with open_channel(room.address) as channel:
        yield CodegenServiceStub(channel)


async def build(
    stub: CodegenServiceStub, name: str, timeout_s: float = PATIENCE_S
) -> pb.BuildKernelsResponse:
    request = pb.BuildKernelsRequest(kernels=[fresh_kernel(name)], target=TARGET)
    with translated_errors("codegen"):
        (response,) = [r async for r in stub.BuildKernels(request, timeout=timeout_s)]
    return response


async def vendors(stub: CodegenServiceStub) -> set[str]:
    response = await stub.GetToolchains(pb.GetToolchainsRequest(), timeout=PATIENCE_S)
    return {entry.target.partition(":")[0] for entry in response.targets}


async def await_vendors(stub: CodegenServiceStub, wanted: set[str], limit_s: float) -> float:
    """Seconds until the edge tells exactly these vendors."""
    began_s = time.monotonic()
    while await vendors(stub) != wanted:
        assert time.monotonic() - began_s < limit_s, f"not within {limit_s} s: {wanted}"
        await asyncio.sleep(0.1)
    return time.monotonic() - began_s


async def test_workers_whose_jobs_end_while_the_broker_is_away_take_the_next_ones(
    room: CodegenRoom, stub: CodegenServiceStub
) -> None:
    """Before, the acknowledgement was lost and counted as a job in work for ever."""
    for name in ("worker", "other"):
        await asyncio.to_thread(room.start_worker, name=name)
    calls = [asyncio.create_task(build(stub, f"gated_{n}")) for n in range(2)]
    for n in range(2):
        await asyncio.to_thread(room.pid_at_gate, f"gated_{n}")
    room.broker.process.kill()
    room.broker.process.wait()
    for n in range(2):
        room.open_gate(f"gated_{n}")
    assert all(response.artifacts for response in await asyncio.gather(*calls))
    ended_s = time.monotonic()
    while time.monotonic() - ended_s < 8:  # kombu gives up an acknowledgement in this time
        await asyncio.sleep(0.1)
    await asyncio.to_thread(room.restart_broker)
    back_s = time.monotonic()
    found = [build(stub, f"plain_{n}", RECOVERY_S) for n in range(2)]
    assert all(response.artifacts for response in await asyncio.gather(*found))
    with redis.Redis.from_url(room.broker.url) as raw:
        polling = lambda: [c["cmd"] for c in raw.client_list()].count("brpop") == 2  # noqa: E731
        await asyncio.to_thread(wait_until, polling, RECOVERY_S, "both workers ask the broker")
    print("after the broker's return:", round(time.monotonic() - back_s, 1), "s")
