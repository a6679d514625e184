"""Contractions: the framework's libraries run them; shapes of common ones are checked here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from frontend_svc.operators.core.extents import Extents, text_of
from frontend_svc.operators.core.registry import EXTERN_CHECKS
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE
from kernelfarm.ir.extern_rule import is_window
from kernelfarm.ir.graph_ir import Arg, Node, TensorType

Types = Sequence[TensorType]
Check = Callable[[Extents, Types], TensorType]


def check_matrices(extents: Extents, types: Types) -> TensorType:
    """The product of matrices (m, k) and (k, n)."""
    left, right = _operands(types, 2)
    _expect_ranks((left, right), (2, 2))
    _expect_inner(extents, left, right)
    return TensorType(left.dtype, (left.shape[0], right.shape[1]))


def check_batches(extents: Extents, types: Types) -> TensorType:
    """The product of batches (b, m, k) and (b, k, n)."""
    left, right = _operands(types, 2)
    _expect_ranks((left, right), (3, 3))
    _expect_inner(extents, left, right)
    if not extents.is_same(left.shape[0], right.shape[0]):
        raise InvalidGraphError(f"batches of {left.shape[0]} and {right.shape[0]}; expected one")
    return TensorType(left.dtype, (*left.shape[:2], right.shape[2]))


def check_vector(extents: Extents, types: Types) -> TensorType:
    """The product of a matrix (m, k) and a vector (k)."""
    left, right = _operands(types, 2)
    _expect_ranks((left, right), (2, 1))
    _expect_inner(extents, left, right)
    return TensorType(left.dtype, (left.shape[0],))


def check_linear(extents: Extents, types: Types) -> TensorType:
    """The product of (..., k) and a weight (n, k), plus a bias (n)."""
    if len(types) not in (2, 3):
        raise InvalidGraphError(f"{len(types)} tensors; expected 2 or 3")
    x, weight = types[0], types[1]
    if weight.rank not in (1, 2) or not x.rank:
        raise InvalidGraphError(f"a weight of shape {text_of(weight.shape)}; expected two axes")
    if not extents.is_same(x.shape[-1], weight.shape[-1]):
        raise InvalidGraphError(f"{x.shape[-1]} features; expected {weight.shape[-1]}")
    return TensorType(x.dtype, (*x.shape[:-1], *weight.shape[:-1]))


def is_unscaled_sum(node: Node) -> bool:
    """True if a node adds a tensor to a product and multiplies neither by another number than 1."""
    scales = (node.attr(name, 1) for name in ("beta", "alpha"))
    is_one = all(isinstance(scale, int | float) and scale == 1 for scale in scales)
    return node.op == "aten.addmm.default" and is_one


def adjacent_axes(node: Node, types: Types) -> tuple[Arg, ...] | None:
    """The axis of each operand whose elements are adjacent; None for operators of any layout.

    Libraries multiply 8-bit floats row by row of both matrices, so the second one has columns in
    memory, and check the layouts of scales.
    """
    if not node.op.startswith(_SCALED_PRODUCTS):
        return None
    return tuple(_adjacent_axis(tensor) for tensor in types)


def _adjacent_axis(tensor: TensorType) -> int:
    """The last axis, unless another one is adjacent in memory."""
    last = max(tensor.rank - 1, 0)
    strides = tensor.strides
    if strides is None or not strides or ONE in (strides[-1], tensor.shape[-1]):
        return last
    return strides.index(ONE) if ONE in strides else last


def convolution_window(node: Node) -> tuple[Arg, ...] | None:
    """Strides, padding and dilations of a convolution of images or its gradients, and its groups.

    None for others, and for what is no number.
    """
    first = _PACKED_STEPS.get(node.op)
    if first is not None and len(node.args) >= first + 4:
        padding, stride, dilation, groups = node.args[first : first + 4]
        return _window((stride, padding, dilation), groups)
    first = _PLAIN_STEPS.get(node.op)
    if first is None or len(node.args) < first + _STEP_ARGUMENTS:
        return None
    *steps, transposed, _, groups = node.args[first : first + _STEP_ARGUMENTS]
    return _window(steps, groups) if transposed is False else None


def _window(steps: Sequence[Arg], groups: Arg) -> tuple[Arg, ...] | None:
    pairs = [step if isinstance(step, tuple) else () for step in steps]
    numbers = [number for pair in pairs for number in (pair * 2 if len(pair) == 1 else pair)]
    found = (*numbers, groups)
    return found if is_window(found) else None


_SCALED_PRODUCTS = ("aten._scaled_mm", "aten._scaled_grouped_mm")
_STEP_ARGUMENTS = 6
_PLAIN_STEPS = {"aten.convolution.default": 3, "aten.convolution_backward.default": 4}
"""The position of the strides among the arguments, six of which say how the window moves."""
_PACKED_STEPS = {
    "mkldnn._convolution_pointwise.default": 3,
    "mkldnn._convolution_pointwise.binary": 4,
}
"""The position of the padding among the arguments of convolutions with packed weights."""


def _added(check: Check) -> Check:
    """A check of the product plus a first operand that broadcasts to it."""

    def check_sum(extents: Extents, types: Types) -> TensorType:
        if len(types) != 3:
            raise InvalidGraphError(f"{len(types)} tensors; expected 3")
        result = check(extents, types[1:])
        if not extents.is_same_shape(
            extents.broadcast([types[0].shape, result.shape]), result.shape
        ):
            raise InvalidGraphError(
                f"a summand of shape {text_of(types[0].shape)}; expected {text_of(result.shape)}"
            )
        return result

    return check_sum


def _operands(types: Types, count: int) -> tuple[TensorType, TensorType]:
    if len(types) != count:
        raise InvalidGraphError(f"{len(types)} tensors; expected {count}")
    left, right = types
    if left.dtype is not right.dtype:
        raise InvalidGraphError(f"types {left.dtype!r} and {right.dtype!r}; expected one type")
    return left, right


def _expect_ranks(types: Types, ranks: Sequence[int]) -> None:
    for tensor, rank in zip(types, ranks, strict=True):
        if tensor.rank != rank:
            raise InvalidGraphError(f"shape {text_of(tensor.shape)}; expected {rank} axes")


def _expect_inner(extents: Extents, left: TensorType, right: TensorType) -> None:
    inner = right.shape[-2] if right.rank > 1 else right.shape[0]
    if not extents.is_same(left.shape[-1], inner):
        seen = f"{text_of(left.shape)} by {text_of(right.shape)}"
        raise InvalidGraphError(f"{seen}: inner extents {left.shape[-1]} and {inner} differ")


EXTERN_CHECKS.update(
    {
        "aten.mm.default": check_matrices,
        "aten.bmm.default": check_batches,
        "aten.mv.default": check_vector,
        "aten.linear.default": check_linear,
        "aten.addmm.default": _added(check_matrices),
        "aten.baddbmm.default": _added(check_batches),
        "aten.addmv.default": _added(check_vector),
    }
)
