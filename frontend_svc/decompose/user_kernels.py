"""Users' Triton kernels in a captured graph: their arguments and results must fit."""

from __future__ import annotations

from collections.abc import Sequence

from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.graph_ir import Node, Ref, TensorType
from kernelfarm.ir.triton.node import check_node, written_arguments
from kernelfarm.ir.triton.user_kernel import check_user_kernel

USER_KERNEL_REASON = "a Triton kernel of the user: the farm compiles it, and fusion stops at it"


def check_user_kernel_node(node: Node, operands: Sequence[TensorType]) -> None:
    """Passes a node whose kernel is in the closed language and fits its tensors.

    `operands` are the types of the tensors among its arguments, in order.

    Raises:
        UserKernelError: the kernel or the node breaks a rule.
        InvalidGraphError: a tensor has another type than its parameter, or a result than its
            argument.
    """
    kernel = check_node(node)
    check_user_kernel(kernel)
    types = iter(operands)
    given = [next(types) if isinstance(arg, Ref) else None for arg in node.args]
    for pointer, tensor in zip(kernel.pointers, operands, strict=True):
        if tensor.dtype is not pointer.dtype:
            raise InvalidGraphError(
                f"argument {pointer.name} of {tensor.dtype.value}; expected {pointer.dtype.value},"
                " to which the parameter points"
            )
    for position, stated in zip(written_arguments(node), node.types, strict=True):
        tensor = given[position]
        if tensor is None or (tensor.dtype, tensor.shape) != (stated.dtype, stated.shape):
            raise InvalidGraphError(
                f"the result for argument {position} differs from it in type or shape;"
                " expected what the kernel changed"
            )
