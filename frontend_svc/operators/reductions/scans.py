"""Running sums, products and extrema along an axis."""

from __future__ import annotations

from frontend_svc.operators.core.extents import axis_of
from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.promotion import sum_dtype
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Tensor
from kernelfarm.dtypes import DType


@decomposes("aten.cumsum.default")
def cumsum(op: Lowering, self: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """The running sum along an axis; integers and bools add up in i64."""
    return _scan(op, "cumsum", op.convert(self, dtype or sum_dtype(self.dtype)), dim)


@decomposes("aten.cumprod.default")
def cumprod(op: Lowering, self: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """The running product along an axis; integers and bools multiply in i64."""
    return _scan(op, "cumprod", op.convert(self, dtype or sum_dtype(self.dtype)), dim)


@decomposes("aten.cummax.default")
def cummax(op: Lowering, self: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The largest element so far, and where it stands: of equal ones the last."""
    return _extremum(op, "cummax", self, dim)


@decomposes("aten.cummin.default")
def cummin(op: Lowering, self: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The smallest element so far, and where it stands: of equal ones the last."""
    return _extremum(op, "cummin", self, dim)


@decomposes("aten.logcumsumexp.default", "aten._logcumsumexp.default")
def logcumsumexp(op: Lowering, self: Tensor, dim: int) -> Tensor:
    """The logarithm of the running sum of exponentials, without overflow."""
    return _scan(op, "logcumsumexp", self, dim)


def _extremum(op: Lowering, name: str, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    number = op.convert(x, DType.U8) if x.dtype is DType.BOOL else x
    best = op.convert(_scan(op, name, number, dim), x.dtype)
    if not x.rank:
        return best, op.full(0, DType.I64)
    return best, _scan(op, f"{name}_index", number, dim)


def _scan(op: Lowering, name: str, x: Tensor, dim: int) -> Tensor:
    axis = axis_of(dim, x.rank)
    if x.dtype is DType.BOOL:  # a result that is asked for as bool: `and` or `or` of numbers
        return op.convert(_scan(op, name, op.convert(x, DType.I64), dim), DType.BOOL)
    return op.prim(name, x, dim=axis) if x.rank else x
