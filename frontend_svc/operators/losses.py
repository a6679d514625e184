"""Losses that are a few elementwise operations and a mean."""

from __future__ import annotations

from collections.abc import Callable

from frontend_svc.operators.lowering import Lowering
from frontend_svc.operators.reductions import sum_dims
from frontend_svc.operators.registry import decomposes
from frontend_svc.operators.statistics import mean_dim
from frontend_svc.operators.values import Tensor
from kernelfarm.errors import InvalidGraphError

_MEAN = 1


@decomposes("aten.mse_loss.default")
def mse_loss(op: Lowering, self: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    """The squared difference: of each element, or its mean or sum."""
    dtype = op.promoted(self, target)
    difference = _difference(op, self, target)
    square = op.prim("mul", difference, difference)
    return op.convert(_reduced(op, square, reduction), dtype)


@decomposes("aten.smooth_l1_loss.default")
def smooth_l1_loss(
    op: Lowering, self: Tensor, target: Tensor, reduction: int = _MEAN, beta: float = 1.0
) -> Tensor:
    """Half the square over beta below beta, the distance less half of beta above."""
    dtype = op.promoted(self, target)
    distance = op.prim("abs", _difference(op, self, target))
    if beta == 0.0:
        return op.convert(_reduced(op, distance, reduction), dtype)
    square = op.prim("mul", op.apply("mul", distance, 0.5), distance)
    small = op.apply("div", square, beta)
    large = op.apply("sub", distance, 0.5 * beta)
    loss = op.where(op.apply("lt", distance, beta), small, large)
    return op.convert(_reduced(op, loss, reduction), dtype)


def _difference(op: Lowering, left: Tensor, right: Tensor) -> Tensor:
    dtype = op.promoted(left, right)
    if not dtype.is_float:
        raise InvalidGraphError(f"a loss of type {dtype!r}; expected a float")
    wide = dtype.compute_dtype
    return op.apply("sub", op.convert(left, wide), op.convert(right, wide))


def _reduced(op: Lowering, x: Tensor, reduction: int) -> Tensor:
    forms: dict[int, Callable[[], Tensor]] = {
        0: lambda: x,
        _MEAN: lambda: mean_dim(op, x, None),
        2: lambda: sum_dims(op, x, None),
    }
    if reduction not in forms:
        raise InvalidGraphError(f"reduction {reduction}; expected 0 (none), 1 (mean) or 2 (sum)")
    return forms[reduction]()
