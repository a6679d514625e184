"""Sorted rows, the first few of them, and single ranks.

All of it is the order of positions (`argsort`) and elements picked by them. Of equal elements the
one that comes first in the row ranks first, also where the framework states no order.
"""

from __future__ import annotations

from frontend_svc.operators.core.extents import axis_of, numel_of
from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.registry import DECOMPOSED, NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr

MOST_SORTED = 1024
"""Elements of a row that is sorted on accelerators, where a block holds it.

Half of what their emitters can: what is fused around a sort, or counts its runs, needs room too.
"""

SORT_NOTE = f"extern on accelerators for rows of more than {MOST_SORTED} elements, or of any number"


def is_sort(name: str) -> bool:
    """True if what becomes of the operator of this name depends on how a target sorts."""
    operator = DECOMPOSED.get(name)
    return operator is not None and operator.note == SORT_NOTE


@decomposes("aten.sort.default", note=SORT_NOTE)
def sort(
    op: Lowering, self: Tensor, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    """The elements in order along an axis, and where they stood; NaN is the largest."""
    return sort_stable(op, self, stable=False, dim=dim, descending=descending)


@decomposes("aten.sort.stable", note=SORT_NOTE)
def sort_stable(
    op: Lowering, self: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    """As sort; every sort is stable."""
    axis = axis_of(dim, self.rank)
    order = ordered(op, self, axis, descending=descending)
    return picked(op, self, axis, order), order


@decomposes("aten.topk.default", note=SORT_NOTE)
def topk(
    op: Lowering,
    self: Tensor,
    k: Expr,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> tuple[Tensor, Tensor]:
    """The k largest or smallest elements along an axis, in order, and where they stand."""
    axis = axis_of(dim, self.rank)
    order = ordered(op, self, axis, descending=largest)
    if not self.rank:
        return self, order
    extent = self.shape[axis]
    if op.extents.is_negative(k) or op.extents.is_negative(extent - k):
        raise InvalidGraphError(f"the first {k} of {extent} elements; expected 0 to all")
    first = op.slice_axis(order, axis, ZERO, k)
    return picked(op, self, axis, first), first


@decomposes("aten.kthvalue.default", note=SORT_NOTE)
def kthvalue(
    op: Lowering, self: Tensor, k: Expr, dim: int = -1, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """The k-th smallest element along an axis, counted from 1, and where it stands."""
    axis = axis_of(dim, self.rank)
    order = ordered(op, self, axis, descending=False)
    if not self.rank:
        return self, order
    extent = self.shape[axis]
    if op.extents.is_negative(k - ONE) or op.extents.is_negative(extent - k):
        raise InvalidGraphError(f"the {k}th of {extent} elements; expected one from 1")
    place = op.slice_axis(order, axis, k - ONE, k)
    return _single(op, self, axis, place, keepdim=keepdim)


def ordered(op: Lowering, x: Tensor, axis: int, *, descending: bool) -> Tensor:
    """Where the elements of each rank stand along an axis.

    Raises:
        NotDecomposedError: rows that the target does not sort.
    """
    if not x.rank:
        return op.full(0, DType.I64)
    extent = x.shape[axis]
    if not op.sorts_any_row and not op.extents.is_at_most(extent, MOST_SORTED):
        raise NotDecomposedError(
            f"sorts rows of {extent} elements; an accelerator's block holds {MOST_SORTED}"
        )
    return op.prim("argsort", x, descending=descending, dim=axis)


def picked(op: Lowering, x: Tensor, axis: int, places: Tensor) -> Tensor:
    """The elements that stand at places along an axis."""
    return op.prim("gather_along", x, places, dim=axis) if x.rank else x


def _single(
    op: Lowering, x: Tensor, axis: int, place: Tensor, *, keepdim: bool
) -> tuple[Tensor, Tensor]:
    """The element at one place of each row, and that place."""
    value = picked(op, x, axis, place)
    if keepdim:
        return value, place
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    return op.reshape(value, shape), op.reshape(place, shape)


@decomposes("aten.median.dim", note=SORT_NOTE)
def median_dim(
    op: Lowering, self: Tensor, dim: int, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """The lower median along an axis, and where it stands; of rows with NaN the first NaN."""
    return _median(op, self, dim, keepdim=keepdim, skips_nan=False)


@decomposes("aten.nanmedian.dim", note=SORT_NOTE)
def nanmedian_dim(
    op: Lowering, self: Tensor, dim: int, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """The lower median of what is not NaN along an axis, and where it stands."""
    return _median(op, self, dim, keepdim=keepdim, skips_nan=True)


@decomposes("aten.median.default", note=SORT_NOTE)
def median(op: Lowering, self: Tensor) -> Tensor:
    """The lower median of all elements; NaN if one is."""
    return _median(op, _flat(op, self), 0, keepdim=False, skips_nan=False)[0]


@decomposes("aten.nanmedian.default", note=SORT_NOTE)
def nanmedian(op: Lowering, self: Tensor) -> Tensor:
    """The lower median of all elements that are not NaN."""
    return _median(op, _flat(op, self), 0, keepdim=False, skips_nan=True)[0]


def _flat(op: Lowering, x: Tensor) -> Tensor:
    count = numel_of(x.shape)
    if not op.extents.is_at_most(1, count):
        raise NotDecomposedError("the median of no elements")
    return op.reshape(x, (count,))


def _median(
    op: Lowering, x: Tensor, dim: int, *, keepdim: bool, skips_nan: bool
) -> tuple[Tensor, Tensor]:
    axis = axis_of(dim, x.rank)
    order = ordered(op, x, axis, descending=False)
    if not x.rank:
        return x, order
    middle = (x.shape[axis] - 1) // 2
    if not x.dtype.is_float:
        place = op.slice_axis(order, axis, middle, middle + 1)
        return _single(op, x, axis, place, keepdim=keepdim)
    # NaN are last, so their first one has the rank that says how many numbers there are.
    is_number = op.prim("logical_not", op.prim("isnan", op.widened(x)))
    numbers = op.reduce("sum", op.convert(is_number, DType.I64), (axis,), keepdim=True)
    if skips_nan:
        below = op.apply("sub", op.apply("maximum", numbers, 1), 1)
        rank = op.apply("floor_div", below, 2)
    else:
        has_nan = op.apply("lt", numbers, x.shape[axis])
        rank = op.where(has_nan, numbers, middle)
    place = op.prim("gather_along", order, rank, dim=axis)
    return _single(op, x, axis, place, keepdim=keepdim)


@decomposes("aten.mode.default", note=SORT_NOTE)
def mode(op: Lowering, self: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The smallest of the most frequent elements along an axis, and where it stands last."""
    axis = axis_of(dim, self.rank)
    order = ordered(op, self, axis, descending=False)
    if not self.rank:
        return self, order
    elements = picked(op, self, axis, order)
    # Equal elements are runs of ranks; a run's length stands at its end.
    ranks = _along(op, op.iota(self.shape[axis]), axis, self.shape)
    start = op.where(_differs(op, elements, axis, before=True), ranks, 0)
    length = op.apply("sub", ranks, op.prim("cummax", start, dim=axis))
    is_end = _differs(op, elements, axis, before=False)
    longest = op.reduce("argmax", op.where(is_end, length, -1), (axis,), keepdim=True)
    place = op.prim("gather_along", order, longest, dim=axis)
    return _single(op, self, axis, place, keepdim=keepdim)


def _along(op: Lowering, row: Tensor, axis: int, shape: tuple[Expr, ...]) -> Tensor:
    """A row along one axis of a shape."""
    return op.prim("broadcast_in_dim", row, dims=(axis,), shape=shape)


def _differs(op: Lowering, x: Tensor, axis: int, *, before: bool) -> Tensor:
    """Whether an element differs from the one before or after it; the outermost one does."""
    extent = x.shape[axis]
    wide = op.widened(x)
    left = op.slice_axis(wide, axis, ZERO, extent - ONE)
    right = op.slice_axis(wide, axis, ONE, extent)
    low, high = ([ZERO] * x.rank for _ in range(2))
    (low if before else high)[axis] = ONE
    differs = op.prim("ne", left, right)
    return op.prim("pad", differs, high=tuple(high), low=tuple(low), value=True)
