"""Elements in other places, and parts by a mask."""

from __future__ import annotations

from frontend_svc.operators.core.extents import axes_of, text_of
from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.promotion import sum_dtype
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Number, Tensor
from frontend_svc.operators.reductions.over_axes import sum_dims
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import Expr


@decomposes("aten.rot90.default")
def rot90(op: Lowering, self: Tensor, k: int = 1, dims: tuple[int, ...] = (0, 1)) -> Tensor:
    """Two axes turned by k right angles."""
    axes = axes_of(dims, self.rank)
    if len(axes) != 2:
        raise InvalidGraphError(f"dims {dims}; expected two")
    first, second = axes
    order = list(range(self.rank))
    order[first], order[second] = second, first
    turns = k % 4
    if turns == 2:
        return op.prim("flip", self, dims=tuple(sorted(axes)))
    if turns == 1:
        return op.permute(op.prim("flip", self, dims=(second,)), order)
    return op.prim("flip", op.permute(self, order), dims=(second,)) if turns else self


@decomposes("aten.channel_shuffle.default")
def channel_shuffle(op: Lowering, self: Tensor, groups: Expr) -> Tensor:
    """The channels of several groups, taken in turns."""
    if self.rank < 3 or op.extents.is_negative(groups - 1):
        raise InvalidGraphError(f"{groups} groups of shape {text_of(self.shape)}")
    batch, channels, *rest = self.shape
    each = op.extents.simplified(channels // groups)
    if not op.extents.is_same(each * groups, channels):
        raise InvalidGraphError(f"{channels} channels; expected a multiple of {groups}")
    split = op.reshape(self, (batch, groups, each, *rest))
    turned = op.permute(split, (0, 2, 1, *range(3, split.rank)))
    return op.reshape(turned, self.shape)


@decomposes("aten.zero.default")
def zero(op: Lowering, self: Tensor) -> Tensor:
    """All elements 0."""
    return op.full(0, self.dtype, self.shape)


@decomposes("aten.nansum.default")
def nansum(
    op: Lowering,
    self: Tensor,
    dim: tuple[int, ...] | None = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """The sum over axes of what is a number."""
    if not self.dtype.is_float:
        return sum_dims(op, self, dim, keepdim, dtype=dtype or sum_dtype(self.dtype))
    wide = op.widened(self)
    numbers = op.where(op.prim("isnan", wide), 0.0, wide)
    total = sum_dims(op, numbers, dim, keepdim, dtype=dtype)
    return op.convert(total, dtype or self.dtype)


@decomposes("aten._unsafe_masked_index.default")
def unsafe_masked_index(
    op: Lowering,
    self: Tensor,
    mask: Tensor,
    indices: tuple[Tensor | None, ...],
    fill: Number,
) -> Tensor:
    """Elements at broadcast index tensors where the mask says so, elsewhere a number."""
    dims = tuple(axis for axis, i in enumerate(indices) if i is not None)
    if dims != tuple(range(self.rank)) or mask.dtype is not DType.BOOL:
        raise NotDecomposedError("a masked index of some axes")
    placed = [_inside(op, i, self.shape[axis]) for axis, i in enumerate(indices) if i is not None]
    shape = op.extents.broadcast([mask.shape, *(i.shape for i in placed)])
    found = op.prim("gather_nd", self, *(op.expand(i, shape) for i in placed), dims=dims)
    return op.where(mask, found, op.full(fill, self.dtype))


def _inside(op: Lowering, index: Tensor, extent: Expr) -> Tensor:
    # What the mask hides may lie anywhere; PyTorch clamps it as well.
    if index.dtype not in (DType.I32, DType.I64):
        index = op.convert(index, DType.I64)
    return op.apply("minimum", op.apply("maximum", index, 0), extent - 1)
