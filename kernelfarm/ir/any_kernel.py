"""The kernels that code generators compile: loop kernels, and Triton kernels of users."""

from __future__ import annotations

from typing import Union

from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.triton.user_kernel import UserKernel, check_user_kernel
from kernelfarm.ir.verify.kernel import verify_kernel

AnyKernel = Union[Kernel, UserKernel]


def check_kernel(kernel: AnyKernel) -> None:
    """Passes a kernel that is well formed.

    Raises:
        VerificationError: a loop kernel breaks a rule.
        UserKernelError: a user's kernel breaks a rule.
    """
    if isinstance(kernel, UserKernel):
        check_user_kernel(kernel)
    else:
        verify_kernel(kernel)
