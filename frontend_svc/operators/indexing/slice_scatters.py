"""Scatters of whole slices, at the positions of a vector along an axis."""

from __future__ import annotations

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
from frontend_svc.operators.indexing.indices import integer_index, unsigned_index
from frontend_svc.operators.indexing.scatter_product import scatter_product
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE

_NOTE = "extern for products over many positions"


@decomposes("aten.index_add.default")
def index_add(
    builder: PrimsBuilder,
    self: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    *,
    alpha: Number = 1,
) -> Tensor:
    """Slices added at the positions of a vector."""
    scaled = source
    if source.dtype is DType.BOOL:
        scaled = builder.apply("logical_and", source, bool(alpha))
    elif alpha != 1:
        scaled = builder.apply("mul", source, alpha)
    return _slices(builder, "add", self, dim, (unsigned_index(builder, self, dim, index), scaled))


@decomposes("aten.index_copy.default")
def index_copy(
    builder: PrimsBuilder, self: Tensor, dim: int, index: Tensor, source: Tensor
) -> Tensor:
    """Slices replaced at the positions of a vector."""
    return _slices(builder, "set", self, dim, (unsigned_index(builder, self, dim, index), source))


@decomposes("aten.index_fill.int_Scalar")
def index_fill(
    builder: PrimsBuilder, self: Tensor, dim: int, index: Tensor, value: Number
) -> Tensor:
    """Slices at the positions of a vector filled with a number."""
    return index_fill_tensor(builder, self, dim, index, builder.full(value, self.dtype))


@decomposes("aten.index_fill.int_Tensor")
def index_fill_tensor(
    builder: PrimsBuilder, self: Tensor, dim: int, index: Tensor, value: Tensor
) -> Tensor:
    """Slices at the positions of a vector filled with the one element of a tensor."""
    axis, vector = axis_of(dim, self.rank), builder.reshape(index, (numel_of(index.shape),))
    x = self if self.rank else builder.reshape(self, (ONE,))
    shape = (*x.shape[:axis], vector.shape[0], *x.shape[axis + 1 :])
    updates = builder.expand(builder.convert(builder.reshape(value, ()), self.dtype), shape)
    return _slices(builder, "set", self, dim, (vector, updates), is_order_free=True)


@decomposes("aten.index_reduce.default", note=_NOTE)
def index_reduce(  # noqa: PLR0913  # the operator's own parameters
    builder: PrimsBuilder,
    self: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    """Slices combined at the positions of a vector, with those of the tensor or without them."""
    mode, base, positions = mode_of(reduce), self, unsigned_index(builder, self, dim, index)
    if not include_self:
        neutral = builder.full(neutral_of(mode, self.dtype), self.dtype, source.shape)
        base = _slices(builder, "set", self, dim, (positions, neutral), is_order_free=True)
    result = _slices(builder, mode, base, dim, (positions, source))
    if reduce != "mean":
        return result
    ones = builder.full(1, DType.I64, source.shape)
    counts = builder.full(int(include_self), DType.I64, self.shape)
    return mean_of_updates(builder, result, _slices(builder, "add", counts, dim, (positions, ones)))


def _slices(
    builder: PrimsBuilder,
    mode: str,
    base: Tensor,
    dim: int,
    parts: tuple[Tensor, Tensor],
    *,
    is_order_free: bool = False,
) -> Tensor:
    """A scatter of slices at the positions of a vector."""
    axis, (index, updates) = axis_of(dim, base.rank), parts
    x = base if base.rank else builder.reshape(base, (ONE,))
    positions = builder.reshape(integer_index(builder, index), (numel_of(index.shape),))
    expected = (*x.shape[:axis], positions.shape[0], *x.shape[axis + 1 :])
    if updates.rank and not builder.extents.is_same_shape(updates.shape, expected):
        raise InvalidGraphError(
            f"slices of shape {text_of(updates.shape)}; expected {text_of(expected)}"
        )
    updates = builder.convert(builder.reshape(updates, expected), base.dtype)
    if mode == "mul":
        return builder.reshape(scatter_product(builder, x, axis, positions, updates), base.shape)
    updates = builder.permute(updates, [axis, *(k for k in range(x.rank) if k != axis)])
    found = scattered(
        builder, mode, x, ((axis,), [positions]), updates, is_order_free=is_order_free
    )
    return builder.reshape(found, base.shape)
