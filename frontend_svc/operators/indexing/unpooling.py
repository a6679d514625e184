"""Max unpooling: elements at the positions that pooling returned, zeros elsewhere."""

from __future__ import annotations

from frontend_svc.operators.core.extents import Shape, numel_of, text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor
from frontend_svc.operators.indexing.scatters import scatter_src
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import Expr


@decomposes("aten.max_unpool2d.default")
def max_unpool2d(
    builder: PrimsBuilder, self: Tensor, indices: Tensor, output_size: tuple[Expr, ...]
) -> Tensor:
    """Zeros with each element at its position in the flattened image."""
    return _unpooled(builder, self, indices, output_size, 2)


@decomposes("aten.max_unpool3d.default")
def max_unpool3d(
    builder: PrimsBuilder,
    self: Tensor,
    indices: Tensor,
    output_size: tuple[Expr, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
) -> Tensor:
    """Zeros with each element at its position in the flattened volume."""
    return _unpooled(builder, self, indices, output_size, 3)


def _unpooled(builder: PrimsBuilder, x: Tensor, indices: Tensor, sizes: Shape, axes: int) -> Tensor:
    if x.rank not in (axes + 1, axes + 2) or len(sizes) != axes:
        raise InvalidGraphError(f"sizes {text_of(sizes)} for {text_of(x.shape)}; expected {axes}")
    if indices.dtype is not DType.I64 or not builder.extents.is_same_shape(indices.shape, x.shape):
        raise InvalidGraphError(
            f"positions of {indices.dtype!r} {text_of(indices.shape)}; expected i64 of the"
            f" elements' shape {text_of(x.shape)}"
        )
    lead = x.shape[:-axes]
    if any(extent == 0 for extent in (*x.shape, *sizes)):
        raise NotDecomposedError("an empty image")
    rows, old = numel_of(lead), numel_of(x.shape[-axes:])
    zeros = builder.full(0, x.dtype, (rows, numel_of(sizes)))
    positions, elements = (builder.reshape(t, (rows, old)) for t in (indices, x))
    return builder.reshape(scatter_src(builder, zeros, 1, positions, elements), (*lead, *sizes))
