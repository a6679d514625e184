"""SIGKILL for whoever compiles a program: the frontend that leads, the optimizer; waiters go on."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import redis

from kernelfarm.cache.script_declarations import SCRIPTS
from kernelfarm.service.channels import open_channel
from kernelfarm.signing.key_files import PROGRAM_KEY
from kernelfarm.v1 import compile_service_pb2 as api
from kernelfarm.v1.compile_service_pb2_grpc import CompileServiceStub
from tests.support.codegen_processes import (
    CodegenFarm,
    await_true,
    codegen_farm,
    start_service,
    stats_of,
)
from tests.support.farm import TIMEOUT_S
from tests.support.redis_proxy import RedisProxy
from tests.support.small_graphs import h_request

TARGET = "echo:one"
# What the project promises after a kill -9.
RECOVERY_S = 20
BLOBS = b"kf:{default}:b:"


@pytest.fixture
def codegen(tmp_path: Path) -> Iterator[CodegenFarm]:
    """A codegen room with a worker, and an optimizer beside it."""
    with codegen_farm(tmp_path) as started:
        started.settings |= {
            "KERNELFARM_PROGRAM_KEY_FILE": str(tmp_path / "keys" / PROGRAM_KEY),
            "KERNELFARM_OPTIMIZER_LISTEN": f"unix:{tmp_path}/optimizer",
            "KERNELFARM_OPTIMIZER_ADDRESS": f"unix:{tmp_path}/optimizer",
            "KERNELFARM_CODEGEN_ADDRESS": started.address,
        }
        with redis.Redis.from_url(started.cache.url) as raw:
            for name in ("acquire", "publish"):
                raw.script_load(SCRIPTS[name].source)
        started.start_edge()
        started.start_worker()
        start_service(started, "optimizer", "optimizer")
        yield started


def replace_killed(room: CodegenFarm, pid: int, name: str, successor: str) -> None:
    """SIGKILL, and another process that serves already answers in its place."""
    os.kill(pid, signal.SIGKILL)
    (room.folder / successor).rename(room.folder / name)


async def compiled(
    room: CodegenFarm, name: str, request: api.CompileRequest, lookup: asyncio.Event | None = None
) -> float:
    """When a program came from a frontend; tells when it has looked for it."""
    async with open_channel(f"unix:{room.folder}/{name}") as channel:
        async for event in CompileServiceStub(channel).Compile(request, timeout=TIMEOUT_S):
            if lookup is not None and event.stage.stage == "lookup":
                lookup.set()
            if event.WhichOneof("event") == "program":
                assert event.program.artifacts
                return time.monotonic()
    raise AssertionError("no program")


async def test_a_frontend_killed_while_it_leads_costs_those_who_wait_elsewhere_seconds(
    codegen: CodegenFarm, tmp_path: Path
) -> None:
    """One program for each stage at which it is stopped; all are waited for in another one."""
    acquire, publish = (SCRIPTS[name].sha1.encode() for name in ("acquire", "publish"))
    stages = {
        "with_the_lease": ((acquire, b"m:p:"), True),
        "before_the_blobs": ((b"SET", BLOBS), False),
        "before_the_publication": ((publish,), False),
        "after_the_publication": ((publish,), True),
    }
    with RedisProxy(tmp_path / "proxy", tmp_path / "cache") as proxy:
        await asyncio.to_thread(start_service, codegen, "frontend", "waits")
        leads = partial(start_service, KERNELFARM_CACHE_URL=proxy.url)
        leader = await asyncio.to_thread(leads, codegen, "frontend", "leads")
        led, waiting = [], []
        for number, (words, after) in enumerate(stages.values()):
            request = h_request(64 + number, 128, TARGET)
            hold = proxy.hold(*words, after=after)
            led.append(asyncio.create_task(compiled(codegen, "leads", request)))
            assert await asyncio.to_thread(hold.reached.wait, TIMEOUT_S), words
            lookup = asyncio.Event()
            waiting.append(asyncio.create_task(compiled(codegen, "waits", request, lookup)))
            await asyncio.wait_for(lookup.wait(), TIMEOUT_S)
        killed_s = time.monotonic()
        os.kill(leader, signal.SIGKILL)
        ended_s = await asyncio.gather(*waiting)
        assert all(await asyncio.gather(*led, return_exceptions=True))
    times = {stage: round(end - killed_s, 1) for stage, end in zip(stages, ended_s, strict=True)}
    print("frontend", times)
    assert max(times.values()) < RECOVERY_S
    stats = stats_of(codegen)
    assert stats["p.published"] == len(stages)
    assert stats["p.takeovers"] == len(stages) - 1  # all but what was published before
    assert stats.get("p.nondeterministic", 0) == stats.get("p.failures", 0) == 0


async def test_an_optimizer_killed_in_the_middle_costs_seconds_once_another_one_runs(
    codegen: CodegenFarm,
) -> None:
    optimizer = codegen.processes[-1].pid
    await asyncio.to_thread(start_service, codegen, "optimizer", "next")
    await asyncio.to_thread(start_service, codegen, "frontend", "front")
    await compiled(codegen, "front", h_request(32, 128, TARGET))
    os.kill(optimizer, signal.SIGSTOP)  # whatever is asked of it now is in the middle
    call = asyncio.create_task(compiled(codegen, "front", h_request(33, 128, TARGET)))
    await asyncio.to_thread(
        await_true, lambda: stats_of(codegen).get("p.misses", 0) == 2, codegen.log, "front"
    )
    killed_s = time.monotonic()
    replace_killed(codegen, optimizer, "optimizer", "next")
    recovery_s = await call - killed_s
    print("optimizer", round(recovery_s, 1))
    assert recovery_s < RECOVERY_S
    assert stats_of(codegen)["p.published"] == 2


async def test_an_edge_killed_under_a_program_costs_seconds_once_another_one_runs(
    codegen: CodegenFarm,
) -> None:
    edge = codegen.processes[0].pid
    await asyncio.to_thread(start_service, codegen, "codegen", "next")
    await asyncio.to_thread(start_service, codegen, "frontend", "front")
    await compiled(codegen, "front", h_request(34, 128, TARGET))
    os.kill(edge, signal.SIGSTOP)
    call = asyncio.create_task(compiled(codegen, "front", h_request(35, 128, TARGET)))
    await asyncio.to_thread(
        await_true, lambda: stats_of(codegen).get("p.misses", 0) == 2, codegen.log, "front"
    )
    killed_s = time.monotonic()
    replace_killed(codegen, edge, "edge", "next")
    recovery_s = await call - killed_s
    print("edge under a program", round(recovery_s, 1))
    assert recovery_s < RECOVERY_S
    assert stats_of(codegen)["p.published"] == 2
