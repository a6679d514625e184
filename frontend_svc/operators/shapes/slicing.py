"""Slices of tensors: slices, selections, splits, and writes into slices."""

from __future__ import annotations

from frontend_svc.operators.core.extents import axes_of, axis_of, numel_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor, number_of
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr, ceil_div

_INT64_MAX = 2**63 - 1
_MAX_PARTS = 65536


@decomposes("aten.slice.Tensor", "aten.slice_copy.Tensor")
def slice_(
    builder: PrimsBuilder,
    self: Tensor,
    dim: int = 0,
    start: Expr | None = None,
    end: Expr | None = None,
    step: int = 1,
) -> Tensor:
    """Elements start, start+step, ... of an axis, below end; ends are clamped as in Python."""
    axis, first, limit = _bounds(builder, self, dim, start, end)
    if step < 1:
        raise InvalidGraphError(f"step {step}; expected 1 or more")
    return _part(builder, self, axis, first, limit, as_expr(step))


@decomposes("aten.narrow.default", "aten.narrow_copy.default")
def narrow(builder: PrimsBuilder, self: Tensor, dim: int, start: Expr, length: Expr) -> Tensor:
    """`length` elements of an axis from start."""
    return slice_(builder, self, dim, start, start + length)


@decomposes("aten.select.int", "aten.select_copy.int")
def select(builder: PrimsBuilder, self: Tensor, dim: int, index: Expr) -> Tensor:
    """One element of an axis, which is dropped."""
    axis = _axis(self, dim)
    position = _position(builder, self, axis, index)
    part = _part(builder, self, axis, position, position + 1, ONE)
    return builder.reshape(part, (*self.shape[:axis], *self.shape[axis + 1 :]))


@decomposes("aten.split.Tensor", "aten.unsafe_split.Tensor", "aten.split_copy.Tensor")
def split(
    builder: PrimsBuilder, self: Tensor, split_size: Expr, dim: int = 0
) -> tuple[Tensor, ...]:
    """Consecutive parts of one size; the last may be shorter."""
    axis = _axis(self, dim)
    extent = self.shape[axis]
    if not split_size.is_constant or split_size.constant >= 1:
        count = len(builder.stated) or _parts_of(extent, split_size)
        sizes = [split_size] * (count - 1)
        return _parts(builder, self, axis, [*sizes, extent - split_size * (count - 1)])
    raise InvalidGraphError(f"parts of {split_size}; expected 1 or more")


@decomposes(
    "aten.split_with_sizes.default",
    "aten.split_with_sizes_copy.default",
    "aten.unsafe_split_with_sizes.default",
)
def split_with_sizes(
    builder: PrimsBuilder, self: Tensor, split_sizes: tuple[Expr, ...], dim: int = 0
) -> tuple[Tensor, ...]:
    """Consecutive parts of the given sizes, which add up to the axis."""
    axis = _axis(self, dim)
    total = sum(split_sizes, ZERO)
    if not builder.extents.is_same(total, self.shape[axis]):
        raise InvalidGraphError(f"parts of {total} in all; expected {self.shape[axis]}")
    return _parts(builder, self, axis, list(split_sizes))


@decomposes("aten.chunk.default")
def chunk(builder: PrimsBuilder, self: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` consecutive parts of one size; the last may be shorter."""
    if chunks < 1:
        raise InvalidGraphError(f"{chunks} parts; expected 1 or more")
    extent = self.shape[_axis(self, dim)]
    size = builder.extents.larger(ceil_div(extent, chunks), ONE)
    return split(builder, self, size, dim)


@decomposes("aten.unbind.int", "aten.unbind_copy.int")
def unbind(builder: PrimsBuilder, self: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Each element of an axis."""
    axis = _axis(self, dim)
    extent = self.shape[axis]
    if not extent.is_constant:
        raise InvalidGraphError(f"an axis of {extent} elements; expected a number")
    count = min(extent.constant, len(builder.stated) + 1)
    return tuple(select(builder, self, axis, as_expr(index)) for index in range(count))


@decomposes("aten.flip.default")
def flip(builder: PrimsBuilder, self: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Axes in reverse."""
    axes = axes_of(dims, self.rank)
    return builder.prim("flip", self, dims=tuple(sorted(axes))) if self.rank and axes else self


@decomposes("aten.roll.default")
def roll(
    builder: PrimsBuilder, self: Tensor, shifts: tuple[Expr, ...], dims: tuple[int, ...] = ()
) -> Tensor:
    """Elements shifted along axes, cyclically."""
    if not dims and len(shifts) == 1:
        flat = builder.reshape(self, (numel_of(self.shape),))
        return builder.reshape(_rolled(builder, flat, 0, shifts[0]), self.shape)
    if len(shifts) != len(dims):
        raise InvalidGraphError(f"{len(shifts)} shifts of {len(dims)} axes; expected one each")
    result = self
    for shift, dim in zip(shifts, dims, strict=True):
        result = _rolled(builder, result, _axis(self, dim), shift)
    return result


@decomposes("aten.slice_scatter.default")
def slice_scatter(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    builder: PrimsBuilder,
    self: Tensor,
    src: Tensor,
    dim: int = 0,
    start: Expr | None = None,
    end: Expr | None = None,
    step: int = 1,
) -> Tensor:
    """The tensor with a slice replaced."""
    axis, first, limit = _bounds(builder, self, dim, start, end)
    if step < 1:
        raise InvalidGraphError(f"step {step}; expected 1 or more")
    if step != 1:
        return _replaced_every(
            builder, self, src, axis, (first, builder.extents.larger(first, limit), step)
        )
    return _replaced(builder, self, src, axis, first, builder.extents.larger(first, limit))


@decomposes("aten.select_scatter.default")
def select_scatter(
    builder: PrimsBuilder, self: Tensor, src: Tensor, dim: int, index: Expr
) -> Tensor:
    """The tensor with one element of an axis replaced."""
    axis = _axis(self, dim)
    position = _position(builder, self, axis, index)
    expected = (*self.shape[:axis], *self.shape[axis + 1 :])
    if src.rank != len(expected):
        raise InvalidGraphError(f"a source with {src.rank} axes; expected {len(expected)}")
    row = builder.reshape(builder.expand(src, expected), (*expected[:axis], ONE, *expected[axis:]))
    return _replaced(builder, self, row, axis, position, position + 1)


def _axis(x: Tensor, dim: int) -> int:
    if not x.rank:
        raise InvalidGraphError("a tensor without axes; expected at least one axis")
    return axis_of(dim, x.rank)


def _bounds(
    builder: PrimsBuilder, x: Tensor, dim: int, start: Expr | None, end: Expr | None
) -> tuple[int, Expr, Expr]:
    axis = _axis(x, dim)
    extent = x.shape[axis]
    first = ZERO if start is None else _clamped(builder, start, extent)
    if end is None or end == _INT64_MAX:
        return axis, first, extent
    return axis, first, _clamped(builder, end, extent)


def _clamped(builder: PrimsBuilder, position: Expr, extent: Expr) -> Expr:
    """A position as in Python's slices: a negative one counts from the end; clamped to the axis."""
    if builder.extents.is_negative(position):
        return builder.extents.larger(position + extent, ZERO)
    return builder.extents.smaller(position, extent)


def _part(
    builder: PrimsBuilder, x: Tensor, axis: int, start: Expr, limit: Expr, step: Expr
) -> Tensor:
    top = builder.extents.larger(start, limit)
    if start is ZERO and top is x.shape[axis] and step is ONE:
        return x
    return builder.slice_axis(x, axis, start, top, step)


def _position(builder: PrimsBuilder, x: Tensor, axis: int, index: Expr) -> Expr:
    extent = x.shape[axis]
    position = index + extent if builder.extents.is_negative(index) else index
    is_outside = builder.extents.is_negative(position) or builder.extents.is_at_most(
        extent, position
    )
    # No extent is larger, and the next position would need more than 64 bits.
    if is_outside or position == _INT64_MAX:
        raise InvalidGraphError(f"index {index} of an axis with {extent} elements")
    return position


def _parts_of(extent: Expr, size: Expr) -> int:
    if not extent.is_constant or not size.is_constant:
        raise NotDecomposedError("the number of parts depends on a symbolic size")
    return max(1, -(-extent.constant // size.constant))


def _parts(builder: PrimsBuilder, x: Tensor, axis: int, sizes: list[Expr]) -> tuple[Tensor, ...]:
    if len(sizes) > _MAX_PARTS:
        raise InvalidGraphError(f"{len(sizes)} parts; expected at most {_MAX_PARTS}")
    parts, start = [], ZERO
    for size in sizes:
        if builder.extents.is_negative(size):
            raise InvalidGraphError(f"a part of {size} elements; expected 0 or more")
        parts.append(_part(builder, x, axis, start, start + size, ONE))
        start = start + size
    return tuple(parts)


def _rolled(builder: PrimsBuilder, x: Tensor, axis: int, shift: Expr) -> Tensor:
    extent = x.shape[axis]
    if extent == 0:
        return x
    amount = builder.extents.simplified(shift % extent)
    if amount == 0:
        return x
    back = builder.slice_axis(x, axis, extent - amount, extent)
    return builder.prim("cat", back, builder.slice_axis(x, axis, ZERO, extent - amount), dim=axis)


def _replaced(
    builder: PrimsBuilder, x: Tensor, source: Tensor, axis: int, start: Expr, limit: Expr
) -> Tensor:
    expected = (*x.shape[:axis], limit - start, *x.shape[axis + 1 :])
    if not builder.extents.is_same_shape(source.shape, expected):
        source = builder.expand(source, expected)
    parts = [builder.convert(source, x.dtype)]
    if start is not ZERO:
        parts.insert(0, builder.slice_axis(x, axis, ZERO, start))
    if limit is not x.shape[axis]:
        parts.append(builder.slice_axis(x, axis, limit, x.shape[axis]))
    return parts[0] if len(parts) == 1 else builder.prim("cat", *parts, dim=axis)


def _replaced_every(
    builder: PrimsBuilder, x: Tensor, source: Tensor, axis: int, part: tuple[Expr, Expr, int]
) -> Tensor:
    """The tensor with elements start, start+step, ... of an axis, below limit, replaced."""
    start, limit, step = part
    count = builder.extents.simplified(ceil_div(limit - start, step))
    expected = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    if count == 0:
        return x
    source = builder.convert(builder.expand(source, expected), x.dtype)
    distance = builder.apply("sub", builder.iota(x.shape[axis]), number_of(start))
    position = builder.apply("floor_div", distance, step)
    inside = builder.prim(
        "logical_and", builder.apply("ge", distance, 0), builder.apply("lt", position, count)
    )
    is_there = builder.prim(
        "logical_and", inside, builder.apply("eq", builder.apply("mul", position, step), distance)
    )
    position = builder.apply("minimum", builder.apply("maximum", position, 0), count - 1)
    spread = builder.prim("take", source, position, dim=axis)
    shape = (x.shape[axis], *([ONE] * (x.rank - 1 - axis)))
    return builder.where(builder.reshape(is_there, shape), spread, x)
