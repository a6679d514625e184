"""Workers that hang or take no jobs leave the capabilities, and come back or are replaced."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from codegen_svc.worker.watchdog import WEDGED_EXIT_CODE
from kernelfarm.internal.v1 import codegen_service_pb2 as pb
from kernelfarm.internal.v1.codegen_service_pb2_grpc import CodegenServiceStub
from tests.support.codegen_calls import build_fresh
from tests.support.codegen_processes import CodegenFarm, codegen_farm
from tests.support.farm import TIMEOUT_S, wait_until

# The bound that `docs/recovery.md` states after a fault, start of processes included.
RECOVERY_S = 30


@pytest.fixture(scope="module")
def codegen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CodegenFarm]:
    """An edge without workers: each test starts its own, and ends it."""
    with codegen_farm(tmp_path_factory.mktemp("hung"), requeue_after_s="1") as started:
        started.start_edge()
        yield started


async def vendors(stub: CodegenServiceStub) -> set[str]:
    """The vendors for which the edge reports a worker."""
    response = await stub.GetToolchains(pb.GetToolchainsRequest(), timeout=TIMEOUT_S)
    return {entry.target.partition(":")[0] for entry in response.targets}


async def await_vendors(stub: CodegenServiceStub, expected: set[str], limit_s: float) -> float:
    """Seconds until the edge reports exactly these vendors."""
    began_s = time.monotonic()
    while await vendors(stub) != expected:
        assert time.monotonic() - began_s < limit_s, f"not within {limit_s} s: {expected}"
        await asyncio.sleep(0.1)
    return time.monotonic() - began_s


async def test_a_worker_that_takes_no_more_jobs_is_not_reported_and_ends_itself(
    codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    worker = codegen.start(
        *("tests.faults.non_consuming_worker", "--queue", "echo"),
        name="wedged",
        worker_wedged_after_s="2",
    )
    await await_vendors(stub, {"echo"}, TIMEOUT_S)
    worker.send_signal(signal.SIGUSR2)
    gone_s = await await_vendors(stub, set(), RECOVERY_S)
    assert await asyncio.to_thread(worker.wait, TIMEOUT_S) == WEDGED_EXIT_CODE
    assert b'"worker_wedged"' in codegen.log("wedged")
    print("no longer reported after", round(gone_s, 1), "s")


# slow: the test before has a worker that hangs; test_killed_services.py stops one and its pool.
@pytest.mark.slow
async def test_a_stopped_worker_fails_its_probe_and_is_reported_again_when_it_continues(
    codegen: CodegenFarm, stub: CodegenServiceStub, tmp_path: Path
) -> None:
    """The process of its pool still runs: that alone must not count."""
    heartbeat = tmp_path / "heartbeat"
    worker = await asyncio.to_thread(codegen.start_worker, worker_heartbeat_file=str(heartbeat))
    is_well = lambda: probe_status(heartbeat) == 0  # noqa: E731
    await asyncio.to_thread(wait_until, is_well, TIMEOUT_S, "the probe passes")
    await await_vendors(stub, {"echo"}, TIMEOUT_S)
    worker.send_signal(signal.SIGSTOP)
    gone_s = await await_vendors(stub, set(), RECOVERY_S)
    assert probe_status(heartbeat) == 1
    worker.send_signal(signal.SIGCONT)
    await await_vendors(stub, {"echo"}, RECOVERY_S)
    assert (await build_fresh(stub, "plain_continued")).signed
    await asyncio.to_thread(wait_until, is_well, RECOVERY_S, "the probe passes again")
    print("no longer reported after", round(gone_s, 1), "s")


def probe_status(heartbeat: Path) -> int:
    command = [sys.executable, "-m", "kernelfarm.service.liveness", str(heartbeat)]
    return subprocess.run(
        [*command, "--state", "serving"], stderr=subprocess.DEVNULL, check=False
    ).returncode
