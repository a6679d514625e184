"""Workers and edges that die, stop or are full at the worst moment."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import redis

from kernelfarm.errors import FarmFullError, KernelLimitError, UnavailableError
from kernelfarm.internal.v1.codegen_service_pb2_grpc import CodegenServiceStub
from kernelfarm.service.channels import open_channel
from tests.support.codegen_calls import build_fresh
from tests.support.codegen_processes import SHORT_LEASES, CodegenFarm, codegen_farm
from tests.support.farm import TIMEOUT_S

# The bound that `docs/recovery.md` states after SIGKILL, once another process runs: how fast
# processes start depends on the machine.
RECOVERY_S = 20


@pytest.fixture(scope="module")
def codegen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CodegenFarm]:
    """An edge; workers stay for the next test, because each takes seconds to start."""
    with codegen_farm(tmp_path_factory.mktemp("killed"), **SHORT_LEASES) as started:
        started.start_edge()
        yield started


def workers_of(codegen: CodegenFarm) -> list[subprocess.Popen[bytes]]:
    """The workers that run."""
    started = [each for each in codegen.processes if "codegen_svc.worker" in each.args]
    return [worker for worker in started if worker.poll() is None]


async def running_worker(codegen: CodegenFarm) -> subprocess.Popen[bytes]:
    """The worker of an earlier test, or a new one of two processes."""
    workers = workers_of(codegen)
    return workers[0] if workers else await asyncio.to_thread(codegen.start_worker, 2)


@asynccontextmanager
async def other_edge(
    codegen: CodegenFarm, name: str, **settings: str
) -> AsyncIterator[CodegenServiceStub]:
    """A stub of another edge on the same servers."""
    edge = await asyncio.to_thread(codegen.start_service, "codegen", name, **settings)
    async with open_channel(f"unix:{codegen.folder}/{name}") as channel:
        yield CodegenServiceStub(channel)
    codegen.kill(edge)


async def test_a_message_that_died_with_a_worker_is_sent_again(
    codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    codegen.kill(*workers_of(codegen))
    worker = await asyncio.to_thread(codegen.start_worker)
    gated = asyncio.create_task(build_fresh(stub, "gated_first"))
    await asyncio.to_thread(codegen.pid_of_blocked_job, "gated_first")
    # The only process is busy: this message waits inside of the worker, or in the broker.
    waiting = asyncio.create_task(build_fresh(stub, "plain_second"))
    codegen.kill(worker)
    codegen.release_job("gated_first")
    await running_worker(codegen)
    started_s = time.monotonic()
    assert (await waiting).signed and (await gated).signed
    assert time.monotonic() - started_s < RECOVERY_S


async def test_a_kernel_that_ends_its_workers_is_quarantined_and_the_queue_goes_on(
    codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    await running_worker(codegen)
    failures, before = codegen.cache_keys("neg:k:*"), codegen.counters()
    deadly = asyncio.create_task(build_fresh(stub, "gated_deadly"))
    assert (await build_fresh(stub, "plain_beside")).signed
    with redis.Redis.from_url(codegen.cache.url) as raw:
        for _ in range(2):
            os.kill(
                await asyncio.to_thread(codegen.pid_of_blocked_job, "gated_deadly"), signal.SIGKILL
            )
            (lease,) = raw.keys("kf:{default}:l:k:*")
            raw.pexpire(lease, 1)  # as if the lease of the dead process had ended
        with pytest.raises(
            KernelLimitError, match=r"gated_deadly .* ended its echo worker 2 times"
        ):
            await deadly
        assert codegen.compilations("gated_deadly") == 2
        assert (await build_fresh(stub, "plain_afterwards")).signed
        (failure,) = codegen.cache_keys("neg:k:*") - failures - {b"neg:k:index"}
        assert 0 < raw.ttl(b"kf:{default}:" + failure) <= 600
    after = codegen.counters()
    changed = [after[name] - before.get(name, 0) for name in ("k.quarantined", "k.takeovers")]
    assert changed == [1, 2]


async def test_a_full_farm_says_when_to_come_back_and_that_costs_no_attempt(
    codegen: CodegenFarm,
) -> None:
    await running_worker(codegen)
    attempts, failures = codegen.cache_keys("tries:k:*"), codegen.cache_keys("neg:*")
    async with other_edge(codegen, "full", max_jobs="1") as stub:
        first = asyncio.create_task(build_fresh(stub, "gated_full"))
        await asyncio.to_thread(codegen.pid_of_blocked_job, "gated_full")
        for _ in range(3):
            with pytest.raises(FarmFullError) as caught:
                await build_fresh(stub, "plain_full")
            assert caught.value.retry_after_s == 1.0
        assert len(codegen.cache_keys("tries:k:*") - attempts) == 1  # the gated kernel's
        assert codegen.cache_keys("neg:*") <= failures
        codegen.release_job("gated_full")
        await first
        assert (await build_fresh(stub, "plain_full")).signed


async def test_a_queue_without_workers_is_unavailable_and_says_how_to_start_one(
    codegen: CodegenFarm,
) -> None:
    async with other_edge(codegen, "lonely", no_worker_grace_s="0.1") as stub:
        with pytest.raises(UnavailableError, match=r"codegen_svc\.worker --queue cpu"):
            await build_fresh(stub, "plain_lonely", target="cpu:x86-64-v3")


async def test_an_edge_that_is_asked_to_stop_finishes_its_calls_and_exits_0(
    codegen: CodegenFarm,
) -> None:
    await running_worker(codegen)
    async with other_edge(codegen, "drained") as stub:
        edge = codegen.services["drained"]
        call = asyncio.create_task(build_fresh(stub, "gated_edge"))
        await asyncio.to_thread(codegen.pid_of_blocked_job, "gated_edge")
        edge.terminate()
        codegen.release_job("gated_edge")
        assert (await call).signed
        assert await asyncio.to_thread(edge.wait, TIMEOUT_S) == 0


async def test_a_worker_that_is_asked_to_stop_finishes_its_job_first(
    codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    worker = await running_worker(codegen)
    call = asyncio.create_task(build_fresh(stub, "gated_drain"))
    await asyncio.to_thread(codegen.pid_of_blocked_job, "gated_drain")
    worker.terminate()
    codegen.release_job("gated_drain")
    assert (await call).signed
    assert await asyncio.to_thread(worker.wait, TIMEOUT_S) == 0
    assert codegen.compilations("gated_drain") == 1
