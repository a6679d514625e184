"""Parts of tensors: slices, selections, splits, and writing into parts."""

from __future__ import annotations

from frontend_svc.operators.core.extents import axes_of, axis_of, numel_of
from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr, ceil_div

_INT64_MAX = 2**63 - 1
_MAX_PARTS = 65536


@decomposes("aten.slice.Tensor", "aten.slice_copy.Tensor")
def slice_(
    op: Lowering,
    self: Tensor,
    dim: int = 0,
    start: Expr | None = None,
    end: Expr | None = None,
    step: int = 1,
) -> Tensor:
    """Elements start, start+step, ... below end of an axis; ends are clamped as in Python."""
    axis, first, limit = _bounds(op, self, dim, start, end)
    if step < 1:
        raise InvalidGraphError(f"step {step}; expected 1 or more")
    return _part(op, self, axis, first, limit, as_expr(step))


@decomposes("aten.narrow.default", "aten.narrow_copy.default")
def narrow(op: Lowering, self: Tensor, dim: int, start: Expr, length: Expr) -> Tensor:
    """`length` elements of an axis from start."""
    return slice_(op, self, dim, start, start + length)


@decomposes("aten.select.int", "aten.select_copy.int")
def select(op: Lowering, self: Tensor, dim: int, index: Expr) -> Tensor:
    """One element of an axis, which is dropped."""
    axis = _axis(self, dim)
    position = _position(op, self, axis, index)
    part = _part(op, self, axis, position, position + 1, ONE)
    return op.reshape(part, (*self.shape[:axis], *self.shape[axis + 1 :]))


@decomposes("aten.split.Tensor", "aten.unsafe_split.Tensor", "aten.split_copy.Tensor")
def split(op: Lowering, self: Tensor, split_size: Expr, dim: int = 0) -> tuple[Tensor, ...]:
    """Consecutive parts of one size; the last may be shorter."""
    axis = _axis(self, dim)
    extent = self.shape[axis]
    if not split_size.is_constant or split_size.constant >= 1:
        count = len(op.stated) or _parts_of(extent, split_size)
        sizes = [split_size] * (count - 1)
        return _parts(op, self, axis, [*sizes, extent - split_size * (count - 1)])
    raise InvalidGraphError(f"parts of {split_size}; expected 1 or more")


@decomposes(
    "aten.split_with_sizes.default",
    "aten.split_with_sizes_copy.default",
    "aten.unsafe_split_with_sizes.default",
)
def split_with_sizes(
    op: Lowering, self: Tensor, split_sizes: tuple[Expr, ...], dim: int = 0
) -> tuple[Tensor, ...]:
    """Consecutive parts of the given sizes, which add up to the axis."""
    axis = _axis(self, dim)
    total = sum(split_sizes, ZERO)
    if not op.extents.is_same(total, self.shape[axis]):
        raise InvalidGraphError(f"parts of {total} in all; expected {self.shape[axis]}")
    return _parts(op, self, axis, list(split_sizes))


@decomposes("aten.chunk.default")
def chunk(op: Lowering, self: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most so many consecutive parts, of one size but for the last."""
    if chunks < 1:
        raise InvalidGraphError(f"{chunks} parts; expected 1 or more")
    extent = self.shape[_axis(self, dim)]
    size = op.extents.larger(ceil_div(extent, chunks), ONE)
    return split(op, self, size, dim)


@decomposes("aten.unbind.int", "aten.unbind_copy.int")
def unbind(op: Lowering, self: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Each element of an axis."""
    axis = _axis(self, dim)
    extent = self.shape[axis]
    if not extent.is_constant:
        raise InvalidGraphError(f"an axis of {extent} elements; expected a number")
    count = min(extent.constant, len(op.stated) + 1)
    return tuple(select(op, self, axis, as_expr(index)) for index in range(count))


@decomposes("aten.flip.default")
def flip(op: Lowering, self: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Axes in reverse."""
    axes = axes_of(dims, self.rank)
    return op.prim("flip", self, dims=tuple(sorted(axes))) if self.rank and axes else self


@decomposes("aten.roll.default")
def roll(
    op: Lowering, self: Tensor, shifts: tuple[Expr, ...], dims: tuple[int, ...] = ()
) -> Tensor:
    """Elements moved along axes, around the end."""
    if not dims and len(shifts) == 1:
        flat = op.reshape(self, (numel_of(self.shape),))
        return op.reshape(_rolled(op, flat, 0, shifts[0]), self.shape)
    if len(shifts) != len(dims):
        raise InvalidGraphError(f"{len(shifts)} shifts of {len(dims)} axes; expected one each")
    result = self
    for shift, dim in zip(shifts, dims, strict=True):
        result = _rolled(op, result, _axis(self, dim), shift)
    return result


@decomposes("aten.slice_scatter.default")
def slice_scatter(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    op: Lowering,
    self: Tensor,
    src: Tensor,
    dim: int = 0,
    start: Expr | None = None,
    end: Expr | None = None,
    step: int = 1,
) -> Tensor:
    """The tensor with a slice replaced."""
    axis, first, limit = _bounds(op, self, dim, start, end)
    if step < 1:
        raise InvalidGraphError(f"step {step}; expected 1 or more")
    if step != 1:
        return _replaced_every(op, self, src, axis, (first, op.extents.larger(first, limit), step))
    return _replaced(op, self, src, axis, first, op.extents.larger(first, limit))


@decomposes("aten.select_scatter.default")
def select_scatter(op: Lowering, self: Tensor, src: Tensor, dim: int, index: Expr) -> Tensor:
    """The tensor with one element of an axis replaced."""
    axis = _axis(self, dim)
    position = _position(op, self, axis, index)
    wanted = (*self.shape[:axis], *self.shape[axis + 1 :])
    if src.rank != len(wanted):
        raise InvalidGraphError(f"a source with {src.rank} axes; expected {len(wanted)}")
    row = op.reshape(op.expand(src, wanted), (*wanted[:axis], ONE, *wanted[axis:]))
    return _replaced(op, self, row, axis, position, position + 1)


def _axis(x: Tensor, dim: int) -> int:
    if not x.rank:
        raise InvalidGraphError("a tensor without axes; expected an axis to take a part of")
    return axis_of(dim, x.rank)


def _bounds(
    op: Lowering, x: Tensor, dim: int, start: Expr | None, end: Expr | None
) -> tuple[int, Expr, Expr]:
    axis = _axis(x, dim)
    extent = x.shape[axis]
    first = ZERO if start is None else _clamped(op, start, extent)
    if end is None or end == _INT64_MAX:
        return axis, first, extent
    return axis, first, _clamped(op, end, extent)


def _clamped(op: Lowering, position: Expr, extent: Expr) -> Expr:
    """A position as Python's slices take it: from the end if negative, then within the axis."""
    if op.extents.is_negative(position):
        return op.extents.larger(position + extent, ZERO)
    return op.extents.smaller(position, extent)


def _part(op: Lowering, x: Tensor, axis: int, start: Expr, limit: Expr, step: Expr) -> Tensor:
    top = op.extents.larger(start, limit)
    if start is ZERO and top is x.shape[axis] and step is ONE:
        return x
    return op.slice_axis(x, axis, start, top, step)


def _position(op: Lowering, x: Tensor, axis: int, index: Expr) -> Expr:
    extent = x.shape[axis]
    position = index + extent if op.extents.is_negative(index) else index
    is_outside = op.extents.is_negative(position) or op.extents.is_at_most(extent, position)
    # No extent is larger, and the next position would not fit in 64 bits.
    if is_outside or position == _INT64_MAX:
        raise InvalidGraphError(f"index {index} of an axis with {extent} elements")
    return position


def _parts_of(extent: Expr, size: Expr) -> int:
    if not extent.is_constant or not size.is_constant:
        raise NotDecomposedError("the number of parts depends on a symbolic size")
    return max(1, -(-extent.constant // size.constant))


def _parts(op: Lowering, x: Tensor, axis: int, sizes: list[Expr]) -> tuple[Tensor, ...]:
    if len(sizes) > _MAX_PARTS:
        raise InvalidGraphError(f"{len(sizes)} parts; expected at most {_MAX_PARTS}")
    parts, start = [], ZERO
    for size in sizes:
        if op.extents.is_negative(size):
            raise InvalidGraphError(f"a part of {size} elements; expected 0 or more")
        parts.append(_part(op, x, axis, start, start + size, ONE))
        start = start + size
    return tuple(parts)


def _rolled(op: Lowering, x: Tensor, axis: int, shift: Expr) -> Tensor:
    extent = x.shape[axis]
    if extent == 0:
        return x
    amount = op.extents.simplified(shift % extent)
    if amount == 0:
        return x
    back = op.slice_axis(x, axis, extent - amount, extent)
    return op.prim("cat", back, op.slice_axis(x, axis, ZERO, extent - amount), dim=axis)


def _replaced(
    op: Lowering, x: Tensor, source: Tensor, axis: int, start: Expr, limit: Expr
) -> Tensor:
    wanted = (*x.shape[:axis], limit - start, *x.shape[axis + 1 :])
    if not op.extents.is_same_shape(source.shape, wanted):
        source = op.expand(source, wanted)
    parts = [op.convert(source, x.dtype)]
    if start is not ZERO:
        parts.insert(0, op.slice_axis(x, axis, ZERO, start))
    if limit is not x.shape[axis]:
        parts.append(op.slice_axis(x, axis, limit, x.shape[axis]))
    return parts[0] if len(parts) == 1 else op.prim("cat", *parts, dim=axis)


def _replaced_every(
    op: Lowering, x: Tensor, source: Tensor, axis: int, part: tuple[Expr, Expr, int]
) -> Tensor:
    """The tensor with elements start, start+step, ... below limit of an axis replaced."""
    start, limit, step = part
    count = op.extents.simplified(ceil_div(limit - start, step))
    wanted = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    if count == 0:
        return x
    source = op.convert(op.expand(source, wanted), x.dtype)
    first = start.constant if start.is_constant else start
    distance = op.apply("sub", op.iota(x.shape[axis]), first)
    place = op.apply("floor_div", distance, step)
    inside = op.prim("logical_and", op.apply("ge", distance, 0), op.apply("lt", place, count))
    is_there = op.prim(
        "logical_and", inside, op.apply("eq", op.apply("mul", place, step), distance)
    )
    place = op.apply("minimum", op.apply("maximum", place, 0), count - 1)
    spread = op.prim("take", source, place, dim=axis)
    shape = (x.shape[axis], *([ONE] * (x.rank - 1 - axis)))
    return op.where(op.reshape(is_there, shape), spread, x)
