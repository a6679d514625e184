"""Replays one input in a forked process with limits, which protect the caller."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from kernelfarm.service.collector import collect_rarely
from tests.fuzz.trial_child import signature_of
from tests.fuzz.trial_runner import Limits
from tests.fuzz.trials import TRIALS, Trial, attempt

_MOST_WALL = 20.0
"""Wall seconds for each second of processor time: a busy machine is no hang."""


def trials_of(path: Path) -> tuple[Trial, ...]:
    """The trials for messages of a file's folder."""
    return tuple(trial for trial in TRIALS if trial.message == path.parent.name)


def replay(trial: Trial, data: bytes, limits: Limits) -> str:
    """The fault of a trial on an input; empty if there is none."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _in_child(trial, data, limits, lambda reported: os.write(writing, reported.encode()[:4000]))
    os.close(writing)
    reported = _read_all(reading, time.monotonic() + limits.cpu_s * _MOST_WALL)
    if reported is None:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if reported is None or status:
        return f"{trial.name}: took more than {limits.cpu_s:.0f} s, or died with status {status}"
    return reported


def replay_files(paths: tuple[Path, ...], cpu_s: float) -> dict[str, list[str]]:
    """The faults of each file's trials, by path, replayed by a new Python process.

    A fork of a test process would inherit the locks of its threads and the modules, memos and
    garbage of other tests, which services do not have.
    """
    command = [sys.executable, "-m", "tests.fuzz.replay", str(cpu_s), *map(str, paths)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    faults: dict[str, list[str]] = json.loads(done.stdout)
    return faults


def main() -> None:
    """Replays the files of the command line and prints their faults as JSON."""
    cpu_s, *paths = sys.argv[1:]
    limits = Limits(cpu_s=float(cpu_s))
    faults = {
        path: [replay(trial, Path(path).read_bytes(), limits) for trial in trials_of(Path(path))]
        for path in paths
    }
    print(json.dumps(faults))


def _in_child(trial: Trial, data: bytes, limits: Limits, report: Callable[[str], int]) -> None:
    status = 1
    try:
        used_s = resource.getrusage(resource.RUSAGE_SELF)
        most_s = int(used_s.ru_utime + used_s.ru_stime + limits.cpu_s + 1)
        resource.setrlimit(resource.RLIMIT_CPU, (most_s, most_s))
        resource.setrlimit(resource.RLIMIT_AS, (limits.rss_bytes * 4, limits.rss_bytes * 4))
        collect_rarely()  # as in the services; else collections would traverse all tests
        attempt(trial, data)
        status = 0
    except Exception as error:
        report(signature_of(trial, error))
        status = 0
    finally:
        os._exit(status)


def _read_all(reading: int, until_s: float) -> str | None:
    """The output of the child until it ended; None if it did not end in time."""
    reported = b""
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while True:
            ready, _, _ = select.select([pipe], [], [], max(0.0, until_s - time.monotonic()))
            if not ready:
                return None
            data = pipe.read(4096)
            if not data:
                return reported.decode(errors="replace")
            reported += data


if __name__ == "__main__":
    main()
