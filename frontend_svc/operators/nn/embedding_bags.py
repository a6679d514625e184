"""Embedding tables: renormalized rows, and combined rows of bags."""

from __future__ import annotations

from frontend_svc.operators.core.extents import numel_of, text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor
from frontend_svc.operators.reductions.over_axes import vector_norm
from frontend_svc.operators.reductions.segments import segment_numbers
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, ZERO

_SUM, _MEAN, _MAX = 0, 1, 2


@decomposes("aten.embedding_renorm.default")
def embedding_renorm(
    builder: PrimsBuilder, self: Tensor, indices: Tensor, max_norm: float, norm_type: float
) -> Tensor:
    """The table whose used rows are scaled down to a norm if theirs is larger."""
    if self.rank != 2 or not self.dtype.is_float:
        raise InvalidGraphError(f"a table {self.dtype!r} {text_of(self.shape)}; expected floats")
    positions = _flat_indices(builder, indices)
    rows = builder.widened(builder.prim("take", self, positions, dim=0))
    norms = vector_norm(builder, rows, norm_type, (1,), True)
    # PyTorch's constant, which keeps the quotient finite.
    scale = builder.apply("div", max_norm, builder.apply("add", norms, 1e-7))
    is_large = builder.apply("gt", norms, max_norm)
    scaled = builder.where(is_large, builder.apply("mul", rows, scale), rows)
    # A row that is used twice is written twice, with equal elements.
    updates = builder.convert(scaled, self.dtype)
    return builder.scatter(self, ((0,), [positions]), updates, "set", is_order_free=True)


@decomposes("aten._embedding_bag_forward_only.default")
def embedding_bag(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    builder: PrimsBuilder,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor | None, ...]:
    """The sum, the mean or the largest elements of each bag's rows.

    The results that only gradients read (bags of elements, sizes, positions of extrema) are
    omitted.
    """
    if weight.rank != 2 or indices.rank != 1 or offsets.rank != 1 or mode not in (0, 1, 2):
        raise InvalidGraphError(
            f"bags {text_of(offsets.shape)} of {text_of(indices.shape)}, mode {mode};"
            " expected vectors and a mode from 0 to 2"
        )
    count = offsets.shape[0] - int(include_last_offset)
    if indices.shape[0] is ZERO or builder.extents.is_negative(count - 1):
        raise NotDecomposedError("no elements or no bags")
    positions = _flat_indices(builder, indices)
    begins = builder.slice_axis(builder.convert(offsets, DType.I64), 0, ZERO, count)
    # An element is in bag k if k + 1 bags begin up to it.
    bags = builder.apply("sub", segment_numbers(builder, begins, positions.shape[0]), 1)
    is_used = builder.apply("ne", positions, padding_idx)
    rows = builder.widened(builder.prim("take", weight, positions, dim=0))
    if per_sample_weights is not None:
        factors = builder.convert(per_sample_weights, rows.dtype)
        rows = builder.apply("mul", rows, builder.reshape(factors, (*factors.shape, ONE)))
    columns = builder.reshape(is_used, (*is_used.shape, ONE))
    ones = builder.convert(is_used, rows.dtype)
    zeros = builder.full(0.0, rows.dtype, (count,))
    # Numbers of elements are exact sums.
    used = builder.scatter(zeros, ((0,), [bags]), ones, "add", is_order_free=True)
    used = builder.reshape(used, (count, ONE))
    shape = (count, weight.shape[1])
    neutral, combine = (float("-inf"), "max") if mode == _MAX else (0.0, "add")
    base = builder.full(neutral, rows.dtype, shape)
    updates = builder.where(columns, rows, neutral)
    found = builder.scatter(base, ((0,), [bags]), updates, combine)
    if mode == _MEAN:
        found = builder.apply("div", found, builder.apply("maximum", used, 1.0))
    elif mode == _MAX:
        found = builder.where(builder.apply("gt", used, 0.0), found, 0.0)
    return builder.convert(found, weight.dtype), None, None, None


def _flat_indices(builder: PrimsBuilder, indices: Tensor) -> Tensor:
    if indices.dtype not in (DType.I32, DType.I64):
        raise InvalidGraphError(f"indices of type {indices.dtype!r}; expected integers")
    return builder.reshape(indices, (numel_of(indices.shape),))
