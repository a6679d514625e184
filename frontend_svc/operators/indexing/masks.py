"""Elements that a mask selects: read, written and counted, at positions from a running sum."""

from __future__ import annotations

from frontend_svc.operators.core.extents import numel_of, text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor, number_of
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr


def mask_positions(builder: PrimsBuilder, mask: Tensor) -> Tensor:
    """The number of elements that a mask selects before each selected element, flattened.

    Shapes: mask: any, bool; result: (numel,), i64; -1 before the first selected element.
    """
    flat = builder.convert(builder.reshape(mask, (numel_of(mask.shape),)), DType.I64)
    return builder.apply("sub", builder.prim("cumsum", flat, dim=0), 1)


def masked_put(
    builder: PrimsBuilder,
    base: Tensor,
    picked: list[tuple[int, Tensor]],
    values: Tensor,
    *,
    accumulate: bool,
) -> Tensor:
    """Values written in order where one mask holds, or added to the elements there.

    The mask is on adjacent axes of the base. On the axis of `values` that corresponds to the mask
    there is one value for each selected element, or one for all.
    """
    (axis, mask), *others = picked
    end = axis + mask.rank
    if others or not mask.rank:
        raise NotDecomposedError(
            "writing at several masks: the number of positions depends on data"
        )
    if not builder.extents.is_same_shape(mask.shape, base.shape[axis:end]):
        raise InvalidGraphError(
            f"a mask {text_of(mask.shape)} on {text_of(base.shape)}; expected equal extents"
        )
    is_selected = builder.convert(mask, DType.BOOL)
    behind = base.rank - end
    new = _spread(builder, base, (axis, is_selected), builder.convert(values, base.dtype))
    if accumulate:
        new = _sum(builder, base, new)
    return builder.where(builder.reshape(is_selected, (*mask.shape, *([ONE] * behind))), new, base)


def _spread(
    builder: PrimsBuilder, base: Tensor, positions: tuple[int, Tensor], values: Tensor
) -> Tensor:
    """The values on the axes of the base; where the mask does not hold, any value."""
    axis, mask = positions
    before, after = base.shape[:axis], base.shape[axis + mask.rank :]
    ones = (ONE,) * (axis + 1 + len(after) - values.rank)
    if values.rank > axis + 1 + len(after):
        raise InvalidGraphError(
            f"values {text_of(values.shape)} for {base.rank} axes; expected fewer"
        )
    full = builder.reshape(values, (*ones, *values.shape))
    count = full.shape[axis]
    if count is ONE:
        lead, rest = full.shape[:axis], full.shape[axis + 1 :]
        return builder.expand(
            builder.reshape(full, (*lead, *([ONE] * mask.rank), *rest)), base.shape
        )
    if count == 0:
        raise NotDecomposedError("no values for a mask")
    full = builder.expand(full, (*before, count, *after))
    taken = builder.apply("maximum", mask_positions(builder, mask), 0)
    return builder.reshape(builder.prim("take", full, taken, dim=axis), base.shape)


def _sum(builder: PrimsBuilder, left: Tensor, right: Tensor) -> Tensor:
    if left.dtype is DType.BOOL:
        return builder.apply("logical_or", left, right)
    return builder.convert(
        builder.apply("add", builder.widened(left), builder.widened(right)), left.dtype
    )


@decomposes("aten.masked_scatter.default")
def masked_scatter(builder: PrimsBuilder, self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """The elements of `source` in order where a mask holds."""
    shape = builder.extents.broadcast([self.shape, mask.shape])
    is_selected = builder.expand(builder.convert(mask, DType.BOOL), shape)
    position = builder.apply("maximum", mask_positions(builder, is_selected), 0)
    # Where the mask does not hold, the first element is read, so there must be one.
    if any(extent == 0 for extent in source.shape):
        raise NotDecomposedError("a source without elements")
    flat = builder.reshape(source, (numel_of(source.shape),))
    found = builder.reshape(builder.prim("take", flat, position, dim=0), shape)
    return builder.where(is_selected, found, builder.expand(self, shape))


@decomposes("aten.masked_scatter_backward.default")
def masked_scatter_backward(
    builder: PrimsBuilder, grad_output: Tensor, mask: Tensor, sizes: tuple[Expr, ...]
) -> Tensor:
    """The gradients where a mask holds, in order, then zeros."""
    is_selected = builder.expand(builder.convert(mask, DType.BOOL), grad_output.shape)
    total = numel_of(sizes)
    positions = _output_positions(builder, is_selected, total)
    flat = builder.reshape(grad_output, positions.shape)
    zeros = builder.full(0, grad_output.dtype, (total + 1,))
    found = builder.scatter(zeros, ((0,), [positions]), flat, "set", is_order_free=True)
    return builder.reshape(builder.slice_axis(found, 0, ZERO, total), sizes)


@decomposes("aten.nonzero_static.default")
def nonzero_static(
    builder: PrimsBuilder, self: Tensor, *, size: Expr, fill_value: int = -1
) -> Tensor:
    """The indices of a given number of elements that are not 0."""
    is_selected = builder.apply("ne", self, 0)
    positions = _output_positions(builder, is_selected, size)
    missing = builder.full(-1, DType.I64, (size + 1,))
    numbers = builder.iota(positions.shape[0])
    found = builder.scatter(missing, ((0,), [positions]), numbers, "set", is_order_free=True)
    found = builder.slice_axis(found, 0, ZERO, size)
    is_there = builder.apply("ge", found, 0)
    columns: list[Tensor] = []
    behind: Expr = ONE
    for extent in reversed(self.shape):
        index = builder.apply(
            "mod_floor", builder.apply("floor_div", found, number_of(behind)), number_of(extent)
        )
        columns.insert(0, builder.reshape(builder.where(is_there, index, fill_value), (size, ONE)))
        behind = behind * extent
    if not columns or any(extent == 0 for extent in self.shape):
        return builder.full(fill_value, DType.I64, (size, as_expr(self.rank)))
    return builder.prim("cat", *columns, dim=1)


def _output_positions(builder: PrimsBuilder, is_selected: Tensor, size: Expr) -> Tensor:
    """The position of each selected element among `size`; other elements get `size`."""
    positions = mask_positions(builder, is_selected)
    flat = builder.reshape(is_selected, positions.shape)
    is_kept = builder.apply("logical_and", flat, builder.apply("lt", positions, number_of(size)))
    return builder.where(is_kept, positions, builder.full(number_of(size), DType.I64))
