"""The worker's side of the sandbox: a backend whose compilations run in confined processes."""

from __future__ import annotations

import time
from dataclasses import dataclass

from codegen_svc.backends.contract import ToolStatus
from codegen_svc.backends.stage_times import StageTime
from codegen_svc.sandbox.connection import CompilationEnd, SandboxProcess, TimeLimits
from codegen_svc.sandbox.end_errors import TimeLimitError, error_of_end, processor_time_error
from codegen_svc.sandbox.level import ConfinementLevel, check_level, parse_level
from codegen_svc.sandbox.limits import SandboxLimits
from codegen_svc.sandbox.outcome import (
    LostCompilationError,
    parsed_outcome,
    times_of_outcome,
    variants_of_outcome,
)
from codegen_svc.sandbox.processes import SandboxProcesses
from kernelfarm.errors import KernelfarmError, KernelRejectedError
from kernelfarm.ir.artifact import BuiltKernel
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.service.logs.logger import get_logger
from kernelfarm.targets import TargetFacts
from kernelfarm.wire import kernel_to_proto
from kernelfarm.wire.job import job_to_bytes


@dataclass(frozen=True, slots=True)
class _Job:
    """A kernel to compile; if `namespace` is empty, its process compiles nothing else."""

    kernel: Kernel
    target: TargetFacts
    time_limits: TimeLimits
    namespace: str


class SandboxedBackend:
    """A vendor's backend in confined processes, for use by one thread.

    `spent_s` is the processor time of the last compilation, however it ended. `stage_times` are the
    times of its stages, if its process reported them.
    """

    def __init__(self, vendor: str, limits: SandboxLimits, *, demanded: str, wall_s: float) -> None:
        self._vendor = vendor
        self._limits = limits
        self._wall_s = wall_s
        self.spent_s = 0.0
        self.stage_times: tuple[StageTime, ...] = ()
        self._children = SandboxProcesses(vendor, limits)
        try:
            check_level(self.level, demanded)
        except KernelfarmError:
            self._children.close()
            raise

    @property
    def vendor(self) -> str:
        """The vendor whose toolchain it runs."""
        return self._vendor

    @property
    def level(self) -> ConfinementLevel:
        """The mechanisms that confine its compilations."""
        return parse_level(self._children.hello.level)

    @property
    def warm_up_ms(self) -> float:
        """How long importing the toolchain and its first compilation took."""
        return self._children.hello.warm_up_ms

    @property
    def can_compile(self) -> bool:
        """False after its processes were lost and could not be started again."""
        return self._children.can_start

    def tools(self) -> tuple[ToolStatus, ...]:
        """Nothing: `kernelfarm doctor` uses the backend itself."""
        return ()

    def fingerprint(self) -> str:
        """The backend's fingerprint, from the zygote's first message."""
        return self._children.hello.fingerprint

    def makes_runnable_binaries(self) -> bool:
        """The backend's answer, from the zygote's first message."""
        return self._children.hello.makes_runnable_binaries

    def build(self, kernel: Kernel, target: TargetFacts) -> tuple[BuiltKernel, ...]:
        """The kernel's variants; as `compile` with the default time limits.

        Raises:
            KernelfarmError: see `compile`.
        """
        return self.compile(kernel, target, TimeLimits(self._wall_s, self._limits.processor_s))

    def compile(
        self, kernel: Kernel, target: TargetFacts, time_limits: TimeLimits, namespace: str = ""
    ) -> tuple[BuiltKernel, ...]:
        """The kernel's variants, made in a confined process within time limits.

        A process may compile several kernels of one namespace. If it is lost from outside, or fails
        after it compiled other kernels, the compilation is tried once more in a new process.

        Raises:
            TimeLimitError: it took longer, by the clock or in processor time.
            KernelRejectedError: the toolchain refuses the kernel, crashes, or reaches a limit.
            UnavailableError: a tool is missing, or the process was lost twice.
            InternalError: our bug.
        """
        job = _Job(kernel, target, time_limits, namespace)
        self.spent_s, self.stage_times = 0.0, ()
        child = self._children.take(namespace, must_be_fresh=False)
        try:
            return self._run(child, job)
        except TimeLimitError:
            raise
        except LostCompilationError as error:
            get_logger().warning("compilation_lost", message=str(error))
            self._children.renew()
        except KernelfarmError:
            if child.jobs == 1:
                raise
        return self._run(self._children.take(namespace, must_be_fresh=True), job)

    def close(self) -> None:
        """Ends its processes."""
        self._children.close()

    def _run(self, child: SandboxProcess, job: _Job) -> tuple[BuiltKernel, ...]:
        content = job_to_bytes(kernel_to_proto(job.kernel), job.target.name)
        # A slow job raises its process's niceness, which cannot be lowered again.
        may_stay = not job.time_limits.niceness and self._children.is_reusable(child, job.namespace)
        began_ns = time.monotonic_ns()
        try:
            end = child.run(
                content, job.time_limits, self._limits.output_bytes, is_last=not may_stay
            )
            self.spent_s += end.processor_s
            variants = self._variants(end, job, began_ns)
        except BaseException:
            child.close()
            raise
        self._children.release(child, job.namespace, end)
        return variants

    def _variants(self, end: CompilationEnd, job: _Job, began_ns: int) -> tuple[BuiltKernel, ...]:
        if end.ended_for or end.exit_status != 0:
            raise error_of_end(end, job.time_limits, self._limits)
        outcome = parsed_outcome(end.result)
        self.stage_times += times_of_outcome(outcome, began_ns, time.monotonic_ns())
        try:
            return variants_of_outcome(outcome, job.kernel.name, job.target.name)
        except KernelRejectedError as error:
            if end.processor_s >= job.time_limits.processor_s:  # in a program of the toolchain
                raise processor_time_error(job.time_limits) from error
            raise
