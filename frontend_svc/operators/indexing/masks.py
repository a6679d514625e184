"""Elements that a mask holds: read, written and counted, at places that a running sum gives."""

from __future__ import annotations

from frontend_svc.operators.core.extents import numel_of, text_of
from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor, number_of
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr


def held_places(op: Lowering, mask: Tensor) -> Tensor:
    """How many elements a mask holds before each of its own, flattened.

    Shapes: mask: any, bool; result: (numel,), i64; -1 where it has held none up to there.
    """
    flat = op.convert(op.reshape(mask, (numel_of(mask.shape),)), DType.I64)
    return op.apply("sub", op.prim("cumsum", flat, dim=0), 1)


def put_at_mask(
    op: Lowering,
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
    if not op.extents.is_same_shape(mask.shape, base.shape[axis:end]):
        raise InvalidGraphError(
            f"a mask {text_of(mask.shape)} on {text_of(base.shape)}; expected equal extents"
        )
    held = op.convert(mask, DType.BOOL)
    behind = base.rank - end
    new = _spread(op, base, (axis, held), op.convert(values, base.dtype))
    if accumulate:
        new = _sum(op, base, new)
    return op.where(op.reshape(held, (*mask.shape, *([ONE] * behind))), new, base)


def _spread(op: Lowering, base: Tensor, placed: tuple[int, Tensor], values: Tensor) -> Tensor:
    """The values on the base's axes: where the mask does not hold, any of them."""
    axis, mask = placed
    before, after = base.shape[:axis], base.shape[axis + mask.rank :]
    ones = (ONE,) * (axis + 1 + len(after) - values.rank)
    if values.rank > axis + 1 + len(after):
        raise InvalidGraphError(
            f"values {text_of(values.shape)} for {base.rank} axes; expected fewer"
        )
    full = op.reshape(values, (*ones, *values.shape))
    count = full.shape[axis]
    if count is ONE:
        lead, rest = full.shape[:axis], full.shape[axis + 1 :]
        return op.expand(op.reshape(full, (*lead, *([ONE] * mask.rank), *rest)), base.shape)
    if count == 0:
        raise NotDecomposedError("no values for a mask")
    full = op.expand(full, (*before, count, *after))
    places = op.apply("maximum", held_places(op, mask), 0)
    return op.reshape(op.prim("take", full, places, dim=axis), base.shape)


def _sum(op: Lowering, left: Tensor, right: Tensor) -> Tensor:
    if left.dtype is DType.BOOL:
        return op.apply("logical_or", left, right)
    return op.convert(op.apply("add", op.widened(left), op.widened(right)), left.dtype)


@decomposes("aten.masked_scatter.default")
def masked_scatter(op: Lowering, self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Where a mask holds, the elements of `source` one after the other."""
    shape = op.extents.broadcast([self.shape, mask.shape])
    held = op.expand(op.convert(mask, DType.BOOL), shape)
    place = op.apply("maximum", held_places(op, held), 0)
    # Places where the mask does not hold read the first element, which there may not be.
    if any(extent == 0 for extent in source.shape):
        raise NotDecomposedError("a source without elements")
    line = op.reshape(source, (numel_of(source.shape),))
    found = op.reshape(op.prim("take", line, place, dim=0), shape)
    return op.where(held, found, op.expand(self, shape))


@decomposes("aten.masked_scatter_backward.default")
def masked_scatter_backward(
    op: Lowering, grad_output: Tensor, mask: Tensor, sizes: tuple[Expr, ...]
) -> Tensor:
    """The gradients where a mask holds, one after the other, then zeros."""
    held = op.expand(op.convert(mask, DType.BOOL), grad_output.shape)
    total = numel_of(sizes)
    places = _kept_places(op, held, total)
    line = op.reshape(grad_output, places.shape)
    zeros = op.full(0, grad_output.dtype, (total + 1,))
    found = op.prim("scatter", zeros, places, line, dims=(0,), mode="set")
    return op.reshape(op.slice_axis(found, 0, ZERO, total), sizes)


@decomposes("aten.nonzero_static.default")
def nonzero_static(op: Lowering, self: Tensor, *, size: Expr, fill_value: int = -1) -> Tensor:
    """The places of elements that are not zero, of which a given number is told."""
    held = op.apply("ne", self, 0)
    places = _kept_places(op, held, size)
    nowhere = op.full(-1, DType.I64, (size + 1,))
    numbers = op.iota(places.shape[0])
    found = op.prim("scatter", nowhere, places, numbers, dims=(0,), mode="set")
    found = op.slice_axis(found, 0, ZERO, size)
    is_there = op.apply("ge", found, 0)
    columns: list[Tensor] = []
    behind: Expr = ONE
    for extent in reversed(self.shape):
        line = op.apply(
            "mod_floor", op.apply("floor_div", found, number_of(behind)), number_of(extent)
        )
        columns.insert(0, op.reshape(op.where(is_there, line, fill_value), (size, ONE)))
        behind = behind * extent
    if not columns or any(extent == 0 for extent in self.shape):
        return op.full(fill_value, DType.I64, (size, as_expr(self.rank)))
    return op.prim("cat", *columns, dim=1)


def _kept_places(op: Lowering, held: Tensor, size: Expr) -> Tensor:
    """Where each element of a mask goes among `size` places; what is not kept goes behind."""
    places = held_places(op, held)
    flat = op.reshape(held, places.shape)
    is_kept = op.apply("logical_and", flat, op.apply("lt", places, number_of(size)))
    return op.where(is_kept, places, op.full(number_of(size), DType.I64))
