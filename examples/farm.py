"""A whole farm as a child process: `kernelfarm up` on loopback."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

STOP_TIMEOUT_S = 30


@dataclass(frozen=True)
class StartedFarm:
    """A farm that serves at `endpoint`; `data_dir` holds its keys, logs and status file."""

    endpoint: str
    data_dir: Path
    process: subprocess.Popen[str]

    @property
    def keys(self) -> Path:
        """The folder of the farm's keys."""
        return self.data_dir / "keys"

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """The exit status after SIGTERM, on which the farm drains.

        Raises:
            subprocess.TimeoutExpired: the farm did not end in time.
        """
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)


def start_farm(
    data_dir: Path,
    *flags: str,
    listen: str = "127.0.0.1:0",
    prefix: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> StartedFarm:
    """A farm that has reported READY; the caller ends it.

    `flags` are flags of `kernelfarm up`, `prefix` stands before the command, `environment` is added
    to this process's environment. `log` receives stderr, by default `up.log` in the data folder.

    Raises:
        RuntimeError: the farm ended before it was ready; the message holds the end of its log.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    command = [*prefix, sys.executable, "-m", "kernelfarm.cli", "up", "--listen", listen]
    command += ["--data-dir", str(data_dir), *flags]
    log = log or data_dir / "up.log"
    with log.open("a") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **(environment or {})},
        )
    assert process.stdout is not None
    with process.stdout as reported:
        line = reported.readline()
    if not line.startswith("READY "):
        process.wait()
        raise RuntimeError(f"the farm did not start:\n{log.read_text()[-4000:]}")
    return StartedFarm(line.split()[1], data_dir, process)


@contextlib.contextmanager
def running_farm(vendors: str = "cpu,cuda,rocm,ascend") -> Iterator[StartedFarm]:
    """A farm with an empty cache in a temporary folder; it is stopped at the end.

    Raises:
        RuntimeError: the farm did not start; the message holds the end of its log.
    """
    with tempfile.TemporaryDirectory(prefix="kernelfarm-") as folder:
        farm = start_farm(Path(folder), "--vendors", vendors)
        try:
            yield farm
        finally:
            farm.stop()
