"""A heartbeat file, which a process touches again and again while it works.

`python -m kernelfarm.service.liveness FILE` exits with 0 while the file is fresh. Containers use it
as a probe, because it needs neither a network nor any package.
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
"""The age at which a heartbeat counts as stopped. Processes touch their files each second."""

_STATE_BYTES = 16


class HeartbeatFile:
    """The file of one process; `beat` needs no new disk block, so it works on a full disk."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._state = ""

    def beat(self, state: str) -> None:
        """Records that the process works, and its state, a word of at most 16 letters."""
        with suppress(OSError):  # without a beat the process counts as stopped
            if state != self._state:
                os.pwrite(self._file, state.encode().ljust(_STATE_BYTES), 0)
                self._state = state
            os.utime(self._file)

    def close(self) -> None:
        """Closes the file; it stays."""
        os.close(self._file)


@dataclass(frozen=True, slots=True)
class HeartbeatStatus:
    """The content of a heartbeat file: the state of the process, and the age of the last beat."""

    state: str
    age_s: float

    @property
    def is_fresh(self) -> bool:
        """True if the last beat is recent; a beat in the future, after a clock change, is not."""
        return abs(self.age_s) <= FRESH_S


def read_heartbeat(path: Path) -> HeartbeatStatus | None:
    """The current status of a heartbeat file; None if it cannot be read."""
    try:
        with path.open("rb") as file:
            age_s = time.time() - os.fstat(file.fileno()).st_mtime
            return HeartbeatStatus(
                file.read(_STATE_BYTES).decode("ascii", "replace").strip(), age_s
            )
    except OSError:
        return None


def main(argv: list[str]) -> int:
    """Returns 0 if the file's process works; else 1, with the reason on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m kernelfarm.service.liveness",
        description="Exits with 0 if the process of a heartbeat file works, else with 1.",
        epilog="example: python -m kernelfarm.service.liveness /tmp/heartbeat --state serving",
    )
    parser.add_argument("file", type=Path, help="the worker's KERNELFARM_WORKER_HEARTBEAT_FILE")
    parser.add_argument(
        "--state",
        action="append",
        default=[],
        help="also require that the process is in this state; repeatable, for one of several",
    )
    arguments = parser.parse_args(argv)
    beat = read_heartbeat(arguments.file)
    if beat is None:
        sys.stderr.write(f"no heartbeat: {arguments.file} cannot be read\n")
        return 1
    if not beat.is_fresh:
        sys.stderr.write(
            f"the last heartbeat was {beat.age_s:.0f} s ago; expected at most {FRESH_S:g} s\n"
        )
        return 1
    if arguments.state and beat.state not in arguments.state:
        sys.stderr.write(f"the state is {beat.state!r}; expected {' or '.join(arguments.state)}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
