"""Scatters along an axis, at an index of the updates' shape."""

from __future__ import annotations

from frontend_svc.operators.core.coordinates import numbers_along
from frontend_svc.operators.core.extents import axis_of, numel_of, text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Number, Tensor
from frontend_svc.operators.indexing.combining import (
    mean_of_updates,
    mode_of,
    neutral_of,
    scattered,
)
from frontend_svc.operators.indexing.indices import unsigned_index
from frontend_svc.operators.indexing.scatter_product import scatter_product
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, ZERO

_NOTE = "extern for products over many positions"


@decomposes("aten.scatter.src")
def scatter_src(
    builder: PrimsBuilder, self: Tensor, dim: int, index: Tensor, src: Tensor
) -> Tensor:
    """Elements along an axis replaced by updates."""
    return _along(builder, "set", self, dim, index, src)


@decomposes("aten.scatter.value")
def scatter_value(
    builder: PrimsBuilder, self: Tensor, dim: int, index: Tensor, value: Number
) -> Tensor:
    """Elements along an axis replaced by a number."""
    updates = builder.full(value, self.dtype, index.shape)
    return _along(builder, "set", self, dim, index, updates, is_order_free=True)


@decomposes("aten.scatter_add.default")
def scatter_add(
    builder: PrimsBuilder, self: Tensor, dim: int, index: Tensor, src: Tensor
) -> Tensor:
    """Elements along an axis, with updates added."""
    return _along(builder, "add", self, dim, index, src)


@decomposes("aten.scatter.reduce", note=_NOTE)
def scatter_with(
    builder: PrimsBuilder, self: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str
) -> Tensor:
    """Elements along an axis, combined with updates."""
    return _along(builder, mode_of(reduce), self, dim, index, src)


@decomposes("aten.scatter.value_reduce", note=_NOTE)
def scatter_value_with(
    builder: PrimsBuilder, self: Tensor, dim: int, index: Tensor, value: Number, *, reduce: str
) -> Tensor:
    """Elements along an axis, combined with a number."""
    updates = builder.full(value, self.dtype, index.shape)
    return _along(builder, mode_of(reduce), self, dim, index, updates)


@decomposes("aten.scatter_reduce.two", note=_NOTE)
def scatter_reduce(  # noqa: PLR0913  # the operator's own parameters
    builder: PrimsBuilder,
    self: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    """Updates combined along an axis, with the elements of the tensor or without them."""
    mode, base = mode_of(reduce), self
    if not include_self:
        base = scatter_value(builder, self, dim, index, neutral_of(mode, self.dtype))
    result = _along(builder, mode, base, dim, index, src)
    if reduce != "mean":
        return result
    ones = builder.full(1, DType.I64, index.shape)
    counts = builder.full(int(include_self), DType.I64, self.shape)
    return mean_of_updates(builder, result, _along(builder, "add", counts, dim, index, ones))


def _along(  # noqa: PLR0913  # the operator's own parameters
    builder: PrimsBuilder,
    mode: str,
    base: Tensor,
    dim: int,
    index: Tensor,
    updates: Tensor,
    *,
    is_order_free: bool = False,
) -> Tensor:
    """A scatter along one axis; on the other axes, positions are those of the index."""
    axis = axis_of(dim, base.rank)
    if not base.rank:
        flat = builder.reshape(base, (ONE,))
        parts = (builder.reshape(x, (numel_of(x.shape),)) for x in (index, updates))
        found = _along(builder, mode, flat, 0, *parts, is_order_free=is_order_free)
        return builder.reshape(found, ())
    if any(extent == 0 for extent in index.shape):
        return base
    if not index.rank:
        index, updates = (builder.reshape(x, (ONE,)) for x in (index, updates))
    _check_along(builder, base, axis, index, updates)
    if updates.shape != index.shape:  # the updates may be larger than the index
        part = tuple(zip(updates.shape, index.shape, strict=True))
        for k, (whole, used) in enumerate(part):
            if whole is not used:
                updates = builder.slice_axis(updates, k, ZERO, used)
    positions = unsigned_index(builder, base, dim, index)
    updates = builder.convert(updates, base.dtype)
    if mode == "mul":
        return scatter_product(builder, base, axis, positions, updates)
    picks = [
        positions if k == axis else numbers_along(builder, index.shape, k) for k in range(base.rank)
    ]
    # Elements on other axes have updates of their own.
    is_order_free = is_order_free or index.shape[axis] is ONE
    axes = tuple(range(base.rank))
    return scattered(builder, mode, base, (axes, picks), updates, is_order_free=is_order_free)


def _check_along(
    builder: PrimsBuilder, base: Tensor, axis: int, index: Tensor, updates: Tensor
) -> None:
    if index.rank != base.rank or updates.rank != base.rank:
        raise InvalidGraphError(
            f"an index with {index.rank} and updates with {updates.rank} axes; expected {base.rank}"
        )
    for k, extent in enumerate(index.shape):
        is_beyond = k != axis and builder.extents.is_negative(base.shape[k] - extent)
        if is_beyond or builder.extents.is_negative(updates.shape[k] - extent):
            seen = f"{text_of(index.shape)} into {text_of(base.shape)} of {text_of(updates.shape)}"
            raise InvalidGraphError(f"an index {seen}; expected no larger extent on axis {k}")
