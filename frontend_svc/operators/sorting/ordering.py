"""Sorted rows, their first elements, and single ranks.

All of them are the sorted order of positions (`argsort`) and elements gathered at these positions.
Of equal elements, the first one in the row has the lower rank, even if the framework defines no
order.
"""

from __future__ import annotations

from functools import partial

from frontend_svc.operators.core.coordinates import numbers_along
from frontend_svc.operators.core.extents import axis_of, numel_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr

decomposes_sort = partial(
    decomposes,
    note="extern if a row may be longer than the target sorts (`max_sorted_elems`)",
    sorts_rows=True,
)
"""Registers an operator that sorts rows, so that its decomposition depends on the target."""


@decomposes_sort("aten.sort.default")
def sort(
    builder: PrimsBuilder, self: Tensor, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    """The elements sorted along an axis, and their former positions; NaN is the largest."""
    return sort_stable(builder, self, stable=False, dim=dim, descending=descending)


@decomposes_sort("aten.sort.stable")
def sort_stable(
    builder: PrimsBuilder,
    self: Tensor,
    *,
    stable: bool | None,
    dim: int = -1,
    descending: bool = False,
) -> tuple[Tensor, Tensor]:
    """As `sort`; every sort is stable."""
    axis = axis_of(dim, self.rank)
    order = ordered(builder, self, axis, descending=descending)
    return picked(builder, self, axis, order), order


@decomposes_sort("aten.topk.default")
def topk(
    builder: PrimsBuilder,
    self: Tensor,
    k: Expr,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> tuple[Tensor, Tensor]:
    """The k largest or smallest elements along an axis, sorted, and their positions."""
    axis = axis_of(dim, self.rank)
    order = ordered(builder, self, axis, descending=largest)
    if not self.rank:
        return self, order
    extent = self.shape[axis]
    if builder.extents.is_negative(k) or builder.extents.is_negative(extent - k):
        raise InvalidGraphError(f"the first {k} of {extent} elements; expected 0 to {extent}")
    first = builder.slice_axis(order, axis, ZERO, k)
    return picked(builder, self, axis, first), first


@decomposes_sort("aten.kthvalue.default")
def kthvalue(
    builder: PrimsBuilder, self: Tensor, k: Expr, dim: int = -1, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """The k-th smallest element along an axis, counted from 1, and its position."""
    axis = axis_of(dim, self.rank)
    order = ordered(builder, self, axis, descending=False)
    if not self.rank:
        return self, order
    extent = self.shape[axis]
    if builder.extents.is_negative(k - ONE) or builder.extents.is_negative(extent - k):
        raise InvalidGraphError(f"element {k} of {extent} in order; expected 1 to {extent}")
    position = builder.slice_axis(order, axis, k - ONE, k)
    return _single(builder, self, axis, position, keepdim=keepdim)


def ordered(builder: PrimsBuilder, x: Tensor, axis: int, *, descending: bool) -> Tensor:
    """The positions along an axis of the elements of each rank.

    Raises:
        NotDecomposedError: the target does not sort rows of this length.
    """
    if not x.rank:
        return builder.full(0, DType.I64)
    extent, most = x.shape[axis], builder.max_sorted_elems
    if most is not None and not builder.extents.is_at_most(extent, most):
        raise NotDecomposedError(
            f"sorts rows of {extent} elements; the target sorts at most {most}"
        )
    return builder.prim("argsort", x, descending=descending, dim=axis)


def picked(builder: PrimsBuilder, x: Tensor, axis: int, positions: Tensor) -> Tensor:
    """The elements at positions along an axis."""
    return builder.prim("gather_along", x, positions, dim=axis) if x.rank else x


def _single(
    builder: PrimsBuilder, x: Tensor, axis: int, position: Tensor, *, keepdim: bool
) -> tuple[Tensor, Tensor]:
    """The element at one position of each row, and that position."""
    value = picked(builder, x, axis, position)
    if keepdim:
        return value, position
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    return builder.reshape(value, shape), builder.reshape(position, shape)


@decomposes_sort("aten.median.dim")
def median_dim(
    builder: PrimsBuilder, self: Tensor, dim: int, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """The lower median along an axis, and its position; in a row with NaN the first NaN."""
    return _median(builder, self, dim, keepdim=keepdim, skips_nan=False)


@decomposes_sort("aten.nanmedian.dim")
def nanmedian_dim(
    builder: PrimsBuilder, self: Tensor, dim: int, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """The lower median of the elements that are not NaN along an axis, and its position."""
    return _median(builder, self, dim, keepdim=keepdim, skips_nan=True)


@decomposes_sort("aten.median.default")
def median(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """The lower median of all elements; NaN if an element is NaN."""
    return _median(builder, _flat(builder, self), 0, keepdim=False, skips_nan=False)[0]


@decomposes_sort("aten.nanmedian.default")
def nanmedian(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """The lower median of all elements that are not NaN."""
    return _median(builder, _flat(builder, self), 0, keepdim=False, skips_nan=True)[0]


def _flat(builder: PrimsBuilder, x: Tensor) -> Tensor:
    count = numel_of(x.shape)
    if not builder.extents.is_at_most(1, count):
        raise NotDecomposedError("the median of no elements")
    return builder.reshape(x, (count,))


def _median(
    builder: PrimsBuilder, x: Tensor, dim: int, *, keepdim: bool, skips_nan: bool
) -> tuple[Tensor, Tensor]:
    axis = axis_of(dim, x.rank)
    order = ordered(builder, x, axis, descending=False)
    if not x.rank:
        return x, order
    middle = (x.shape[axis] - 1) // 2
    if not x.dtype.is_float:
        position = builder.slice_axis(order, axis, middle, middle + 1)
        return _single(builder, x, axis, position, keepdim=keepdim)
    # NaN are sorted last, so the rank of the first one is the number of other elements.
    is_number = builder.prim("logical_not", builder.prim("isnan", builder.widened(x)))
    numbers = builder.reduce("sum", builder.convert(is_number, DType.I64), (axis,), keepdim=True)
    if skips_nan:
        below = builder.apply("sub", builder.apply("maximum", numbers, 1), 1)
        rank = builder.apply("floor_div", below, 2)
    else:
        has_nan = builder.apply("lt", numbers, x.shape[axis])
        rank = builder.where(has_nan, numbers, middle)
    position = builder.prim("gather_along", order, rank, dim=axis)
    return _single(builder, x, axis, position, keepdim=keepdim)


@decomposes_sort("aten.mode.default")
def mode(
    builder: PrimsBuilder, self: Tensor, dim: int = -1, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """The smallest of the most frequent elements along an axis, and its last position."""
    axis = axis_of(dim, self.rank)
    order = ordered(builder, self, axis, descending=False)
    if not self.rank:
        return self, order
    elements = picked(builder, self, axis, order)
    # Equal elements are runs of ranks; the length of a run is computed at its end.
    ranks = numbers_along(builder, self.shape, axis)
    start = builder.where(_differs(builder, elements, axis, before=True), ranks, 0)
    length = builder.apply("sub", ranks, builder.prim("cummax", start, dim=axis))
    is_end = _differs(builder, elements, axis, before=False)
    longest = builder.reduce("argmax", builder.where(is_end, length, -1), (axis,), keepdim=True)
    position = builder.prim("gather_along", order, longest, dim=axis)
    return _single(builder, self, axis, position, keepdim=keepdim)


def _differs(builder: PrimsBuilder, x: Tensor, axis: int, *, before: bool) -> Tensor:
    """Whether an element differs from the one before or after it; true for the outermost."""
    extent = x.shape[axis]
    wide = builder.widened(x)
    left = builder.slice_axis(wide, axis, ZERO, extent - ONE)
    right = builder.slice_axis(wide, axis, ONE, extent)
    low, high = ([ZERO] * x.rank for _ in range(2))
    (low if before else high)[axis] = ONE
    differs = builder.prim("ne", left, right)
    return builder.prim("pad", differs, high=tuple(high), low=tuple(low), value=True)
