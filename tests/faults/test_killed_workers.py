"""Workers, edges and servers that die at the worst moment."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis

from kernelfarm.errors import FarmFullError, KernelRejectedError, UnavailableError
from kernelfarm.internal.v1 import codegen_service_pb2 as pb
from kernelfarm.internal.v1.codegen_service_pb2_grpc import CodegenServiceStub
from kernelfarm.service.channels import open_channel, translated_errors
from tests.support.codegen_processes import CodegenFarm, codegen_farm
from tests.support.farm import TIMEOUT_S
from tests.support.fresh_kernels import fresh_kernel

TARGET = "echo:one"

# What the project promises after a kill -9, once there is somebody to take over: how fast processes
# start is the machine's matter.
RECOVERY_S = 20


@pytest.fixture
def codegen(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[CodegenFarm]:
    """A room of the test's own, without a worker; a test may change settings by its parameter."""
    with codegen_farm(tmp_path, **getattr(request, "param", {})) as started:
        started.start_edge()
        yield started


@pytest.fixture
async def stub(codegen: CodegenFarm) -> AsyncIterator[CodegenServiceStub]:
    async with open_channel(codegen.address) as channel:
        yield CodegenServiceStub(channel)


async def build(stub: CodegenServiceStub, name: str) -> pb.BuildKernelsResponse:
    request = pb.BuildKernelsRequest(kernels=[fresh_kernel(name)], target=TARGET)
    with translated_errors("codegen"):
        (response,) = [r async for r in stub.BuildKernels(request, timeout=TIMEOUT_S)]
    return response


async def test_a_killed_pool_process_costs_seconds_and_no_result(
    codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    codegen.start_worker()
    call = asyncio.create_task(build(stub, "gated_child"))
    pid = await asyncio.to_thread(codegen.pid_of_blocked_job, "gated_child")
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    codegen.release_job("gated_child")
    assert (await call).signed
    assert time.monotonic() - killed < RECOVERY_S


async def test_a_killed_worker_costs_seconds_once_another_one_runs(
    codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    worker = codegen.start_worker()
    call = asyncio.create_task(build(stub, "gated_worker"))
    await asyncio.to_thread(codegen.pid_of_blocked_job, "gated_worker")
    worker.kill()  # its pool process dies with it
    worker.wait()
    codegen.release_job("gated_worker")
    await asyncio.to_thread(codegen.start_worker)
    started = time.monotonic()
    assert (await call).signed
    assert time.monotonic() - started < RECOVERY_S
    assert codegen.compilations("gated_worker") == 2


@pytest.mark.parametrize("codegen", [{"requeue_after_s": "1"}], indirect=True)
async def test_a_message_that_died_with_a_worker_is_sent_again(
    codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    worker = codegen.start_worker()
    gated = asyncio.create_task(build(stub, "gated_first"))
    await asyncio.to_thread(codegen.pid_of_blocked_job, "gated_first")
    # The only process is busy: this message waits inside of the worker, or in the broker.
    waiting = asyncio.create_task(build(stub, "plain_second"))
    worker.kill()
    worker.wait()
    codegen.release_job("gated_first")
    await asyncio.to_thread(codegen.start_worker)
    started = time.monotonic()
    assert (await waiting).signed and (await gated).signed
    assert time.monotonic() - started < RECOVERY_S


async def test_a_kernel_that_ends_its_workers_is_quarantined_and_the_queue_goes_on(
    codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    codegen.start_worker(concurrency=2)
    deadly = asyncio.create_task(build(stub, "gated_deadly"))
    assert (await build(stub, "plain_beside")).signed
    with redis.Redis.from_url(codegen.cache.url) as raw:
        for _ in range(2):
            os.kill(
                await asyncio.to_thread(codegen.pid_of_blocked_job, "gated_deadly"), signal.SIGKILL
            )
            (lease,) = raw.keys("kf:{default}:l:k:*")
            raw.pexpire(lease, 1)  # the time of the dead one's lease goes by
    with pytest.raises(KernelRejectedError, match=r"gated_deadly .* ended its echo worker 2 times"):
        await deadly
    assert codegen.compilations("gated_deadly") == 2
    assert (await build(stub, "plain_afterwards")).signed
    with redis.Redis.from_url(codegen.cache.url) as raw:
        (failure,) = set(raw.keys("kf:{default}:neg:k:*")) - {b"kf:{default}:neg:k:index"}
        assert 0 < raw.ttl(failure) <= 600
        assert raw.hmget("kf:{default}:stats", "k.quarantined", "k.takeovers") == [b"1", b"2"]


@pytest.mark.parametrize("codegen", [{"max_jobs": "1"}], indirect=True)
async def test_a_full_farm_says_when_to_come_back_and_that_costs_no_attempt(
    codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    codegen.start_worker()
    first = asyncio.create_task(build(stub, "gated_full"))
    await asyncio.to_thread(codegen.pid_of_blocked_job, "gated_full")
    for _ in range(3):
        with pytest.raises(FarmFullError) as caught:
            await build(stub, "plain_full")
        assert caught.value.retry_after_s == 1.0
    with redis.Redis.from_url(codegen.cache.url) as raw:
        assert len(raw.keys("kf:{default}:tries:k:*")) == 1  # the gated one's
        assert not raw.keys("kf:{default}:neg:*")
    codegen.release_job("gated_full")
    await first
    assert (await build(stub, "plain_full")).signed


async def test_both_servers_restart_empty_in_the_middle_and_the_result_still_comes(
    codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    codegen.start_worker()
    call = asyncio.create_task(build(stub, "gated_restart"))
    await asyncio.to_thread(codegen.pid_of_blocked_job, "gated_restart")
    await asyncio.to_thread(codegen.restart_servers)
    restarted = time.monotonic()
    codegen.release_job("gated_restart")
    assert (await call).signed
    assert time.monotonic() - restarted < RECOVERY_S
    assert (await build(stub, "plain_later")).signed


@pytest.mark.parametrize("codegen", [{"no_worker_grace_s": "0.1"}], indirect=True)
async def test_a_queue_without_workers_is_unavailable_and_says_how_to_start_one(
    stub: CodegenServiceStub,
) -> None:
    with pytest.raises(UnavailableError, match=r"codegen_svc\.worker --queue echo"):
        await build(stub, "plain_lonely")


async def test_a_worker_that_is_told_to_stop_finishes_its_job_first(
    codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    worker = codegen.start_worker()
    call = asyncio.create_task(build(stub, "gated_drain"))
    await asyncio.to_thread(codegen.pid_of_blocked_job, "gated_drain")
    worker.terminate()
    codegen.release_job("gated_drain")
    assert (await call).signed
    assert await asyncio.to_thread(worker.wait, TIMEOUT_S) == 0
    assert codegen.compilations("gated_drain") == 1


async def test_an_edge_that_is_told_to_stop_finishes_its_calls_and_exits_0(
    codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    codegen.start_worker()
    edge = codegen.processes[0]
    call = asyncio.create_task(build(stub, "gated_edge"))
    await asyncio.to_thread(codegen.pid_of_blocked_job, "gated_edge")
    edge.terminate()
    codegen.release_job("gated_edge")
    assert (await call).signed
    assert await asyncio.to_thread(edge.wait, TIMEOUT_S) == 0


async def test_a_job_over_its_time_is_given_up_with_the_limit_in_the_message(
    tmp_path: Path,
) -> None:
    with codegen_farm(tmp_path, job_time_limit_s="0.5") as room:
        room.start_edge()
        room.start_worker()
        async with open_channel(room.address) as channel:
            with pytest.raises(KernelRejectedError, match=r"longer than 0\.5 s"):
                await build(CodegenServiceStub(channel), "gated_forever")


async def test_a_broker_killed_with_jobs_in_it_comes_back_empty_and_costs_seconds(
    codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    """One job runs, one waits in the worker or the broker; both results come, each made once."""
    codegen.start_worker()
    gated = asyncio.create_task(build(stub, "gated_broker"))
    await asyncio.to_thread(codegen.pid_of_blocked_job, "gated_broker")
    waiting = asyncio.create_task(build(stub, "plain_broker"))
    with redis.Redis.from_url(codegen.cache.url) as raw:
        while len(raw.keys("kf:{default}:l:k:*")) < 2:
            await asyncio.sleep(0.01)
    codegen.broker.process.kill()
    await asyncio.to_thread(codegen.restart_broker)
    killed = time.monotonic()
    codegen.release_job("gated_broker")
    assert (await gated).signed and (await waiting).signed
    recovery_s = time.monotonic() - killed
    print("broker", round(recovery_s, 1))
    assert recovery_s < RECOVERY_S
    assert (await build(stub, "plain_after_broker")).signed
    assert codegen.compilations("gated_broker") == codegen.compilations("plain_broker") == 1


async def test_an_edge_without_its_broker_says_so_and_that_costs_no_attempt(
    codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    codegen.start_worker()
    codegen.broker.process.kill()
    codegen.broker.process.wait()
    with pytest.raises(UnavailableError, match="broker"):
        await build(stub, "plain_brokerless")
    with redis.Redis.from_url(codegen.cache.url) as raw:
        assert not raw.keys("kf:{default}:tries:*") and not raw.keys("kf:{default}:l:*")
    await asyncio.to_thread(codegen.restart_broker)
    assert (await build(stub, "plain_brokerless")).signed
