"""SIGKILL at every stage of a job: the result comes within seconds, and is published once."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import redis

from kernelfarm.cache.script_declarations import SCRIPTS
from kernelfarm.errors import UnavailableError
from kernelfarm.internal.v1 import codegen_service_pb2 as pb
from kernelfarm.internal.v1 import loops_pb2
from kernelfarm.internal.v1.codegen_service_pb2_grpc import CodegenServiceStub
from kernelfarm.service.channels import open_channel, translated_errors
from tests.support.codegen_processes import CodegenFarm, codegen_farm
from tests.support.farm import TIMEOUT_S
from tests.support.fresh_kernels import fresh_kernel
from tests.support.redis_proxy import Hold, RedisProxy

TARGET = "echo:one"

# What the project promises after a kill -9, once there is somebody to take over.
RECOVERY_S = 20


@dataclass(frozen=True)
class Stage:
    """Where a worker stands: the words of its command, and whether the server did it already."""

    name: str
    words: tuple[bytes, ...]
    after: bool = False
    compilations: int = 2


def script(name: str) -> bytes:
    return SCRIPTS[name].sha1.encode()


BLOBS = b"kf:{default}:b:"
# Whoever has not begun yet comes last: after some seconds its kernel would be given to another one.
STAGES = (
    Stage("before_the_blobs", (b"SET", BLOBS)),
    Stage("after_the_blobs", (b"SET", BLOBS), after=True),
    Stage("before_the_publication", (script("publish"),)),
    Stage("after_the_publication", (script("publish"),), after=True, compilations=1),
    Stage("with_the_lease", (script("adopt"),), after=True, compilations=1),
    Stage("before_the_lease", (script("adopt"),), compilations=1),
)


@pytest.fixture
def codegen(tmp_path: Path) -> Iterator[CodegenFarm]:
    with codegen_farm(tmp_path) as started:
        with redis.Redis.from_url(started.cache.url) as raw:
            for name in ("acquire", "adopt", "renew", "publish"):
                raw.script_load(SCRIPTS[name].source)  # so that a first command is no question
        yield started


@asynccontextmanager
async def stub_of(room: CodegenFarm) -> AsyncIterator[CodegenServiceStub]:
    async with open_channel(room.address) as channel:
        yield CodegenServiceStub(channel)


async def build(stub: CodegenServiceStub, kernel: loops_pb2.Kernel) -> pb.BuildKernelsResponse:
    request = pb.BuildKernelsRequest(kernels=[kernel], target=TARGET)
    with translated_errors("codegen"):
        (response,) = [r async for r in stub.BuildKernels(request, timeout=TIMEOUT_S)]
    return response


async def timed_build(stub: CodegenServiceStub, kernel: loops_pb2.Kernel) -> float:
    """When a kernel's artifacts came."""
    assert (await build(stub, kernel)).signed
    return time.monotonic()


def kill_tree(pid: int) -> None:
    parent = psutil.Process(pid)
    for process in (parent, *parent.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # what forks compilations takes them with it
            process.kill()


@pytest.mark.parametrize("victim", ["worker", "pool process"])
async def test_a_worker_killed_at_any_stage_costs_seconds_and_publishes_once(
    codegen: CodegenFarm, tmp_path: Path, victim: str
) -> None:
    """One pool process for each stage, all stopped at theirs, and all killed at once."""
    with RedisProxy(tmp_path / "proxy", tmp_path / "cache") as proxy:
        await asyncio.to_thread(codegen.start_edge)
        direct = codegen.settings["KERNELFARM_CACHE_URL"]
        codegen.settings["KERNELFARM_CACHE_URL"] = proxy.url
        worker = await asyncio.to_thread(codegen.start_worker, len(STAGES))
        codegen.settings["KERNELFARM_CACHE_URL"] = direct
        async with stub_of(codegen) as stub:
            calls = {}
            for stage in STAGES:
                # One after the other: a stage's words say nothing of the kernel.
                hold = proxy.hold(*stage.words, after=stage.after)
                calls[stage] = asyncio.create_task(timed_build(stub, fresh_kernel(stage.name)))
                assert await asyncio.to_thread(hold.reached.wait, TIMEOUT_S), stage.name
            killed_s = time.monotonic()
            if victim == "worker":
                kill_tree(worker.pid)
                worker.wait()
                await asyncio.to_thread(codegen.start_worker, 2)
                killed_s = time.monotonic()  # how fast processes start is the machine's matter
            else:
                for process in psutil.Process(worker.pid).children():
                    if "_tracker import main" not in " ".join(process.cmdline()):
                        process.kill()
            ended_s = dict(zip(calls, await asyncio.gather(*calls.values()), strict=True))
    times = {stage.name: round(ended_s[stage] - killed_s, 1) for stage in STAGES}
    print(victim, times)
    assert max(times.values()) < RECOVERY_S
    assert {s.name: codegen.compilations(s.name) for s in STAGES} == {
        s.name: s.compilations for s in STAGES
    }
    with redis.Redis.from_url(codegen.cache.url) as raw:
        stats = {name.decode(): int(n) for name, n in raw.hgetall("kf:{default}:stats").items()}
        assert stats["k.published"] == len(STAGES)
        assert stats["k.takeovers"] == 4  # whoever had adopted and not published
        assert stats.get("k.nondeterministic", 0) == stats.get("k.failures", 0) == 0
        for kind in ("l", "a", "j", "neg"):
            assert not raw.keys(f"kf:{{default}}:{kind}:*"), kind


EDGE_STAGES = (
    Stage("edge_before_the_lease", (script("acquire"),), compilations=1),
    Stage("edge_with_the_lease", (script("acquire"),), after=True, compilations=1),
    Stage("edge_before_the_job", (b"SET", b"kf:{default}:j:"), compilations=1),
    Stage("edge_after_the_job", (b"SET", b"kf:{default}:j:"), after=True, compilations=1),
    Stage("edge_after_the_message", (script("renew"),), compilations=1),
)


async def test_an_edge_killed_at_any_stage_costs_seconds_and_publishes_once(
    codegen: CodegenFarm, tmp_path: Path
) -> None:
    """The caller hears that the room is gone, asks again, and gets the kernel from a new edge."""
    direct = codegen.settings["KERNELFARM_CACHE_URL"]
    kernels = {stage: fresh_kernel(stage.name) for stage in EDGE_STAGES}
    with RedisProxy(tmp_path / "proxy", tmp_path / "cache") as proxy:
        codegen.settings["KERNELFARM_CACHE_URL"] = proxy.url
        edge = await asyncio.to_thread(codegen.start_edge)
        async with stub_of(codegen) as stub:
            calls = []
            for stage, kernel in kernels.items():
                hold = proxy.hold(*stage.words, after=stage.after)
                calls.append(asyncio.create_task(timed_build(stub, kernel)))
                await asyncio.to_thread(wait_for, hold, stage.name)
            os.kill(edge.pid, signal.SIGKILL)
            edge.wait()
            assert all(
                isinstance(error, UnavailableError)
                for error in await asyncio.gather(*calls, return_exceptions=True)
            )
    codegen.settings["KERNELFARM_CACHE_URL"] = direct
    (tmp_path / "edge").unlink()
    (tmp_path / "edge.log").unlink()
    await asyncio.to_thread(codegen.start_edge)
    await asyncio.to_thread(codegen.start_worker, 2)
    killed_s = time.monotonic()
    async with stub_of(codegen) as stub:
        ended_s = await asyncio.gather(*(timed_build(stub, kernel) for kernel in kernels.values()))
    times = {
        stage.name: round(end - killed_s, 1) for stage, end in zip(kernels, ended_s, strict=True)
    }
    print("edge", times)
    assert max(times.values()) < RECOVERY_S
    assert [codegen.compilations(stage.name) for stage in EDGE_STAGES] == [1] * len(EDGE_STAGES)
    with redis.Redis.from_url(codegen.cache.url) as raw:
        assert int(raw.hget("kf:{default}:stats", "k.published") or 0) == len(EDGE_STAGES)
        assert not raw.hget("kf:{default}:stats", "k.takeovers")


def wait_for(hold: Hold, name: str) -> None:
    assert hold.reached.wait(TIMEOUT_S), name
