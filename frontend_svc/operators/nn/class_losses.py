"""Losses for classes, and binary cross entropies, with their gradients."""

from __future__ import annotations

from frontend_svc.operators.core.extents import text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Tensor, number_of
from frontend_svc.operators.nn.losses import reduced_loss, share_of
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, Expr

_NONE, _MEAN, _SUM = 0, 1, 2
_LOWEST_LOGARITHM = -100.0
"""PyTorch's lower bound of logarithms in the binary cross entropy."""
_SMALLEST_SPREAD = 1e-12
"""PyTorch's lower bound of x * (1 - x) in its gradient."""


@decomposes("aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default")
def nll_loss_forward(
    builder: PrimsBuilder,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: Expr,
) -> tuple[Tensor, Tensor]:
    """The negative weighted log likelihood of each target's class, and the sum of the weights.

    Classes are on axis 1, or on the only axis of a vector.
    """
    axis, is_used, index = _targets(builder, self, target, ignore_index)
    on_axis = builder.reshape(index, _with_axis(index, axis))
    found = builder.prim("gather_along", builder.widened(self), on_axis, dim=axis)
    picked = builder.reshape(found, target.shape)
    weights = _weights(builder, self, weight, index)
    losses = builder.where(is_used, builder.apply("mul", builder.prim("neg", picked), weights), 0.0)
    if reduction == _NONE:
        return builder.convert(losses, self.dtype), builder.full(0.0, self.dtype)
    every = tuple(range(losses.rank))
    used = builder.where(is_used, builder.expand(weights, target.shape), 0.0)
    total = builder.reduce("sum", losses, every)
    divisor = builder.reduce("sum", used, every)
    if reduction == _MEAN:
        total = builder.apply("div", total, divisor)
    elif reduction != _SUM:
        raise InvalidGraphError(f"reduction {reduction}; expected 0, 1 or 2")
    return builder.convert(total, self.dtype), builder.convert(divisor, self.dtype)


@decomposes("aten.nll_loss_backward.default", "aten.nll_loss2d_backward.default")
def nll_loss_backward(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    builder: PrimsBuilder,
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: Expr,
    total_weight: Tensor,
) -> Tensor:
    """The negative weighted gradient at each target's class, zeros elsewhere."""
    axis, is_used, index = _targets(builder, self, target, ignore_index)
    grad = builder.widened(grad_output)
    if reduction == _MEAN:
        grad = builder.apply("div", grad, builder.widened(total_weight))
    scaled = builder.apply("mul", builder.prim("neg", grad), _weights(builder, self, weight, index))
    scaled = builder.expand(builder.where(is_used, scaled, 0.0), target.shape)
    classes = builder.reshape(
        builder.iota(self.shape[axis]), (self.shape[axis], *([ONE] * (self.rank - 1 - axis)))
    )
    is_class = builder.apply("eq", builder.reshape(index, _with_axis(index, axis)), classes)
    on_axis = builder.reshape(scaled, _with_axis(scaled, axis))
    return builder.convert(builder.where(is_class, on_axis, 0.0), self.dtype)


@decomposes("aten.binary_cross_entropy.default")
def binary_cross_entropy(
    builder: PrimsBuilder,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Tensor:
    """-(t * log(x) + (1 - t) * log(1 - x)); logarithms are at least -100."""
    x, t = _pair(builder, self, target)
    of_one = builder.apply("maximum", builder.prim("log", x), _LOWEST_LOGARITHM)
    of_zero = builder.prim("log1p", builder.prim("neg", x))
    of_zero = builder.apply("maximum", of_zero, _LOWEST_LOGARITHM)
    left = builder.apply("mul", builder.apply("sub", t, 1.0), of_zero)
    loss = builder.apply("sub", left, builder.apply("mul", t, of_one))
    if weight is not None:
        loss = builder.apply("mul", loss, builder.convert(weight, loss.dtype))
    return builder.convert(reduced_loss(builder, loss, reduction), self.dtype)


@decomposes("aten.binary_cross_entropy_backward.default")
def binary_cross_entropy_backward(
    builder: PrimsBuilder,
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Tensor:
    """g * (x - t) / max(x * (1 - x), 1e-12)."""
    x, t = _pair(builder, self, target)
    spread = builder.prim("mul", builder.apply("sub", 1.0, x), x)
    spread = builder.apply("maximum", spread, _SMALLEST_SPREAD)
    grad = builder.apply("mul", builder.widened(grad_output), builder.apply("sub", x, t))
    grad = builder.apply("div", grad, spread)
    if weight is not None:
        grad = builder.apply("mul", grad, builder.convert(weight, grad.dtype))
    if reduction == _MEAN:
        grad = builder.apply("div", grad, share_of(self))
    return builder.convert(grad, self.dtype)


@decomposes("aten.binary_cross_entropy_with_logits.default")
def binary_cross_entropy_with_logits(
    builder: PrimsBuilder,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Tensor:
    """(1 - t) * x - w * log(sigmoid(x)), where w is the weight of the positive class."""
    x, t = _pair(builder, self, target)
    decayed = builder.prim("exp", builder.prim("neg", builder.prim("abs", x)))
    likelihood = builder.apply(
        "sub", builder.apply("minimum", x, 0.0), builder.prim("log1p", decayed)
    )
    loss = builder.apply("mul", builder.apply("sub", 1.0, t), x)
    if pos_weight is not None:
        positive = builder.apply("sub", builder.convert(pos_weight, x.dtype), 1.0)
        factor = builder.apply("add", builder.apply("mul", positive, t), 1.0)
        likelihood = builder.apply("mul", factor, likelihood)
    loss = builder.apply("sub", loss, likelihood)
    if weight is not None:
        loss = builder.apply("mul", loss, builder.convert(weight, loss.dtype))
    return builder.convert(reduced_loss(builder, loss, reduction), builder.promoted(self, target))


def _targets(
    builder: PrimsBuilder, x: Tensor, target: Tensor, ignore_index: Expr
) -> tuple[int, Tensor, Tensor]:
    """(axis of the classes, whether each target is used, its class or 0 if it is ignored)."""
    axis = 1 if x.rank > 1 else 0
    expected = (*x.shape[:axis], *x.shape[axis + 1 :])
    if not x.rank or not x.dtype.is_float or target.dtype not in (DType.I64, DType.U8):
        raise InvalidGraphError(
            f"targets of {target.dtype!r} for {x.dtype!r} with {x.rank} axes; expected i64, floats"
        )
    if not builder.extents.is_same_shape(target.shape, expected):
        raise InvalidGraphError(f"targets {text_of(target.shape)}; expected {text_of(expected)}")
    classes = builder.convert(target, DType.I64)
    ignored = number_of(ignore_index)
    is_used = builder.apply("ne", classes, ignored)
    # A negative class is an error; as an index it would count from the end.
    outside = number_of(x.shape[axis])
    checked = builder.where(builder.apply("lt", classes, 0), outside, classes)
    return axis, is_used, builder.where(is_used, checked, 0)


def _weights(builder: PrimsBuilder, x: Tensor, weight: Tensor | None, index: Tensor) -> Tensor:
    if weight is None:
        return builder.full(1.0, x.dtype.compute_dtype)
    return builder.convert(builder.prim("take", weight, index, dim=0), x.dtype.compute_dtype)


def _with_axis(x: Tensor, axis: int) -> tuple[Expr, ...]:
    return (*x.shape[:axis], ONE, *x.shape[axis:])


def _pair(builder: PrimsBuilder, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    dtype = builder.promoted(x, target)
    if not dtype.is_float:
        raise InvalidGraphError(f"a loss of type {dtype!r}; expected a float")
    wide = dtype.compute_dtype
    return builder.convert(x, wide), builder.convert(target, wide)
