"""Many processes that request one new program at the same moment, over real connections."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from kernelfarm.client.farm.cache_client import CacheAdmin
from kernelfarm.v1.manifest_pb2 import CACHE_SPACE_PROGRAMS
from tests.support.farm import TIMEOUT_S, Farm, running_farm, wait_until

PROCESSES = 4
# The length of the chain of functions that is the only kernel.
LINKS = 8


def test_200_equal_requests_at_once_compile_a_program_once(farm: Farm) -> None:
    check_burst(farm, 200, LINKS)


@pytest.mark.slow
def test_1000_equal_requests_at_two_gateways_compile_a_program_once(tmp_path: Path) -> None:
    with running_farm(tmp_path / "farm", KERNELFARM_FRONTEND_PROCESSES="2") as farm:
        check_burst(farm, 1000, LINKS + 1)


def check_burst(farm: Farm, calls: int, links: int) -> None:
    before, misses = published(farm.endpoint), missed(farm.endpoint)
    command = (sys.executable, "-m", "tests.e2e.burst_client", farm.endpoint)
    clients = [
        subprocess.Popen(
            (*command, str(calls // PROCESSES), str(links)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(PROCESSES)
    ]
    try:
        for process in clients:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        with stopped(farm.pids("worker-cpu")):  # nothing is compiled before all requests arrived
            for process in clients:
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            wait_until(lambda: missed(farm.endpoint) == misses + calls, TIMEOUT_S, "all requests")
        answers = [json.loads(process.communicate(timeout=280)[0]) for process in clients]
    finally:
        for process in clients:
            process.kill()
            process.wait()
    outcomes: Counter[str] = Counter()
    for answer in answers:
        outcomes.update(answer["outcomes"])
    assert outcomes == {"CACHE_OUTCOME_MISS": 1, "CACHE_OUTCOME_MERGED": calls - 1}
    assert sum(answer["jobs"] for answer in answers) == 1
    assert len({program for answer in answers for program in answer["programs"]}) == 1
    after = published(farm.endpoint)
    made = {space: after[space] - before[space] for space in after if after[space] != before[space]}
    assert made == {1: 1, 2: 1}  # one kernel, one program


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """Stops processes and their children while the block runs."""
    parents = [psutil.Process(pid) for pid in pids]
    processes = parents + [child for parent in parents for child in parent.children(recursive=True)]
    try:
        for process in processes:
            process.suspend()
        yield
    finally:
        for process in processes:
            process.resume()


def missed(endpoint: str) -> int:
    """How many look-ups of programs have missed so far."""
    with CacheAdmin(endpoint) as admin:
        (programs,) = (s for s in admin.usage().spaces if s.space == CACHE_SPACE_PROGRAMS)
    return programs.counters["misses"]


def published(endpoint: str) -> dict[int, int]:
    """How many publications there were so far, by key space."""
    with CacheAdmin(endpoint) as admin:
        usage = admin.usage()
    return {space.space: space.counters["published"] for space in usage.spaces}
