"""Many processes that want one cold program at the same moment, over real connections."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from kernelfarm.client.cache_admin import CacheAdmin
from tests.farm_process import Farm, running_farm

PROCESSES = 4
# The only kernel is a chain of so many functions: compiling it takes longer than all need to ask.
LINKS = 80


def test_a_herd_of_200_requests_compiles_a_program_once(farm: Farm) -> None:
    check_herd(farm.endpoint, 200, LINKS)


@pytest.mark.slow
def test_a_herd_of_1000_requests_at_two_gateways_compiles_a_program_once(tmp_path: Path) -> None:
    with running_farm(tmp_path / "farm", KERNELFARM_FRONTEND_PROCESSES="2") as farm:
        check_herd(farm.endpoint, 1000, LINKS + 1)


def check_herd(endpoint: str, calls: int, links: int) -> None:
    before = published(endpoint)
    command = (sys.executable, "-m", "tests.service.herd_client", endpoint)
    herd = [
        subprocess.Popen(
            (*command, str(calls // PROCESSES), str(links)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(PROCESSES)
    ]
    try:
        for process in herd:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in herd:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        answers = [json.loads(process.communicate(timeout=280)[0]) for process in herd]
    finally:
        for process in herd:
            process.kill()
            process.wait()
    outcomes: Counter[str] = Counter()
    for answer in answers:
        outcomes.update(answer["outcomes"])
    merged, hits = "CACHE_OUTCOME_MERGED", "CACHE_OUTCOME_HIT"
    assert outcomes["CACHE_OUTCOME_MISS"] == 1, outcomes
    assert outcomes[merged] + outcomes[hits] == calls - 1, outcomes
    assert outcomes[merged] > calls / 2, "the herd came too late to be one"
    assert sum(answer["jobs"] for answer in answers) == 1
    assert len({program for answer in answers for program in answer["programs"]}) == 1
    after = published(endpoint)
    made = {space: after[space] - before[space] for space in after if after[space] != before[space]}
    assert made == {1: 1, 2: 1}  # one kernel, one program


def published(endpoint: str) -> dict[int, int]:
    """Publications so far, by key space."""
    with CacheAdmin(endpoint) as admin:
        usage = admin.usage()
    return {space.space: space.counters["published"] for space in usage.spaces}
