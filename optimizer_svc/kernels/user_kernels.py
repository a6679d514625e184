"""The users' kernels of a program: equal ones are one kernel."""

from __future__ import annotations

from kernelfarm.digest import named_user_kernel
from kernelfarm.ir.graph_ir import Node
from kernelfarm.ir.triton.node import kernel_of_arg
from kernelfarm.ir.triton.user_kernel import UserKernel
from kernelfarm.ir.work_budget import spend

_STEPS_A_KERNEL = 400
"""Steps of the work budget for a kernel: canonical form, digest, texts."""


class UserKernels:
    """Numbers the kernels of extern nodes, from `first` on; equal ones share a number."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._numbers: dict[str, int] = {}
        self._kernels: list[UserKernel] = []

    @property
    def kernels(self) -> tuple[UserKernel, ...]:
        """The distinct kernels, in the order of their numbers."""
        return tuple(self._kernels)

    def number(self, node: Node) -> int | None:
        """The number of an extern node's kernel, None if the framework runs the node."""
        arg = node.attr("kernel")
        if arg is None:
            return None
        spend(_STEPS_A_KERNEL)
        kernel = named_user_kernel(kernel_of_arg(arg))
        if kernel.name not in self._numbers:
            self._numbers[kernel.name] = self._first + len(self._kernels)
            self._kernels.append(kernel)
        return self._numbers[kernel.name]
