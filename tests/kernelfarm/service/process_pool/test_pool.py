"""Work in child processes: what ends it, what that costs, and that the pool continues."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import psutil
import pytest
from structlog.testing import capture_logs

from kernelfarm.errors import (
    InternalError,
    InvalidGraphError,
    UnavailableError,
    WorkMemoryError,
    WorkProcessError,
    WorkTimeError,
)
from kernelfarm.service.process_pool.limits import MIB, PoolLimits
from kernelfarm.service.process_pool.pool import ProcessPool, WorkItem
from tests.support.farm import TIMEOUT_S, until, wait_until
from tests.support.processes import is_running

JOBS = "tests.kernelfarm.service.process_pool.jobs"


@asynccontextmanager
async def running(limits: PoolLimits | None = None) -> AsyncIterator[ProcessPool]:
    pool = ProcessPool(JOBS, limits or PoolLimits())
    try:
        await pool.start()
        yield pool
    finally:
        await pool.close()


def work(name: str, *parts: bytes, tenant: str = "", affinity: bytes = b"") -> WorkItem:
    return WorkItem(name, parts, tenant, affinity)


async def answers(pool: ProcessPool, tenant: str = "") -> None:
    """The pool does a small job."""
    async with asyncio.timeout(TIMEOUT_S):
        assert await pool.run(work("echo", b"x", b"", tenant=tenant)) == [b"x", b""]


def used_s(pid: int) -> float:
    return sum(psutil.Process(pid).cpu_times()[:2])


def is_working(pool: ProcessPool) -> Callable[[], bool]:
    return lambda: any(used_s(pid) > 0.1 for pid in pool.pids)


@pytest.mark.parametrize(
    ("job", "most_s", "error", "words"),
    [
        ("refuse", 60.0, InvalidGraphError, "node 7 is wrong"),
        ("fail", 60.0, InternalError, "report it"),
        ("crash", 60.0, WorkProcessError, "send the request again"),
        ("take_memory", 60.0, WorkMemoryError, "512 MiB"),
        ("spin", 1.0, WorkTimeError, "1 s of processor time"),
    ],
)
async def test_a_job_that_fails_affects_no_other(
    job: str, most_s: float, error: type[Exception], words: str
) -> None:
    """Only the job that never ends has a short limit of time: the first to reach is its own."""
    limits = PoolLimits(max_processor_s=most_s, max_memory_bytes=512 * MIB)
    async with running(limits) as pool:
        with pytest.raises(error, match=words):
            await pool.run(work(job))
        await answers(pool)


async def test_an_error_that_may_hide_a_bug_is_logged_with_its_traceback() -> None:
    async with running() as pool:
        with capture_logs() as lines:
            with pytest.raises(InvalidGraphError, match="node 7 divides by nothing"):
                await pool.run(work("refuse_after_fault"))
            with pytest.raises(InvalidGraphError, match="node 7 is wrong"):
                await pool.run(work("refuse"))
        (reported,) = [line for line in lines if line["event"] == "work_refused"]
        assert reported["log_level"] == "warning"
        assert "ZeroDivisionError" in reported["trace"]
        assert reported["message"] == "node 7 divides by nothing"


async def test_a_job_ends_with_its_caller_and_its_processor_is_free() -> None:
    async with running(PoolLimits(processes=1)) as pool:
        spinning = asyncio.create_task(pool.run(work("spin")))
        await until(is_working(pool))
        (busy,) = [pid for pid in pool.pids if used_s(pid) > 0.1]
        spinning.cancel()
        await until(lambda: not is_running(busy))
        await answers(pool)


async def test_jobs_that_never_end_do_not_delay_small_ones() -> None:
    """This holds within one tenant too, because a farm without tenants is one tenant."""
    async with running(PoolLimits(processes=2)) as pool:
        spinning = [asyncio.create_task(pool.run(work("spin"))) for _ in range(7)]
        await until(is_working(pool))
        for tenant in ("", "another"):
            await answers(pool, tenant)
        assert not any(task.done() for task in spinning)
        for task in spinning:
            task.cancel()
        await asyncio.gather(*spinning, return_exceptions=True)


async def test_heavy_jobs_run_at_a_lower_priority_and_small_ones_never_do() -> None:
    async with running(PoolLimits(processes=1)) as pool:
        (heavy,) = await pool.run(work("spin", b"0.6"))
        (light,) = await pool.run(work("pid"))
        assert light != heavy
        # Services answer first, light work comes next.
        assert psutil.Process(int(light)).nice() == max(psutil.Process().nice(), 10)
        assert [os.sched_getscheduler(int(pid)) for pid in (light, heavy)] == [
            os.SCHED_OTHER,
            os.SCHED_IDLE,
        ]


async def test_a_job_of_a_large_message_is_heavy_from_the_start() -> None:
    async with running(PoolLimits(processes=1, heavy_bytes=1000)) as pool:
        (heavy,) = await pool.run(work("pid", bytes(1000)))
        (light,) = await pool.run(work("pid", bytes(900)))
        assert os.sched_getscheduler(int(heavy)) == os.SCHED_IDLE
        assert os.sched_getscheduler(int(light)) == os.SCHED_OTHER


async def test_more_heavy_jobs_than_slots_are_all_done() -> None:
    async with running(PoolLimits(processes=1)) as pool:
        jobs = (pool.run(work("spin", b"0.3", tenant=tenant)) for tenant in "aaab")
        async with asyncio.timeout(TIMEOUT_S):
            assert len(await asyncio.gather(*jobs)) == 4


async def test_a_child_that_hangs_is_replaced() -> None:
    async with running(PoolLimits(processes=1, hung_after_s=0.5)) as pool:
        with pytest.raises(WorkProcessError, match="hung for"):
            await pool.run(work("sleep"))
        await answers(pool)


async def test_a_child_that_is_killed_while_it_works_costs_one_attempt() -> None:
    async with running(PoolLimits(processes=1)) as pool:
        spinning = asyncio.create_task(pool.run(work("spin")))
        await until(is_working(pool))
        killed = pool.pids  # one of them may wait for work: it must be gone before there is some
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkProcessError):
            await spinning
        await until(lambda: not any(map(is_running, killed)))
        await answers(pool)


async def test_a_child_that_is_killed_while_it_waits_costs_nothing() -> None:
    async with running(PoolLimits(processes=2)) as pool:
        await until(lambda: len(pool.pids) == 2)
        for pid in pool.pids:
            os.kill(pid, signal.SIGKILL)
        await until(lambda: not any(map(is_running, pool.pids)))
        await answers(pool)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_fork_server_that_ends_or_hangs_is_started_again(number: signal.Signals) -> None:
    async with running(PoolLimits(processes=1, hung_after_s=1.5)) as pool:
        await answers(pool)
        server = psutil.Process(pool.pids[0]).parent()
        assert server is not None
        server.send_signal(number)
        async with asyncio.timeout(TIMEOUT_S):
            while is_running(server.pid):
                for pid in pool.pids:  # so that the next job needs a fork
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                with suppress(UnavailableError):
                    await pool.run(work("echo"))
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                with suppress(UnavailableError):
                    assert await pool.run(work("echo", b"x")) == [b"x"]
                    break


async def test_a_job_goes_to_a_child_with_its_affinity() -> None:
    async with running(PoolLimits(processes=2)) as pool:
        await until(lambda: len(pool.pids) == 2)
        first = await pool.run(work("pid", affinity=b"first"))
        others = [await pool.run(work("pid", affinity=b"second")) for _ in range(3)]
        assert await pool.run(work("pid", affinity=b"first")) == first
        assert others[0] == others[1] == others[2]


async def test_a_child_that_holds_much_memory_is_replaced() -> None:
    async with running(PoolLimits(processes=1, max_idle_memory_bytes=128 * MIB)) as pool:
        small = await pool.run(work("hold", b"1000"))
        large = await pool.run(work("hold", b"%d" % (200 * MIB)))
        assert small == large != await pool.run(work("pid"))


async def test_children_inherit_no_descriptors_and_no_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KERNELFARM_ADMIN_TOKEN", "secret")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        os.set_inheritable(listener.fileno(), True)
        own = os.readlink(f"/proc/self/fd/{listener.fileno()}").encode()
        async with running() as pool:
            links = await pool.run(work("descriptors"))
            environment = psutil.Process(pool.pids[0]).environ()
    assert own not in links
    assert len([link for link in links if link.startswith(b"socket:")]) == 1
    assert "KERNELFARM_ADMIN_TOKEN" not in environment


async def test_children_ignore_the_signals_of_a_terminal() -> None:
    async with running(PoolLimits(processes=1)) as pool:
        before = await pool.run(work("pid"))
        server = psutil.Process(int(before[0])).parent()
        assert server is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(int(before[0]), number)
            server.send_signal(number)
        assert await pool.run(work("pid")) == before


async def test_large_jobs_and_results_arrive_complete() -> None:
    async with running() as pool:
        data = os.urandom(20 * MIB)
        assert await pool.run(work("echo", data, b"", data[:7])) == [data, b"", data[:7]]


async def test_an_answer_that_is_too_large_is_refused() -> None:
    async with running(PoolLimits(max_answer_bytes=1000)) as pool:
        with pytest.raises(WorkProcessError, match="expected at most 1000"):
            await pool.run(work("echo", bytes(2000)))
        await answers(pool)


async def test_jobs_that_cannot_be_imported_are_an_error() -> None:
    pool = ProcessPool("tests.kernelfarm.service.process_pool.no_such_module", PoolLimits())
    with pytest.raises(UnavailableError, match="no_such_module"):
        await pool.start()
    await pool.close()


SERVICE = f"""
import asyncio
from kernelfarm.service.process_pool.limits import PoolLimits
from kernelfarm.service.process_pool.pool import ProcessPool, WorkItem

async def main():
    pool = ProcessPool({JOBS!r}, PoolLimits(processes=1))
    await pool.start()
    spinning = asyncio.create_task(pool.run(WorkItem("spin", ())))
    while not pool.pids:
        await asyncio.sleep(0.01)
    print(*pool.pids, flush=True)
    await spinning

asyncio.run(main())
"""


def test_children_end_when_their_service_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVICE], stdout=subprocess.PIPE, text=True
    ) as service:
        assert service.stdout is not None
        pids = [int(word) for word in service.stdout.readline().split()]
        pids.append(psutil.Process(pids[0]).ppid())
        service.kill()
    wait_until(lambda: not any(map(is_running, pids)), TIMEOUT_S, "no child is left")


def test_fork_servers_of_services_never_import_grpc() -> None:
    code = (
        "import sys, kernelfarm.service.process_pool.fork_server\n"
        "import frontend_svc.graph_jobs, optimizer_svc.graph_jobs\n"
        "print(sorted({'grpc', 'torch', 'redis'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_services_do_not_import_code_that_works_on_graphs() -> None:
    code = (
        "import sys, frontend_svc.serve, optimizer_svc.service\n"
        "print([m for m in sys.modules if '_svc.' in m and m.endswith('.pipeline')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
