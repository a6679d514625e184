"""The kernels that code generators compile: loop kernels, and Triton kernels of users."""

from __future__ import annotations

from typing import Union

from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.triton.user_kernel import UserKernel

AnyKernel = Union[Kernel, UserKernel]
