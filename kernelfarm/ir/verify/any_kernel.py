"""The rules of kernels of either kind."""

from __future__ import annotations

from kernelfarm.ir.any_kernel import AnyKernel
from kernelfarm.ir.triton.check_kernel import check_user_kernel
from kernelfarm.ir.triton.user_kernel import UserKernel
from kernelfarm.ir.verify.kernel import verify_kernel


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
