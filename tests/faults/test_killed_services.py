"""Processes of a farm that are killed or hang, and clients that leave."""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from kernelfarm.v1 import compile_service_pb2 as api
from tests.support.calls import compile_at, compiles, stub_of
from tests.support.farm import TIMEOUT_S, Farm, wait_until
from tests.support.processes import kill_tree, pool_processes
from tests.support.small_graphs import h_request, slow_request

KINDS = ("redis-broker", "redis-cache", "optimizer", "codegen", "frontend", "worker-cpu-0")


def test_a_worker_killed_in_the_middle_of_a_job_costs_less_than_20_s(hurt_farm: Farm) -> None:
    """Without the start of another worker and the compilation, which depend on the machine."""
    workers = hurt_farm.children("worker-cpu")
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(compile_at, hurt_farm.endpoint, slow_request())
        wait_until(lambda: len(_events(hurt_farm, "job_begun")) == 1, TIMEOUT_S, "a job")
        kill_tree(*workers.values())
        _await_back(hurt_farm, workers)
        started = time.monotonic()
        program = call.result().program
    took_s = time.monotonic() - started
    (built,) = _events(hurt_farm, "kernel_built")
    assert took_s - built["elapsed_ms"] / 1e3 < 20
    assert program.artifacts
    assert len(_events(hurt_farm, "job_begun")) == 2


def test_killed_services_and_servers_come_back_and_programs_are_made_again(
    hurt_farm: Farm,
) -> None:
    request = h_request(72, 128)
    compile_at(hurt_farm.endpoint, request)
    killed: dict[str, int] = {}
    for kind in ("frontend", "optimizer", "codegen", "redis"):
        killed |= hurt_farm.children(kind)
    assert len(killed) == 5
    for pid in killed.values():
        os.kill(pid, signal.SIGKILL)
    _await_back(hurt_farm, killed)
    # The first call may reach a service that cannot reach another one yet.
    wait_until(lambda: compiles(hurt_farm.endpoint, h_request(71, 128)), TIMEOUT_S, "a compilation")
    again = compile_at(hurt_farm.endpoint, request).program
    assert again.artifacts and again.outcome == api.CACHE_OUTCOME_MISS


def test_stopped_processes_are_reported_and_replaced(hurt_farm: Farm) -> None:
    """All at once, with the pool of one worker: no replacement waits for another one."""
    stopped = {kind: hurt_farm.children(kind)[kind] for kind in KINDS}
    other = hurt_farm.children("worker-cpu-1")["worker-cpu-1"]
    (pool,) = pool_processes(other)
    for pid in (*stopped.values(), pool):
        os.kill(pid, signal.SIGSTOP)
    reported: set[str] = set()

    def are_back() -> bool:
        children = hurt_farm.status()["children"]
        reported.update(kind for kind in KINDS if not children[kind]["ready"])
        return all(hurt_farm.is_back(kind, pid) for kind, pid in stopped.items())

    wait_until(are_back, TIMEOUT_S, "new processes")
    assert reported == set(KINDS)
    has_new_pool = lambda: bool(set(pool_processes(other)) - {pool})  # noqa: E731
    wait_until(has_new_pool, TIMEOUT_S, "a new pool process")
    assert hurt_farm.children("worker-cpu-1")["worker-cpu-1"] == other
    # The first call may reach a service that cannot reach another one yet.
    wait_until(lambda: compiles(hurt_farm.endpoint, h_request(41, 128)), TIMEOUT_S, "a compilation")


def test_a_client_that_leaves_does_not_stop_the_compilation(hurt_farm: Farm) -> None:
    request = h_request(73, 128)
    with stub_of(hurt_farm.endpoint) as stub:
        call = stub.Compile(request, timeout=TIMEOUT_S)
        next(event for event in call if event.stage.stage == "optimize")
        call.cancel()
    second = compile_at(hurt_farm.endpoint, request).program
    assert second.outcome in (api.CACHE_OUTCOME_MERGED, api.CACHE_OUTCOME_HIT)
    assert second.codegen_jobs == 0


def test_a_deadline_ends_the_call_in_time(hurt_farm: Farm) -> None:
    with stub_of(hurt_farm.endpoint) as stub, pytest.raises(grpc.RpcError) as caught:
        list(stub.Compile(h_request(74, 128), timeout=0.002))
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def _await_back(farm: Farm, killed: dict[str, int]) -> None:
    is_back = lambda: all(farm.is_back(name, pid) for name, pid in killed.items())  # noqa: E731
    wait_until(is_back, TIMEOUT_S, f"new {', '.join(killed)}")


def _events(farm: Farm, event: str) -> list[dict[str, Any]]:
    """All events of this name in the workers' logs so far."""
    logs = [farm.log(name) for name in farm.status()["children"] if name.startswith("worker-cpu")]
    whole = [line for log in logs for line in log.splitlines(keepends=True) if line[-1] == "\n"]
    return [json.loads(line) for line in whole if f'"{event}"' in line]
