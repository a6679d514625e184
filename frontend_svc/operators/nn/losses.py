"""Losses that are a few elementwise operations and a mean, and their gradients."""

from __future__ import annotations

from collections.abc import Callable

from frontend_svc.operators.core.extents import numel_of
from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Number, Tensor
from frontend_svc.operators.reductions.over_axes import sum_dims
from frontend_svc.operators.reductions.statistics import mean_dim
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError

_MEAN = 1


@decomposes("aten.mse_loss.default")
def mse_loss(op: Lowering, self: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    """The squared difference: of each element, or its mean or sum."""
    dtype = op.promoted(self, target)
    difference = _difference(op, self, target)
    square = op.prim("mul", difference, difference)
    return op.convert(reduced_loss(op, square, reduction), dtype)


@decomposes("aten.mse_loss_backward.default")
def mse_loss_backward(
    op: Lowering, grad_output: Tensor, self: Tensor, target: Tensor, reduction: int
) -> Tensor:
    """g * 2 * difference, shared among the elements of a mean."""
    difference = op.apply("mul", _difference(op, self, target), 2.0)
    return _graded(op, grad_output, _shared(op, difference, reduction), op.promoted(self, target))


@decomposes("aten.smooth_l1_loss.default")
def smooth_l1_loss(
    op: Lowering, self: Tensor, target: Tensor, reduction: int = _MEAN, beta: float = 1.0
) -> Tensor:
    """Half the square over beta below beta, the distance less half of beta above."""
    dtype = op.promoted(self, target)
    distance = op.prim("abs", _difference(op, self, target))
    if beta == 0.0:
        return op.convert(reduced_loss(op, distance, reduction), dtype)
    square = op.prim("mul", op.apply("mul", distance, 0.5), distance)
    small = op.apply("div", square, beta)
    large = op.apply("sub", distance, 0.5 * beta)
    loss = op.where(op.apply("lt", distance, beta), small, large)
    return op.convert(reduced_loss(op, loss, reduction), dtype)


@decomposes("aten.smooth_l1_loss_backward.default")
def smooth_l1_loss_backward(  # the operator's own parameters
    op: Lowering, grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, beta: float
) -> Tensor:
    """g * difference / beta within beta, g with the difference's sign outside."""
    slope = _clipped_slope(
        op, _difference(op, self, target), beta, 1.0, 1.0 / beta if beta else 0.0
    )
    return _graded(op, grad_output, _shared(op, slope, reduction), op.promoted(self, target))


@decomposes("aten.huber_loss.default")
def huber_loss(
    op: Lowering, self: Tensor, target: Tensor, reduction: int = _MEAN, delta: float = 1.0
) -> Tensor:
    """Half the square below delta, delta times (the distance less half of delta) above."""
    dtype = op.promoted(self, target)
    distance = op.prim("abs", _difference(op, self, target))
    small = op.prim("mul", op.apply("mul", distance, 0.5), distance)
    large = op.apply("mul", op.apply("sub", distance, 0.5 * delta), delta)
    loss = op.where(op.apply("lt", distance, delta), small, large)
    return op.convert(reduced_loss(op, loss, reduction), dtype)


@decomposes("aten.huber_loss_backward.default")
def huber_loss_backward(  # the operator's own parameters
    op: Lowering, grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, delta: float
) -> Tensor:
    """g * difference within delta, g * delta with the difference's sign outside."""
    slope = _clipped_slope(op, _difference(op, self, target), delta, delta, 1.0)
    return _graded(op, grad_output, _shared(op, slope, reduction), op.promoted(self, target))


@decomposes("aten.soft_margin_loss.default")
def soft_margin_loss(op: Lowering, self: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    """log(1 + exp(-t * x))."""
    dtype = op.promoted(self, target)
    x, t = (op.convert(side, dtype.compute_dtype) for side in (self, target))
    decayed = op.prim("exp", op.apply("mul", op.prim("neg", t), x))
    return op.convert(reduced_loss(op, op.prim("log1p", decayed), reduction), dtype)


@decomposes("aten.soft_margin_loss_backward.default")
def soft_margin_loss_backward(
    op: Lowering, grad_output: Tensor, self: Tensor, target: Tensor, reduction: int
) -> Tensor:
    """-g * t * e / (e + 1) for e = exp(-t * x)."""
    dtype = op.promoted(self, target)
    x, t = (op.convert(side, dtype.compute_dtype) for side in (self, target))
    decayed = op.prim("exp", op.apply("mul", op.prim("neg", t), x))
    share = op.prim("div", decayed, op.apply("add", decayed, 1.0))
    slope = op.apply("mul", op.prim("neg", t), share)
    return _graded(op, grad_output, _shared(op, slope, reduction), dtype)


def reduced_loss(op: Lowering, x: Tensor, reduction: int) -> Tensor:
    """Each element's loss, their mean, or their sum.

    Raises:
        InvalidGraphError: a reduction that PyTorch does not have.
    """
    forms: dict[int, Callable[[], Tensor]] = {
        0: lambda: x,
        _MEAN: lambda: mean_dim(op, x, None),
        2: lambda: sum_dims(op, x, None),
    }
    if reduction not in forms:
        raise InvalidGraphError(f"reduction {reduction}; expected 0 (none), 1 (mean) or 2 (sum)")
    return forms[reduction]()


def share_of(x: Tensor) -> Number:
    """How many elements share a mean's gradient."""
    count = numel_of(x.shape)
    return count.constant if count.is_constant else count


def _shared(op: Lowering, slope: Tensor, reduction: int) -> Tensor:
    return op.apply("div", slope, share_of(slope)) if reduction == _MEAN else slope


def _graded(op: Lowering, grad: Tensor, slope: Tensor, dtype: DType) -> Tensor:
    return op.convert(op.apply("mul", op.convert(grad, slope.dtype), slope), dtype)


def _clipped_slope(
    op: Lowering, difference: Tensor, bound: float, outside: float, inside: float
) -> Tensor:
    middle = op.apply("mul", difference, inside)
    upper = op.where(op.apply("ge", difference, bound), outside, middle)
    return op.where(op.apply("le", difference, -bound), -outside, upper)


def _difference(op: Lowering, left: Tensor, right: Tensor) -> Tensor:
    dtype = op.promoted(left, right)
    if not dtype.is_float:
        raise InvalidGraphError(f"a loss of type {dtype!r}; expected a float")
    wide = dtype.compute_dtype
    return op.apply("sub", op.convert(left, wide), op.convert(right, wide))
