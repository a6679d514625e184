"""Activations, computed in f32 for narrow floats and rounded once, as PyTorch's kernels do."""

from __future__ import annotations

import math

from frontend_svc.operators.core.extents import axis_of
from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.promotion import float_dtype
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Number, Tensor
from kernelfarm.errors import InvalidGraphError

_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946
_GELU_CUBIC = 0.044715


@decomposes("aten.relu.default")
def relu(op: Lowering, self: Tensor) -> Tensor:
    """max(x, 0); NaN stays."""
    return op.convert(op.apply("maximum", op.widened(self), 0), self.dtype)


@decomposes("aten.relu6.default")
def relu6(op: Lowering, self: Tensor) -> Tensor:
    """x between 0 and 6."""
    return hardtanh(op, self, 0, 6)


@decomposes("aten.silu.default")
def silu(op: Lowering, self: Tensor) -> Tensor:
    """x / (1 + exp(-x))."""
    x = op.widened(self)
    denominator = op.apply("add", op.prim("exp", op.prim("neg", x)), 1.0)
    return op.convert(op.prim("div", x, denominator), self.dtype)


@decomposes("aten.gelu.default")
def gelu(op: Lowering, self: Tensor, *, approximate: str = "none") -> Tensor:
    """x times the normal distribution's integral: by erf, or by tanh of a cubic."""
    x = op.widened(self)
    if approximate == "none":
        inner = op.prim("erf", op.apply("mul", x, math.sqrt(0.5)))
    elif approximate == "tanh":
        cube = op.prim("mul", op.prim("mul", x, x), x)
        cubic = op.apply("add", x, op.apply("mul", cube, _GELU_CUBIC))
        inner = op.prim("tanh", op.apply("mul", cubic, math.sqrt(2.0 / math.pi)))
    else:
        raise InvalidGraphError(f"approximation '{approximate[:40]}'; expected 'none' or 'tanh'")
    half = op.apply("mul", x, 0.5)
    return op.convert(op.apply("mul", half, op.apply("add", inner, 1.0)), self.dtype)


@decomposes("aten.elu.default")
def elu(
    op: Lowering, self: Tensor, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1
) -> Tensor:
    """scale * x above zero, scale * alpha * (exp(input_scale * x) - 1) below."""
    x = op.widened(self)
    below = op.prim("expm1", _scaled(op, x, input_scale))
    below = op.apply("mul", below, _factor(alpha) * _factor(scale))
    is_below = op.apply("lt", x, 0.0)
    return op.convert(op.where(is_below, below, _scaled(op, x, scale)), self.dtype)


@decomposes("aten.celu.default")
def celu(op: Lowering, self: Tensor, alpha: Number = 1.0) -> Tensor:
    """x above zero, alpha * (exp(x / alpha) - 1) below."""
    if _factor(alpha) == 0.0:
        raise InvalidGraphError("alpha is 0; expected another number")
    return elu(op, self, alpha, 1, 1.0 / _factor(alpha))


@decomposes("aten.selu.default")
def selu(op: Lowering, self: Tensor) -> Tensor:
    """The self-normalizing form of elu."""
    return elu(op, self, _SELU_ALPHA, _SELU_SCALE)


@decomposes("aten.leaky_relu.default")
def leaky_relu(op: Lowering, self: Tensor, negative_slope: Number = 0.01) -> Tensor:
    """x above zero, x times the slope below."""
    x = op.widened(self)
    sloped = op.apply("mul", x, negative_slope)
    return op.convert(op.where(op.apply("gt", x, 0.0), x, sloped), self.dtype)


@decomposes("aten._prelu_kernel.default")
def prelu(op: Lowering, self: Tensor, weight: Tensor) -> Tensor:
    """x above zero, x times a learned slope below."""
    x, slope = op.widened(self), op.widened(weight)
    sloped = op.apply("mul", x, slope)
    return op.convert(op.where(op.apply("gt", x, 0.0), x, sloped), self.dtype)


@decomposes("aten.hardtanh.default")
def hardtanh(op: Lowering, self: Tensor, min_val: Number = -1, max_val: Number = 1) -> Tensor:
    """x between two bounds; NaN stays."""
    x = op.widened(self)
    low = op.widened(op.cast(min_val, self.dtype))
    high = op.widened(op.cast(max_val, self.dtype))
    return op.convert(op.apply("minimum", op.apply("maximum", x, low), high), self.dtype)


@decomposes("aten.hardsigmoid.default")
def hardsigmoid(op: Lowering, self: Tensor) -> Tensor:
    """(x + 3) between 0 and 6, over 6."""
    return op.convert(op.apply("div", _hard_ramp(op, op.widened(self)), 6.0), self.dtype)


@decomposes("aten.hardswish.default")
def hardswish(op: Lowering, self: Tensor) -> Tensor:
    """x * hardsigmoid(x)."""
    x = op.widened(self)
    return op.convert(op.apply("div", op.prim("mul", x, _hard_ramp(op, x)), 6.0), self.dtype)


@decomposes("aten.softplus.default")
def softplus(op: Lowering, self: Tensor, beta: Number = 1, threshold: Number = 20) -> Tensor:
    """log(1 + exp(beta * x)) / beta; x itself above the threshold."""
    x = op.widened(self)
    scaled = _scaled(op, x, beta)
    soft = op.prim("log1p", op.prim("exp", scaled))
    soft = soft if beta == 1 else op.apply("div", soft, beta)
    return op.convert(op.where(op.apply("gt", scaled, threshold), x, soft), self.dtype)


@decomposes("aten.mish.default")
def mish(op: Lowering, self: Tensor) -> Tensor:
    """x * tanh(log(1 + exp(x)))."""
    x = op.widened(self)
    soft = op.prim("log1p", op.prim("exp", x))
    return op.convert(op.prim("mul", x, op.prim("tanh", soft)), self.dtype)


@decomposes("aten.threshold.default")
def threshold_(op: Lowering, self: Tensor, threshold: Number, value: Number) -> Tensor:
    """x above the threshold, else the value; NaN stays."""
    x = op.widened(self)
    low = op.widened(op.cast(threshold, self.dtype))
    other = op.widened(op.cast(value, self.dtype))
    return op.convert(op.where(op.apply("le", x, low), other, x), self.dtype)


@decomposes("aten.hardshrink.default")
def hardshrink(op: Lowering, self: Tensor, lambd: Number = 0.5) -> Tensor:
    """0 within [-lambd, lambd], else x."""
    x = op.widened(self)
    bound = op.widened(op.cast(lambd, self.dtype))
    above = op.apply("ge", x, op.prim("neg", bound))
    inside = op.apply("logical_and", above, op.apply("le", x, bound))
    return op.convert(op.where(inside, 0.0, x), self.dtype)


@decomposes("aten.softshrink.default")
def softshrink(op: Lowering, self: Tensor, lambd: Number = 0.5) -> Tensor:
    """x moved towards 0 by lambd; NaN stays."""
    x = op.widened(self)
    bound = op.widened(op.cast(lambd, self.dtype))
    lower, upper = op.apply("sub", x, bound), op.apply("add", x, bound)
    is_below = op.apply("lt", x, op.prim("neg", bound))
    # 0 * x is 0, and NaN where x is.
    middle = op.where(is_below, upper, op.apply("mul", x, 0.0))
    return op.convert(op.where(op.apply("gt", x, bound), lower, middle), self.dtype)


@decomposes("aten.log_sigmoid_forward.default")
def log_sigmoid_forward(op: Lowering, self: Tensor) -> tuple[Tensor, Tensor]:
    """min(x, 0) - log(1 + exp(-|x|)), and exp(-|x|) for the backward pass where it is wanted."""
    x = op.widened(self)
    decayed = op.prim("exp", op.prim("neg", op.prim("abs", x)))
    result = op.apply("sub", op.apply("minimum", x, 0.0), op.prim("log1p", decayed))
    wants_buffer = len(op.stated) == 2 and op.stated[1].shape == self.shape
    empty = op.stated[1].shape if len(op.stated) == 2 else ()
    buffer = decayed if wants_buffer else op.full(0.0, x.dtype, empty)
    return op.convert(result, self.dtype), op.convert(buffer, self.dtype)


@decomposes("aten.logit.default")
def logit(op: Lowering, self: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), with x kept eps away from 0 and 1."""
    dtype = float_dtype(self.dtype)
    x = op.convert(self, dtype.compute_dtype)
    if eps is not None:
        x = op.apply("minimum", op.apply("maximum", x, eps), 1.0 - eps)
    odds = op.prim("div", x, op.apply("sub", 1.0, x))
    return op.convert(op.prim("log", odds), dtype)


@decomposes("aten.glu.default")
def glu(op: Lowering, self: Tensor, dim: int = -1) -> Tensor:
    """The first half of an axis times the sigmoid of the second."""
    if not self.rank:
        raise InvalidGraphError("a tensor without axes; expected an axis to halve")
    axis = axis_of(dim, self.rank)
    extent = self.shape[axis]
    half = extent // 2
    if not op.extents.is_same(half * 2, extent):
        raise InvalidGraphError(f"extent {extent}; expected an even one")
    value = op.widened(op.slice_axis(self, axis, extent - extent, half))
    gate = op.widened(op.slice_axis(self, axis, half, half * 2))
    return op.convert(op.prim("mul", value, op.prim("sigmoid", gate)), self.dtype)


def _hard_ramp(op: Lowering, x: Tensor) -> Tensor:
    shifted = op.apply("maximum", op.apply("add", x, 3.0), 0.0)
    return op.apply("minimum", shifted, 6.0)


def _scaled(op: Lowering, x: Tensor, factor: Number) -> Tensor:
    return x if factor == 1 else op.apply("mul", x, factor)


def _factor(value: Number) -> float:
    if isinstance(value, bool | int | float):
        return float(value)
    raise NotDecomposedError("a factor is a symbolic size")
