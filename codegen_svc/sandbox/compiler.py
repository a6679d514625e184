"""The worker's side of the sandbox: a backend whose compilations run in confined processes."""

from __future__ import annotations

from codegen_svc.backends.contract import ToolStatus
from codegen_svc.sandbox.compilation import Compilation, CompileJob
from codegen_svc.sandbox.connection import TimeLimits
from codegen_svc.sandbox.level import ConfinementLevel, check_level, parse_level
from codegen_svc.sandbox.limits import SandboxLimits
from codegen_svc.sandbox.processes import SandboxProcesses
from kernelfarm.errors import KernelfarmError
from kernelfarm.ir.any_kernel import AnyKernel
from kernelfarm.ir.artifact import BuiltKernel
from kernelfarm.targets import TargetFacts
from kernelfarm.wire.any_kernel import any_kernel_to_proto
from kernelfarm.wire.job import job_to_bytes


class SandboxedBackend:
    """A vendor's backend in confined processes, for use by one thread."""

    def __init__(self, vendor: str, limits: SandboxLimits, *, demanded: str, wall_s: float) -> None:
        self._vendor = vendor
        self._limits = limits
        self._wall_s = wall_s
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

    def build(self, kernel: AnyKernel, target: TargetFacts) -> tuple[BuiltKernel, ...]:
        """The kernel's variants, made in a process of its own with the default time limits.

        Raises:
            KernelfarmError: see `Compilation.variants`.
        """
        limits = TimeLimits(self._wall_s, self._limits.processor_s)
        content = job_to_bytes(any_kernel_to_proto(kernel), target.name)
        return self.begin(CompileJob(content, kernel.name, target.name, limits)).variants()

    def begin(self, job: CompileJob) -> Compilation:
        """Begins a compilation in a confined process; it must be settled before the next begins.

        A process may compile several kernels of one namespace.

        Raises:
            UnavailableError: no process can be started.
        """
        compilation = self.compilation(job)
        compilation.begin()
        return compilation

    def compilation(self, job: CompileJob) -> Compilation:
        """A compilation that has not begun; it may be sent ahead of its begin."""
        return Compilation(job, self._children, self._limits)

    def close(self) -> None:
        """Ends its processes."""
        self._children.close()
