"""Gathers by integer indices; negative indices count from the end, all indices are checked."""

from __future__ import annotations

from frontend_svc.operators.core.extents import axis_of, numel_of, text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor
from frontend_svc.operators.indexing.indices import integer_index
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, Expr


@decomposes("aten.index.Tensor", "aten._unsafe_index.Tensor", note="extern for masks")
def index(builder: PrimsBuilder, self: Tensor, indices: tuple[Tensor | None, ...]) -> Tensor:
    """Elements at broadcast index tensors; the axes of the result are those of NumPy."""
    picked = [(axis, i) for axis, i in enumerate(indices) if i is not None]
    if not picked:
        raise InvalidGraphError("no index; expected at least one tensor")
    if len(indices) > self.rank:
        raise InvalidGraphError(f"{len(indices)} indices for {self.rank} axes; expected no more")
    if any(i.dtype in (DType.BOOL, DType.U8) for _, i in picked):
        raise NotDecomposedError("an index by a mask: the result's size depends on data")
    dims = tuple(axis for axis, _ in picked)
    if len(picked) == 1:
        return builder.prim("take", self, integer_index(builder, picked[0][1]), dim=dims[0])
    shape = builder.extents.broadcast([i.shape for _, i in picked])
    positions = [builder.expand(integer_index(builder, i), shape) for _, i in picked]
    found = builder.prim("gather_nd", self, *positions, dims=dims)
    return _in_numpy_order(builder, found, dims, len(shape))


@decomposes("aten.index_select.default")
def index_select(builder: PrimsBuilder, self: Tensor, dim: int, index: Tensor) -> Tensor:
    """Elements of an axis at the positions of a vector."""
    if index.rank > 1:
        raise InvalidGraphError(f"an index with {index.rank} axes; expected a vector")
    positions = builder.reshape(integer_index(builder, index), (numel_of(index.shape),))
    axis = axis_of(dim, self.rank)
    if not self.rank:
        return builder.reshape(
            builder.prim("take", builder.reshape(self, (ONE,)), positions, dim=0), ()
        )
    return builder.prim("take", self, positions, dim=axis)


@decomposes("aten.embedding.default")
def embedding(
    builder: PrimsBuilder,
    weight: Tensor,
    indices: Tensor,
    padding_idx: Expr | None = None,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Rows of a table; the padding index has an effect in training only."""
    if weight.rank != 2:
        raise InvalidGraphError(f"a table of shape {text_of(weight.shape)}; expected two axes")
    return builder.prim("take", weight, integer_index(builder, indices), dim=0)


@decomposes("aten.gather.default")
def gather(
    builder: PrimsBuilder, self: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False
) -> Tensor:
    """Elements along an axis at an index of the result's shape."""
    axis = axis_of(dim, max(self.rank, 1))
    if any(extent == 0 for extent in index.shape):
        return builder.full(0, self.dtype, index.shape)
    if max(self.rank, 1) != max(index.rank, 1):
        raise InvalidGraphError(f"an index with {index.rank} axes; expected {self.rank}")
    x = self if self.rank else builder.reshape(self, (ONE,))
    positions = integer_index(builder, index)
    positions = positions if index.rank else builder.reshape(positions, (ONE,))
    pairs = enumerate(zip(x.shape, positions.shape, strict=True))
    if any(k != axis and builder.extents.is_negative(a - b) for k, (a, b) in pairs):
        seen = f"{text_of(positions.shape)} into {text_of(x.shape)}"
        raise InvalidGraphError(f"an index {seen}; expected it no larger except on axis {axis}")
    return builder.reshape(builder.prim("gather_along", x, positions, dim=axis), index.shape)


@decomposes("aten.take.default")
def take(builder: PrimsBuilder, self: Tensor, index: Tensor) -> Tensor:
    """Elements of the flattened tensor."""
    flat = builder.reshape(self, (numel_of(self.shape),))
    return builder.prim("take", flat, integer_index(builder, index), dim=0)


def _in_numpy_order(
    builder: PrimsBuilder, found: Tensor, dims: tuple[int, ...], index_rank: int
) -> Tensor:
    """The axes as in NumPy: index axes replace adjacent indexed axes, else they come first."""
    first = dims[0]
    if dims != tuple(range(first, first + len(dims))) or first == 0:
        return found
    before = range(index_rank, index_rank + first)
    after = range(index_rank + first, found.rank)
    return builder.permute(found, [*before, *range(index_rank), *after])
