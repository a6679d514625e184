"""One compilation in a confined process, which goes on while its worker does other work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from codegen_svc.backends.stage_times import StageTime
from codegen_svc.sandbox.connection import CompilationEnd, JobReply, SandboxProcess, TimeLimits
from codegen_svc.sandbox.end_errors import TimeLimitError, error_of_end, processor_time_error
from codegen_svc.sandbox.limits import SandboxLimits
from codegen_svc.sandbox.outcome import (
    LostCompilationError,
    parsed_outcome,
    times_of_outcome,
    variants_of_outcome,
)
from codegen_svc.sandbox.processes import SandboxProcesses
from kernelfarm.errors import InternalError, KernelfarmError, KernelRejectedError
from kernelfarm.ir.artifact import BuiltKernel
from kernelfarm.service.logs.logger import get_logger


@dataclass(frozen=True, slots=True)
class CompileJob:
    """A kernel to compile; if `namespace` is empty, its process compiles nothing else.

    `content` is the job as bytes, `symbol` the kernel's name.
    """

    content: bytes
    symbol: str
    target: str
    time_limits: TimeLimits
    namespace: str = ""


class Compilation:
    """A compilation: call `begin`, then `wait`, then `settle`, then `variants`.

    After `settle`, another compilation may begin; if it was sent ahead, its process began it at
    once. `spent_s` is its processor time then, however it ended, and `stage_times` the times of its
    stages, if its process reported them. If its process is lost from outside, or fails after it
    compiled other kernels, `settle` compiles it once more in a new process.
    """

    def __init__(self, job: CompileJob, children: SandboxProcesses, limits: SandboxLimits) -> None:
        self._job = job
        self._children = children
        self._limits = limits
        self._sent_ns = self.began_ns = self.ended_ns = time.monotonic_ns()
        self.spent_s = 0.0
        self.stage_times: tuple[StageTime, ...] = ()
        self._result: tuple[BuiltKernel, ...] | KernelfarmError | None = None
        self._reply: JobReply | None = None
        self._found: tuple[BuiltKernel, ...] | KernelfarmError = ()
        self._child: SandboxProcess | None = None
        self._before: Compilation | None = None
        self._is_last_of_child = False

    def send_ahead(self, before: Compilation) -> bool:
        """Sends it to the process of a compilation that goes on; False if that cannot be.

        If it can, `begin` must follow after `before` has settled, or `before.recall_next` earlier.
        """
        child, limits = before._child, self._job.time_limits
        is_fit = before.namespace == self.namespace and before.is_open
        if child is None or not is_fit or child.niceness != limits.niceness:
            return False
        if not self._children.takes_ahead(child):
            return False
        is_last = not self._children.is_reusable(child, self.namespace)
        self._sent_ns = time.monotonic_ns()
        if not child.begin_ahead(self._job.content, limits, is_last=is_last):
            return False
        self._child, self._before = child, before
        return True

    def recall_next(self) -> None:
        """Ends its process after it, so that what was sent ahead is not compiled there."""
        self._is_last_of_child = True

    def begin(self) -> None:
        """Begins it, unless its process has begun it already.

        Raises:
            UnavailableError: there is no process, and none can be started.
        """
        if self._before is not None and self._child is not None and not self._child.is_closed:
            self.began_ns = self._before.ended_ns
            self._before = None
        else:
            self._begin(must_be_fresh=False)

    @property
    def namespace(self) -> str:
        """The namespace of its job."""
        return self._job.namespace

    @property
    def is_open(self) -> bool:
        """True before it has settled."""
        return self._result is None

    def has_ended_within(self, timeout_s: float) -> bool:
        """True as soon as `wait` need not wait, False after the timeout."""
        is_read = self._reply is not None or self._result is not None
        return is_read or self._process.has_sent_within(timeout_s)

    def wait(self) -> None:
        """Returns when its process has sent a result, or its time is over.

        If it has no variants to show, it is settled too.
        """
        if self._reply is None and self._result is None:
            self._read()
            is_over = self._reply is None or self._reply.result is None
            if is_over or isinstance(self._found, KernelfarmError):
                self.settle()

    def settle(self) -> None:
        """Returns when its process can be used again or has ended."""
        self.wait()
        if self._result is not None:
            return
        is_first_job = self._process.jobs == 1
        try:
            self._result = self._settled()
        except TimeLimitError as error:
            self._result = error
        except LostCompilationError as error:
            get_logger().warning("compilation_lost", message=str(error))
            self._again(needs_renewal=True)
        except KernelfarmError as error:
            if is_first_job:
                self._result = error
            else:
                self._again(needs_renewal=False)

    def variants(self) -> tuple[BuiltKernel, ...]:
        """The kernel's variants.

        Raises:
            TimeLimitError: it took longer, by the clock or in processor time.
            KernelLimitError: it reached another limit.
            KernelRejectedError: the toolchain refuses the kernel, or crashes.
            UnavailableError: a tool is missing, or the process was lost twice.
            InternalError: our bug.
        """
        self.settle()
        if isinstance(self._result, KernelfarmError):
            raise self._result
        assert self._result is not None
        return self._result

    def close(self) -> None:
        """Ends its process, if it is not settled."""
        if self._result is None and self._child is not None:
            self._child.close()

    @property
    def _process(self) -> SandboxProcess:
        if self._child is None:
            raise InternalError("a compilation was awaited before it began")
        return self._child

    def _begin(self, *, must_be_fresh: bool) -> None:
        job = self._job
        niceness = job.time_limits.niceness
        child = self._children.take(job.namespace, niceness, must_be_fresh=must_be_fresh)
        self._child, self._before = child, None
        is_last = not self._children.is_reusable(child, job.namespace)
        self._sent_ns = self.began_ns = time.monotonic_ns()
        with _closing_on_error(child):
            child.begin(job.content, job.time_limits, is_last=is_last)

    def _read(self) -> None:
        child = self._process
        with _closing_on_error(child):
            self._reply = child.read(self._limits.output_bytes)
        self.ended_ns = time.monotonic_ns()
        try:  # while the supervisor prepares its report
            self._found = self._decoded(self._reply.result or b"")
        except KernelfarmError as error:
            self._found = error

    def _decoded(self, result: bytes) -> tuple[BuiltKernel, ...]:
        outcome = parsed_outcome(result)
        self.stage_times += times_of_outcome(outcome, self._sent_ns, self.ended_ns)
        return variants_of_outcome(outcome, self._job.symbol, self._job.target)

    def _again(self, *, needs_renewal: bool) -> None:
        """Compiles it once more, in a new process."""
        try:
            if needs_renewal:
                self._children.renew()
            self._begin(must_be_fresh=True)
            self._read()
            self._result = self._settled()
        except KernelfarmError as error:
            self._result = error

    def _settled(self) -> tuple[BuiltKernel, ...]:
        assert self._reply is not None
        child = self._process
        is_first = child.jobs == 1
        with _closing_on_error(child):
            end = child.end(self._reply)
            self.spent_s += end.processor_s
            variants = self._checked(end)
        if self._is_last_of_child:
            child.close()
        else:
            self._children.release(child, self._job.namespace, end, is_first=is_first)
        return variants

    def _checked(self, end: CompilationEnd) -> tuple[BuiltKernel, ...]:
        time_limits = self._job.time_limits
        if end.ended_for or end.exit_status != 0:
            raise error_of_end(end, time_limits, self._limits)
        if isinstance(self._found, tuple):
            return self._found
        is_late = end.processor_s >= time_limits.processor_s  # in a program of the toolchain
        if is_late and isinstance(self._found, KernelRejectedError):
            raise processor_time_error(time_limits) from self._found
        raise self._found


@contextmanager
def _closing_on_error(child: SandboxProcess) -> Iterator[None]:
    """Ends a process if the block raises an error."""
    try:
        yield
    except BaseException:
        child.close()
        raise
