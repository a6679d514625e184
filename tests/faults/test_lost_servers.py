"""Brokers and caches that are killed, hang or come back empty, under jobs and calls."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator

import pytest
import redis

from kernelfarm.errors import UnavailableError
from kernelfarm.internal.v1.codegen_service_pb2_grpc import CodegenServiceStub
from tests.support.codegen_calls import build_fresh
from tests.support.codegen_processes import CodegenFarm, codegen_farm
from tests.support.farm import TIMEOUT_S, until, wait_until

# The bounds that `docs/recovery.md` states: after SIGKILL, once another process runs; and after a
# server hung, start of processes included.
RECOVERY_S = 20
HANG_RECOVERY_S = 30


@pytest.fixture(scope="module")
def codegen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CodegenFarm]:
    """An edge and one worker process, whose servers these tests hurt."""
    # With the headroom, eight calls send their jobs at once.
    settings = {"requeue_after_s": "1", "broker_send_s": "4", "queue_headroom": "8"}
    with codegen_farm(tmp_path_factory.mktemp("lost"), **settings) as started:
        started.start_edge()
        started.start_worker()
        yield started


async def test_a_broker_killed_with_jobs_in_it_comes_back_empty_and_costs_seconds(
    codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    """One job runs, one waits in the worker or the broker; each result comes, and is made once."""
    gated = asyncio.create_task(build_fresh(stub, "gated_broker"))
    await asyncio.to_thread(codegen.pid_of_blocked_job, "gated_broker")
    waiting = asyncio.create_task(build_fresh(stub, "plain_broker"))
    await until(lambda: len(codegen.cache_keys("l:k:*")) == 2, "two leases")
    codegen.broker.process.kill()
    await asyncio.to_thread(codegen.restart_broker)
    restarted_s = time.monotonic()
    codegen.release_job("gated_broker")
    assert (await gated).signed and (await waiting).signed
    recovery_s = time.monotonic() - restarted_s
    print("broker", round(recovery_s, 1))
    assert recovery_s < RECOVERY_S
    assert (await build_fresh(stub, "plain_after_broker")).signed
    assert codegen.compilations("gated_broker") == codegen.compilations("plain_broker") == 1


async def test_an_edge_without_its_broker_says_so_and_that_costs_no_attempt(
    codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    codegen.broker.process.kill()
    codegen.broker.process.wait()
    attempts = codegen.cache_keys("tries:*")
    with pytest.raises(UnavailableError, match="broker"):
        await build_fresh(stub, "plain_brokerless")
    assert codegen.cache_keys("tries:*") == attempts and not codegen.cache_keys("l:*")
    await asyncio.to_thread(codegen.restart_broker)
    assert (await build_fresh(stub, "plain_with_broker")).signed


async def test_both_servers_restart_empty_under_a_job_and_the_result_still_comes(
    codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    call = asyncio.create_task(build_fresh(stub, "gated_restart"))
    await asyncio.to_thread(codegen.pid_of_blocked_job, "gated_restart")
    await asyncio.to_thread(codegen.restart_servers)
    restarted_s = time.monotonic()
    codegen.release_job("gated_restart")
    assert (await call).signed
    assert time.monotonic() - restarted_s < RECOVERY_S
    assert (await build_fresh(stub, "plain_later")).signed


async def test_a_broker_that_hangs_costs_each_call_seconds_and_stops_no_edge(
    codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    """More calls than could be sent one after another within the timeout of one."""
    assert (await build_fresh(stub, "plain_before")).signed
    codegen.broker.process.send_signal(signal.SIGSTOP)
    stopped_s = time.monotonic()
    calls = [build_fresh(stub, f"plain_stopped_{n}") for n in range(8)]
    ends = await asyncio.gather(*calls, return_exceptions=True)
    took_s = time.monotonic() - stopped_s
    assert all(isinstance(end, UnavailableError) and "broker" in str(end) for end in ends), ends
    assert took_s < HANG_RECOVERY_S
    codegen.broker.process.send_signal(signal.SIGCONT)
    assert (await build_fresh(stub, "plain_continued", timeout_s=HANG_RECOVERY_S)).signed
    print("refused after", round(took_s, 1), "s")


async def test_workers_whose_jobs_end_while_the_broker_is_away_take_the_next_ones(
    codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    """Once, the acknowledgement was lost, and the job counted as running forever."""
    await asyncio.to_thread(codegen.start_worker, name="other")
    calls = [asyncio.create_task(build_fresh(stub, f"gated_{n}")) for n in range(2)]
    for n in range(2):
        await asyncio.to_thread(codegen.pid_of_blocked_job, f"gated_{n}")
    codegen.broker.process.kill()
    codegen.broker.process.wait()
    for n in range(2):
        codegen.release_job(f"gated_{n}")
    assert all(response.signed for response in await asyncio.gather(*calls))
    await asyncio.sleep(8)  # kombu gives up an acknowledgement in this time
    await asyncio.to_thread(codegen.restart_broker)
    back_s = time.monotonic()
    found = [build_fresh(stub, f"plain_{n}", timeout_s=HANG_RECOVERY_S) for n in range(2)]
    assert all(response.signed for response in await asyncio.gather(*found))
    with redis.Redis.from_url(codegen.broker.url) as raw:
        polling = lambda: [c["cmd"] for c in raw.client_list()].count("brpop") == 2  # noqa: E731
        await asyncio.to_thread(wait_until, polling, TIMEOUT_S, "both workers ask the broker")
    print("after the broker's return:", round(time.monotonic() - back_s, 1), "s")
