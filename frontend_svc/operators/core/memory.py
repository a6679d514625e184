"""Operators that address the memory of an operand, as views where its layout allows that.

The layout is the one that the framework states for the operand. A computed value begins at the
first element of its own memory. If an operator may read beyond its operand, the framework runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from frontend_svc.operators.core.extents import Shape, numel_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.values import Tensor
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr
from kernelfarm.ir.graph_ir import Arg, Node, TensorType, contiguous_strides

_READERS = frozenset({"aten.as_strided.default", "aten.as_strided_copy.default"})
_PARAMETERS = ("self", "size", "stride", "storage_offset")


@dataclass(frozen=True, slots=True)
class _Window:
    """A window on memory: element (i, j, ...) is at offset + i * strides[0] + j * strides[1] ..."""

    sizes: Shape
    strides: Shape
    offset: Expr

    @property
    def span(self) -> Expr:
        """Elements from the first addressed one to the last."""
        span = ONE
        for size, stride in zip(self.sizes, self.strides, strict=True):
            span = span + (size - ONE) * stride
        return span


def is_relative(node: Node) -> bool:
    """True if the offset of a window counts from its operand, not from the start of memory."""
    return _given(node).get("storage_offset") is None


def read_memory(
    builder: PrimsBuilder, node: Node, operand: Tensor, layout: TensorType
) -> Tensor | None:
    """The node's result as a view of an operand of this layout; None if that is not proven."""
    window = _window_of(node)
    own = _dense_order(layout.shape, layout.strides)
    if window is None or own is None or not _is_inside(builder, window, numel_of(layout.shape)):
        return None
    order = _dense_order(window.sizes, window.strides)
    if layout.shape == window.sizes and own == order:
        return operand
    flat = builder.reshape(builder.permute(operand, own), (numel_of(layout.shape),))
    part = builder.slice_axis(flat, 0, window.offset, window.offset + window.span)
    if order is None:
        return _windowed(builder, part, window)
    back = sorted(range(len(order)), key=lambda axis: order[axis])
    return builder.permute(builder.reshape(part, tuple(window.sizes[axis] for axis in order)), back)


def _windowed(builder: PrimsBuilder, part: Tensor, window: _Window) -> Tensor:
    """A window whose axes overlap or leave gaps: each axis is a sliding window over the rest."""
    x, left = part, part.shape[0]
    kept: list[Expr] = []
    for size, stride in zip(window.sizes, window.strides, strict=True):
        if size is ONE or stride is ZERO:
            kept.append(ONE)
            continue
        left = left - (size - ONE) * stride
        axis = x.rank - 1
        x = builder.prim(
            "window", x, dims=(axis,), sizes=(left,), strides=(stride,), dilations=(ONE,)
        )
        kept.append(size)
    return builder.expand(builder.reshape(x, tuple(kept)), window.sizes)


def _is_inside(builder: PrimsBuilder, window: _Window, total: Expr) -> bool:
    """True if the window has elements and all of them are proven to be below `total`."""
    proven = builder.extents.is_at_most
    has_elements = all(proven(1, size) for size in window.sizes)
    is_forward = all(stride is ZERO or proven(1, stride) for stride in window.strides)
    starts = proven(0, window.offset)
    return has_elements and is_forward and starts and proven(window.offset + window.span, total)


def _given(node: Node) -> dict[str, Arg]:
    return {**dict(node.attrs), **dict(zip(_PARAMETERS, node.args, strict=False))}


def _window_of(node: Node) -> _Window | None:
    given = _given(node)
    sizes, strides = _exprs(given.get("size")), _exprs(given.get("stride"))
    offset = _exprs((given.get("storage_offset") or 0,))
    is_read = node.op in _READERS
    if not is_read or sizes is None or strides is None or len(sizes) != len(strides):
        return None
    return None if offset is None else _Window(sizes, strides, offset[0])


def _exprs(arg: Arg) -> Shape | None:
    if not isinstance(arg, tuple):
        return None
    numbers = [as_expr(item) for item in arg if isinstance(item, int | Expr)]
    return tuple(numbers) if len(numbers) == len(arg) else None


def _dense_order(shape: Sequence[Expr], strides: Sequence[Expr] | None) -> tuple[int, ...] | None:
    """The axes from the outermost in memory to the innermost; None unless proven dense."""
    if strides is None:
        return None
    if tuple(strides) == contiguous_strides(tuple(shape)):
        return tuple(range(len(shape)))
    if not all(e.is_constant for e in (*shape, *strides)):
        return None
    axes = range(len(shape))
    order = tuple(sorted(axes, key=lambda a: (-strides[a].constant, shape[a].constant == 1, a)))
    expected = 1
    for axis in reversed(order):
        extent = shape[axis].constant
        if extent == 1:
            continue  # its stride has no effect
        if extent == 0 or strides[axis].constant != expected:
            return None
        expected *= extent
    return order
