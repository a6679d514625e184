"""Means, variances and standard deviations, in two passes."""

from __future__ import annotations

from frontend_svc.operators.core.extents import numel_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Number, Operand, Tensor, number_of
from frontend_svc.operators.reductions.over_axes import reduced_axes
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ZERO, Expr

Axes = tuple[int, ...]


def mean_of(builder: PrimsBuilder, x: Tensor, axes: Axes) -> Tensor:
    """The mean over axes, which remain with extent 1; `x` has a computing type."""
    total = builder.reduce("sum", x, axes, keepdim=True)
    return builder.apply("div", total, number_of(_count(x, axes)))


def moments_of(builder: PrimsBuilder, x: Tensor, axes: Axes) -> tuple[Tensor, Tensor, Tensor]:
    """(x - mean, mean, mean square of x - mean) over axes, which remain with extent 1."""
    mean = mean_of(builder, x, axes)
    centered = builder.apply("sub", x, mean)
    return centered, mean, mean_of(builder, builder.prim("mul", centered, centered), axes)


@decomposes("aten.mean.default")
def mean_all(builder: PrimsBuilder, self: Tensor, *, dtype: DType | None = None) -> Tensor:
    """The mean of all elements."""
    return mean_dim(builder, self, None, dtype=dtype)


@decomposes("aten.mean.dim")
def mean_dim(
    builder: PrimsBuilder,
    self: Tensor,
    dim: tuple[int, ...] | None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """The mean over axes."""
    result = _float_result(dtype or self.dtype)
    axes = reduced_axes(self, dim)
    mean = mean_of(builder, builder.convert(self, result.compute_dtype), axes)
    return builder.convert(_shaped(builder, mean, axes, keepdim), result)


@decomposes("aten.var.correction", fixed={"is_root": False})
@decomposes("aten.std.correction", fixed={"is_root": True})
def variance(
    builder: PrimsBuilder,
    self: Tensor,
    dim: tuple[int, ...] | None = None,
    *,
    correction: Number | None = None,
    keepdim: bool = False,
    is_root: bool,
) -> Tensor:
    """The variance over axes, divided by count - correction, or its root."""
    return _spread(builder, self, dim, correction, keepdim, is_root=is_root)[0]


@decomposes("aten.var_mean.correction", fixed={"is_root": False})
@decomposes("aten.std_mean.correction", fixed={"is_root": True})
def variance_and_mean(
    builder: PrimsBuilder,
    self: Tensor,
    dim: tuple[int, ...] | None = None,
    *,
    correction: Number | None = None,
    keepdim: bool = False,
    is_root: bool,
) -> tuple[Tensor, Tensor]:
    """The variance over axes, divided by count - correction, or its root; and the mean."""
    return _spread(builder, self, dim, correction, keepdim, is_root=is_root)


@decomposes("aten.var.dim", fixed={"is_root": False})
@decomposes("aten.std.dim", fixed={"is_root": True})
def variance_dim(
    builder: PrimsBuilder,
    self: Tensor,
    dim: tuple[int, ...] | None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    is_root: bool,
) -> Tensor:
    """The variance over axes, divided by count - 1 if unbiased, or its root."""
    return _spread(builder, self, dim, int(unbiased), keepdim, is_root=is_root)[0]


def _spread(
    builder: PrimsBuilder,
    x: Tensor,
    dim: tuple[int, ...] | None,
    correction: Number | None,
    keepdim: bool,
    *,
    is_root: bool,
) -> tuple[Tensor, Tensor]:
    dtype = _float_result(x.dtype)
    axes = reduced_axes(x, dim)
    wide = builder.widened(x)
    mean = mean_of(builder, wide, axes)
    centered = builder.apply("sub", wide, mean)
    total = builder.reduce("sum", builder.prim("mul", centered, centered), axes, keepdim=True)
    spread = builder.apply("div", total, _divisor(builder, _count(x, axes), correction, wide.dtype))
    spread = builder.prim("sqrt", spread) if is_root else spread
    return tuple(  # type: ignore[return-value]  # a pair by construction
        builder.convert(_shaped(builder, value, axes, keepdim), dtype) for value in (spread, mean)
    )


def _divisor(
    builder: PrimsBuilder, count: Expr, correction: Number | None, dtype: DType
) -> Operand:
    """count - correction, at least 0; division by 0 gives NaN or infinity, as in PyTorch."""
    amount = 1 if correction is None else correction
    if isinstance(amount, float) and amount.is_integer():
        amount = int(amount)
    if isinstance(amount, float):
        left = builder.apply("sub", builder.full(number_of(count), dtype), amount)
        return builder.apply("maximum", left, 0.0)
    return number_of(builder.extents.larger(count - amount, ZERO))


def _count(x: Tensor, axes: Axes) -> Expr:
    return numel_of(tuple(x.shape[axis] for axis in axes))


def _shaped(builder: PrimsBuilder, x: Tensor, axes: Axes, keepdim: bool) -> Tensor:
    if keepdim:
        return x
    return builder.reshape(x, tuple(e for axis, e in enumerate(x.shape) if axis not in axes))


def _float_result(dtype: DType) -> DType:
    if not dtype.is_float:
        raise InvalidGraphError(f"a mean or variance of type {dtype!r}; expected a float")
    return dtype
