"""Runs tasks in a worker process and replaces it when a sample crashes or hangs."""

from __future__ import annotations

import json
import select
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from tests.support.torch_children import start_python
from tests.sweep.records import Outcome, Record, done_line
from tests.sweep.samples import Task

START_S = 120.0
"""Longest time for a worker to import torch and its operator database."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Samples of each task, and seconds: for one sample, and for the whole sweep."""

    count: int = 8
    sample_s: float = 60.0
    budget_s: float = float("inf")


class Sweep:
    """Runs tasks one after the other; `write` gets each finished line."""

    def __init__(
        self, write: Callable[[str], None], limits: Limits, seed: int, endpoint: str = ""
    ) -> None:
        self._write = write
        self._limits = limits
        self._seed = seed
        self._endpoint = endpoint
        self._worker: _Worker | None = None

    def run(self, tasks: Iterable[Task], recorded: dict[Task, set[int]]) -> int:
        """Runs tasks until the budget is spent; gives how many were finished."""
        deadline_s = time.monotonic() + self._limits.budget_s
        finished = 0
        try:
            for task in tasks:
                if time.monotonic() > deadline_s:
                    break
                skip = set(recorded.get(task, ()))
                while not self._run_once(task, skip):
                    pass
                finished += 1
        finally:
            self._stop()
        return finished

    def _run_once(self, task: Task, skip: set[int]) -> bool:
        """True if the task came to its end; else the sample that broke it is in `skip`."""
        if self._worker is None:
            self._worker = _Worker(self._endpoint)
        worker = self._worker
        worker.send(
            {**asdict(task), "seed": self._seed, "count": self._limits.count, "skip": sorted(skip)}
        )
        begun = -1
        while True:
            message = worker.read(self._limits.sample_s)
            if isinstance(message, Outcome):
                self._stop()
                reason = worker.end_of(message)
                record = Record(task.op, task.dtype, task.mode, begun, self._seed, message, reason)
                self._write(record.line())
                if begun < 0:  # making the samples broke it: there is nothing to go on with
                    self._write(done_line(task))
                    return True
                skip.add(begun)
                return False
            if "begin" in message:
                begun = message["begin"]
                continue
            self._write(json.dumps(message))
            if "done" in message:
                return True

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.stop()
            self._worker = None


class _Worker:
    """One worker process and its pipes."""

    def __init__(self, endpoint: str) -> None:
        arguments = ["-m", "tests.sweep.worker", *([endpoint] if endpoint else [])]
        self._process = start_python(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._rest = b""
        if isinstance(self.read(START_S), Outcome):
            raise RuntimeError("the sweep's worker does not start: run `-m tests.sweep.worker`")

    def send(self, message: dict[str, Any]) -> None:
        """Hands a task over."""
        if self._process.stdin is None:
            raise RuntimeError("the worker has no input")
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def read(self, timeout_s: float) -> dict[str, Any] | Outcome:
        """The next message; CRASH if the process ended, HANG if none came in time."""
        deadline_s = time.monotonic() + timeout_s
        if self._process.stdout is None:
            raise RuntimeError("the worker has no output")
        output = self._process.stdout.fileno()
        while b"\n" not in self._rest:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([output], [], [], left_s)[0]:
                return Outcome.HANG
            chunk = self._process.stdout.read1(65536)  # type: ignore[attr-defined] # BufferedReader
            if not chunk:
                return Outcome.CRASH
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def end_of(self, outcome: Outcome) -> str:
        """Says how the process came to its end; it has been stopped."""
        if outcome is Outcome.HANG:
            return "no answer in time"
        return f"the process ended with status {self._process.returncode}"

    def stop(self) -> None:
        """Ends the process, gently if it idles."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
