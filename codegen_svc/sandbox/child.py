"""One compilation: a supervisor process, and under it the process that compiles.

The supervisor stays outside of the restrictions and touches nothing of the job: it ends the
compilation when the worker says so or is gone, when it uses too much memory or too many processes,
and reports how it ended and what it cost.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from codegen_svc.backends.contract import Backend
from codegen_svc.sandbox.level import Mechanism
from codegen_svc.sandbox.limits import Limits
from codegen_svc.sandbox.namespaces import enter_process_namespace
from codegen_svc.sandbox.outcome import outcome_of_error, outcome_of_variants
from codegen_svc.sandbox.process_tree import tree_usage
from codegen_svc.sandbox.restrictions import Confinement, confine, limit_processor_time
from codegen_svc.sandbox.system_calls import die_with_parent
from kernelfarm.targets import target_facts
from kernelfarm.wire.job import job_from_bytes

JOB_HEADER: Final = struct.Struct("<IIB")
"""Length of the job in bytes, processor seconds, how nice it is to others (0 to 19)."""

_LOOK_EVERY_MS: Final = 100
_LOG_CHARS: Final = 600


@dataclass(frozen=True, slots=True)
class ChildEnds:
    """A child's ends of its connections: job, result, and the supervisor's to the worker."""

    job: int
    result: int
    supervision: socket.socket


def run_child(backend: Backend, given: Confinement, base: Path, ends: ChildEnds) -> None:
    """Supervises one compilation; never returns."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        die_with_parent(signal.SIGKILL)
        if Mechanism.NAMESPACES in given.level.mechanisms:
            enter_process_namespace()
        folder = Path(tempfile.mkdtemp(dir=base))
        started_here, started_there = os.pipe()
        compiler = os.fork()
        if compiler == 0:
            os.close(started_here)
            ends.supervision.close()
            _compile_one(backend, given, folder, ends, started_there)
        for descriptor in (ends.job, ends.result, started_there):
            os.close(descriptor)
        _supervise(compiler, given.limits, folder, ends.supervision, started_here)
        shutil.rmtree(folder, ignore_errors=True)
        status = 0
    finally:
        os._exit(status)


def _compile_one(
    backend: Backend, given: Confinement, folder: Path, ends: ChildEnds, started: int
) -> None:
    """Confines itself, takes the job, hands the outcome over; never returns."""
    status = 1
    try:
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        _keep_only({0: os.open(os.devnull, os.O_RDONLY), 1: log, 2: log}, ends, started)
        scratch = folder / "tmp"
        scratch.mkdir()
        os.environ["HOME"] = os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
        confine(given, folder)
        job = _take_job(ends.job)
        os.write(started, b"!")
        _hand_over(ends.result, _outcome(backend, job, given.limits))
        status = 0
    finally:
        os._exit(status)


def _outcome(backend: Backend, job: bytes, limits: Limits) -> bytes:
    try:
        kernel, target_name = job_from_bytes(job)
        target = target_facts(target_name)
        return outcome_of_variants(backend.build(kernel, target), target.name)
    except BaseException as error:  # the edge of the process: every failure is told
        gc.collect()  # what filled the memory is let go of
        return outcome_of_error(error, limits)


def _keep_only(standard: dict[int, int], ends: ChildEnds, started: int) -> None:
    """Closes what was inherited, but standard streams and the job's own connections."""
    for number, descriptor in standard.items():
        os.dup2(descriptor, number)
    kept = sorted({0, 1, 2, ends.job, ends.result, started})
    for low, high in zip(kept, [*kept[1:], 1 << 20], strict=True):
        os.closerange(low + 1, high)


def _take_job(descriptor: int) -> bytes:
    """The job; from now on its own bounds hold."""
    with open(descriptor, "rb") as stream:
        header = stream.read(JOB_HEADER.size)
        if len(header) < JOB_HEADER.size:
            sys.exit(0)  # the worker ended without a job
        length, processor_s, niceness = JOB_HEADER.unpack(header)
        limit_processor_time(processor_s)
        os.nice(niceness)
        return stream.read(length)


def _hand_over(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.close(descriptor)


def _supervise(
    compiler: int, limits: Limits, folder: Path, worker: socket.socket, started: int
) -> None:
    """Waits for the compilation's end, brings it about where needed, and reports it."""
    handle = os.pidfd_open(compiler)
    reason = _await_end(compiler, handle, limits, worker, started)
    with contextlib.suppress(ProcessLookupError):
        # Its group too: where it has no process namespace, what it started would outlive it.
        os.killpg(compiler, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(compiler, signal.SIGKILL)
    _, status, usage = os.wait4(compiler, 0)
    record = {
        "exit": os.waitstatus_to_exitcode(status),
        "ended_for": reason,
        "processor_s": usage.ru_utime + usage.ru_stime,
        "peak_bytes": usage.ru_maxrss << 10,
        "log": _tail(folder / "log"),
    }
    with contextlib.suppress(OSError):
        worker.sendall(json.dumps(record).encode())


def _await_end(
    compiler: int, handle: int, limits: Limits, worker: socket.socket, started: int
) -> str:
    """Why the compilation is over: empty if it ended by itself."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.register(worker, select.POLLIN)
    poll.register(started, select.POLLIN)
    pause_ms = None
    while True:
        ready = {descriptor for descriptor, _ in poll.poll(pause_ms)}
        if handle in ready:
            return ""
        if worker.fileno() in ready:
            return "worker"
        if started in ready:
            poll.unregister(started)
            pause_ms = _LOOK_EVERY_MS
        usage = tree_usage(compiler)
        if usage.tasks > limits.processes:
            return "processes"
        if usage.memory_bytes > limits.memory_bytes:
            return "memory"


def _tail(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError:
        return ""
    return content[-_LOG_CHARS:].decode(errors="replace")
