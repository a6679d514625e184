"""Index tensors of gathers and scatters."""

from __future__ import annotations

from frontend_svc.operators.core.extents import axis_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.values import Tensor, number_of
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import Expr

_INDEX_DTYPES = frozenset({DType.I32, DType.I64})


def integer_index(builder: PrimsBuilder, index: Tensor) -> Tensor:
    """An index tensor as i32 or i64.

    Raises:
        InvalidGraphError: the tensor is not of integers.
    """
    if index.dtype.is_float or index.dtype is DType.BOOL:
        raise InvalidGraphError(f"an index of type {index.dtype!r}; expected integers")
    return index if index.dtype in _INDEX_DTYPES else builder.convert(index, DType.I64)


def clamped_index(builder: PrimsBuilder, index: Tensor, extent: Expr) -> Tensor:
    """An index tensor with every element clamped to [-extent, extent - 1]."""
    least, most = number_of(-extent), number_of(extent - 1)
    return builder.apply(
        "minimum", builder.apply("maximum", integer_index(builder, index), least), most
    )


def unsigned_index(builder: PrimsBuilder, base: Tensor, dim: int, index: Tensor) -> Tensor:
    """An index (i64) of operators that do not count from the end.

    Negative elements are moved behind the axis, where the check of the bounds refuses them.
    """
    x = builder.convert(integer_index(builder, index), DType.I64)
    extent = number_of(base.shape[axis_of(dim, base.rank)]) if base.rank else 1
    return builder.where(builder.apply("lt", x, 0), builder.full(extent, DType.I64, x.shape), x)
