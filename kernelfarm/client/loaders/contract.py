"""What a device's loader offers: a binary becomes a kernel that runs on addresses.

The tables that a launch gets are C arrays in the client's memory: one pointer for each buffer, in
the order of the kernel's parameters, and one int64 for each size, in the order of its sizes. A
kernel is bound once to its sizes, once to a table and a context, and then launched many times: the
table stays where it is, its pointers may change between launches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kernelfarm.errors import KernelfarmError
from kernelfarm.ir.artifact import LaunchFacts


class NotRunnableHereError(KernelfarmError):
    """A device of this machine that nothing is loaded for, or a placeholder that cannot run."""

    status = "FAILED_PRECONDITION"
    reason = "NOT_RUNNABLE_HERE"


LaunchCall = Callable[[], int]
"""Runs a kernel; 0, or 1 for an index out of bounds, or 2 where it found no memory."""

BoundKernel = Callable[[int, int], LaunchCall]
"""`bound(address of a pointer table, context)`: the kernel on that table, in that context."""


class LoadedKernel(Protocol):
    """One variant of one kernel, ready to run; may be shared between threads."""

    def bind(self, sizes: tuple[int, ...]) -> BoundKernel:
        """The kernel for these values of its sizes; keeps alive what it points at."""


class Loader(Protocol):
    """Loads binaries for one device."""

    def load(self, binary: bytes, launch: LaunchFacts) -> LoadedKernel:
        """The kernel of a binary.

        Raises:
            UnavailableError: the device, its driver or a feature that the binary needs is missing.
            MalformedMessageError: the bytes are no binary for this device.
        """

    def context(self) -> int:
        """Where to run, asked once for each call of a program: the CPU's number of threads, or the
        raw handle of an accelerator's current stream."""
