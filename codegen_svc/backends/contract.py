"""The interface of a vendor's code generator.

A vendor is a folder `codegen_svc/backends/<vendor>/` whose `backend.py` has `BACKEND`, and the
facts of its chips in `kernelfarm/targets/`. The folder's name is the prefix of its targets and the
name of its queue. Outside of this repository, a vendor is an entry point of each of the groups
`kernelfarm.backends` (`registry.py`) and `kernelfarm.targets`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from kernelfarm.errors import KernelRejectedError
from kernelfarm.ir.any_kernel import AnyKernel
from kernelfarm.ir.artifact import BuiltKernel
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.triton.user_kernel import UserKernel
from kernelfarm.targets import TargetFacts


@dataclass(frozen=True, slots=True)
class ToolStatus:
    """A tool of a backend as found on this machine; `remedy` says how to install a missing one."""

    name: str
    version: str
    is_found: bool
    is_required: bool
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class ToolNeeds:
    """What a vendor's toolchain needs of the sandbox beyond Python and its packages.

    `starts_programs` is True if it runs programs, `takes_many_jobs` if one process may compile
    several kernels of a namespace. The paths are those of its own tools.
    """

    starts_programs: bool = True
    takes_many_jobs: bool = False
    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()


@runtime_checkable
class HasToolNeeds(Protocol):
    """A backend that states the needs of its toolchain; others have those of `ToolNeeds()`."""

    def needs(self) -> ToolNeeds:
        """The needs of the toolchain."""


def needs_of(backend: object) -> ToolNeeds:
    """The needs that a backend states, or the default."""
    return backend.needs() if isinstance(backend, HasToolNeeds) else ToolNeeds()


class Backend(Protocol):
    """A vendor's code generator. It has no state: one object compiles every job of its queue."""

    @property
    def vendor(self) -> str:
        """The name of the folder, of the queue, and the prefix of the targets."""

    def tools(self) -> tuple[ToolStatus, ...]:
        """Every tool that it uses, found or not. Never raises."""

    def fingerprint(self) -> str:
        """Hex digest over everything of its own that shapes its output: sources, tools, settings.

        The worker adds the code that all services share.

        Raises:
            UnavailableError: a required tool is missing; the message says how to get it.
        """

    def build(self, kernel: Kernel, target: TargetFacts) -> tuple[BuiltKernel, ...]:
        """The kernel's variants for a target, most specific first, the general one (no guard) last.

        Raises:
            KernelRejectedError: the toolchain refuses the kernel, and always will.
            UnavailableError: a required tool is missing.
        """

    def makes_runnable_binaries(self) -> bool:
        """False if the binaries that it makes on this machine are stubs."""


@runtime_checkable
class BuildsUserKernels(Protocol):
    """A backend whose toolchain compiles Triton's language, in which users write kernels."""

    def build_user_kernel(self, kernel: UserKernel, target: TargetFacts) -> tuple[BuiltKernel, ...]:
        """The variants of a user's kernel, most specific first, the general one last.

        It evaluates the kernel's source, which passed `check_user_kernel`: call it in the sandbox.

        Raises:
            KernelRejectedError: the toolchain refuses the kernel, and always will.
            UnavailableError: a required tool is missing.
        """


def built_variants(
    backend: Backend, kernel: AnyKernel, target: TargetFacts
) -> tuple[BuiltKernel, ...]:
    """The variants of a kernel of either kind, as the backend builds them.

    Raises:
        KernelRejectedError: the toolchain refuses the kernel, or takes no kernels of users.
        UnavailableError: a required tool is missing.
    """
    if not isinstance(kernel, UserKernel):
        return backend.build(kernel, target)
    if not isinstance(backend, BuildsUserKernels):
        raise KernelRejectedError(
            f"user kernel {kernel.entry}: the farm compiles no Triton source for {target.name};"
            " expected a target such as cuda:..., rocm:..., ascend:... or cpu:..."
        )
    return backend.build_user_kernel(kernel, target)
