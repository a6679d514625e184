"""Operators that address an operand's memory, where its layout makes them plain views.

The layout is that which the framework states for a computed operand: it begins at the first element
of memory of its own. Only dense layouts of known sizes are read here; others go to the framework.
"""

from __future__ import annotations

from collections.abc import Sequence

from frontend_svc.operators.lowering import Lowering
from frontend_svc.operators.values import Tensor
from kernelfarm.ir.graph_ir import Arg, Node, TensorType
from kernelfarm.ir.symbolic import Expr, as_expr


def read_memory(op: Lowering, node: Node, operand: Tensor, layout: TensorType) -> Tensor | None:
    """The node's result from a computed operand of this layout; None if no view gives it."""
    if node.op != "aten.as_strided.default":
        return None
    window = _window(node)
    own = _dense_order(layout.shape, layout.strides)
    if window is None or own is None:
        return None
    sizes, strides, offset = window
    order = _dense_order(sizes, strides)
    count, total = _product(sizes), _product(layout.shape)
    if order is None or count is None or total is None or offset + count > total:
        return None
    if layout.shape == sizes and own == order:
        return operand
    flat = op.reshape(op.permute(operand, own), (as_expr(total),))
    part = op.slice_axis(flat, 0, as_expr(offset), as_expr(offset + count))
    back = sorted(range(len(order)), key=lambda axis: order[axis])
    return op.permute(op.reshape(part, tuple(sizes[axis] for axis in order)), back)


def _window(node: Node) -> tuple[tuple[Expr, ...], tuple[Expr, ...], int] | None:
    given = dict(node.attrs)
    names = ("self", "size", "stride", "storage_offset")
    given.update(zip(names, node.args, strict=False))
    offset = given.get("storage_offset")
    sizes, strides = _exprs(given.get("size")), _exprs(given.get("stride"))
    if sizes is None or strides is None or len(sizes) != len(strides):
        return None
    return (sizes, strides, offset or 0) if offset is None or isinstance(offset, int) else None


def _exprs(arg: Arg) -> tuple[Expr, ...] | None:
    if not isinstance(arg, tuple):
        return None
    numbers = [as_expr(item) for item in arg if isinstance(item, int | Expr)]
    return tuple(numbers) if len(numbers) == len(arg) else None


def _dense_order(shape: Sequence[Expr], strides: Sequence[Expr] | None) -> tuple[int, ...] | None:
    """The axes from the outermost in memory to the innermost; None unless dense and known."""
    if strides is None or not all(e.is_constant for e in (*shape, *strides)):
        return None
    axes = range(len(shape))
    order = tuple(sorted(axes, key=lambda a: (-strides[a].constant, shape[a].constant == 1, a)))
    expected = 1
    for axis in reversed(order):
        extent = shape[axis].constant
        if extent == 1:
            continue  # its stride addresses nothing
        if extent == 0 or strides[axis].constant != expected:
            return None
        expected *= extent
    return order


def _product(shape: Sequence[Expr]) -> int | None:
    total = 1
    for extent in shape:
        if not extent.is_constant:
            return None
        total *= extent.constant
    return total
