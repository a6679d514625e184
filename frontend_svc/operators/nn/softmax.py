"""Softmax and its logarithm, shifted by the row's maximum."""

from __future__ import annotations

from frontend_svc.operators.core.extents import axes_of, axis_of
from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.promotion import float_dtype
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Tensor
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError


@decomposes("aten._softmax.default")
def softmax(op: Lowering, self: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    """exp(x - max) over its sum; NaN in a row of all -inf."""
    x = op.widened(_float_operand(self))
    result = _exponents_over_sum(op, x, _axes(self, dim))
    return op.convert(result, _result_dtype(self, half_to_float))


@decomposes("aten._log_softmax.default")
def log_softmax(op: Lowering, self: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    """(x - max) - log(sum(exp(x - max)))."""
    x = op.widened(_float_operand(self))
    result = _log_softmax(op, x, _axes(self, dim))
    return op.convert(result, _result_dtype(self, half_to_float))


@decomposes("aten.softmax.int")
def softmax_int(op: Lowering, self: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    """Softmax after a conversion."""
    return softmax(op, op.convert(self, dtype or self.dtype), dim)


@decomposes("aten.log_softmax.int")
def log_softmax_int(op: Lowering, self: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    """Logarithm of softmax after a conversion."""
    return log_softmax(op, op.convert(self, dtype or self.dtype), dim)


@decomposes("aten._safe_softmax.default")
def safe_softmax(op: Lowering, self: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    """Softmax with zeros, not NaN, in a row of all -inf."""
    converted = op.convert(self, dtype or self.dtype)
    x = op.widened(_float_operand(converted))
    axes = _axes(self, dim)
    masked = op.apply("eq", op.reduce("amax", x, axes, keepdim=True), float("-inf"))
    return op.convert(op.where(masked, 0.0, _exponents_over_sum(op, x, axes)), converted.dtype)


@decomposes("aten.logsumexp.default")
def logsumexp(op: Lowering, self: Tensor, dim: tuple[int, ...], keepdim: bool = False) -> Tensor:
    """log(sum(exp(x))) without overflow; infinities stay what they are."""
    dtype = float_dtype(self.dtype)
    x = op.convert(self, dtype.compute_dtype)
    axes = axes_of(dim, self.rank) if self.rank else ()
    if not dim:
        axes = tuple(range(self.rank))
    top = op.reduce("amax", x, axes, keepdim=True)
    shift = op.where(op.prim("isinf", top), 0.0, top)
    total = op.reduce("sum", op.prim("exp", op.apply("sub", x, shift)), axes, keepdim=True)
    result = op.prim("add", op.prim("log", total), shift)
    if not keepdim:
        kept = [extent for axis, extent in enumerate(self.shape) if axis not in axes]
        result = op.reshape(result, tuple(kept))
    return op.convert(result, dtype)


def _exponents_over_sum(op: Lowering, x: Tensor, axes: tuple[int, ...]) -> Tensor:
    top = op.reduce("amax", x, axes, keepdim=True)
    exponents = op.prim("exp", op.apply("sub", x, top))
    return op.apply("div", exponents, op.reduce("sum", exponents, axes, keepdim=True))


def _log_softmax(op: Lowering, x: Tensor, axes: tuple[int, ...]) -> Tensor:
    shifted = op.apply("sub", x, op.reduce("amax", x, axes, keepdim=True))
    total = op.reduce("sum", op.prim("exp", shifted), axes, keepdim=True)
    return op.apply("sub", shifted, op.prim("log", total))


def _axes(x: Tensor, dim: int) -> tuple[int, ...]:
    axis = axis_of(dim, x.rank)
    return (axis,) if x.rank else ()


def _float_operand(x: Tensor) -> Tensor:
    if not x.dtype.is_float:
        raise InvalidGraphError(f"softmax of type {x.dtype!r}; expected a float")
    return x


def _result_dtype(x: Tensor, half_to_float: bool) -> DType:
    return x.dtype.compute_dtype if half_to_float else x.dtype
