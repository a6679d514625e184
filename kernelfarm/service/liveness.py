"""Proof that a process works: a file that it touches again and again while it does.

`python -m kernelfarm.service.liveness FILE` exits with 0 while the file is fresh: a probe for
containers, which needs neither a network nor more than Python itself.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FRESH_S = 5.0
"""An older heartbeat proves nothing. Processes touch their files each second."""

_STATE_BYTES = 16


class HeartbeatFile:
    """The file of one process; `beat` writes no new block, so that a full disk does not matter."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._state = ""

    def beat(self, state: str) -> None:
        """Tells that the process works, and in which state of at most 16 letters it is."""
        with suppress(OSError):  # without a beat the process counts as stopped: that is seen
            if state != self._state:
                os.pwrite(self._file, state.encode().ljust(_STATE_BYTES), 0)
                self._state = state
            os.utime(self._file)

    def close(self) -> None:
        """Closes the file; it stays."""
        os.close(self._file)


@dataclass(frozen=True, slots=True)
class HeartbeatStatus:
    """What a heartbeat file tells: the state of the process, and how long ago."""

    state: str
    age_s: float

    @property
    def is_fresh(self) -> bool:
        """True if the process worked a moment ago; a clock that was set back proves nothing."""
        return abs(self.age_s) <= FRESH_S


def read_heartbeat(path: Path) -> HeartbeatStatus | None:
    """What the file tells now; None without a file."""
    try:
        with path.open("rb") as file:
            age_s = time.time() - os.fstat(file.fileno()).st_mtime
            return HeartbeatStatus(
                file.read(_STATE_BYTES).decode("ascii", "replace").strip(), age_s
            )
    except OSError:
        return None


def main(argv: list[str]) -> int:
    """0 if the file's process works, else 1 and why on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m kernelfarm.service.liveness",
        description="Exits with 0 if the process that touches a file works, else with 1.",
        epilog="example: python -m kernelfarm.service.liveness /tmp/heartbeat --state serving",
    )
    parser.add_argument("file", type=Path, help="the worker's KERNELFARM_WORKER_HEARTBEAT_FILE")
    parser.add_argument("--state", help="the process must be in this state, too")
    arguments = parser.parse_args(argv)
    beat = read_heartbeat(arguments.file)
    if beat is None:
        sys.stderr.write(f"no heartbeat: {arguments.file} cannot be read\n")
        return 1
    if not beat.is_fresh:
        sys.stderr.write(f"the last heartbeat was {beat.age_s:.0f} s ago; expected {FRESH_S} s\n")
        return 1
    if arguments.state is not None and beat.state != arguments.state:
        sys.stderr.write(f"the state is {beat.state!r}; expected {arguments.state!r}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
