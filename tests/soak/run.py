"""A farm under load for many requests, with samples of its resources."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import psutil

from kernelfarm.cache.embedded import ServerRole
from tests.soak.load import REPORT_EVERY
from tests.support.attacked_farm import Attacked, Credential, attacked_farm
from tests.support.memory_samples import MIB, Growth, Sample, growth_of, take_samples
from tests.support.redis_of_process import client_of, socket_of

EXPECTED = frozenset({"OK", "UNAUTHENTICATED", "INVALID_ARGUMENT"})
SELDOM = frozenset({"NOT_FOUND", "UNAVAILABLE"})
MOST_SELDOM = 0.001
"""Share of all calls: a full cache may evict a program at any time."""

_CACHE_BYTES = 8 * MIB

_SETTINGS = {
    "KERNELFARM_GATEWAY_CACHE_BYTES": str(2 * MIB),
    "KERNELFARM_VERIFIED_BYTES": str(2 * MIB),
    "KERNELFARM_REJECTION_TTL_S": "20",
}


def soak(requests: int, samples: int, folder: Path) -> tuple[list[Growth], dict[str, int]]:
    """The growth of each process tree, and calls by status."""
    taken: dict[str, list[Sample]] = defaultdict(list)
    every = max(REPORT_EVERY, requests // samples)
    with attacked_farm(folder, "cpu", **_SETTINGS) as attacked:
        _limit_cache(attacked)
        with _load(attacked, requests) as load:
            assert load.stdout is not None
            due, last = 0, ""
            for last in load.stdout:
                if last.strip().isdigit() and int(last) >= due:
                    due += every
                    for sample in take_samples(attacked.farm, int(last)):
                        taken[sample.part].append(sample)
        statuses = json.loads(last)
    return [growth_of(series) for series in taken.values()], statuses


def unexpected_statuses(statuses: dict[str, int]) -> list[str]:
    """Statuses that no call may end with, and those of `SELDOM` that are too many."""
    most = MOST_SELDOM * sum(statuses.values())
    return sorted(
        f"{calls} {status}"
        for status, calls in statuses.items()
        if status not in EXPECTED and (status not in SELDOM or calls > most)
    )


def _limit_cache(attacked: Attacked) -> None:
    """Sets a small limit on the memory of the cache's server."""
    (pid,) = attacked.farm.pids(f"redis-{ServerRole.CACHE.value}")
    with client_of(socket_of(psutil.Process(pid))) as client:
        client.config_set("maxmemory", _CACHE_BYTES)


def _load(attacked: Attacked, requests: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.soak.load", attacked.farm.endpoint, str(requests)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(attacked.attackers[Credential.MEMBER] + "\n")
    process.stdin.close()
    return process
