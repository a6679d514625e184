"""Chooses the process that compiles the next kernel: one that its namespace used, or a new one.

If its backend allows it, a process compiles several kernels of its namespace, because a fork costs
as much processor time, for copied memory, as a small kernel. A process never serves two namespaces,
and is not used again after an error.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

from codegen_svc.sandbox.connection import CompilationEnd, SandboxProcess
from codegen_svc.sandbox.hello import ZygoteHello
from codegen_svc.sandbox.limits import SandboxLimits
from codegen_svc.sandbox.restrictions import MAX_REUSED_PROCESSOR_S
from codegen_svc.sandbox.zygote_process import ZygoteProcess
from kernelfarm.errors import UnavailableError

_MAX_JOBS: Final = 128
# Shorter than the limit of the process's supervisor.
_MAX_IDLE_S: Final = 20.0
_MAX_GROWTH_BYTES: Final = 256 << 20


class SandboxProcesses:
    """A zygote, which is started again when it or a part of it is lost, and its idle children.

    There is at most one idle child of each priority, because a worker gets kernels of users and of
    warm-ups by turns. `can_start` is false if the last attempt to start it again failed.
    """

    def __init__(self, vendor: str, limits: SandboxLimits) -> None:
        """Starts the zygote.

        Raises:
            KernelfarmError: the toolchain is missing or does not work; the message says why.
        """
        self._vendor = vendor
        self._limits = limits
        self._zygote: ZygoteProcess | None = ZygoteProcess(vendor, limits)
        self.hello: ZygoteHello = self._zygote.hello
        self.can_start = True
        self._idle: dict[int, tuple[str, SandboxProcess]] = {}

    def take(self, namespace: str, niceness: int = 0, *, must_be_fresh: bool) -> SandboxProcess:
        """A child for one job of a namespace; if the namespace is empty, a new child.

        A child that has compiled at a lower priority is used for this priority only, because no
        process can raise it again.

        Raises:
            UnavailableError: there is no child, and the zygote cannot be started again.
        """
        if niceness in self._idle:
            idle_namespace, idle = self._idle.pop(niceness)
            is_old = time.monotonic() - idle.idle_since_s > _MAX_IDLE_S
            if idle_namespace == namespace and not must_be_fresh and not is_old:
                return idle
            idle.close()
        return self._fresh()

    def is_reusable(self, child: SandboxProcess, namespace: str) -> bool:
        """True if the child may wait for another job after its next one ends."""
        return bool(namespace) and self.hello.takes_many_jobs and child.jobs < _MAX_JOBS - 1

    def takes_ahead(self, child: SandboxProcess) -> bool:
        """True if the child may get its next job before the present one has ended."""
        is_free = not child.is_closed and not child.is_last and not child.has_job_ahead
        return self.hello.takes_jobs_ahead and is_free

    def release(
        self, child: SandboxProcess, namespace: str, end: CompilationEnd, *, is_first: bool
    ) -> None:
        """Keeps a child that returned a result, unless it has grown or used much time.

        If it has begun another job already, that goes on, or ends with it.
        """
        if is_first:
            child.first_bytes = end.memory_bytes
        has_grown = end.memory_bytes - child.first_bytes > _MAX_GROWTH_BYTES
        is_worn = has_grown or child.processor_s > MAX_REUSED_PROCESSOR_S
        if end.is_over or end.tasks != 1 or is_worn:  # closing it ends processes that a job left
            child.close()
        elif not child.is_busy:
            self._idle[child.niceness] = namespace, child

    def renew(self) -> None:
        """Checks, after a loss, that a new child can be forked.

        Raises:
            UnavailableError: the zygote cannot be started again.
        """
        self.take("", must_be_fresh=True).close()

    def close(self) -> None:
        """Ends the processes."""
        for _, idle in self._idle.values():
            idle.close()
        self._idle.clear()
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None

    def _fresh(self) -> SandboxProcess:
        if self._zygote is not None and self._zygote.is_whole():
            try:
                return self._zygote.child()
            except OSError:  # it is gone, or hangs; that does not count as an attempt
                pass
        if self._zygote is not None:
            self._zygote.close(timeout_s=0.0)
            self._zygote = None
        return self._from_new_zygote()

    def _from_new_zygote(self) -> SandboxProcess:
        self.can_start = False
        zygote = ZygoteProcess(self._vendor, self._limits)
        try:
            self._check_same(zygote.hello)
            child = zygote.child()
        except OSError as error:
            zygote.close(timeout_s=0.0)
            raise UnavailableError(
                f"the {self._vendor} toolchain's process ends as soon as it starts: {error}"
            ) from error
        except UnavailableError:
            zygote.close()
            raise
        self._zygote, self.can_start = zygote, True
        return child

    def _check_same(self, hello: ZygoteHello) -> None:
        """Raises UnavailableError if the toolchain or its confinement differs from before."""
        if replace(hello, warm_up_ms=self.hello.warm_up_ms) != self.hello:
            raise UnavailableError(
                f"the {self._vendor} toolchain or its confinement ({hello.level}) has changed since"
                " this worker started: start the worker again"
            )
