"""The interface of loaders: a binary becomes a kernel that runs on addresses.

A launch reads two C arrays in the client's memory: the pointer table with one pointer for each
buffer, in the order of the kernel's parameters, and one int64 for each size, in the order of the
kernel's sizes. A kernel is bound to its sizes, then to a table and a context, and can then be
launched many times. The address of the table is fixed; its pointers may change between launches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from kernelfarm.errors import InternalError, KernelfarmError, UnavailableError
from kernelfarm.ir.artifact import LaunchFacts

if TYPE_CHECKING:
    import torch


class NotRunnableHereError(KernelfarmError):
    """No loader supports a device of this machine, or a binary is a stub that cannot run."""

    status = "FAILED_PRECONDITION"
    reason = "NOT_RUNNABLE_HERE"


LaunchCall = Callable[[], int]
"""Runs a kernel; returns 0, or a status that `Loader.failed` knows."""

_INDEX_OUT_OF_BOUNDS = 1
_NO_MEMORY = 2
_OTHER_VECTORS = 3

BoundKernel = Callable[[int, int], LaunchCall]
"""`bound(address of a pointer table, context)` -> a launch of the kernel on this table."""


class LoadedKernel(Protocol):
    """One loaded variant of one kernel; threads may share it."""

    def bind(self, sizes: tuple[int, ...]) -> BoundKernel:
        """The kernel for these values of its sizes; it owns the memory that it points to."""


class Loader(Protocol):
    """Loads binaries for one device."""

    def load(self, binary: bytes, launch: LaunchFacts) -> LoadedKernel:
        """The kernel of a binary.

        Raises:
            UnavailableError: the device, its driver or a feature that the binary needs is missing.
            MalformedMessageError: the bytes are not a binary for this device.
        """

    def failed(self, status: int, launch: LaunchCall, name: str) -> None:
        """Handles the status of a launch of a kernel that is not 0: launches again, or raises.

        Raises:
            IndexError: an index was out of bounds.
            MemoryError: the kernel got no memory.
            UnavailableError: the device's driver refused the launch.
            InternalError: the status is unknown.
        """

    def context(self) -> int:
        """The context of a launch: a CPU's number of threads, or an accelerator's current stream.

        The stream is a raw handle. A program reads its context once for each call.
        """


class LaunchTimer(Protocol):
    """Measures launches on a device."""

    def device(self) -> str:
        """The device and its driver, in at most 200 characters; times of equal ones compare."""

    def obstacle(self) -> str:
        """Why launches of the calling thread cannot be measured now; empty if they can."""

    def times_ms(
        self, launch: Callable[[], None], prepare: Callable[[], None], count: int
    ) -> list[float]:
        """The times of `count` launches on the current stream, each behind a call of `prepare`.

        `prepare` is not measured. Operands come from memory, not from the device's caches.

        Raises:
            UnavailableError: the device refuses a launch.
        """


@runtime_checkable
class TimesLaunches(Protocol):
    """A loader whose device can measure launches; autotuned kernels choose by these times."""

    def timer(self) -> LaunchTimer:
        """The timer of the loader's device."""


@dataclass(frozen=True, slots=True)
class DeviceSupport:
    """The target and the loader of a device."""

    target: str
    loader: Loader


class FindSupport(Protocol):
    """What an entry point of the group `kernelfarm.loaders` names: the loaders of a vendor."""

    def __call__(self, device: torch.device, requested: str) -> DeviceSupport | None:
        """Target and loader of a device of this machine; None if they are not the vendor's.

        `requested` is the target that the settings name for this machine's processor, or empty.
        """


def raise_for(status: int, name: str) -> None:
    """Raises the error of a status that a kernel of the CPU returned.

    Raises:
        IndexError: an index was out of bounds.
        MemoryError: the kernel got no memory.
        UnavailableError: the thread has SVE vectors of another length than the kernel needs.
        InternalError: the status is unknown.
    """
    if status == _INDEX_OUT_OF_BOUNDS:
        raise IndexError(f"index out of bounds in kernel {name}")
    if status == _NO_MEMORY:
        raise MemoryError(f"kernel {name} could not allocate memory for sorting rows")
    if status == _OTHER_VECTORS:
        raise UnavailableError(
            f"kernel {name} was compiled for SVE vectors of another length than this thread has; do"
            " not change it (prctl PR_SVE_SET_VL) in a process that has loaded kernels"
        )
    raise InternalError(f"kernel {name} failed with status {status}")
