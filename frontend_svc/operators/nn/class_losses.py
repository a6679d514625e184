"""Losses of classes, and cross entropies of bits, with their gradients."""

from __future__ import annotations

from frontend_svc.operators.core.extents import text_of
from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Tensor
from frontend_svc.operators.nn.losses import reduced_loss, share_of
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, Expr

_NONE, _MEAN, _SUM = 0, 1, 2
_LOWEST_LOGARITHM = -100.0
"""PyTorch's bound for logarithms in the cross entropy of likelihoods."""
_SMALLEST_SPREAD = 1e-12
"""PyTorch's bound for x * (1 - x) in its gradient."""


@decomposes("aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default")
def nll_loss_forward(
    op: Lowering,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: Expr,
) -> tuple[Tensor, Tensor]:
    """Minus the weighted logarithm of each target's class, and the sum of the weights used.

    Classes lie on axis 1 (of a vector: on its axis).
    """
    axis, is_used, index = _targets(op, self, target, ignore_index)
    placed = op.reshape(index, _with_axis(index, axis))
    found = op.prim("gather_along", op.widened(self), placed, dim=axis)
    picked = op.reshape(found, target.shape)
    weights = _weights(op, self, weight, index)
    losses = op.where(is_used, op.apply("mul", op.prim("neg", picked), weights), 0.0)
    if reduction == _NONE:
        return op.convert(losses, self.dtype), op.full(0.0, self.dtype)
    every = tuple(range(losses.rank))
    used = op.where(is_used, op.expand(weights, target.shape), 0.0)
    total = op.reduce("sum", losses, every)
    divisor = op.reduce("sum", used, every)
    if reduction == _MEAN:
        total = op.apply("div", total, divisor)
    elif reduction != _SUM:
        raise InvalidGraphError(f"reduction {reduction}; expected 0, 1 or 2")
    return op.convert(total, self.dtype), op.convert(divisor, self.dtype)


@decomposes("aten.nll_loss_backward.default", "aten.nll_loss2d_backward.default")
def nll_loss_backward(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    op: Lowering,
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: Expr,
    total_weight: Tensor,
) -> Tensor:
    """Minus the weighted gradient at each target's class, zeros elsewhere."""
    axis, is_used, index = _targets(op, self, target, ignore_index)
    grad = op.widened(grad_output)
    if reduction == _MEAN:
        grad = op.apply("div", grad, op.widened(total_weight))
    scaled = op.apply("mul", op.prim("neg", grad), _weights(op, self, weight, index))
    scaled = op.expand(op.where(is_used, scaled, 0.0), target.shape)
    classes = op.reshape(
        op.iota(self.shape[axis]), (self.shape[axis], *([ONE] * (self.rank - 1 - axis)))
    )
    is_class = op.apply("eq", op.reshape(index, _with_axis(index, axis)), classes)
    placed = op.reshape(scaled, _with_axis(scaled, axis))
    return op.convert(op.where(is_class, placed, 0.0), self.dtype)


@decomposes("aten.binary_cross_entropy.default")
def binary_cross_entropy(
    op: Lowering,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Tensor:
    """-(t * log(x) + (1 - t) * log(1 - x)), logarithms no lower than -100."""
    x, t = _pair(op, self, target)
    of_one = op.apply("maximum", op.prim("log", x), _LOWEST_LOGARITHM)
    of_zero = op.prim("log1p", op.prim("neg", x))
    of_zero = op.apply("maximum", of_zero, _LOWEST_LOGARITHM)
    left = op.apply("mul", op.apply("sub", t, 1.0), of_zero)
    loss = op.apply("sub", left, op.apply("mul", t, of_one))
    if weight is not None:
        loss = op.apply("mul", loss, op.convert(weight, loss.dtype))
    return op.convert(reduced_loss(op, loss, reduction), self.dtype)


@decomposes("aten.binary_cross_entropy_backward.default")
def binary_cross_entropy_backward(
    op: Lowering,
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Tensor:
    """g * (x - t) / max(x * (1 - x), 1e-12)."""
    x, t = _pair(op, self, target)
    spread = op.prim("mul", op.apply("sub", 1.0, x), x)
    spread = op.apply("maximum", spread, _SMALLEST_SPREAD)
    grad = op.apply("mul", op.widened(grad_output), op.apply("sub", x, t))
    grad = op.apply("div", grad, spread)
    if weight is not None:
        grad = op.apply("mul", grad, op.convert(weight, grad.dtype))
    if reduction == _MEAN:
        grad = op.apply("div", grad, share_of(self))
    return op.convert(grad, self.dtype)


@decomposes("aten.binary_cross_entropy_with_logits.default")
def binary_cross_entropy_with_logits(
    op: Lowering,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Tensor:
    """(1 - t) * x - w * log(sigmoid(x)), where w weighs the positive class."""
    x, t = _pair(op, self, target)
    decayed = op.prim("exp", op.prim("neg", op.prim("abs", x)))
    likelihood = op.apply("sub", op.apply("minimum", x, 0.0), op.prim("log1p", decayed))
    loss = op.apply("mul", op.apply("sub", 1.0, t), x)
    if pos_weight is not None:
        positive = op.apply("sub", op.convert(pos_weight, x.dtype), 1.0)
        factor = op.apply("add", op.apply("mul", positive, t), 1.0)
        likelihood = op.apply("mul", factor, likelihood)
    loss = op.apply("sub", loss, likelihood)
    if weight is not None:
        loss = op.apply("mul", loss, op.convert(weight, loss.dtype))
    return op.convert(reduced_loss(op, loss, reduction), op.promoted(self, target))


def _targets(
    op: Lowering, x: Tensor, target: Tensor, ignore_index: Expr
) -> tuple[int, Tensor, Tensor]:
    """(axis of the classes, which targets count, their classes; 0 for those that do not)."""
    axis = 1 if x.rank > 1 else 0
    wanted = (*x.shape[:axis], *x.shape[axis + 1 :])
    if not x.rank or not x.dtype.is_float or target.dtype not in (DType.I64, DType.U8):
        raise InvalidGraphError(
            f"targets of {target.dtype!r} for {x.dtype!r} with {x.rank} axes; expected i64, floats"
        )
    if not op.extents.is_same_shape(target.shape, wanted):
        raise InvalidGraphError(f"targets {text_of(target.shape)}; expected {text_of(wanted)}")
    classes = op.convert(target, DType.I64)
    ignored = ignore_index.constant if ignore_index.is_constant else ignore_index
    is_used = op.apply("ne", classes, ignored)
    # Negative indices would count from the end; a class must not.
    extent = x.shape[axis]
    outside = extent.constant if extent.is_constant else extent
    checked = op.where(op.apply("lt", classes, 0), outside, classes)
    return axis, is_used, op.where(is_used, checked, 0)


def _weights(op: Lowering, x: Tensor, weight: Tensor | None, index: Tensor) -> Tensor:
    if weight is None:
        return op.full(1.0, x.dtype.compute_dtype)
    return op.convert(op.prim("take", weight, index, dim=0), x.dtype.compute_dtype)


def _with_axis(x: Tensor, axis: int) -> tuple[Expr, ...]:
    return (*x.shape[:axis], ONE, *x.shape[axis:])


def _pair(op: Lowering, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    dtype = op.promoted(x, target)
    if not dtype.is_float:
        raise InvalidGraphError(f"a loss of type {dtype!r}; expected a float")
    wide = dtype.compute_dtype
    return op.convert(x, wide), op.convert(target, wide)
