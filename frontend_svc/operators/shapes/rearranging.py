"""Rearranged elements, and elements that a mask selects."""

from __future__ import annotations

from frontend_svc.operators.core.extents import axes_of, text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.promotion import sum_dtype
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Number, Tensor
from frontend_svc.operators.reductions.over_axes import sum_dims
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import Expr


@decomposes("aten.rot90.default")
def rot90(
    builder: PrimsBuilder, self: Tensor, k: int = 1, dims: tuple[int, ...] = (0, 1)
) -> Tensor:
    """The plane of two axes rotated by k right angles."""
    axes = axes_of(dims, self.rank)
    if len(axes) != 2:
        raise InvalidGraphError(f"dims {dims}; expected two")
    first, second = axes
    order = list(range(self.rank))
    order[first], order[second] = second, first
    quarter_turns = k % 4
    if quarter_turns == 2:
        return builder.prim("flip", self, dims=tuple(sorted(axes)))
    if quarter_turns == 1:
        return builder.permute(builder.prim("flip", self, dims=(second,)), order)
    return (
        builder.prim("flip", builder.permute(self, order), dims=(second,))
        if quarter_turns
        else self
    )


@decomposes("aten.channel_shuffle.default")
def channel_shuffle(builder: PrimsBuilder, self: Tensor, groups: Expr) -> Tensor:
    """The channels of several groups, interleaved."""
    if self.rank < 3 or builder.extents.is_negative(groups - 1):
        raise InvalidGraphError(f"{groups} groups of shape {text_of(self.shape)}")
    batch, channels, *rest = self.shape
    each = builder.extents.simplified(channels // groups)
    if not builder.extents.is_same(each * groups, channels):
        raise InvalidGraphError(f"{channels} channels; expected a multiple of {groups}")
    split = builder.reshape(self, (batch, groups, each, *rest))
    turned = builder.permute(split, (0, 2, 1, *range(3, split.rank)))
    return builder.reshape(turned, self.shape)


@decomposes("aten.zero.default")
def zero(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """A tensor of zeros with the operand's shape and type."""
    return builder.full(0, self.dtype, self.shape)


@decomposes("aten.nansum.default")
def nansum(
    builder: PrimsBuilder,
    self: Tensor,
    dim: tuple[int, ...] | None = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """The sum over axes of the elements that are not NaN."""
    if not self.dtype.is_float:
        return sum_dims(builder, self, dim, keepdim, dtype=dtype or sum_dtype(self.dtype))
    wide = builder.widened(self)
    numbers = builder.where(builder.prim("isnan", wide), 0.0, wide)
    total = sum_dims(builder, numbers, dim, keepdim, dtype=dtype)
    return builder.convert(total, dtype or self.dtype)


@decomposes("aten._unsafe_masked_index.default")
def unsafe_masked_index(
    builder: PrimsBuilder,
    self: Tensor,
    mask: Tensor,
    indices: tuple[Tensor | None, ...],
    fill: Number,
) -> Tensor:
    """Elements at broadcast index tensors where a mask holds, else a number."""
    dims = tuple(axis for axis, i in enumerate(indices) if i is not None)
    if dims != tuple(range(self.rank)) or mask.dtype is not DType.BOOL:
        raise NotDecomposedError("a masked index of a part of the axes")
    positions = [
        _inside(builder, i, self.shape[axis]) for axis, i in enumerate(indices) if i is not None
    ]
    shape = builder.extents.broadcast([mask.shape, *(i.shape for i in positions)])
    found = builder.prim(
        "gather_nd", self, *(builder.expand(i, shape) for i in positions), dims=dims
    )
    return builder.where(mask, found, builder.full(fill, self.dtype))


def _inside(builder: PrimsBuilder, index: Tensor, extent: Expr) -> Tensor:
    # Indices that the mask hides may be out of range; PyTorch clamps them too.
    if index.dtype not in (DType.I32, DType.I64):
        index = builder.convert(index, DType.I64)
    return builder.apply("minimum", builder.apply("maximum", index, 0), extent - 1)
