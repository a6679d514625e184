"""Parts of a farm that SIGSTOP stops: their supervisor notices it, tells it, and replaces them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import psutil
import pytest

from tests.support.calls import compile_at, stub_of
from tests.support.farm import TIMEOUT_S, Farm, running_farm, wait_until
from tests.support.small_graphs import h_request

# What the project promises with the settings' own values, the start of processes included.
RECOVERY_S = 30

KINDS = ("redis-broker", "redis-cache", "optimizer", "codegen", "frontend", "worker-cpu-0")


def test_whatever_is_stopped_is_replaced_and_told_meanwhile(tmp_path: Path) -> None:
    """All at once, and one worker's pool: nobody's return waits for another one's."""
    environment = {"KERNELFARM_PROBE_EVERY_S": "0.5", "KERNELFARM_HUNG_AFTER_S": "4"}
    with running_farm(tmp_path, workers=2, **environment) as farm:
        stopped = {kind: farm.children(kind)[kind] for kind in KINDS}
        other = farm.children("worker-cpu-1")["worker-cpu-1"]
        pool = pool_process(other)
        assert pool
        for pid in (*stopped.values(), pool):
            os.kill(pid, signal.SIGSTOP)
        reported: set[str] = set()

        def are_back() -> bool:
            children = farm.status()["children"]
            reported.update(kind for kind in KINDS if not children[kind]["ready"])
            return all(farm.is_back(kind, pid) for kind, pid in stopped.items())

        wait_until(are_back, TIMEOUT_S, "new processes")
        assert reported == set(KINDS)
        wait_until(lambda: pool_process(other) not in {0, pool}, TIMEOUT_S, "a new pool process")
        assert farm.children("worker-cpu-1")["worker-cpu-1"] == other
        # The first may meet a service that has just come back.
        wait_until(lambda: ends_well(farm, 41), TIMEOUT_S, "a compilation")


@pytest.fixture(scope="module")
def hung_farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """A farm of its own; its times are an operator's."""
    with running_farm(tmp_path_factory.mktemp("hung"), workers=2) as running:
        compile_at(running.endpoint, h_request(40, 128))
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, "pools"])
def test_the_farm_serves_30_s_after_a_part_of_it_was_stopped(hung_farm: Farm, kind: str) -> None:
    """A call that comes meanwhile ends in time too, with its result or with a status."""
    rows = 50 + 2 * [*KINDS, "pools"].index(kind)
    wait_until(lambda: all_serve(hung_farm), TIMEOUT_S, "the whole farm")
    workers = hung_farm.children("worker-cpu").values()
    stopped = [pool_process(w) for w in workers] if kind == "pools" else [hung_farm.pids(kind)[0]]
    assert all(stopped)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    stopped_s = time.monotonic()
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(ends_well, hung_farm, rows)
        is_gone = lambda: not any(is_there(pid) for pid in stopped)  # noqa: E731
        wait_until(is_gone, TIMEOUT_S, f"the end of {kind}")
        wait_until(lambda: ends_well(hung_farm, rows + 1), TIMEOUT_S, "a compilation")
        took_s = time.monotonic() - stopped_s
        had_result = call.result()
        call_s = time.monotonic() - stopped_s
    print(f"{kind}: served after {took_s:.1f} s, call in between {had_result} {call_s:.1f} s")
    assert took_s < RECOVERY_S
    assert call_s < 2 * RECOVERY_S


def all_serve(farm: Farm) -> bool:
    return all(child["ready"] for child in farm.status()["children"].values())


def ends_well(farm: Farm, rows: int) -> bool:
    """True if a new program is compiled now; False if the call ends with a status."""
    try:
        with stub_of(farm.endpoint) as stub:
            events = list(stub.Compile(h_request(rows, 128), timeout=TIMEOUT_S))
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE, error
        return False
    return bool(events[-1].program.artifacts)


def pool_process(worker: int) -> int:
    """The process that compiles for a worker; 0 while it has none."""
    with contextlib.suppress(psutil.Error):  # one has just ended
        for process in psutil.Process(worker).children():
            if "_tracker import main" not in " ".join(process.cmdline()):
                return process.pid
    return 0


def is_there(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
