"""Users' Triton kernels in a captured graph: their arguments and results must fit."""

from __future__ import annotations

from collections.abc import Sequence

from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.graph_ir import Node, Ref, TensorType
from kernelfarm.ir.triton.check_kernel import check_user_kernel
from kernelfarm.ir.triton.node import check_node, kernels_of_arg, written_arguments
from kernelfarm.ir.triton.user_kernel import Pointer


def user_kernel_reason(node: Node) -> str:
    """What becomes of a user's kernel, for reports."""
    count = len(kernels_of_arg(node.attr("kernel")))
    several = f"; the client chooses one of {count} configurations" if count > 1 else ""
    return f"a Triton kernel of the user: the farm compiles it, and fusion stops at it{several}"


def check_user_kernel_node(node: Node, operands: Sequence[TensorType]) -> None:
    """Passes a node whose kernel is in the closed language and fits its tensors.

    `operands` are the types of the tensors among its arguments, in order.

    Raises:
        UserKernelError: the kernel or the node breaks a rule.
        InvalidGraphError: a tensor has another type than its parameter, or a result than its
            argument.
    """
    kernels = check_node(node)
    for kernel in kernels:
        check_user_kernel(kernel)
    types = iter(operands)
    given = [next(types) if isinstance(arg, Ref) else None for arg in node.args]
    results = dict(zip(written_arguments(node), node.types, strict=True))
    for position, param in enumerate(kernels[0].launched):
        if isinstance(param, Pointer):
            _check_tensors(param, given[position], results.get(position))


def _check_tensors(param: Pointer, given: TensorType | None, result: TensorType | None) -> None:
    """Checks an argument and the result that it becomes, as far as there are any."""
    for what, tensor in (("argument", given), ("result", result)):
        if tensor is not None and tensor.dtype is not param.dtype:
            raise InvalidGraphError(
                f"{what} {param.name} of {tensor.dtype.value}; expected {param.dtype.value}, to"
                " which the parameter points"
            )
    if given is not None and result is not None and given.shape != result.shape:
        raise InvalidGraphError(
            f"the result for argument {param.name} has another shape; expected what the kernel"
            " changed"
        )
