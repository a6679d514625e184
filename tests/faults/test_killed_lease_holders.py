"""SIGKILL for the processes that compile a program: frontend, optimizer, edge; waiters continue."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import grpc
import pytest

from kernelfarm.cache.script_declarations import SCRIPTS
from kernelfarm.service.channels import open_channel
from kernelfarm.v1 import compile_service_pb2 as api
from kernelfarm.v1.compile_service_pb2_grpc import CompileServiceStub
from tests.support.codegen_calls import TARGET
from tests.support.codegen_processes import CodegenFarm
from tests.support.farm import TIMEOUT_S, until
from tests.support.redis_proxy import RedisProxy
from tests.support.small_graphs import h_request

# The bound that `docs/recovery.md` states after SIGKILL.
RECOVERY_S = 20
BLOBS = b"kf:{default}:b:"


@pytest.fixture(scope="module")
def codegen(program_services: CodegenFarm) -> CodegenFarm:
    return program_services


async def compiled(
    codegen: CodegenFarm,
    name: str,
    request: api.CompileRequest,
    has_looked_up: asyncio.Event | None = None,
) -> float:
    """When a program came from the frontend `name`; sets the event after its first look-up."""
    async with open_channel(f"unix:{codegen.folder}/{name}") as channel:
        async for event in CompileServiceStub(channel).Compile(request, timeout=TIMEOUT_S):
            if has_looked_up is not None and event.stage.stage == "lookup":
                has_looked_up.set()
            if event.WhichOneof("event") == "program":
                assert event.program.artifacts
                return time.monotonic()
    raise AssertionError("no program")


def grown(codegen: CodegenFarm, before: dict[str, int], name: str) -> int:
    """How far a counter of programs has grown."""
    return codegen.counters().get(f"p.{name}", 0) - before.get(f"p.{name}", 0)


async def test_a_frontend_killed_with_the_lease_costs_requests_at_another_one_seconds(
    codegen: CodegenFarm,
) -> None:
    """One program for each stage at which the frontend is stopped; another one waits for all."""
    acquire, publish = (SCRIPTS[name].sha1.encode() for name in ("acquire", "publish"))
    stages = {
        "with_the_lease": ((acquire, b"m:p:"), True),
        "before_the_blobs": ((b"SET", BLOBS), False),
        "before_the_publication": ((publish,), False),
        "after_the_publication": ((publish,), True),
    }
    before = codegen.counters()
    with RedisProxy(codegen.folder / "proxy", codegen.folder / "cache") as proxy:
        leader = await asyncio.to_thread(
            codegen.start_service, "frontend", "leads", cache_url=proxy.url
        )
        led, waiting = [], []
        for number, (words, after) in enumerate(stages.values()):
            request = h_request(64 + number, 128, TARGET)
            hold = proxy.hold(*words, after=after)
            led.append(asyncio.create_task(compiled(codegen, "leads", request)))
            assert await asyncio.to_thread(hold.reached.wait, TIMEOUT_S), words
            has_looked_up = asyncio.Event()
            waiting.append(asyncio.create_task(compiled(codegen, "front", request, has_looked_up)))
            await asyncio.wait_for(has_looked_up.wait(), TIMEOUT_S)
        killed_s = time.monotonic()
        os.kill(leader.pid, signal.SIGKILL)
        ended_s = await asyncio.gather(*waiting)
        failed = await asyncio.gather(*led, return_exceptions=True)
    codes = [error.code() for error in failed if isinstance(error, grpc.aio.AioRpcError)]
    assert codes == [grpc.StatusCode.UNAVAILABLE] * len(stages)
    times = {stage: round(end - killed_s, 1) for stage, end in zip(stages, ended_s, strict=True)}
    print("frontend", times)
    assert max(times.values()) < RECOVERY_S
    assert grown(codegen, before, "published") == len(stages)
    assert grown(codegen, before, "takeovers") == len(stages) - 1  # the last one was published
    assert grown(codegen, before, "nondeterministic") == grown(codegen, before, "failures") == 0


@pytest.mark.parametrize(
    ("service", "socket", "rows"), [("optimizer", "optimizer", 32), ("codegen", "edge", 34)]
)
async def test_a_service_killed_under_a_program_costs_seconds_once_another_one_runs(
    codegen: CodegenFarm, service: str, socket: str, rows: int
) -> None:
    killed = codegen.services[socket]
    await asyncio.to_thread(codegen.start_service, service, f"next-{socket}")
    before = codegen.counters()
    await compiled(codegen, "front", h_request(rows, 128, TARGET))
    os.kill(killed.pid, signal.SIGSTOP)  # so that it holds the next call
    call = asyncio.create_task(compiled(codegen, "front", h_request(rows + 1, 128, TARGET)))
    await until(lambda: grown(codegen, before, "misses") == 2, "the frontend looked the program up")
    killed_s = time.monotonic()
    os.kill(killed.pid, signal.SIGKILL)
    # A process that serves already answers at the address of the killed one.
    (codegen.folder / f"next-{socket}").rename(codegen.folder / socket)
    recovery_s = await call - killed_s
    print(service, round(recovery_s, 1))
    assert recovery_s < RECOVERY_S
    assert grown(codegen, before, "published") == 2
