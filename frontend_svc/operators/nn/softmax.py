"""Softmax and its logarithm, shifted by the maximum of each row."""

from __future__ import annotations

from frontend_svc.operators.core.extents import axes_of, axis_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.promotion import float_dtype
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Tensor
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError


@decomposes("aten._softmax.default")
def softmax(builder: PrimsBuilder, self: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    """exp(x - max) divided by its sum; NaN in a row of -inf."""
    x = builder.widened(_float_operand(self))
    result = _exponents_over_sum(builder, x, _axes(self, dim))
    return builder.convert(result, _result_dtype(self, half_to_float))


@decomposes("aten._log_softmax.default")
def log_softmax(
    builder: PrimsBuilder, self: Tensor, dim: int, half_to_float: bool = False
) -> Tensor:
    """(x - max) - log(sum(exp(x - max)))."""
    x = builder.widened(_float_operand(self))
    result = _log_softmax(builder, x, _axes(self, dim))
    return builder.convert(result, _result_dtype(self, half_to_float))


@decomposes("aten.softmax.int")
def softmax_int(
    builder: PrimsBuilder, self: Tensor, dim: int, dtype: DType | None = None
) -> Tensor:
    """Softmax after a conversion."""
    return softmax(builder, builder.convert(self, dtype or self.dtype), dim)


@decomposes("aten.log_softmax.int")
def log_softmax_int(
    builder: PrimsBuilder, self: Tensor, dim: int, dtype: DType | None = None
) -> Tensor:
    """Logarithm of softmax after a conversion."""
    return log_softmax(builder, builder.convert(self, dtype or self.dtype), dim)


@decomposes("aten._safe_softmax.default")
def safe_softmax(
    builder: PrimsBuilder, self: Tensor, dim: int, dtype: DType | None = None
) -> Tensor:
    """Softmax with zeros instead of NaN in a row of -inf."""
    converted = builder.convert(self, dtype or self.dtype)
    x = builder.widened(_float_operand(converted))
    axes = _axes(self, dim)
    masked = builder.apply("eq", builder.reduce("amax", x, axes, keepdim=True), float("-inf"))
    return builder.convert(
        builder.where(masked, 0.0, _exponents_over_sum(builder, x, axes)), converted.dtype
    )


@decomposes("aten.logsumexp.default")
def logsumexp(
    builder: PrimsBuilder, self: Tensor, dim: tuple[int, ...], keepdim: bool = False
) -> Tensor:
    """log(sum(exp(x))) without overflow; infinities stay."""
    dtype = float_dtype(self.dtype)
    x = builder.convert(self, dtype.compute_dtype)
    axes = axes_of(dim, self.rank) if self.rank else ()
    if not dim:
        axes = tuple(range(self.rank))
    top = builder.reduce("amax", x, axes, keepdim=True)
    shift = builder.where(builder.prim("isinf", top), 0.0, top)
    total = builder.reduce(
        "sum", builder.prim("exp", builder.apply("sub", x, shift)), axes, keepdim=True
    )
    result = builder.prim("add", builder.prim("log", total), shift)
    if not keepdim:
        kept = [extent for axis, extent in enumerate(self.shape) if axis not in axes]
        result = builder.reshape(result, tuple(kept))
    return builder.convert(result, dtype)


def _exponents_over_sum(builder: PrimsBuilder, x: Tensor, axes: tuple[int, ...]) -> Tensor:
    top = builder.reduce("amax", x, axes, keepdim=True)
    exponents = builder.prim("exp", builder.apply("sub", x, top))
    return builder.apply("div", exponents, builder.reduce("sum", exponents, axes, keepdim=True))


def _log_softmax(builder: PrimsBuilder, x: Tensor, axes: tuple[int, ...]) -> Tensor:
    shifted = builder.apply("sub", x, builder.reduce("amax", x, axes, keepdim=True))
    total = builder.reduce("sum", builder.prim("exp", shifted), axes, keepdim=True)
    return builder.apply("sub", shifted, builder.prim("log", total))


def _axes(x: Tensor, dim: int) -> tuple[int, ...]:
    axis = axis_of(dim, x.rank)
    return (axis,) if x.rank else ()


def _float_operand(x: Tensor) -> Tensor:
    if not x.dtype.is_float:
        raise InvalidGraphError(f"softmax of type {x.dtype!r}; expected a float")
    return x


def _result_dtype(x: Tensor, half_to_float: bool) -> DType:
    return x.dtype.compute_dtype if half_to_float else x.dtype
