"""The load processes, and every call that they reported."""

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
from typing import Any

from tests.chaos.call_journal import NO_NUMBERS
from tests.chaos.farm_under_test import FarmUnderTest
from tests.support.torch_children import start_python

MARGIN_S = 5.0
"""By how much a call may exceed its limit: on a busy machine, threads of clients wait too."""


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
    is_reported: bool = False
    """A call that never ends is reported once, though every later episode contains it."""

    def is_late(self, now_s: float) -> bool:
        """True if it had neither response nor status in time."""
        return (self.end_s or now_s) - self.begin_s > self.limit_s + MARGIN_S


@dataclass(frozen=True)
class LoadProcess:
    """A load process: its name, Python's arguments, and its additions to the environment."""

    name: str
    arguments: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


def strict_load(farm: FarmUnderTest, seed: int) -> list[LoadProcess]:
    """gRPC callers, and strict models with a disk tier."""
    caller = ("-m", "tests.chaos.grpc_load", farm.endpoint, str(seed))
    on_disk = {"KERNELFARM_DISK_CACHE_BYTES": str(1 << 30)}
    return [
        LoadProcess("grpc", caller),
        LoadProcess("strict", ("-m", "tests.chaos.torch_load", "strict", str(2 * seed)), on_disk),
    ]


def usual_load(farm: FarmUnderTest, seed: int) -> list[LoadProcess]:
    """That of `strict_load`, and models that wait for the farm."""
    waiting = ("-m", "tests.chaos.torch_load", "wait", str(2 * seed + 1))
    return [*strict_load(farm, seed), LoadProcess("wait", waiting)]


class LoadClients:
    """Runs load processes; the end of the context ends them."""

    def __init__(self, farm: FarmUnderTest, load: Sequence[LoadProcess], folder: Path) -> None:
        self._farm = farm
        self._folder = folder
        self._lock = threading.Lock()
        self._open: dict[tuple[str, int, int], Call] = {}
        self._ended: list[Call] = []
        self._threads: list[threading.Thread] = []
        self._load = {process.name: process for process in load}
        self._processes = {name: self._start(process) for name, process in self._load.items()}

    def __enter__(self) -> LoadClients:
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
        """Makes the gRPC callers request slow programs."""
        process = self._processes["grpc"]
        assert process.stdin is not None
        process.stdin.write("slow\n")
        process.stdin.flush()

    def dead(self) -> list[str]:
        """Load processes that ended by themselves, which is an error."""
        return [name for name, process in self._processes.items() if process.poll() is not None]

    def replace_stuck(self) -> None:
        """Restarts load processes with a call that never ends, after the call was reported."""
        with self._lock:
            stuck = {call.source for call in self._open.values() if call.is_reported}
        for name in stuck:
            _end(self._processes[name])
            with self._lock:
                self._open = {at: call for at, call in self._open.items() if at[0] != name}
            self._processes[name] = self._start(self._load[name])

    def calls(self, since_s: float = 0.0) -> list[Call]:
        """Calls that ended since then, and calls that run."""
        with self._lock:
            ended = [call for call in self._ended if (call.end_s or 0.0) >= since_s]
            return [*ended, *self._open.values()]

    def service_s(self, kind: str, since_s: float, in_a_row: int = 3) -> float | None:
        """The end of the first of `in_a_row` calls that began since then and succeeded; or None."""
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
            environment = {**self._farm.client_environment(), **load.environment}
            pipe = subprocess.PIPE
            streams: Any = {"stdin": pipe, "stdout": pipe, "stderr": log, "text": True}
            prefix = self._farm.client_prefix()
            if "tests.chaos.torch_load" in load.arguments and not prefix:
                process = start_python(load.arguments, environment, **streams)
            else:
                command = [*prefix, sys.executable, *load.arguments]
                process = subprocess.Popen(command, env=environment, **streams)
        thread = threading.Thread(target=self._read, args=(load.name, process), daemon=True)
        thread.start()
        self._threads.append(thread)
        return process

    def _read(self, name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                if not line.endswith("}\n"):  # the process was killed while it wrote the line
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
    """The time of the clock that all journals use."""
    return time.monotonic()
