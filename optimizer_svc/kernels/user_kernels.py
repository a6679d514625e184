"""The users' kernels of a program, and those of templates: equal ones are one kernel."""

from __future__ import annotations

from kernelfarm.digest import named_user_kernel
from kernelfarm.ir.graph_ir import Node
from kernelfarm.ir.program_ir import KernelChoice
from kernelfarm.ir.triton.node import kernels_of_arg
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

    def choices(self, node: Node) -> tuple[KernelChoice, ...]:
        """The kernels among which the client chooses for an extern node, one by configuration.

        There is none if the framework runs the node.
        """
        arg = node.attr("kernel")
        if arg is None:
            return ()
        return tuple(
            KernelChoice(self.number(kernel), configuration)
            for configuration, kernel in enumerate(kernels_of_arg(arg))
        )

    def number(self, unnamed: UserKernel) -> int:
        """The number of a kernel, which gets a name."""
        spend(_STEPS_A_KERNEL)
        kernel = named_user_kernel(unnamed)
        if kernel.name not in self._numbers:
            self._numbers[kernel.name] = self._first + len(self._kernels)
            self._kernels.append(kernel)
        return self._numbers[kernel.name]
