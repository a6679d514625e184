"""Losses of a few elementwise operations and a mean, and their gradients."""

from __future__ import annotations

from collections.abc import Callable

from frontend_svc.operators.core.extents import numel_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Number, Tensor, number_of
from frontend_svc.operators.reductions.over_axes import sum_dims
from frontend_svc.operators.reductions.statistics import mean_dim
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError

_MEAN = 1


@decomposes("aten.mse_loss.default")
def mse_loss(builder: PrimsBuilder, self: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    """The squared difference of each element, or its mean or sum."""
    dtype = builder.promoted(self, target)
    difference = _difference(builder, self, target)
    square = builder.prim("mul", difference, difference)
    return builder.convert(reduced_loss(builder, square, reduction), dtype)


@decomposes("aten.mse_loss_backward.default")
def mse_loss_backward(
    builder: PrimsBuilder, grad_output: Tensor, self: Tensor, target: Tensor, reduction: int
) -> Tensor:
    """g * 2 * difference; for a mean, divided by the number of elements."""
    difference = builder.apply("mul", _difference(builder, self, target), 2.0)
    return _graded(
        builder,
        grad_output,
        _shared(builder, difference, reduction),
        builder.promoted(self, target),
    )


@decomposes("aten.smooth_l1_loss.default")
def smooth_l1_loss(
    builder: PrimsBuilder, self: Tensor, target: Tensor, reduction: int = _MEAN, beta: float = 1.0
) -> Tensor:
    """0.5 * d * d / beta for distances d < beta, else d - 0.5 * beta."""
    dtype = builder.promoted(self, target)
    distance = builder.prim("abs", _difference(builder, self, target))
    if beta == 0.0:
        return builder.convert(reduced_loss(builder, distance, reduction), dtype)
    square = builder.prim("mul", builder.apply("mul", distance, 0.5), distance)
    small = builder.apply("div", square, beta)
    large = builder.apply("sub", distance, 0.5 * beta)
    loss = builder.where(builder.apply("lt", distance, beta), small, large)
    return builder.convert(reduced_loss(builder, loss, reduction), dtype)


@decomposes("aten.smooth_l1_loss_backward.default")
def smooth_l1_loss_backward(
    builder: PrimsBuilder,
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    reduction: int,
    beta: float,
) -> Tensor:
    """g * difference / beta for distances below beta, else g with the difference's sign."""
    slope = _clipped_slope(
        builder, _difference(builder, self, target), beta, 1.0, 1.0 / beta if beta else 0.0
    )
    return _graded(
        builder, grad_output, _shared(builder, slope, reduction), builder.promoted(self, target)
    )


@decomposes("aten.huber_loss.default")
def huber_loss(
    builder: PrimsBuilder, self: Tensor, target: Tensor, reduction: int = _MEAN, delta: float = 1.0
) -> Tensor:
    """0.5 * d * d for distances d < delta, else delta * (d - 0.5 * delta)."""
    dtype = builder.promoted(self, target)
    distance = builder.prim("abs", _difference(builder, self, target))
    small = builder.prim("mul", builder.apply("mul", distance, 0.5), distance)
    large = builder.apply("mul", builder.apply("sub", distance, 0.5 * delta), delta)
    loss = builder.where(builder.apply("lt", distance, delta), small, large)
    return builder.convert(reduced_loss(builder, loss, reduction), dtype)


@decomposes("aten.huber_loss_backward.default")
def huber_loss_backward(
    builder: PrimsBuilder,
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    reduction: int,
    delta: float,
) -> Tensor:
    """g * difference for distances below delta, else g * delta with the difference's sign."""
    slope = _clipped_slope(builder, _difference(builder, self, target), delta, delta, 1.0)
    return _graded(
        builder, grad_output, _shared(builder, slope, reduction), builder.promoted(self, target)
    )


@decomposes("aten.soft_margin_loss.default")
def soft_margin_loss(
    builder: PrimsBuilder, self: Tensor, target: Tensor, reduction: int = _MEAN
) -> Tensor:
    """log(1 + exp(-t * x))."""
    dtype = builder.promoted(self, target)
    x, t = (builder.convert(side, dtype.compute_dtype) for side in (self, target))
    decayed = builder.prim("exp", builder.apply("mul", builder.prim("neg", t), x))
    return builder.convert(reduced_loss(builder, builder.prim("log1p", decayed), reduction), dtype)


@decomposes("aten.soft_margin_loss_backward.default")
def soft_margin_loss_backward(
    builder: PrimsBuilder, grad_output: Tensor, self: Tensor, target: Tensor, reduction: int
) -> Tensor:
    """-g * t * e / (e + 1) for e = exp(-t * x)."""
    dtype = builder.promoted(self, target)
    x, t = (builder.convert(side, dtype.compute_dtype) for side in (self, target))
    decayed = builder.prim("exp", builder.apply("mul", builder.prim("neg", t), x))
    share = builder.prim("div", decayed, builder.apply("add", decayed, 1.0))
    slope = builder.apply("mul", builder.prim("neg", t), share)
    return _graded(builder, grad_output, _shared(builder, slope, reduction), dtype)


def reduced_loss(builder: PrimsBuilder, x: Tensor, reduction: int) -> Tensor:
    """The loss of each element, or the mean or sum of the losses.

    Raises:
        InvalidGraphError: an unknown reduction.
    """
    forms: dict[int, Callable[[], Tensor]] = {
        0: lambda: x,
        _MEAN: lambda: mean_dim(builder, x, None),
        2: lambda: sum_dims(builder, x, None),
    }
    if reduction not in forms:
        raise InvalidGraphError(f"reduction {reduction}; expected 0 (none), 1 (mean) or 2 (sum)")
    return forms[reduction]()


def share_of(x: Tensor) -> Number:
    """The number of elements, by which the gradient of a mean is divided."""
    return number_of(numel_of(x.shape))


def _shared(builder: PrimsBuilder, slope: Tensor, reduction: int) -> Tensor:
    return builder.apply("div", slope, share_of(slope)) if reduction == _MEAN else slope


def _graded(builder: PrimsBuilder, grad: Tensor, slope: Tensor, dtype: DType) -> Tensor:
    return builder.convert(builder.apply("mul", builder.convert(grad, slope.dtype), slope), dtype)


def _clipped_slope(
    builder: PrimsBuilder, difference: Tensor, bound: float, outside: float, inside: float
) -> Tensor:
    middle = builder.apply("mul", difference, inside)
    upper = builder.where(builder.apply("ge", difference, bound), outside, middle)
    return builder.where(builder.apply("le", difference, -bound), -outside, upper)


def _difference(builder: PrimsBuilder, left: Tensor, right: Tensor) -> Tensor:
    dtype = builder.promoted(left, right)
    if not dtype.is_float:
        raise InvalidGraphError(f"a loss of type {dtype!r}; expected a float")
    wide = dtype.compute_dtype
    return builder.apply("sub", builder.convert(left, wide), builder.convert(right, wide))
