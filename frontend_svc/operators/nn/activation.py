"""Activations, computed in f32 for narrow floats and rounded once, as PyTorch's kernels do."""

from __future__ import annotations

import math

from frontend_svc.operators.core.extents import axis_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.promotion import float_dtype
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Number, Tensor
from kernelfarm.errors import InvalidGraphError

_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946
GELU_CUBIC = 0.044715
"""The coefficient of the cubic in the tanh approximation of gelu."""


@decomposes("aten.relu.default")
def relu(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """max(x, 0); NaN stays NaN."""
    return builder.convert(builder.apply("maximum", builder.widened(self), 0), self.dtype)


@decomposes("aten.relu6.default")
def relu6(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """x clamped to [0, 6]."""
    return hardtanh(builder, self, 0, 6)


@decomposes("aten.silu.default")
def silu(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """x / (1 + exp(-x))."""
    x = builder.widened(self)
    denominator = builder.apply("add", builder.prim("exp", builder.prim("neg", x)), 1.0)
    return builder.convert(builder.prim("div", x, denominator), self.dtype)


@decomposes("aten.gelu.default")
def gelu(builder: PrimsBuilder, self: Tensor, *, approximate: str = "none") -> Tensor:
    """x times the normal distribution function of x: by erf, or by tanh of a cubic."""
    x = builder.widened(self)
    if approximate == "none":
        inner = builder.prim("erf", builder.apply("mul", x, math.sqrt(0.5)))
    elif approximate == "tanh":
        cube = builder.prim("mul", builder.prim("mul", x, x), x)
        cubic = builder.apply("add", x, builder.apply("mul", cube, GELU_CUBIC))
        inner = builder.prim("tanh", builder.apply("mul", cubic, math.sqrt(2.0 / math.pi)))
    else:
        raise InvalidGraphError(f"approximation '{approximate[:40]}'; expected 'none' or 'tanh'")
    half = builder.apply("mul", x, 0.5)
    return builder.convert(builder.apply("mul", half, builder.apply("add", inner, 1.0)), self.dtype)


@decomposes("aten.elu.default")
def elu(
    builder: PrimsBuilder,
    self: Tensor,
    alpha: Number = 1,
    scale: Number = 1,
    input_scale: Number = 1,
) -> Tensor:
    """scale * x for x > 0, else scale * alpha * (exp(input_scale * x) - 1)."""
    x = builder.widened(self)
    below = builder.prim("expm1", _scaled(builder, x, input_scale))
    below = builder.apply("mul", below, plain_factor(alpha) * plain_factor(scale))
    is_below = builder.apply("lt", x, 0.0)
    return builder.convert(builder.where(is_below, below, _scaled(builder, x, scale)), self.dtype)


@decomposes("aten.celu.default")
def celu(builder: PrimsBuilder, self: Tensor, alpha: Number = 1.0) -> Tensor:
    """x for x > 0, else alpha * (exp(x / alpha) - 1)."""
    if plain_factor(alpha) == 0.0:
        raise InvalidGraphError("alpha is 0; expected another number")
    return elu(builder, self, alpha, 1, 1.0 / plain_factor(alpha))


@decomposes("aten.selu.default")
def selu(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """The self-normalizing form of elu."""
    return elu(builder, self, _SELU_ALPHA, _SELU_SCALE)


@decomposes("aten.leaky_relu.default")
def leaky_relu(builder: PrimsBuilder, self: Tensor, negative_slope: Number = 0.01) -> Tensor:
    """x for x > 0, else x times the slope."""
    x = builder.widened(self)
    sloped = builder.apply("mul", x, negative_slope)
    return builder.convert(builder.where(builder.apply("gt", x, 0.0), x, sloped), self.dtype)


@decomposes("aten._prelu_kernel.default")
def prelu(builder: PrimsBuilder, self: Tensor, weight: Tensor) -> Tensor:
    """x for x > 0, else x times a learned slope."""
    x, slope = builder.widened(self), builder.widened(weight)
    sloped = builder.apply("mul", x, slope)
    return builder.convert(builder.where(builder.apply("gt", x, 0.0), x, sloped), self.dtype)


@decomposes("aten.hardtanh.default")
def hardtanh(
    builder: PrimsBuilder, self: Tensor, min_val: Number = -1, max_val: Number = 1
) -> Tensor:
    """x clamped to two bounds; NaN stays NaN."""
    x = builder.widened(self)
    low = builder.widened(builder.cast(min_val, self.dtype))
    high = builder.widened(builder.cast(max_val, self.dtype))
    return builder.convert(
        builder.apply("minimum", builder.apply("maximum", x, low), high), self.dtype
    )


@decomposes("aten.hardsigmoid.default")
def hardsigmoid(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """(x + 3) clamped to [0, 6], divided by 6."""
    return builder.convert(
        builder.apply("div", _hard_ramp(builder, builder.widened(self)), 6.0), self.dtype
    )


@decomposes("aten.hardswish.default")
def hardswish(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """x * hardsigmoid(x)."""
    x = builder.widened(self)
    return builder.convert(
        builder.apply("div", builder.prim("mul", x, _hard_ramp(builder, x)), 6.0), self.dtype
    )


@decomposes("aten.softplus.default")
def softplus(
    builder: PrimsBuilder, self: Tensor, beta: Number = 1, threshold: Number = 20
) -> Tensor:
    """log(1 + exp(beta * x)) / beta; x itself above the threshold."""
    x = builder.widened(self)
    scaled = _scaled(builder, x, beta)
    soft = builder.prim("log1p", builder.prim("exp", scaled))
    soft = soft if beta == 1 else builder.apply("div", soft, beta)
    return builder.convert(
        builder.where(builder.apply("gt", scaled, threshold), x, soft), self.dtype
    )


@decomposes("aten.mish.default")
def mish(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """x * tanh(log(1 + exp(x)))."""
    x = builder.widened(self)
    soft = builder.prim("log1p", builder.prim("exp", x))
    return builder.convert(builder.prim("mul", x, builder.prim("tanh", soft)), self.dtype)


@decomposes("aten.threshold.default")
def threshold_(builder: PrimsBuilder, self: Tensor, threshold: Number, value: Number) -> Tensor:
    """x above the threshold, else the value; NaN stays NaN."""
    x = builder.widened(self)
    low = builder.widened(builder.cast(threshold, self.dtype))
    other = builder.widened(builder.cast(value, self.dtype))
    return builder.convert(builder.where(builder.apply("le", x, low), other, x), self.dtype)


@decomposes("aten.hardshrink.default")
def hardshrink(builder: PrimsBuilder, self: Tensor, lambd: Number = 0.5) -> Tensor:
    """0 within [-lambd, lambd], else x."""
    x = builder.widened(self)
    bound = builder.widened(builder.cast(lambd, self.dtype))
    above = builder.apply("ge", x, builder.prim("neg", bound))
    inside = builder.apply("logical_and", above, builder.apply("le", x, bound))
    return builder.convert(builder.where(inside, 0.0, x), self.dtype)


@decomposes("aten.softshrink.default")
def softshrink(builder: PrimsBuilder, self: Tensor, lambd: Number = 0.5) -> Tensor:
    """x moved towards 0 by lambd; NaN stays NaN."""
    x = builder.widened(self)
    bound = builder.widened(builder.cast(lambd, self.dtype))
    lower, upper = builder.apply("sub", x, bound), builder.apply("add", x, bound)
    is_below = builder.apply("lt", x, builder.prim("neg", bound))
    # 0 * x is 0, and NaN where x is.
    middle = builder.where(is_below, upper, builder.apply("mul", x, 0.0))
    return builder.convert(builder.where(builder.apply("gt", x, bound), lower, middle), self.dtype)


@decomposes("aten.log_sigmoid_forward.default")
def log_sigmoid_forward(builder: PrimsBuilder, self: Tensor) -> tuple[Tensor, Tensor]:
    """min(x, 0) - log(1 + exp(-|x|)), and exp(-|x|) if the graph states it for the gradient."""
    x = builder.widened(self)
    decayed = builder.prim("exp", builder.prim("neg", builder.prim("abs", x)))
    result = builder.apply("sub", builder.apply("minimum", x, 0.0), builder.prim("log1p", decayed))
    wants_buffer = len(builder.stated) == 2 and builder.stated[1].shape == self.shape
    empty = builder.stated[1].shape if len(builder.stated) == 2 else ()
    buffer = decayed if wants_buffer else builder.full(0.0, x.dtype, empty)
    return builder.convert(result, self.dtype), builder.convert(buffer, self.dtype)


@decomposes("aten.logit.default")
def logit(builder: PrimsBuilder, self: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), with x clamped to [eps, 1 - eps]."""
    dtype = float_dtype(self.dtype)
    x = builder.convert(self, dtype.compute_dtype)
    if eps is not None:
        x = builder.apply("minimum", builder.apply("maximum", x, eps), 1.0 - eps)
    odds = builder.prim("div", x, builder.apply("sub", 1.0, x))
    return builder.convert(builder.prim("log", odds), dtype)


@decomposes("aten.glu.default")
def glu(builder: PrimsBuilder, self: Tensor, dim: int = -1) -> Tensor:
    """The first half of an axis times the sigmoid of the second."""
    if not self.rank:
        raise InvalidGraphError("a tensor without axes; expected an axis to halve")
    axis = axis_of(dim, self.rank)
    extent = self.shape[axis]
    half = extent // 2
    if not builder.extents.is_same(half * 2, extent):
        raise InvalidGraphError(f"extent {extent}; expected an even one")
    value = builder.widened(builder.slice_axis(self, axis, extent - extent, half))
    gate = builder.widened(builder.slice_axis(self, axis, half, half * 2))
    return builder.convert(builder.prim("mul", value, builder.prim("sigmoid", gate)), self.dtype)


def _hard_ramp(builder: PrimsBuilder, x: Tensor) -> Tensor:
    shifted = builder.apply("maximum", builder.apply("add", x, 3.0), 0.0)
    return builder.apply("minimum", shifted, 6.0)


def _scaled(builder: PrimsBuilder, x: Tensor, factor: Number) -> Tensor:
    return x if factor == 1 else builder.apply("mul", x, factor)


def plain_factor(value: Number) -> float:
    """A factor of an activation as a number.

    Raises:
        NotDecomposedError: the factor is a symbolic size.
    """
    if isinstance(value, bool | int | float):
        return float(value)
    raise NotDecomposedError("a factor is a symbolic size")
