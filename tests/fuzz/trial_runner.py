"""Runs trials in child processes: if one hangs, grows or crashes, that is a finding."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil

from tests.fuzz.corpus import keep
from tests.fuzz.trial_child import SHARED_BYTES, Shared
from tests.fuzz.trials import TRIALS

ROOT = Path(__file__).resolve().parents[2]
_START_CPU_S = 120.0
"""For the start of a child, which imports the services and reads the corpus."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on one input: processor time, and memory of the process."""

    cpu_s: float = 10.0
    rss_bytes: int = 1 << 30


DEFAULT_LIMITS = Limits()


@dataclass(slots=True)
class Findings:
    """The results of a run."""

    seed: int
    results: Counter[str] = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=dict)
    failures: dict[str, list[str]] = field(default_factory=dict)

    @property
    def taken(self) -> int:
        """How many inputs have ended."""
        return self.results.total()

    def add_failure(self, signature: str, path: str) -> None:
        """Stores a failure, and prints the first of its kind at once: a run may take hours."""
        if signature not in self.failures:
            print(f"FAILED {signature}\n       {path}", flush=True)
        self.failures.setdefault(signature, []).append(path)


@dataclass(frozen=True, slots=True)
class Plan:
    """The inputs of a run: all numbers below `messages`, or until the time is up."""

    seed: int
    messages: int
    seconds: float
    trials: tuple[str, ...]
    failures: Path
    jobs: int = 1
    first: int = 0
    limits: Limits = DEFAULT_LIMITS


def run_trials(plan: Plan) -> Findings:
    """Tries the inputs in `jobs` child processes; an interrupt ends the run early."""
    findings = Findings(plan.seed)
    until_s = time.time() + plan.seconds
    with tempfile.TemporaryDirectory() as folder:
        children = [_Child(plan, number, until_s, Path(folder)) for number in range(plan.jobs)]
        try:
            while any([child.step(findings) for child in children]):
                time.sleep(0.05)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        finally:
            for child in children:
                child.end()
    return findings


class _Child:
    """One child process, restarted after each input that ended it."""

    def __init__(self, plan: Plan, number: int, until_s: float, folder: Path) -> None:
        self._plan = plan
        self._until_s = until_s
        self._shared_path = folder / f"{number}.now"
        self._stacks_path = folder / f"{number}.err"
        self._next = plan.first + number
        self._tail = b""
        self._is_done = False
        self._start()

    def _start(self) -> None:
        self._shared_path.write_bytes(b"\xff" * 8 + bytes(SHARED_BYTES - 8))
        self._shared = Shared(self._shared_path)
        self._seen, self._seen_cpu_s = -1, 0.0
        self._stacks: IO[bytes] = self._stacks_path.open("wb")
        self._process = subprocess.Popen(
            self._command(), cwd=ROOT, stdout=subprocess.PIPE, stderr=self._stacks
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._watched = psutil.Process(self._process.pid)

    def _command(self) -> list[str]:
        plan = self._plan
        facts = {
            "seed": plan.seed,
            "first": self._next,
            "step": plan.jobs,
            "end": plan.messages,
            "until": self._until_s,
            "trials": ",".join(plan.trials),
            "shared": self._shared_path,
            "failures": plan.failures,
        }
        words = [word for name, fact in facts.items() for word in (f"--{name}", str(fact))]
        return [sys.executable, "-m", "tests.fuzz.trial_child", *words]

    def step(self, findings: Findings) -> bool:
        """Checks the child once; False when it is done."""
        if self._is_done:
            return False
        status = self._process.poll()
        self._read(findings)
        if self._is_done:
            return False
        if status is not None:
            self._lost(findings, f"died with status {status}")
        elif (fault := self._fault()) is not None:
            self._lost(findings, fault)
        return not self._is_done

    def end(self) -> None:
        """Kills the child if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._stacks.close()

    def _fault(self) -> str | None:
        """The child's present fault, if it has one."""
        try:
            times, memory = self._watched.cpu_times(), self._watched.memory_info()
        except psutil.NoSuchProcess:
            return None
        cpu_s = times.user + times.system
        number, _ = self._shared.now()
        if number != self._seen:
            self._seen, self._seen_cpu_s = number, cpu_s
        most_s = _START_CPU_S if number >= 2**63 else self._plan.limits.cpu_s
        if cpu_s - self._seen_cpu_s > most_s:
            return f"took more than {most_s:.0f} s"
        if memory.rss > self._plan.limits.rss_bytes:
            return f"took more than {self._plan.limits.rss_bytes >> 20} MiB"
        return None

    def _lost(self, findings: Findings, fault: str) -> None:
        """Stores the input that ended the child, and restarts the child after it."""
        number, data = self._shared.now()
        position = self._where()
        self._read(findings)
        self.end()
        stacks = self._stacks_path.read_text(errors="replace")
        assert number < 2**63, f"a child ended before its first input: {fault}\n{stacks[-3000:]}"
        trials = [trial for trial in TRIALS if trial.name in self._plan.trials]
        trial = trials[number % len(trials)]
        path = keep(trial.message, data, self._plan.failures, f"{trial.name}-lost")
        findings.add_failure(f"{trial.name}: {fault} in {position}", str(path))
        findings.results[f"{trial.name} FAILED"] += 1
        self._next = number + self._plan.jobs
        if time.time() >= self._until_s or self._next >= self._plan.messages:
            self._is_done = True
        else:
            self._start()

    def _where(self) -> str:
        """Where the child hangs, by its stack trace."""
        if self._process.poll() is not None:
            return "?"
        self._process.send_signal(signal.SIGUSR1)
        for _ in range(40):
            lines = self._stacks_path.read_text(errors="replace").splitlines()
            frames = [line.strip() for line in lines if str(ROOT) in line]
            if frames:
                return " < ".join(_short(frame) for frame in frames[:4])
            time.sleep(0.05)
        return "?"

    def _read(self, findings: Findings) -> None:
        """Reads the results that the child wrote."""
        assert self._process.stdout is not None
        while select.select([self._process.stdout], [], [], 0)[0]:
            data = self._process.stdout.read(1 << 16)
            if not data:
                break
            *lines, self._tail = (self._tail + data).split(b"\n")
            for line in lines:
                self._receive(json.loads(line), findings)

    def _receive(self, fact: dict[str, object], findings: Findings) -> None:
        if "failure" in fact:
            findings.add_failure(str(fact["failure"]), str(fact["path"]))
            return
        findings.results.update(fact["results"])  # type: ignore[arg-type]
        for name, took_s in fact["slowest"].items():  # type: ignore[attr-defined]
            findings.slowest[name] = max(findings.slowest.get(name, 0.0), took_s)
        self._is_done = self._is_done or bool(fact.get("done"))


def _short(frame: str) -> str:
    """`File "/root/a/b.py", line 7 in f` as `a/b.py:f`."""
    path, _, rest = frame.removeprefix('File "').partition('", line ')
    return f"{path.removeprefix(str(ROOT) + '/')}:{rest.rpartition(' in ')[2]}"
