"""The error for a compilation that ended without an outcome."""

from __future__ import annotations

import signal
from typing import Final

from codegen_svc.sandbox.connection import CompilationEnd, TimeLimits
from codegen_svc.sandbox.limits import SandboxLimits
from codegen_svc.sandbox.outcome import LostCompilationError
from kernelfarm.errors import (
    InternalError,
    KernelfarmError,
    KernelLimitError,
    KernelRejectedError,
)

_MEMORY_WORDS: Final = ("out of memory", "bad_alloc", "Cannot allocate memory", "MemoryError")


class TimeLimitError(KernelLimitError):
    """A compilation that exceeded its time limits."""


def error_of_end(
    end: CompilationEnd, time_limits: TimeLimits, limits: SandboxLimits
) -> KernelfarmError:
    """The error for a compilation that ended without an outcome."""
    messages = {
        "time": f"took longer than {time_limits.wall_s:g} s",
        "output": f"returned more than {limits.output_bytes >> 20} MiB",
        "memory": f"needs more than {limits.memory_bytes >> 20} MiB of memory",
        "processes": f"needs more than {limits.processes} processes and threads",
    }.get(end.ended_for)
    if messages is not None:
        kind = TimeLimitError if end.ended_for == "time" else KernelLimitError
        return kind(f"the compilation {messages}")
    if end.ended_for:
        return LostCompilationError(f"the compilation was ended: {end.ended_for}")
    if end.processor_s >= time_limits.processor_s:
        return processor_time_error(time_limits)
    return _error_of_exit(end, limits)


def processor_time_error(time_limits: TimeLimits) -> TimeLimitError:
    """The error for a compilation that used up its processor time."""
    return TimeLimitError(
        f"the compilation took longer than {time_limits.processor_s} s of processor time"
    )


def _error_of_exit(end: CompilationEnd, limits: SandboxLimits) -> KernelfarmError:
    """The error for a process that exited without an outcome."""
    if end.exit_status == -signal.SIGKILL:
        return LostCompilationError("the compilation was killed: is the host short of memory?")
    if any(word in end.log for word in _MEMORY_WORDS):
        return KernelLimitError(
            f"the compilation needs more than {limits.memory_bytes >> 20} MiB of memory"
        )
    if end.exit_status < 0:
        name = signal.Signals(-end.exit_status).name
        return KernelRejectedError(f"the toolchain crashed with {name}: {end.log}")
    return InternalError(f"the compilation exited with {end.exit_status}: {end.log}")
