"""What an extern node may state: its attributes come from a captured graph, so from outside."""

from __future__ import annotations

import math

from kernelfarm.errors import UserKernelError
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.graph_ir import Arg, Node
from kernelfarm.ir.prim_attrs import rule_broken
from kernelfarm.ir.triton.check_kernel import check_user_kernel
from kernelfarm.ir.triton.node import kernels_of_arg
from kernelfarm.ir.triton.user_kernel import USER_KERNEL_OP

WINDOW_NUMBERS = 7
"""Two strides, paddings and dilations of a convolution, and its groups."""
_NUMBERS = range(2**32)
_AXES = range(64)


def check_extern(node: Node) -> None:
    """Checks the attributes of an extern node, and the strides of its results.

    Raises:
        VerificationError: a rule is broken; names what was seen and what was expected.
    """
    known = (type(node.attr("is_contraction")), type(node.attr("node")), type(node.attr("op")))
    if known != (bool, int, str):
        raise rule_broken(node, f"attributes {dict(node.attrs)}", "is_contraction, node and op")
    if node.attr("node") not in _NUMBERS:
        raise rule_broken(node, f"node={node.attr('node')!r}", "a number of 32 bits")
    _check_stated(node)
    if (node.attr("op") == USER_KERNEL_OP) != (node.attr("kernel") is not None):
        raise rule_broken(node, f"op={node.attr('op')!r}", f"a kernel for {USER_KERNEL_OP} alone")
    if node.attr("kernel") is not None:
        _check_user_kernel(node)
    for tensor in node.types:
        if tensor.strides is None or len(tensor.strides) != tensor.rank:
            raise rule_broken(
                node, f"strides {tensor.strides} of a result", "one stride for each axis"
            )


def is_window(window: Arg) -> bool:
    """True for the numbers of a convolution's window, each of 0 to 2^32 - 1."""
    return (
        isinstance(window, tuple)
        and len(window) == WINDOW_NUMBERS
        and all(type(number) is int and number in _NUMBERS for number in window)
    )


def _check_stated(node: Node) -> None:
    """Checks what an operator may say of itself."""
    for name in ("is_causal", "is_unscaled"):
        if node.attr(name, True) is not True:
            raise rule_broken(node, f"{name}={node.attr(name)!r}", "true, if stated")
    scale = node.attr("scale", 1.0)
    if not isinstance(scale, float) or not math.isfinite(scale):
        raise rule_broken(node, f"scale={scale!r}", "a finite number of floating point, if stated")
    length = node.attr("length")
    if length is not None and not isinstance(length, Expr):
        raise rule_broken(node, f"length={length!r}", "a size, if stated")
    adjacent = node.attr("adjacent")
    if adjacent is not None and not _is_of_operands(adjacent, node):
        raise rule_broken(node, f"adjacent={adjacent!r}", "one axis for each operand, if stated")
    window = node.attr("window")
    if window is not None and not is_window(window):
        raise rule_broken(node, f"window={window!r}", f"{WINDOW_NUMBERS} numbers, if stated")


def _is_of_operands(adjacent: Arg, node: Node) -> bool:
    """True for a small number for each operand; a node without operands is being made."""
    if not isinstance(adjacent, tuple) or len(adjacent) != len(node.args or adjacent):
        return False
    return all(type(axis) is int and axis in _AXES for axis in adjacent)


def _check_user_kernel(node: Node) -> None:
    try:
        for kernel in kernels_of_arg(node.attr("kernel")):
            check_user_kernel(kernel)
    except UserKernelError as error:
        raise rule_broken(node, str(error), "a kernel of the closed language") from error
