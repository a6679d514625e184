"""Kernels that take long to compile leave a worker process free; the worker detects them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import redis

from kernelfarm.errors import KernelLimitError
from kernelfarm.internal.v1.codegen_service_pb2_grpc import CodegenServiceStub
from tests.support.codegen_calls import build_fresh
from tests.support.codegen_processes import CodegenFarm, codegen_farm
from tests.support.farm import until


@pytest.fixture(scope="module")
def codegen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CodegenFarm]:
    """Two worker processes; a kernel counts as slow after half a second."""
    folder = tmp_path_factory.mktemp("slow")
    with codegen_farm(folder, quick_time_limit_s="0.5", job_time_limit_s="30") as started:
        started.start_edge()
        started.start_worker(concurrency=2)
        yield started


async def logged(codegen: CodegenFarm, log: str, text: bytes, times: int) -> None:
    """Returns when a log holds a text so often."""
    await until(lambda: codegen.log(log).count(text) >= times, f"{text!r} in the log {log}")


async def test_a_kernel_that_turns_out_slow_starts_again_and_counts_as_no_attempt(
    codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    slow = asyncio.create_task(build_fresh(stub, "gated_slow"))
    await logged(codegen, "worker", b"found to be slow", 1)
    await logged(codegen, "edge", b'"is_slow": true', 1)
    await until(lambda: codegen.compilations("gated_slow") == 2, "another compilation")
    with redis.Redis.from_url(codegen.cache.url) as raw:
        (attempts,) = raw.keys("kf:{default}:tries:k:*")
        assert raw.scard(attempts) == 1, "the attempt that goes on, and no other"
    codegen.release_job("gated_slow")
    assert (await slow).signed
    with redis.Redis.from_url(codegen.cache.url) as raw:
        assert raw.hget("kf:{default}:stats", "k.slow_kernels") == b"1"
        assert int(raw.hget("kf:{default}:stats", "k.processor_ms") or 0) > 0


async def test_quick_kernels_go_on_beside_slow_ones(
    codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    names = [f"gated_slow{number}" for number in range(3)]
    found = codegen.log("worker").count(b"found to be slow")
    slow = [asyncio.create_task(build_fresh(stub, name)) for name in names]
    await logged(codegen, "worker", b"found to be slow", found + len(names))
    for number in range(4):
        assert (await build_fresh(stub, f"plain_beside{number}")).signed
    assert not any(task.done() for task in slow)
    second = [name for name in names if codegen.compilations(name) > 1]
    assert len(second) <= 1, "one process stays free for quick kernels"
    for name in names:
        codegen.release_job(name)
    assert all(built.signed for built in await asyncio.gather(*slow))


async def test_a_slow_kernel_has_a_limit_too(
    codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    codegen.kill(*codegen.processes[1:])  # all but the edge
    limits = {"quick_time_limit_s": "0.2", "job_time_limit_s": "1"}
    await asyncio.to_thread(codegen.start_worker, name="limited", **limits)
    with pytest.raises(KernelLimitError, match="longer than 1 s"):
        await build_fresh(stub, "gated_limited")
    assert codegen.compilations("gated_limited") == 2
