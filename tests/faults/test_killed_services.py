"""What happens when a part of the farm dies, hangs, or is told to stop."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import grpc
import psutil
import pytest

from kernelfarm.v1 import compile_service_pb2 as api
from tests.support.calls import compile_at, stub_of
from tests.support.farm import TIMEOUT_S, Farm, running_farm, wait_until
from tests.support.small_graphs import h_request, slow_request


@pytest.fixture(scope="module")
def hurt_farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """A farm of its own for tests that kill parts of it."""
    with running_farm(tmp_path_factory.mktemp("hurt")) as running:
        yield running


def test_a_worker_killed_in_the_middle_of_a_job_costs_less_than_20_s(hurt_farm: Farm) -> None:
    """Beside the start of another worker and the compilation: they are the machine's matter."""
    workers = hurt_farm.children("worker-cpu")
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(compile_at, hurt_farm.endpoint, slow_request())
        wait_until(lambda: len(_events(hurt_farm, "job_begun")) == 1, TIMEOUT_S, "a job")
        _kill_trees(list(workers.values()))
        _await_back(hurt_farm, workers)
        started = time.monotonic()
        program = call.result().program
    took_s = time.monotonic() - started
    (built,) = _events(hurt_farm, "kernel_built")
    assert took_s - built["elapsed_ms"] / 1e3 < 20
    assert program.artifacts
    assert len(_events(hurt_farm, "job_begun")) == 2


def test_a_killed_room_is_back_and_the_next_request_is_served(hurt_farm: Farm) -> None:
    for room in ("optimizer", "codegen"):
        killed = hurt_farm.children(room)
        os.kill(killed[room], signal.SIGKILL)
        _await_back(hurt_farm, killed)
    assert compile_at(hurt_farm.endpoint, h_request(72, 128)).program.artifacts


def test_a_program_of_a_killed_frontend_is_taken_over(hurt_farm: Farm) -> None:
    request = slow_request(60)
    killed = hurt_farm.children("frontend")
    with stub_of(hurt_farm.endpoint) as stub, pytest.raises(grpc.RpcError) as caught:
        for event in stub.Compile(request, timeout=TIMEOUT_S):
            if event.stage.stage == "codegen":
                os.kill(killed["frontend"], signal.SIGKILL)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    _await_back(hurt_farm, killed)
    again = compile_at(hurt_farm.endpoint, request).program
    assert again.artifacts


def test_killed_servers_come_back_empty_and_the_farm_serves_on(hurt_farm: Farm) -> None:
    compile_at(hurt_farm.endpoint, h_request(72, 128))
    killed = hurt_farm.children("redis")
    for pid in killed.values():
        os.kill(pid, signal.SIGKILL)
    _await_back(hurt_farm, killed)

    def compiled() -> api.ProgramResult:
        return compile_at(hurt_farm.endpoint, h_request(72, 128)).program

    # The gateway's memory ends within moments, and then the program is made again.
    is_made = lambda: compiled().outcome == api.CACHE_OUTCOME_MISS  # noqa: E731
    wait_until(is_made, TIMEOUT_S, "the program is compiled again")
    assert compiled().artifacts


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


def test_sigterm_finishes_what_was_begun_and_exits_with_0(hurt_farm: Farm) -> None:
    pids = [child["pid"] for child in hurt_farm.status()["children"].values()]
    with ThreadPoolExecutor(1) as pool:
        with stub_of(hurt_farm.endpoint) as stub:
            call = stub.Compile(h_request(75, 128), timeout=TIMEOUT_S)
            first = next(iter(call))
            exit_code = pool.submit(hurt_farm.stop)
            rest = list(call)
        assert exit_code.result() == 0
    assert first.stage.stage == "import"
    assert rest[-1].program.artifacts
    assert hurt_farm.status()["state"] == "stopped"
    assert not [pid for pid in pids if _is_alive(pid)]


def _await_back(farm: Farm, killed: dict[str, int]) -> None:
    is_back = lambda: all(farm.is_back(name, pid) for name, pid in killed.items())  # noqa: E731
    wait_until(is_back, TIMEOUT_S, f"new {', '.join(killed)}")


def _events(farm: Farm, event: str) -> list[dict[str, Any]]:
    """What the workers' logs told so far of an event."""
    logs = [farm.log(name) for name in farm.status()["children"] if name.startswith("worker-cpu")]
    whole = [line for log in logs for line in log.splitlines(keepends=True) if line[-1] == "\n"]
    return [json.loads(line) for line in whole if f'"{event}"' in line]


def _kill_trees(pids: list[int]) -> None:
    """SIGKILL to the workers and to the processes of their pools."""
    doomed = [psutil.Process(pid) for pid in pids]
    doomed += [child for parent in doomed for child in parent.children(recursive=True)]
    for process in doomed:
        with suppress(psutil.NoSuchProcess):  # what forks compilations takes them with it
            process.kill()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
