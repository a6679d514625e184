"""Codec of the kernels that code generators compile: loop kernels, and kernels of users."""

from __future__ import annotations

from kernelfarm.internal.v1 import loops_pb2 as pb
from kernelfarm.ir.any_kernel import AnyKernel
from kernelfarm.ir.triton.user_kernel import UserKernel
from kernelfarm.wire.kernel import kernel_from_proto, kernel_to_proto
from kernelfarm.wire.names import checked_name
from kernelfarm.wire.user_kernel import user_kernel_from_proto, user_kernel_to_proto


def any_kernel_to_proto(kernel: AnyKernel) -> pb.Kernel:
    """The message of a kernel of either kind.

    Raises:
        InvalidGraphError: an integer has more than 64 bits.
    """
    if isinstance(kernel, UserKernel):
        return pb.Kernel(name=kernel.name, user=user_kernel_to_proto(kernel))
    return kernel_to_proto(kernel)


def any_kernel_from_proto(message: pb.Kernel) -> AnyKernel:
    """The kernel of a message; `check_kernel` checks its rules.

    Raises:
        CallerError: what was seen and what was expected.
    """
    if message.HasField("user"):
        return user_kernel_from_proto(checked_name(message.name, "a kernel"), message.user)
    return kernel_from_proto(message)
