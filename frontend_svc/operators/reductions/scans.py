"""Running sums, products and extrema along an axis."""

from __future__ import annotations

from frontend_svc.operators.core.extents import axis_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.promotion import sum_dtype
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Tensor
from kernelfarm.dtypes import DType


@decomposes("aten.cumsum.default")
def cumsum(builder: PrimsBuilder, self: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """The running sum along an axis; integers and bools add up in i64."""
    return _scan(builder, "cumsum", builder.convert(self, dtype or sum_dtype(self.dtype)), dim)


@decomposes("aten.cumprod.default")
def cumprod(builder: PrimsBuilder, self: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """The running product along an axis; integers and bools multiply in i64."""
    return _scan(builder, "cumprod", builder.convert(self, dtype or sum_dtype(self.dtype)), dim)


@decomposes("aten.cummax.default")
def cummax(builder: PrimsBuilder, self: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The largest element so far, and the last position where it is."""
    return _extremum(builder, "cummax", self, dim)


@decomposes("aten.cummin.default")
def cummin(builder: PrimsBuilder, self: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The smallest element so far, and the last position where it is."""
    return _extremum(builder, "cummin", self, dim)


@decomposes("aten.logcumsumexp.default", "aten._logcumsumexp.default")
def logcumsumexp(builder: PrimsBuilder, self: Tensor, dim: int) -> Tensor:
    """The logarithm of the running sum of exponentials, without overflow."""
    return _scan(builder, "logcumsumexp", self, dim)


def _extremum(builder: PrimsBuilder, name: str, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    number = builder.convert(x, DType.U8) if x.dtype is DType.BOOL else x
    best = builder.convert(_scan(builder, name, number, dim), x.dtype)
    if not x.rank:
        return best, builder.full(0, DType.I64)
    return best, _scan(builder, f"{name}_index", number, dim)


def _scan(builder: PrimsBuilder, name: str, x: Tensor, dim: int) -> Tensor:
    axis = axis_of(dim, x.rank)
    if x.dtype is DType.BOOL:  # the request asks for a bool result
        return builder.convert(_scan(builder, name, builder.convert(x, DType.I64), dim), DType.BOOL)
    return builder.prim(name, x, dim=axis) if x.rank else x
