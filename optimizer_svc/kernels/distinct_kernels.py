"""The distinct kernels of a program, by content."""

from __future__ import annotations

from kernelfarm.digest import kernel_digest
from kernelfarm.ir.loop_ir import Kernel
from optimizer_svc.kernels.name_kernel import named_kernel

NAME_DIGITS = 8
MAX_NAME_DIGITS = 32


class DistinctKernels:
    """Distinct kernels in order of their first use; the first of equal ones gives the comments."""

    def __init__(self) -> None:
        self.kernels: list[Kernel] = []
        self._numbers: dict[bytes, int] = {}
        self._names: set[str] = set()

    def number(self, kernel: Kernel) -> int:
        """The number of the kernel with this content, which is named if it is new."""
        digest = kernel_digest(kernel)
        found = self._numbers.get(digest)
        if found is not None:
            return found
        named = named_kernel(kernel, digest.hex()[:NAME_DIGITS])
        if named.name in self._names:  # another kernel's digest begins with the same digits
            named = named_kernel(kernel, digest.hex()[:MAX_NAME_DIGITS])
        self._names.add(named.name)
        self._numbers[digest] = len(self.kernels)
        self.kernels.append(named)
        return self._numbers[digest]
