"""A whole farm as a child process of the tests."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

# Longer than a slow and busy machine takes: only what never comes is waited for so long.
START_TIMEOUT_S = 240
STOP_TIMEOUT_S = 120
TIMEOUT_S = 120


@dataclass(frozen=True)
class Farm:
    """A farm that serves at `endpoint`; `data_dir` holds its logs and status file."""

    endpoint: str
    data_dir: Path
    process: subprocess.Popen[str]

    def status(self) -> dict[str, Any]:
        """What its status file says now."""
        return json.loads((self.data_dir / "farm.json").read_text())

    def pids(self, prefix: str) -> list[int]:
        """Process ids of the children whose names begin so; those that are down are left out."""
        children = self.status()["children"].items()
        return [c["pid"] for name, c in children if name.startswith(prefix) and c["pid"]]

    def children(self, prefix: str) -> dict[str, int]:
        """Process ids of the children whose names begin so, by name; all of them run."""
        children = self.status()["children"].items()
        return {name: child["pid"] for name, child in children if name.startswith(prefix)}

    def is_back(self, child: str, killed: int) -> bool:
        """True once a child serves again under another process id."""
        state = self.status()["children"][child]
        return state["ready"] and state["pid"] not in (None, killed)

    def log(self, child: str) -> str:
        """A child's log so far."""
        return (self.data_dir / "logs" / f"{child}.log").read_text()

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_TIMEOUT_S)


@contextlib.contextmanager
def running_farm(
    data_dir: Path,
    vendors: str = "cpu",
    *,
    frontends: int = 1,
    workers: int = 1,
    **environment: str,
) -> Iterator[Farm]:
    """A farm on a free port with an empty cache; stopped at the end if the test did not.

    One worker of the CPU queue unless told otherwise: each costs a farm seconds to start.
    """
    command = [sys.executable, "-m", "kernelfarm.cli", "up", "--listen", "127.0.0.1:0"]
    command += ["--vendors", vendors, "--data-dir", str(data_dir)]
    command += ["--frontends", str(frontends), "--workers", str(workers)]
    data_dir.mkdir(parents=True, exist_ok=True)
    log = data_dir / "up.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={
                "KERNELFARM_START_TIMEOUT_S": str(START_TIMEOUT_S),
                **os.environ,
                **environment,
            },
        )
    with process:
        try:
            yield Farm(_endpoint(process, log), data_dir, process)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(STOP_TIMEOUT_S)


def is_running(pid: int) -> bool:
    """Whether a process is there and has not ended (a zombie has)."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(holds: Callable[[], bool], timeout_s: float, what: str) -> float:
    """Seconds until the condition held; fails the test if it never does."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < timeout_s, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)
    return time.monotonic() - began


def _endpoint(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("READY "), f"the farm did not start:\n{log.read_text()[-4000:]}"
    return line.split()[1]


# The shared farm holds what all tests compiled: at an operator's rate tests would wait for sweeps.
QUICK_SWEEPS = {"KERNELFARM_SWEEP_KEYS_PER_S": "1000000"}


ACCELERATORS = ("ascend", "cuda", "rocm")
