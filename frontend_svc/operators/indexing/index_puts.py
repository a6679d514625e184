"""Writes at broadcast index tensors, at flat positions, and into the rows of a table."""

from __future__ import annotations

from collections.abc import Iterable

from frontend_svc.operators.core.extents import Shape, numel_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor
from frontend_svc.operators.indexing.combining import scattered
from frontend_svc.operators.indexing.indices import clamped_index, integer_index
from frontend_svc.operators.indexing.masks import masked_put
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, Expr


@decomposes(
    "aten.index_put.default", "aten._unsafe_index_put.default", note="extern for several masks"
)
def index_put(
    builder: PrimsBuilder,
    self: Tensor,
    indices: tuple[Tensor | None, ...],
    values: Tensor,
    accumulate: bool = False,
) -> Tensor:
    """Elements at broadcast index tensors replaced by values, or values added to them."""
    picked = [(axis, i) for axis, i in enumerate(indices) if i is not None]
    if not picked:
        raise InvalidGraphError("no index; expected at least one tensor")
    if len(indices) > self.rank:
        raise InvalidGraphError(f"{len(indices)} indices for {self.rank} axes; expected no more")
    if any(i.dtype in (DType.BOOL, DType.U8) for _, i in picked):
        return masked_put(builder, self, picked, values, accumulate=accumulate)
    dims = tuple(axis for axis, _ in picked)
    shape = builder.extents.broadcast([i.shape for _, i in picked])
    positions = [builder.expand(integer_index(builder, i), shape) for _, i in picked]
    rest = tuple(e for axis, e in enumerate(self.shape) if axis not in dims)
    first = dims[0]
    if dims != tuple(range(first, first + len(dims))):
        first = 0  # index axes that are not adjacent come first
    expected = (*rest[:first], *shape, *rest[first:])
    updates = builder.expand(builder.convert(values, self.dtype), expected)
    middle = range(first, first + len(shape))
    order = [*middle, *(axis for axis in range(len(expected)) if axis not in middle)]
    mode = "add" if accumulate else "set"
    updates = builder.permute(updates, order)
    is_order_free = not accumulate and _is_same_at_all(values, expected, middle)
    return scattered(builder, mode, self, (dims, positions), updates, is_order_free=is_order_free)


def _is_same_at_all(values: Tensor, shape: Shape, index_axes: Iterable[int]) -> bool:
    """True if values that are broadcast to a shape do not vary along the axes of the index."""
    missing = len(shape) - values.rank
    return all(axis < missing or values.shape[axis - missing] is ONE for axis in index_axes)


@decomposes("aten._index_put_impl.default", note="extern for several masks")
def index_put_impl(
    builder: PrimsBuilder,
    self: Tensor,
    indices: tuple[Tensor | None, ...],
    values: Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Tensor:
    """Elements at broadcast index tensors replaced by values, or values added to them."""
    return index_put(builder, self, indices, values, accumulate)


@decomposes("aten._unsafe_masked_index_put_accumulate.default")
def unsafe_masked_index_put_accumulate(
    builder: PrimsBuilder,
    self: Tensor,
    mask: Tensor,
    indices: tuple[Tensor | None, ...],
    values: Tensor,
) -> Tensor:
    """Values added at broadcast index tensors where a mask holds."""
    if any(extent == 0 for extent in self.shape):
        return self
    if len(indices) > self.rank:
        raise InvalidGraphError(f"{len(indices)} indices for {self.rank} axes; expected no more")
    held = builder.convert(mask, DType.BOOL)
    # Indices that the mask hides may be out of range; PyTorch clamps them too.
    clamped = [
        i if i is None else clamped_index(builder, i, self.shape[k]) for k, i in enumerate(indices)
    ]
    return index_put(builder, self, tuple(clamped), builder.where(held, values, 0), True)


@decomposes("aten.put.default")
def put(
    builder: PrimsBuilder, self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False
) -> Tensor:
    """Elements of the flattened tensor replaced by others, or others added to them."""
    flat = builder.reshape(self, (numel_of(self.shape),))
    positions = builder.reshape(integer_index(builder, index), (numel_of(index.shape),))
    updates = builder.convert(builder.reshape(source, positions.shape), self.dtype)
    mode = "add" if accumulate else "set"
    return builder.reshape(scattered(builder, mode, flat, ((0,), [positions]), updates), self.shape)


@decomposes("aten.embedding_dense_backward.default", note="extern for scale_grad_by_freq")
def embedding_dense_backward(
    builder: PrimsBuilder,
    grad_output: Tensor,
    indices: Tensor,
    num_weights: Expr,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Tensor:
    """The gradient of a table: for each row the sum of the gradients of its uses."""
    if scale_grad_by_freq:
        raise NotDecomposedError("a gradient that is scaled by the number of uses of a row")
    rows, width = numel_of(indices.shape), grad_output.shape[-1]
    updates = builder.reshape(grad_output, (rows, width))
    positions = builder.reshape(integer_index(builder, indices), (rows,))
    if padding_idx >= 0:
        is_used = builder.reshape(builder.apply("ne", positions, padding_idx), (rows, ONE))
        updates = builder.where(is_used, updates, 0)
    zeros = builder.full(0, grad_output.dtype, (num_weights, width))
    return scattered(builder, "add", zeros, ((0,), [positions]), updates)
