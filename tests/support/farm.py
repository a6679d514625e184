"""A whole farm as a child process of the tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.farm import StartedFarm, start_farm
from tests.support.processes import kill_tree

# Longer than a slow and busy machine takes: a test that passes never waits so long.
START_TIMEOUT_S = 240
STOP_TIMEOUT_S = 120
TIMEOUT_S = 120

ACCELERATORS = ("ascend", "cuda", "rocm")

# A sweep at the rate of a production farm would make the tests that share a farm wait.
QUICK_SWEEPS = {"KERNELFARM_SWEEP_KEYS_PER_S": "1000000"}


@dataclass(frozen=True)
class Farm(StartedFarm):
    """A running farm, and what its status file and logs report."""

    def status(self) -> dict[str, Any]:
        """The present content of the status file."""
        return json.loads((self.data_dir / "farm.json").read_text())

    def children(self, prefix: str) -> dict[str, int]:
        """Process ids by name, of the children whose names begin so and that run."""
        children = self.status()["children"].items()
        return {
            name: child["pid"]
            for name, child in children
            if name.startswith(prefix) and child["pid"]
        }

    def pids(self, prefix: str) -> list[int]:
        """Process ids of the children whose names begin so and that run."""
        return list(self.children(prefix).values())

    def is_back(self, child: str, killed: int) -> bool:
        """True once a child serves again under another process id."""
        state = self.status()["children"][child]
        return state["ready"] and state["pid"] not in (None, killed)

    def log(self, child: str) -> str:
        """A child's log so far."""
        return (self.data_dir / "logs" / f"{child}.log").read_text()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """The exit status after SIGTERM, on which the farm drains."""
        return super().stop(timeout_s)


@contextlib.contextmanager
def running_farm(
    data_dir: Path,
    vendors: str = "cpu",
    *,
    frontends: int = 1,
    workers: int = 1,
    metrics: bool = False,
    **environment: str,
) -> Iterator[Farm]:
    """A farm on a free port with an empty cache; killed at the end if the test did not stop it.

    `workers` is the number of workers of the CPU queue: each costs a farm seconds to start.
    """
    flags = ["--vendors", vendors, "--frontends", str(frontends), "--workers", str(workers)]
    flags += ["--metrics"] if metrics else []
    # For what killed workers leave behind. Its path is short: sockets of the farm are in it.
    with tempfile.TemporaryDirectory(prefix="kf-", ignore_cleanup_errors=True) as temporary:
        added = {
            "KERNELFARM_START_TIMEOUT_S": str(START_TIMEOUT_S),
            "TMPDIR": temporary,
            **environment,
        }
        started = start_farm(data_dir, *flags, environment=added)
        farm = Farm(started.endpoint, started.data_dir, started.process)
        try:
            yield farm
        finally:
            if farm.process.poll() is None:
                kill_tree(farm.process.pid)
                farm.process.wait()


def wait_until(
    holds: Callable[[], bool], timeout_s: float, what: str, every_s: float = 0.02
) -> float:
    """Seconds until the condition held; fails the test if it never does."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < timeout_s, f"not within {timeout_s} s: {what}"
        time.sleep(every_s)
    return time.monotonic() - began


async def until(
    holds: Callable[[], bool], what: str = "the condition", timeout_s: float = TIMEOUT_S
) -> None:
    """As `wait_until`, while other tasks of the test's event loop run."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < timeout_s, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.01)
