"""A supervisor process, and its child that compiles one or several kernels.

The supervisor is not restricted and never reads a job. It ends its child when the worker asks for
it or is gone, when the child uses too much memory or too many processes, and when the child has
waited too long for another job. It reports how the child ended and the processor time that it used.
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
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Final

from codegen_svc.backends.contract import Backend, built_variants
from codegen_svc.backends.stage_times import recorded_stages
from codegen_svc.sandbox.connection import (
    JOB_BEGINS,
    JOB_ENDED,
    JOB_HEADER,
    RESULT_HEADER,
)
from codegen_svc.sandbox.level import Mechanism
from codegen_svc.sandbox.limits import SandboxLimits
from codegen_svc.sandbox.namespaces import enter_process_namespace
from codegen_svc.sandbox.outcome import lost_outcome, outcome_of_error, outcome_of_variants
from codegen_svc.sandbox.process_tree import TreeUsage, processor_s, shared_out_bytes, tree_usage
from codegen_svc.sandbox.restrictions import Confinement, confine, limit_processor_time
from codegen_svc.sandbox.system_calls import die_with_parent
from kernelfarm.service.priority import leave_a_processor, yield_to_all, yield_to_services
from kernelfarm.targets import target_facts
from kernelfarm.wire.job import job_from_bytes

_CHECK_INTERVAL_MS: Final = 100
# Longer than the worker keeps an idle child, so that no child ends while it gets a job.
_MAX_IDLE_MS: Final = 30_000
_LOG_CHARS: Final = 600


@dataclass(frozen=True, slots=True)
class ChildEnds:
    """A child's ends of its connections: job, result, and the supervisor's socket to the worker."""

    job: int
    result: int
    supervision: socket.socket


def run_child(backend: Backend, confinement: Confinement, base: Path, ends: ChildEnds) -> None:
    """Supervises the compilations of one process; never returns."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        die_with_parent(signal.SIGKILL)
        if Mechanism.NAMESPACES in confinement.level.mechanisms:
            enter_process_namespace()
        folder = Path(tempfile.mkdtemp(dir=base))
        compiler = os.fork()
        if compiler == 0:
            ends.supervision.close()
            _compile_jobs(backend, confinement, folder, ends)
        for descriptor in (ends.job, ends.result):
            os.close(descriptor)
        _supervise(compiler, confinement.limits, folder, ends.supervision)
        shutil.rmtree(folder, ignore_errors=True)
        status = 0
    finally:
        os._exit(status)


def _compile_jobs(
    backend: Backend, confinement: Confinement, folder: Path, ends: ChildEnds
) -> None:
    """Confines this process, compiles jobs and sends the outcomes; never returns."""
    status = 1
    try:
        yield_to_services()
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        _keep_only({0: os.open(os.devnull, os.O_RDONLY), 1: log, 2: log}, ends)
        scratch = folder / "tmp"
        scratch.mkdir()
        os.environ["HOME"] = os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
        confine(confinement, folder)
        for job in _jobs(ends.job, scratch):
            outcome, is_success = _outcome(backend, job, confinement.limits, scratch)
            _send_outcome(ends.result, outcome)
            if not is_success:  # it is not used again, also if it has got another job
                break
        status = 0
    finally:
        os._exit(status)


def _outcome(
    backend: Backend, job: bytes, limits: SandboxLimits, scratch: Path
) -> tuple[bytes, bool]:
    """The message about the outcome of a job, and whether it was a success."""
    with recorded_stages() as times:
        try:
            kernel, target_name = job_from_bytes(job)
            target = target_facts(target_name)
            variants = built_variants(backend, kernel, target)
            return outcome_of_variants(variants, target.name, times), True
        except BaseException as error:  # the edge of the process: every failure is reported
            if not scratch.is_dir():  # the cause of any failure
                return lost_outcome(f"{scratch} was removed"), False
            gc.collect()  # frees the objects that filled the memory
            return outcome_of_error(error, limits, times), False


def _keep_only(standard: dict[int, int], ends: ChildEnds) -> None:
    """Closes inherited descriptors, except standard streams and the jobs' connections."""
    for number, descriptor in standard.items():
        os.dup2(descriptor, number)
    kept = sorted({0, 1, 2, ends.job, ends.result})
    for low, high in zip(kept, [*kept[1:], 1 << 20], strict=True):
        os.closerange(low + 1, high)


def _jobs(descriptor: int, scratch: Path) -> Iterator[bytes]:
    """The jobs, until the last one or the worker's end; each has its own time limit."""
    with open(descriptor, "rb") as stream:
        while job := _take_job(stream):
            content, is_last = job
            yield content
            if is_last:
                return
            os.ftruncate(1, 0)
            shutil.rmtree(scratch)
            scratch.mkdir()


def _take_job(stream: BinaryIO) -> tuple[bytes, bool] | None:
    header = stream.read(JOB_HEADER.size)
    if len(header) < JOB_HEADER.size:
        return None  # the worker has no more jobs
    length, processor_s, niceness, is_last = JOB_HEADER.unpack(header)
    limit_processor_time(processor_s, for_ever=is_last)
    if niceness:
        os.nice(niceness)
        yield_to_all(0)
        leave_a_processor(0)
    return stream.read(length), is_last


def _send_outcome(descriptor: int, content: bytes) -> None:
    view = memoryview(RESULT_HEADER.pack(len(content)) + content)
    while view:
        view = view[os.write(descriptor, view) :]


def _supervise(compiler: int, limits: SandboxLimits, folder: Path, worker: socket.socket) -> None:
    """Waits for the end of the process, ends it if needed, and reports it."""
    handle = os.pidfd_open(compiler)
    reason = _await_end(compiler, handle, limits, worker)
    with contextlib.suppress(ProcessLookupError):
        # Its group too: without a process namespace, programs that it started would outlive it.
        os.killpg(compiler, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(compiler, signal.SIGKILL)
    _, status, usage = os.wait4(compiler, 0)
    record = {
        "exit": os.waitstatus_to_exitcode(status),
        "ended_for": reason,
        "processor_s": usage.ru_utime + usage.ru_stime,
        **asdict(TreeUsage(0, 0)),
        "log": _tail(folder / "log"),
    }
    _send_record(worker, record)


def _await_end(compiler: int, handle: int, limits: SandboxLimits, worker: socket.socket) -> str:
    """Why the process is to be ended; empty if it ended by itself."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.register(worker, select.POLLIN)
    pause_ms = None  # no limit before its first job
    while True:
        ready = {descriptor for descriptor, _ in poll.poll(pause_ms)}
        word = _read_word(worker) if worker.fileno() in ready else None
        if handle in ready:
            return ""
        if word == JOB_BEGINS:
            pause_ms = _CHECK_INTERVAL_MS
            continue
        usage = tree_usage(compiler)
        if word == JOB_ENDED:
            pause_ms = _MAX_IDLE_MS
            _send_record(worker, {"processor_s": processor_s(compiler), **asdict(usage)})
        elif word is not None:
            return "worker"
        elif pause_ms == _MAX_IDLE_MS:
            return "idle"
        elif usage.tasks > limits.processes:
            return "processes"
        elif usage.memory_bytes > limits.memory_bytes and _is_too_large(compiler, limits):
            return "memory"


def _is_too_large(compiler: int, limits: SandboxLimits) -> bool:
    """Counts shared pages of forks once; if that is not available, the first count decides."""
    memory_bytes = shared_out_bytes(compiler)
    return memory_bytes is None or memory_bytes > limits.memory_bytes


def _read_word(worker: socket.socket) -> bytes:
    try:
        return worker.recv(1)
    except OSError:  # the worker ended without reading the last record
        return b""


def _send_record(worker: socket.socket, record: dict[str, object]) -> None:
    with contextlib.suppress(OSError):
        worker.sendall(json.dumps(record).encode() + b"\n")


def _tail(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError:
        return ""
    return content[-_LOG_CHARS:].decode(errors="replace")
