"""The worker's side of the sandbox: a backend whose compilations run in confined processes."""

from __future__ import annotations

import signal
from typing import Final

from codegen_svc.backends.contract import ToolStatus
from codegen_svc.sandbox.connection import Allowance, Child, End
from codegen_svc.sandbox.level import Level, check_level, parse_level
from codegen_svc.sandbox.limits import Limits
from codegen_svc.sandbox.outcome import variants_of_outcome
from codegen_svc.sandbox.zygote_process import ZygoteProcess
from kernelfarm.errors import InternalError, KernelfarmError, KernelRejectedError, UnavailableError
from kernelfarm.ir.artifact import BuiltKernel
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.targets import TargetFacts
from kernelfarm.wire import kernel_to_proto
from kernelfarm.wire.job import job_to_bytes

_STARTS: Final = 2
_MEMORY_WORDS: Final = ("out of memory", "bad_alloc", "Cannot allocate memory", "MemoryError")


class TimeLimitError(KernelRejectedError):
    """A compilation that took longer than it was given."""


class SandboxedBackend:
    """A vendor's backend in processes of its own. For one thread.

    `spent_s` is the processor time of the last compilation, whichever way it ended.
    """

    def __init__(self, vendor: str, limits: Limits, *, demanded: str, wall_s: float) -> None:
        self._vendor = vendor
        self._limits = limits
        self._wall_s = wall_s
        self.spent_s = 0.0
        self._zygote = ZygoteProcess(vendor, limits)
        try:
            check_level(self.level, demanded)
        except KernelfarmError:
            self._zygote.close()
            raise

    @property
    def vendor(self) -> str:
        """The vendor whose toolchain it runs."""
        return self._vendor

    @property
    def level(self) -> Level:
        """The mechanisms that confine its compilations."""
        return parse_level(self._zygote.hello.level)

    @property
    def warm_up_ms(self) -> float:
        """How long importing the toolchain and its first compilation took."""
        return self._zygote.hello.warm_up_ms

    def tools(self) -> tuple[ToolStatus, ...]:
        """Nothing: `kernelfarm doctor` asks the backend itself."""
        return ()

    def fingerprint(self) -> str:
        """The backend's own, as its process told before its first job."""
        return self._zygote.hello.fingerprint

    def makes_runnable_binaries(self) -> bool:
        """As the backend says."""
        return self._zygote.hello.makes_runnable_binaries

    def build(self, kernel: Kernel, target: TargetFacts) -> tuple[BuiltKernel, ...]:
        """The kernel's variants; as `compile` with the usual time.

        Raises:
            KernelfarmError: as `compile`.
        """
        return self.compile(kernel, target, Allowance(self._wall_s, self._limits.processor_s))

    def compile(
        self, kernel: Kernel, target: TargetFacts, given: Allowance
    ) -> tuple[BuiltKernel, ...]:
        """The kernel's variants, made in a confined process within a time.

        Raises:
            TimeLimitError: it took longer, by the clock or in processor time.
            KernelRejectedError: the toolchain refuses the kernel, crashes, or hits a limit.
            UnavailableError: a tool is missing, or the process was ended from outside.
            InternalError: our bug.
        """
        job = job_to_bytes(kernel_to_proto(kernel), target.name)
        self.spent_s = 0.0
        with self._child() as child:
            end = child.run(job, given, self._limits.output_bytes)
        self.spent_s = end.processor_s
        if end.ended_for or end.exit_status != 0:
            raise _error_of(end, given, self._limits)
        try:
            return variants_of_outcome(end.result, kernel.name, target.name)
        except KernelRejectedError as error:
            if end.processor_s >= given.processor_s:  # a program of the toolchain hit it
                raise _processor_time_error(given) from error
            raise

    def close(self) -> None:
        """Ends its processes."""
        self._zygote.close()

    def _child(self) -> Child:
        for _ in range(_STARTS):
            try:
                return self._zygote.child()
            except OSError:  # it died; that costs nobody an attempt
                self._zygote.close()
                self._zygote = ZygoteProcess(self._vendor, self._limits)
        raise UnavailableError(f"the {self._vendor} toolchain's process ends as soon as it starts")


def _error_of(end: End, given: Allowance, limits: Limits) -> KernelfarmError:
    """What a compilation that gave no outcome ended for."""
    told = {
        "time": f"took longer than {given.wall_s:g} s",
        "output": f"gave more than {limits.output_bytes >> 20} MiB",
        "memory": f"needs more than {limits.memory_bytes >> 20} MiB of memory",
        "processes": f"needs more than {limits.processes} processes and threads",
    }.get(end.ended_for)
    if told is not None:
        kind = TimeLimitError if end.ended_for == "time" else KernelRejectedError
        return kind(f"the compilation {told}")
    if end.ended_for:
        return UnavailableError(f"the compilation was ended: {end.ended_for}")
    if end.processor_s >= given.processor_s:
        return _processor_time_error(given)
    return _error_of_exit(end, limits)


def _processor_time_error(given: Allowance) -> TimeLimitError:
    return TimeLimitError(
        f"the compilation took longer than {given.processor_s} s of processor time"
    )


def _error_of_exit(end: End, limits: Limits) -> KernelfarmError:
    """What a process that ended without an outcome died of."""
    if end.exit_status == -signal.SIGKILL:
        return UnavailableError("the compilation was killed: is the host short of memory?")
    if any(word in end.log for word in _MEMORY_WORDS):
        return KernelRejectedError(
            f"the compilation needs more than {limits.memory_bytes >> 20} MiB of memory"
        )
    if end.exit_status < 0:
        name = signal.Signals(-end.exit_status).name
        return KernelRejectedError(f"the toolchain crashed with {name}: {end.log}")
    return InternalError(f"the compilation exited with {end.exit_status}: {end.log}")
