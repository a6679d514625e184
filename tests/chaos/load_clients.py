"""The load processes, and every call that they told of."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tests.chaos.call_journal import NO_NUMBERS
from tests.chaos.farm_under_test import Ground

MARGIN_S = 5.0
"""By how much a call may exceed its limit: on a busy machine a client's threads wait, too."""


@dataclass
class Call:
    """One call; `end_s` is None while it runs."""

    source: str
    kind: str
    limit_s: float
    begin_s: float
    end_s: float | None = None
    status: str = ""
    verdict: str = NO_NUMBERS
    detail: str = ""
    is_told: bool = False
    """A call that never ends is told once, though it is seen after each fault."""

    def is_late(self, now_s: float) -> bool:
        """True if it had neither answer nor status in time."""
        return (self.end_s or now_s) - self.begin_s > self.limit_s + MARGIN_S


@dataclass(frozen=True)
class LoadProcess:
    """A load process: its name, its command, and what its environment has beside the others'."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


def usual_load(ground: Ground, seed: int) -> list[LoadProcess]:
    """gRPC callers, and models in two modes; the second one keeps programs on a disk."""
    caller = ("-m", "tests.chaos.grpc_load", ground.endpoint, str(seed))
    on_disk = {"KERNELFARM_DISK_CACHE_BYTES": str(1 << 30)}
    return [
        LoadProcess("grpc", caller),
        LoadProcess("wait", ("-m", "tests.chaos.torch_load", "wait", str(2 * seed + 1))),
        LoadProcess("strict", ("-m", "tests.chaos.torch_load", "strict", str(2 * seed)), on_disk),
    ]


class Crowd:
    """Runs load processes; as a context it ends them."""

    def __init__(self, ground: Ground, load: Sequence[LoadProcess], folder: Path) -> None:
        self._ground = ground
        self._folder = folder
        self._lock = threading.Lock()
        self._open: dict[tuple[str, int, int], Call] = {}
        self._ended: list[Call] = []
        self._threads: list[threading.Thread] = []
        self._load = {process.name: process for process in load}
        self._processes = {name: self._start(process) for name, process in self._load.items()}

    def __enter__(self) -> Crowd:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes.values():
            _end(process)
        for thread in self._threads:
            thread.join()

    def ask_for_slow_programs(self) -> None:
        """Tells the gRPC callers."""
        process = self._processes["grpc"]
        assert process.stdin is not None
        process.stdin.write("slow\n")
        process.stdin.flush()

    def dead(self) -> list[str]:
        """Load processes that ended by themselves, which none may."""
        return [name for name, process in self._processes.items() if process.poll() is not None]

    def replace_stuck(self) -> None:
        """Starts load processes anew that hold a call which never ends; the call was told."""
        with self._lock:
            stuck = {call.source for call in self._open.values() if call.is_told}
        for name in stuck:
            _end(self._processes[name])
            with self._lock:
                self._open = {at: call for at, call in self._open.items() if at[0] != name}
            self._processes[name] = self._start(self._load[name])

    def calls(self, since_s: float = 0.0) -> list[Call]:
        """Calls that ended since, and those that run."""
        with self._lock:
            ended = [call for call in self._ended if (call.end_s or 0.0) >= since_s]
            return [*ended, *self._open.values()]

    def service_s(self, kind: str, since_s: float, in_a_row: int = 3) -> float | None:
        """When so many calls in a row, begun since, were served: the end of the first; or None."""
        chosen = sorted(
            (call for call in self.calls(since_s) if call.kind == kind and call.begin_s >= since_s),
            key=lambda call: call.begin_s,
        )
        for first in range(len(chosen) - in_a_row + 1):
            row = chosen[first : first + in_a_row]
            if all(call.status == "OK" and call.end_s for call in row):
                return row[0].end_s
        return None

    def _start(self, load: LoadProcess) -> subprocess.Popen[str]:
        with (self._folder / f"load-{load.name}.log").open("a") as log:
            process = subprocess.Popen(
                [*self._ground.client_prefix(), sys.executable, *load.command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**self._ground.client_environment(), **load.environment},
            )
        thread = threading.Thread(target=self._read, args=(load.name, process), daemon=True)
        thread.start()
        self._threads.append(thread)
        return process

    def _read(self, name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                if not line.endswith("}\n"):  # it was killed in the middle of a line
                    continue
                reported = json.loads(line)
                with self._lock:
                    self._take((name, process.pid), reported)

    def _take(self, process: tuple[str, int], reported: dict[str, object]) -> None:
        at = (*process, int(str(reported["id"])))
        time_s = float(str(reported["time_s"]))
        if reported["event"] == "begin":
            limit_s = float(str(reported["limit_s"]))
            self._open[at] = Call(process[0], str(reported["kind"]), limit_s, time_s)
            return
        call = self._open.pop(at, None)
        if call is None:  # its process was replaced
            return
        call.end_s = time_s
        call.status, call.verdict = str(reported["status"]), str(reported["verdict"])
        call.detail = str(reported["detail"])
        self._ended.append(call)


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


def now_s() -> float:
    """The time in the clock of all journals."""
    return time.monotonic()
