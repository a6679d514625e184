"""Means, variances and standard deviations, in two passes."""

from __future__ import annotations

from frontend_svc.operators.core.extents import numel_of
from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Number, Operand, Tensor
from frontend_svc.operators.reductions.over_axes import reduced_axes
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ZERO, Expr

Axes = tuple[int, ...]


def mean_of(op: Lowering, x: Tensor, axes: Axes) -> Tensor:
    """The mean over axes, which stay with extent 1; `x` is of a computing type."""
    total = op.reduce("sum", x, axes, keepdim=True)
    return op.apply("div", total, _number_of(_count(x, axes)))


def moments_of(op: Lowering, x: Tensor, axes: Axes) -> tuple[Tensor, Tensor, Tensor]:
    """(x - mean, mean, mean square of x - mean) over axes, which stay with extent 1."""
    mean = mean_of(op, x, axes)
    centered = op.apply("sub", x, mean)
    return centered, mean, mean_of(op, op.prim("mul", centered, centered), axes)


@decomposes("aten.mean.default")
def mean_all(op: Lowering, self: Tensor, *, dtype: DType | None = None) -> Tensor:
    """The mean of all elements."""
    return mean_dim(op, self, None, dtype=dtype)


@decomposes("aten.mean.dim")
def mean_dim(
    op: Lowering,
    self: Tensor,
    dim: tuple[int, ...] | None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """The mean over axes."""
    result = _float_result(dtype or self.dtype)
    axes = reduced_axes(self, dim)
    mean = mean_of(op, op.convert(self, result.compute_dtype), axes)
    return op.convert(_shaped(op, mean, axes, keepdim), result)


@decomposes("aten.var.correction")
def var_correction(
    op: Lowering,
    self: Tensor,
    dim: tuple[int, ...] | None = None,
    *,
    correction: Number | None = None,
    keepdim: bool = False,
) -> Tensor:
    """The variance over axes, divided by count - correction."""
    return _spread(op, self, dim, correction, keepdim, is_root=False)[0]


@decomposes("aten.std.correction")
def std_correction(
    op: Lowering,
    self: Tensor,
    dim: tuple[int, ...] | None = None,
    *,
    correction: Number | None = None,
    keepdim: bool = False,
) -> Tensor:
    """The standard deviation over axes."""
    return _spread(op, self, dim, correction, keepdim, is_root=True)[0]


@decomposes("aten.var_mean.correction")
def var_mean_correction(
    op: Lowering,
    self: Tensor,
    dim: tuple[int, ...] | None = None,
    *,
    correction: Number | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    """The variance and the mean over axes."""
    return _spread(op, self, dim, correction, keepdim, is_root=False)


@decomposes("aten.std_mean.correction")
def std_mean_correction(
    op: Lowering,
    self: Tensor,
    dim: tuple[int, ...] | None = None,
    *,
    correction: Number | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    """The standard deviation and the mean over axes."""
    return _spread(op, self, dim, correction, keepdim, is_root=True)


@decomposes("aten.var.dim")
def var_dim(
    op: Lowering,
    self: Tensor,
    dim: tuple[int, ...] | None,
    unbiased: bool = True,
    keepdim: bool = False,
) -> Tensor:
    """The variance over axes, divided by count - 1 if unbiased."""
    return _spread(op, self, dim, int(unbiased), keepdim, is_root=False)[0]


@decomposes("aten.std.dim")
def std_dim(
    op: Lowering,
    self: Tensor,
    dim: tuple[int, ...] | None,
    unbiased: bool = True,
    keepdim: bool = False,
) -> Tensor:
    """The standard deviation over axes, of the variance divided by count - 1 if unbiased."""
    return _spread(op, self, dim, int(unbiased), keepdim, is_root=True)[0]


def _spread(
    op: Lowering,
    x: Tensor,
    dim: tuple[int, ...] | None,
    correction: Number | None,
    keepdim: bool,
    *,
    is_root: bool,
) -> tuple[Tensor, Tensor]:
    dtype = _float_result(x.dtype)
    axes = reduced_axes(x, dim)
    wide = op.widened(x)
    mean = mean_of(op, wide, axes)
    centered = op.apply("sub", wide, mean)
    total = op.reduce("sum", op.prim("mul", centered, centered), axes, keepdim=True)
    spread = op.apply("div", total, _divisor(op, _count(x, axes), correction, wide.dtype))
    spread = op.prim("sqrt", spread) if is_root else spread
    return tuple(  # type: ignore[return-value]  # a pair by construction
        op.convert(_shaped(op, value, axes, keepdim), dtype) for value in (spread, mean)
    )


def _divisor(op: Lowering, count: Expr, correction: Number | None, dtype: DType) -> Operand:
    """count - correction, at least 0 (a division by it gives NaN or infinity, as in PyTorch)."""
    amount = 1 if correction is None else correction
    if isinstance(amount, float) and amount.is_integer():
        amount = int(amount)
    if isinstance(amount, float):
        left = op.apply("sub", op.full(_number_of(count), dtype), amount)
        return op.apply("maximum", left, 0.0)
    return _number_of(op.extents.larger(count - amount, ZERO))


def _count(x: Tensor, axes: Axes) -> Expr:
    return numel_of(tuple(x.shape[axis] for axis in axes))


def _number_of(count: Expr) -> Number:
    return count.constant if count.is_constant else count


def _shaped(op: Lowering, x: Tensor, axes: Axes, keepdim: bool) -> Tensor:
    if keepdim:
        return x
    return op.reshape(x, tuple(e for axis, e in enumerate(x.shape) if axis not in axes))


def _float_result(dtype: DType) -> DType:
    if not dtype.is_float:
        raise InvalidGraphError(f"a mean or variance of type {dtype!r}; expected a float")
    return dtype
