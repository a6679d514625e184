"""A whole farm as a child process, for benchmarks and the demo."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 30


@contextlib.contextmanager
def running_farm(vendors: str = "cpu,cuda,rocm,ascend") -> Iterator[str]:
    """The endpoint of a farm with an empty cache; it is stopped at the end.

    Raises:
        RuntimeError: the farm did not come up; the message holds what it printed.
    """
    with running_farm_with_keys(vendors) as (endpoint, _):
        yield endpoint


@contextlib.contextmanager
def running_farm_with_keys(vendors: str) -> Iterator[tuple[str, Path]]:
    """As `running_farm`; also the folder of the farm's keys."""
    with tempfile.TemporaryDirectory(prefix="kernelfarm-") as data:
        command = [sys.executable, "-m", "kernelfarm.cli", "up", "--listen", "127.0.0.1:0"]
        command += ["--vendors", vendors, "--data-dir", data]
        log = Path(data) / "up.log"
        with log.open("w") as errors:
            farm = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            yield _wait_ready(farm, log), Path(data) / "keys"
        finally:
            farm.send_signal(signal.SIGTERM)
            farm.wait(STOP_TIMEOUT_S)


def _wait_ready(farm: subprocess.Popen[str], log: Path) -> str:
    assert farm.stdout is not None
    for line in farm.stdout:
        if line.startswith("READY "):
            return line.split()[1]
    raise RuntimeError(f"the farm did not start:\n{log.read_text()[-4000:]}")
