"""Workers prove that they take jobs; one that hangs or takes none is replaced."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis

from codegen_svc.worker.watchdog import WEDGED_EXIT_CODE
from kernelfarm.errors import UnavailableError
from kernelfarm.internal.v1 import codegen_service_pb2 as pb
from kernelfarm.internal.v1.codegen_service_pb2_grpc import CodegenServiceStub
from kernelfarm.service.channels import open_channel, translated_errors
from tests.support.codegen_processes import CodegenFarm, codegen_farm
from tests.support.farm import TIMEOUT_S, wait_until
from tests.support.fresh_kernels import fresh_kernel

TARGET = "echo:one"

# What the project promises after a fault, start of processes included.
RECOVERY_S = 30


@pytest.fixture
def codegen(tmp_path: Path) -> Iterator[CodegenFarm]:
    """A room of the test's own, without a worker."""
    with codegen_farm(tmp_path) as started:
        started.start_edge()
        yield started


@pytest.fixture
async def stub(codegen: CodegenFarm) -> AsyncIterator[CodegenServiceStub]:
    async with open_channel(codegen.address) as channel:
        yield CodegenServiceStub(channel)


async def build(
    stub: CodegenServiceStub, name: str, timeout_s: float = TIMEOUT_S
) -> pb.BuildKernelsResponse:
    request = pb.BuildKernelsRequest(kernels=[fresh_kernel(name)], target=TARGET)
    with translated_errors("codegen"):
        (response,) = [r async for r in stub.BuildKernels(request, timeout=timeout_s)]
    return response


async def vendors(stub: CodegenServiceStub) -> set[str]:
    response = await stub.GetToolchains(pb.GetToolchainsRequest(), timeout=TIMEOUT_S)
    return {entry.target.partition(":")[0] for entry in response.targets}


async def await_vendors(stub: CodegenServiceStub, reference: set[str], limit_s: float) -> float:
    """Seconds until the edge tells exactly these vendors."""
    began_s = time.monotonic()
    while await vendors(stub) != reference:
        assert time.monotonic() - began_s < limit_s, f"not within {limit_s} s: {reference}"
        await asyncio.sleep(0.1)
    return time.monotonic() - began_s


async def test_workers_whose_jobs_end_while_the_broker_is_away_take_the_next_ones(
    codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    """Before, the acknowledgement was lost and counted as a job in work for ever."""
    for name in ("worker", "other"):
        await asyncio.to_thread(codegen.start_worker, name=name)
    calls = [asyncio.create_task(build(stub, f"gated_{n}")) for n in range(2)]
    for n in range(2):
        await asyncio.to_thread(codegen.pid_of_blocked_job, f"gated_{n}")
    codegen.broker.process.kill()
    codegen.broker.process.wait()
    for n in range(2):
        codegen.release_job(f"gated_{n}")
    assert all(response.signed for response in await asyncio.gather(*calls))
    ended_s = time.monotonic()
    while time.monotonic() - ended_s < 8:  # kombu gives up an acknowledgement in this time
        await asyncio.sleep(0.1)
    await asyncio.to_thread(codegen.restart_broker)
    back_s = time.monotonic()
    found = [build(stub, f"plain_{n}", RECOVERY_S) for n in range(2)]
    assert all(response.signed for response in await asyncio.gather(*found))
    with redis.Redis.from_url(codegen.broker.url) as raw:
        polling = lambda: [c["cmd"] for c in raw.client_list()].count("brpop") == 2  # noqa: E731
        await asyncio.to_thread(wait_until, polling, RECOVERY_S, "both workers ask the broker")
    print("after the broker's return:", round(time.monotonic() - back_s, 1), "s")


async def test_a_worker_that_asks_no_more_for_jobs_is_not_told_and_ends_itself(
    codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    codegen.settings["KERNELFARM_WORKER_WEDGED_AFTER_S"] = "2"
    worker = codegen.start("tests.faults.non_consuming_worker", "--queue", "echo", name="deaf")
    await await_vendors(stub, {"echo"}, TIMEOUT_S)
    worker.send_signal(signal.SIGUSR2)
    deaf_s = await await_vendors(stub, set(), RECOVERY_S)
    assert await asyncio.to_thread(worker.wait, TIMEOUT_S) == WEDGED_EXIT_CODE
    assert b'"worker_wedged"' in codegen.log("deaf")
    print("no more told after", round(deaf_s, 1), "s")


async def test_a_stopped_worker_fails_its_probe_and_is_told_again_when_it_goes_on(
    codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    """Its pool's process lives on: that alone must not count."""
    heartbeat = codegen.folder / "heartbeat"
    codegen.settings["KERNELFARM_WORKER_HEARTBEAT_FILE"] = str(heartbeat)
    worker = await asyncio.to_thread(codegen.start_worker)
    is_well = lambda: probe_status(heartbeat) == 0  # noqa: E731
    await asyncio.to_thread(wait_until, is_well, TIMEOUT_S, "the probe passes")
    assert await vendors(stub) == {"echo"}
    worker.send_signal(signal.SIGSTOP)
    stopped_s = await await_vendors(stub, set(), RECOVERY_S)
    assert probe_status(heartbeat) == 1
    worker.send_signal(signal.SIGCONT)
    await await_vendors(stub, {"echo"}, RECOVERY_S)
    assert (await build(stub, "plain_continued")).signed
    await asyncio.to_thread(wait_until, is_well, RECOVERY_S, "the probe passes again")
    print("no more told after", round(stopped_s, 1), "s")


def probe_status(heartbeat: Path) -> int:
    command = [sys.executable, "-m", "kernelfarm.service.liveness", str(heartbeat)]
    return subprocess.run([*command, "--state", "serving"], check=False).returncode


async def test_a_broker_that_hangs_costs_each_call_seconds_and_stops_no_edge(
    codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    """More calls than fit behind each other into the time of one."""
    await asyncio.to_thread(codegen.start_worker)
    assert (await build(stub, "plain_before")).signed
    codegen.broker.process.send_signal(signal.SIGSTOP)
    stopped_s = time.monotonic()
    calls = [build(stub, f"plain_stopped_{n}", TIMEOUT_S) for n in range(8)]
    ends = await asyncio.gather(*calls, return_exceptions=True)
    took_s = time.monotonic() - stopped_s
    assert all(isinstance(end, UnavailableError) and "broker" in str(end) for end in ends), ends
    assert took_s < RECOVERY_S
    codegen.broker.process.send_signal(signal.SIGCONT)
    assert (await build(stub, "plain_continued", RECOVERY_S)).signed
    print("refused after", round(took_s, 1), "s")
