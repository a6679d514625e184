"""What a vendor's folder must offer: one `Backend`, found by scanning `codegen_svc.backends`.

A vendor is one folder `codegen_svc/backends/<vendor>/` whose `backend.py` has `BACKEND`, plus its
chips' facts in `kernelfarm/targets/`. The folder's name is the target prefix and the queue's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from kernelfarm.ir.artifact import BuiltKernel
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.targets import TargetFacts


@dataclass(frozen=True, slots=True)
class ToolStatus:
    """One tool of a backend as found on this machine; `remedy` says how to get what is missing."""

    name: str
    version: str
    is_found: bool
    is_required: bool
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class ToolNeeds:
    """What a vendor's toolchain needs of the sandbox beyond Python and its packages.

    `starts_programs` is True if it runs programs, `takes_many_jobs` if one process may compile
    kernels of one namespace in turn; paths are those of its own tools.
    """

    starts_programs: bool = True
    takes_many_jobs: bool = False
    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()


@runtime_checkable
class HasToolNeeds(Protocol):
    """A backend that says what its toolchain needs; of others `ToolNeeds()` is taken."""

    def needs(self) -> ToolNeeds:
        """What the sandbox must leave open."""


def needs_of(backend: object) -> ToolNeeds:
    """What a backend states, or what is taken where it states nothing."""
    return backend.needs() if isinstance(backend, HasToolNeeds) else ToolNeeds()


class Backend(Protocol):
    """A vendor's code generator. Stateless: one object serves every job of its queue."""

    @property
    def vendor(self) -> str:
        """The folder's name, the prefix of its targets, the name of its queue."""

    def tools(self) -> tuple[ToolStatus, ...]:
        """Every tool that it uses, found or not; never raises."""

    def fingerprint(self) -> str:
        """Hex digest over its own sources, tools and settings, all that shapes its output; what
        rooms share is added to it.

        Raises:
            UnavailableError: a required tool is missing; the message says how to get it.
        """

    def build(self, kernel: Kernel, target: TargetFacts) -> tuple[BuiltKernel, ...]:
        """The kernel's variants for a target, most specific first, the general one (no guard) last.

        Raises:
            KernelRejectedError: the toolchain refuses the kernel, deterministically.
            UnavailableError: a required tool is missing.
        """

    def makes_runnable_binaries(self) -> bool:
        """False where the output is a stub on this machine."""
