"""Elements that a mask holds: read, written and counted, at places that a running sum gives."""

from __future__ import annotations

from frontend_svc.operators.core.extents import numel_of, text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor, number_of
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr


def mask_positions(builder: PrimsBuilder, mask: Tensor) -> Tensor:
    """How many elements a mask holds before each of its own, flattened.

    Shapes: mask: any, bool; result: (numel,), i64; -1 where it has held none up to there.
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
    """Values one after the other wherever one mask holds, or added there.

    The mask lies on neighbouring axes of the base; on its axis of values stands one value for each
    element held, or one for all.
    """
    (axis, mask), *others = picked
    end = axis + mask.rank
    if others or not mask.rank:
        raise NotDecomposedError("writing at several masks: their number of places depends on data")
    if not builder.extents.is_same_shape(mask.shape, base.shape[axis:end]):
        raise InvalidGraphError(
            f"a mask {text_of(mask.shape)} on {text_of(base.shape)}; expected equal extents"
        )
    held = builder.convert(mask, DType.BOOL)
    behind = base.rank - end
    new = _spread(builder, base, (axis, held), builder.convert(values, base.dtype))
    if accumulate:
        new = _sum(builder, base, new)
    return builder.where(builder.reshape(held, (*mask.shape, *([ONE] * behind))), new, base)


def _spread(
    builder: PrimsBuilder, base: Tensor, positions: tuple[int, Tensor], values: Tensor
) -> Tensor:
    """The values on the base's axes: where the mask does not hold, any of them."""
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
    """Where a mask holds, the elements of `source` one after the other."""
    shape = builder.extents.broadcast([self.shape, mask.shape])
    held = builder.expand(builder.convert(mask, DType.BOOL), shape)
    position = builder.apply("maximum", mask_positions(builder, held), 0)
    # Places where the mask does not hold read the first element, which there may not be.
    if any(extent == 0 for extent in source.shape):
        raise NotDecomposedError("a source without elements")
    line = builder.reshape(source, (numel_of(source.shape),))
    found = builder.reshape(builder.prim("take", line, position, dim=0), shape)
    return builder.where(held, found, builder.expand(self, shape))


@decomposes("aten.masked_scatter_backward.default")
def masked_scatter_backward(
    builder: PrimsBuilder, grad_output: Tensor, mask: Tensor, sizes: tuple[Expr, ...]
) -> Tensor:
    """The gradients where a mask holds, one after the other, then zeros."""
    held = builder.expand(builder.convert(mask, DType.BOOL), grad_output.shape)
    total = numel_of(sizes)
    positions = _output_positions(builder, held, total)
    line = builder.reshape(grad_output, positions.shape)
    zeros = builder.full(0, grad_output.dtype, (total + 1,))
    found = builder.prim("scatter", zeros, positions, line, dims=(0,), mode="set")
    return builder.reshape(builder.slice_axis(found, 0, ZERO, total), sizes)


@decomposes("aten.nonzero_static.default")
def nonzero_static(
    builder: PrimsBuilder, self: Tensor, *, size: Expr, fill_value: int = -1
) -> Tensor:
    """The places of elements that are not zero, of which a given number is told."""
    held = builder.apply("ne", self, 0)
    positions = _output_positions(builder, held, size)
    nowhere = builder.full(-1, DType.I64, (size + 1,))
    numbers = builder.iota(positions.shape[0])
    found = builder.prim("scatter", nowhere, positions, numbers, dims=(0,), mode="set")
    found = builder.slice_axis(found, 0, ZERO, size)
    is_there = builder.apply("ge", found, 0)
    columns: list[Tensor] = []
    behind: Expr = ONE
    for extent in reversed(self.shape):
        line = builder.apply(
            "mod_floor", builder.apply("floor_div", found, number_of(behind)), number_of(extent)
        )
        columns.insert(0, builder.reshape(builder.where(is_there, line, fill_value), (size, ONE)))
        behind = behind * extent
    if not columns or any(extent == 0 for extent in self.shape):
        return builder.full(fill_value, DType.I64, (size, as_expr(self.rank)))
    return builder.prim("cat", *columns, dim=1)


def _output_positions(builder: PrimsBuilder, held: Tensor, size: Expr) -> Tensor:
    """Where each element of a mask goes among `size` places; what is not kept goes behind."""
    positions = mask_positions(builder, held)
    flat = builder.reshape(held, positions.shape)
    is_kept = builder.apply("logical_and", flat, builder.apply("lt", positions, number_of(size)))
    return builder.where(is_kept, positions, builder.full(number_of(size), DType.I64))
