"""Gradients of activations, dropout and softmax, by the formulas of PyTorch's kernels.

As activations, they are computed in f32 for narrow floats and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from frontend_svc.operators.core.extents import axis_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Number, Tensor
from frontend_svc.operators.nn.activation import GELU_CUBIC, plain_factor
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError

_SIXTH = 0.16666667163372040
"""1/6 rounded to f32; PyTorch's kernel uses this constant for f64 too."""
_SMALLEST_NOISE_RANGE = 1e-6
"""For a smaller range of slopes, PyTorch treats a random leaky relu as a leaky relu."""

_Formula = Callable[[PrimsBuilder, Tensor, Tensor], Tensor]
"""(builder, gradient, operand or result) -> gradient, all in the computing type."""


def _graded(builder: PrimsBuilder, grad: Tensor, x: Tensor, formula: _Formula) -> Tensor:
    dtype = builder.promoted(grad, x)
    if not dtype.is_float:
        raise InvalidGraphError(f"a gradient of type {dtype!r}; expected a float")
    wide = dtype.compute_dtype
    return builder.convert(
        formula(builder, builder.convert(grad, wide), builder.convert(x, wide)), dtype
    )


def _rounded(builder: PrimsBuilder, value: Number, dtype: DType) -> Tensor:
    return builder.widened(builder.cast(value, dtype))


@decomposes("aten.sigmoid_backward.default")
def sigmoid_backward(builder: PrimsBuilder, grad_output: Tensor, output: Tensor) -> Tensor:
    """g * (1 - y) * y for the result y."""

    def formula(builder: PrimsBuilder, grad: Tensor, y: Tensor) -> Tensor:
        return builder.apply("mul", builder.apply("mul", grad, builder.apply("sub", 1.0, y)), y)

    return _graded(builder, grad_output, output, formula)


@decomposes("aten.tanh_backward.default")
def tanh_backward(builder: PrimsBuilder, grad_output: Tensor, output: Tensor) -> Tensor:
    """g * (1 - y * y) for the result y."""

    def formula(builder: PrimsBuilder, grad: Tensor, y: Tensor) -> Tensor:
        return builder.apply("mul", grad, builder.apply("sub", 1.0, builder.prim("mul", y, y)))

    return _graded(builder, grad_output, output, formula)


@decomposes("aten.logit_backward.default")
def logit_backward(
    builder: PrimsBuilder, grad_output: Tensor, self: Tensor, eps: float | None = None
) -> Tensor:
    """g / (x * (1 - x)); 0 where x was clamped; without clamping, NaN outside of [0, 1]."""

    def formula(builder: PrimsBuilder, grad: Tensor, x: Tensor) -> Tensor:
        low, outside = (0.0, math.nan) if eps is None else (eps, 0.0)
        odds = builder.apply("mul", x, builder.apply("sub", 1.0, x))
        result = builder.apply("div", grad, odds)
        below, above = builder.apply("lt", x, low), builder.apply("gt", x, 1.0 - low)
        return builder.where(builder.prim("logical_or", below, above), outside, result)

    return _graded(builder, grad_output, self, formula)


@decomposes("aten.threshold_backward.default")
def threshold_backward(
    builder: PrimsBuilder, grad_output: Tensor, self: Tensor, threshold: Number
) -> Tensor:
    """g above the threshold, else 0; g where x is NaN."""
    dtype = builder.promoted(grad_output, self)
    x = builder.widened(builder.convert(self, dtype))
    bound = _rounded(builder, threshold, dtype)
    grad = builder.widened(builder.convert(grad_output, dtype))
    return builder.convert(builder.where(builder.apply("le", x, bound), 0, grad), dtype)


@decomposes("aten.gelu_backward.default")
def gelu_backward(
    builder: PrimsBuilder, grad_output: Tensor, self: Tensor, *, approximate: str = "none"
) -> Tensor:
    """g times the derivative of x * P(x), with P by erf or by tanh of a cubic."""
    formulas: dict[str, _Formula] = {"none": _gelu_by_erf, "tanh": _gelu_by_tanh}
    if approximate not in formulas:
        raise InvalidGraphError(f"approximation '{approximate[:40]}'; expected 'none' or 'tanh'")
    return _graded(builder, grad_output, self, formulas[approximate])


def _gelu_by_erf(builder: PrimsBuilder, grad: Tensor, x: Tensor) -> Tensor:
    inner = builder.prim("erf", builder.apply("mul", x, math.sqrt(0.5)))
    share = builder.apply("mul", builder.apply("add", inner, 1.0), 0.5)
    density = builder.prim("exp", builder.apply("mul", builder.prim("mul", x, x), -0.5))
    density = builder.apply("mul", density, 1.0 / math.sqrt(2.0 * math.pi))
    slope = builder.prim("add", share, builder.prim("mul", x, density))
    return builder.apply("mul", grad, slope)


def _gelu_by_tanh(builder: PrimsBuilder, grad: Tensor, x: Tensor) -> Tensor:
    beta = math.sqrt(2.0 / math.pi)
    square = builder.prim("mul", x, x)
    cubic = builder.apply("mul", builder.prim("mul", square, x), GELU_CUBIC)
    inner = builder.prim("tanh", builder.apply("mul", builder.prim("add", x, cubic), beta))
    left = builder.apply("mul", x, 0.5)
    right = builder.apply("add", inner, 1.0)
    rise = builder.apply("sub", 1.0, builder.prim("mul", inner, inner))
    steep = builder.apply("add", builder.apply("mul", square, 3.0 * GELU_CUBIC), 1.0)
    right_slope = builder.prim(
        "mul", builder.prim("mul", left, rise), builder.apply("mul", steep, beta)
    )
    return builder.apply(
        "mul", grad, builder.prim("add", builder.apply("mul", right, 0.5), right_slope)
    )


@decomposes("aten.silu_backward.default")
def silu_backward(builder: PrimsBuilder, grad_output: Tensor, self: Tensor) -> Tensor:
    """g * s * (1 + x * (1 - s)) for the sigmoid s."""

    def formula(builder: PrimsBuilder, grad: Tensor, x: Tensor) -> Tensor:
        s = builder.prim("sigmoid", x)
        rest = builder.apply("add", builder.prim("mul", x, builder.apply("sub", 1.0, s)), 1.0)
        return builder.apply("mul", builder.apply("mul", grad, s), rest)

    return _graded(builder, grad_output, self, formula)


@decomposes("aten.mish_backward.default")
def mish_backward(builder: PrimsBuilder, grad_output: Tensor, self: Tensor) -> Tensor:
    """g * (t + x * s * (1 - t * t)) for t = tanh(softplus(x)) and the sigmoid s."""

    def formula(builder: PrimsBuilder, grad: Tensor, x: Tensor) -> Tensor:
        t = builder.prim("tanh", builder.prim("log1p", builder.prim("exp", x)))
        rise = builder.apply("sub", 1.0, builder.prim("mul", t, t))
        slope = builder.prim("mul", builder.prim("mul", x, builder.prim("sigmoid", x)), rise)
        return builder.apply("mul", grad, builder.prim("add", t, slope))

    return _graded(builder, grad_output, self, formula)


@decomposes("aten.hardswish_backward.default")
def hardswish_backward(builder: PrimsBuilder, grad_output: Tensor, self: Tensor) -> Tensor:
    """0 for x <= -3, g for x >= 3, else g * (x / 3 + 1/2)."""

    def formula(builder: PrimsBuilder, grad: Tensor, x: Tensor) -> Tensor:
        middle = builder.apply("mul", grad, builder.apply("add", builder.apply("div", x, 3.0), 0.5))
        upper = builder.where(builder.apply("lt", x, 3.0), middle, grad)
        return builder.where(builder.apply("le", x, -3.0), 0.0, upper)

    return _graded(builder, grad_output, self, formula)


@decomposes("aten.hardsigmoid_backward.default")
def hardsigmoid_backward(builder: PrimsBuilder, grad_output: Tensor, self: Tensor) -> Tensor:
    """g / 6 strictly between -3 and 3, else 0."""

    def formula(builder: PrimsBuilder, grad: Tensor, x: Tensor) -> Tensor:
        inside = builder.prim(
            "logical_and", builder.apply("gt", x, -3.0), builder.apply("lt", x, 3.0)
        )
        return builder.where(inside, builder.apply("mul", grad, _SIXTH), 0.0)

    return _graded(builder, grad_output, self, formula)


@decomposes("aten.hardtanh_backward.default")
def hardtanh_backward(
    builder: PrimsBuilder, grad_output: Tensor, self: Tensor, min_val: Number, max_val: Number
) -> Tensor:
    """g strictly between the bounds, else 0; g where x is NaN."""

    def formula(builder: PrimsBuilder, grad: Tensor, x: Tensor) -> Tensor:
        low, high = (_rounded(builder, bound, self.dtype) for bound in (min_val, max_val))
        outside = builder.prim(
            "logical_or", builder.apply("le", x, low), builder.apply("ge", x, high)
        )
        return builder.where(outside, 0.0, grad)

    return _graded(builder, grad_output, self, formula)


@decomposes("aten.leaky_relu_backward.default")
def leaky_relu_backward(
    builder: PrimsBuilder,
    grad_output: Tensor,
    self: Tensor,
    negative_slope: Number,
    self_is_result: bool,
) -> Tensor:
    """g for x > 0, else g times the slope; the result of leaky relu has the sign of x."""

    def formula(builder: PrimsBuilder, grad: Tensor, x: Tensor) -> Tensor:
        return builder.where(
            builder.apply("gt", x, 0.0), grad, builder.apply("mul", grad, negative_slope)
        )

    return _graded(builder, grad_output, self, formula)


@decomposes("aten.rrelu_with_noise_backward.default")
def rrelu_with_noise_backward(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    builder: PrimsBuilder,
    grad_output: Tensor,
    self: Tensor,
    noise: Tensor,
    lower: Number,
    upper: Number,
    training: bool,
    self_is_result: bool,
) -> Tensor:
    """g times the slopes that were drawn in training; else g times their mean."""
    low, high = plain_factor(lower), plain_factor(upper)
    if not training or high - low <= _SMALLEST_NOISE_RANGE:
        return leaky_relu_backward(builder, grad_output, self, (low + high) / 2.0, self_is_result)
    product = builder.apply("mul", builder.widened(grad_output), builder.widened(noise))
    return builder.convert(product, builder.promoted(grad_output, noise))


@decomposes("aten.elu_backward.default")
def elu_backward(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    builder: PrimsBuilder,
    grad_output: Tensor,
    alpha: Number,
    scale: Number,
    input_scale: Number,
    is_result: bool,
    self_or_result: Tensor,
) -> Tensor:
    """g times the derivative of elu, from its operand or its result."""
    negative, positive, inner = (
        plain_factor(alpha) * plain_factor(scale),
        plain_factor(scale),
        plain_factor(input_scale),
    )

    def formula(builder: PrimsBuilder, grad: Tensor, x: Tensor) -> Tensor:
        if is_result:
            below = builder.apply(
                "mul", builder.apply("mul", grad, inner), builder.apply("add", x, negative)
            )
        else:
            decayed = builder.prim("exp", builder.apply("mul", x, inner))
            below = builder.apply("mul", builder.apply("mul", grad, inner * negative), decayed)
        return builder.where(
            builder.apply("le", x, 0.0), below, builder.apply("mul", grad, positive)
        )

    return _graded(builder, grad_output, self_or_result, formula)


@decomposes("aten.softplus_backward.default")
def softplus_backward(
    builder: PrimsBuilder, grad_output: Tensor, self: Tensor, beta: Number, threshold: Number
) -> Tensor:
    """g * e / (e + 1) for e = exp(beta * x); g where beta * x is above the threshold."""

    def formula(builder: PrimsBuilder, grad: Tensor, x: Tensor) -> Tensor:
        scaled = builder.apply("mul", x, beta)
        e = builder.prim("exp", scaled)
        soft = builder.apply("div", builder.apply("mul", grad, e), builder.apply("add", e, 1.0))
        return builder.where(builder.apply("gt", scaled, threshold), grad, soft)

    return _graded(builder, grad_output, self, formula)


@decomposes("aten.log_sigmoid_backward.default")
def log_sigmoid_backward(
    builder: PrimsBuilder, grad_output: Tensor, self: Tensor, buffer: Tensor
) -> Tensor:
    """g * e / (1 + e) for x >= 0, else g / (1 + e), for e = exp(-|x|)."""

    def formula(builder: PrimsBuilder, grad: Tensor, x: Tensor) -> Tensor:
        e = builder.prim("exp", builder.prim("neg", builder.prim("abs", x)))
        share = builder.prim("div", e, builder.apply("add", e, 1.0))
        below = builder.apply("sub", 1.0, share)
        return builder.apply("mul", grad, builder.where(builder.apply("lt", x, 0.0), below, share))

    return _graded(builder, grad_output, self, formula)


@decomposes("aten.glu_backward.default")
def glu_backward(builder: PrimsBuilder, grad_output: Tensor, self: Tensor, dim: int) -> Tensor:
    """The gradients of the value and of the gate, joined."""
    if not self.rank:
        raise InvalidGraphError("a tensor without axes; expected an axis to halve")
    axis = axis_of(dim, self.rank)
    half = self.shape[axis] // 2
    value = builder.widened(builder.slice_axis(self, axis, half - half, half))
    gate = builder.prim("sigmoid", builder.widened(builder.slice_axis(self, axis, half, half * 2)))
    grad = builder.widened(grad_output)
    left = builder.apply("mul", gate, grad)
    right = builder.apply("mul", builder.prim("mul", builder.apply("sub", 1.0, gate), gate), grad)
    right = builder.apply("mul", right, value)
    return builder.convert(builder.prim("cat", left, right, dim=axis), self.dtype)


@decomposes("aten._prelu_kernel_backward.default")
def prelu_backward(
    builder: PrimsBuilder, grad_output: Tensor, self: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """g for x > 0, else g times the slope; and the gradient of the slope for each element."""
    grad, x, slope = (builder.widened(t) for t in (grad_output, self, weight))
    is_above = builder.apply("gt", x, 0.0)
    of_self = builder.where(is_above, grad, builder.apply("mul", slope, grad))
    of_weight = builder.where(is_above, 0.0, builder.apply("mul", x, grad))
    return builder.convert(of_self, self.dtype), builder.convert(of_weight, self.dtype)


@decomposes("aten.hardshrink_backward.default")
def hardshrink_backward(
    builder: PrimsBuilder, grad_out: Tensor, self: Tensor, lambd: Number
) -> Tensor:
    """0 within [-lambd, lambd], else g."""
    return softshrink_backward(builder, grad_out, self, lambd)


@decomposes("aten.softshrink_backward.default")
def softshrink_backward(
    builder: PrimsBuilder, grad_output: Tensor, self: Tensor, lambd: Number
) -> Tensor:
    """0 within [-lambd, lambd], else g."""

    def formula(builder: PrimsBuilder, grad: Tensor, x: Tensor) -> Tensor:
        bound = _rounded(builder, lambd, self.dtype)
        above = builder.apply("ge", x, builder.prim("neg", bound))
        inside = builder.prim("logical_and", above, builder.apply("le", x, bound))
        return builder.where(inside, 0.0, grad)

    return _graded(builder, grad_output, self, formula)


@decomposes("aten.native_dropout_backward.default")
def native_dropout_backward(
    builder: PrimsBuilder, grad_output: Tensor, mask: Tensor, scale: float
) -> Tensor:
    """g where the mask holds, else 0; times the scale."""
    result = builder.promoted(grad_output, scale)
    grad = builder.convert(grad_output, result.compute_dtype)
    kept = builder.apply("mul", grad, builder.convert(mask, grad.dtype))
    return builder.convert(builder.apply("mul", kept, scale), result)


@decomposes("aten._masked_scale.default")
def masked_scale(builder: PrimsBuilder, self: Tensor, mask: Tensor, scale: float) -> Tensor:
    """x times a mask of numbers, times the scale."""
    x = builder.widened(self)
    kept = builder.apply("mul", x, builder.convert(mask, x.dtype))
    return builder.convert(builder.apply("mul", kept, scale), self.dtype)


@decomposes("aten._softmax_backward_data.default")
def softmax_backward(
    builder: PrimsBuilder, grad_output: Tensor, output: Tensor, dim: int, input_dtype: DType
) -> Tensor:
    """(g - sum(g * y)) * y for the result y."""
    grad, y = builder.widened(grad_output), builder.widened(output)
    product = builder.apply("mul", grad, y)
    total = builder.reduce("sum", product, _axes(product, dim), keepdim=True)
    return builder.convert(builder.apply("mul", builder.apply("sub", grad, total), y), input_dtype)


@decomposes("aten._log_softmax_backward_data.default")
def log_softmax_backward(
    builder: PrimsBuilder, grad_output: Tensor, output: Tensor, dim: int, input_dtype: DType
) -> Tensor:
    """g - exp(y) * sum(g) for the result y."""
    grad, y = builder.widened(grad_output), builder.widened(output)
    total = builder.reduce("sum", grad, _axes(grad, dim), keepdim=True)
    return builder.convert(
        builder.apply("sub", grad, builder.apply("mul", builder.prim("exp", y), total)), input_dtype
    )


def _axes(x: Tensor, dim: int) -> tuple[int, ...]:
    axis = axis_of(dim, x.rank)
    return (axis,) if x.rank else ()
