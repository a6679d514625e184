"""Gradients of activations, dropout and softmax, by the formulas of PyTorch's kernels.

As the activations themselves: computed in f32 for narrow floats and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from frontend_svc.operators.core.extents import axis_of
from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Number, Tensor
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError

_GELU_CUBIC = 0.044715
_SIXTH = 0.16666667163372040
"""1/6 as an f32, which PyTorch's kernel uses for f64 as well."""
_SMALLEST_NOISE_RANGE = 1e-6
"""Below that, PyTorch takes the slopes of a random leaky relu as one."""

_Formula = Callable[[Lowering, Tensor, Tensor], Tensor]
"""(lowering, gradient, operand or result) -> gradient, all in the computing type."""


def _graded(op: Lowering, grad: Tensor, x: Tensor, formula: _Formula) -> Tensor:
    dtype = op.promoted(grad, x)
    if not dtype.is_float:
        raise InvalidGraphError(f"a gradient of type {dtype!r}; expected a float")
    wide = dtype.compute_dtype
    return op.convert(formula(op, op.convert(grad, wide), op.convert(x, wide)), dtype)


def _rounded(op: Lowering, value: Number, dtype: DType) -> Tensor:
    return op.widened(op.cast(value, dtype))


def _factor(value: Number) -> float:
    if isinstance(value, bool | int | float):
        return float(value)
    raise NotDecomposedError("a factor is a symbolic size")


@decomposes("aten.sigmoid_backward.default")
def sigmoid_backward(op: Lowering, grad_output: Tensor, output: Tensor) -> Tensor:
    """g * (1 - y) * y for the result y."""

    def formula(op: Lowering, grad: Tensor, y: Tensor) -> Tensor:
        return op.apply("mul", op.apply("mul", grad, op.apply("sub", 1.0, y)), y)

    return _graded(op, grad_output, output, formula)


@decomposes("aten.tanh_backward.default")
def tanh_backward(op: Lowering, grad_output: Tensor, output: Tensor) -> Tensor:
    """g * (1 - y * y) for the result y."""

    def formula(op: Lowering, grad: Tensor, y: Tensor) -> Tensor:
        return op.apply("mul", grad, op.apply("sub", 1.0, op.prim("mul", y, y)))

    return _graded(op, grad_output, output, formula)


@decomposes("aten.logit_backward.default")
def logit_backward(
    op: Lowering, grad_output: Tensor, self: Tensor, eps: float | None = None
) -> Tensor:
    """g / (x * (1 - x)); 0 where x was clamped, NaN outside of [0, 1] if it is never clamped."""

    def formula(op: Lowering, grad: Tensor, x: Tensor) -> Tensor:
        low, outside = (0.0, math.nan) if eps is None else (eps, 0.0)
        odds = op.apply("mul", x, op.apply("sub", 1.0, x))
        result = op.apply("div", grad, odds)
        below, above = op.apply("lt", x, low), op.apply("gt", x, 1.0 - low)
        return op.where(op.prim("logical_or", below, above), outside, result)

    return _graded(op, grad_output, self, formula)


@decomposes("aten.threshold_backward.default")
def threshold_backward(
    op: Lowering, grad_output: Tensor, self: Tensor, threshold: Number
) -> Tensor:
    """g above the threshold, else 0; NaN passes the gradient on."""
    dtype = op.promoted(grad_output, self)
    x = op.widened(op.convert(self, dtype))
    bound = _rounded(op, threshold, dtype)
    grad = op.widened(op.convert(grad_output, dtype))
    return op.convert(op.where(op.apply("le", x, bound), 0, grad), dtype)


@decomposes("aten.gelu_backward.default")
def gelu_backward(
    op: Lowering, grad_output: Tensor, self: Tensor, *, approximate: str = "none"
) -> Tensor:
    """g times the slope of x * P(x), P by erf or by tanh of a cubic."""
    formulas: dict[str, _Formula] = {"none": _gelu_by_erf, "tanh": _gelu_by_tanh}
    if approximate not in formulas:
        raise InvalidGraphError(f"approximation '{approximate[:40]}'; expected 'none' or 'tanh'")
    return _graded(op, grad_output, self, formulas[approximate])


def _gelu_by_erf(op: Lowering, grad: Tensor, x: Tensor) -> Tensor:
    inner = op.prim("erf", op.apply("mul", x, math.sqrt(0.5)))
    share = op.apply("mul", op.apply("add", inner, 1.0), 0.5)
    density = op.prim("exp", op.apply("mul", op.prim("mul", x, x), -0.5))
    density = op.apply("mul", density, 1.0 / math.sqrt(2.0 * math.pi))
    slope = op.prim("add", share, op.prim("mul", x, density))
    return op.apply("mul", grad, slope)


def _gelu_by_tanh(op: Lowering, grad: Tensor, x: Tensor) -> Tensor:
    beta = math.sqrt(2.0 / math.pi)
    square = op.prim("mul", x, x)
    cubic = op.apply("mul", op.prim("mul", square, x), _GELU_CUBIC)
    inner = op.prim("tanh", op.apply("mul", op.prim("add", x, cubic), beta))
    left = op.apply("mul", x, 0.5)
    right = op.apply("add", inner, 1.0)
    rise = op.apply("sub", 1.0, op.prim("mul", inner, inner))
    steep = op.apply("add", op.apply("mul", square, 3.0 * _GELU_CUBIC), 1.0)
    right_slope = op.prim("mul", op.prim("mul", left, rise), op.apply("mul", steep, beta))
    return op.apply("mul", grad, op.prim("add", op.apply("mul", right, 0.5), right_slope))


@decomposes("aten.silu_backward.default")
def silu_backward(op: Lowering, grad_output: Tensor, self: Tensor) -> Tensor:
    """g * s * (1 + x * (1 - s)) for the sigmoid s."""

    def formula(op: Lowering, grad: Tensor, x: Tensor) -> Tensor:
        s = op.prim("sigmoid", x)
        rest = op.apply("add", op.prim("mul", x, op.apply("sub", 1.0, s)), 1.0)
        return op.apply("mul", op.apply("mul", grad, s), rest)

    return _graded(op, grad_output, self, formula)


@decomposes("aten.mish_backward.default")
def mish_backward(op: Lowering, grad_output: Tensor, self: Tensor) -> Tensor:
    """g * (t + x * s * (1 - t * t)) for t = tanh(softplus(x)) and the sigmoid s."""

    def formula(op: Lowering, grad: Tensor, x: Tensor) -> Tensor:
        t = op.prim("tanh", op.prim("log1p", op.prim("exp", x)))
        rise = op.apply("sub", 1.0, op.prim("mul", t, t))
        slope = op.prim("mul", op.prim("mul", x, op.prim("sigmoid", x)), rise)
        return op.apply("mul", grad, op.prim("add", t, slope))

    return _graded(op, grad_output, self, formula)


@decomposes("aten.hardswish_backward.default")
def hardswish_backward(op: Lowering, grad_output: Tensor, self: Tensor) -> Tensor:
    """0 up to -3, g from 3, g * (x / 3 + 1/2) between."""

    def formula(op: Lowering, grad: Tensor, x: Tensor) -> Tensor:
        middle = op.apply("mul", grad, op.apply("add", op.apply("div", x, 3.0), 0.5))
        upper = op.where(op.apply("lt", x, 3.0), middle, grad)
        return op.where(op.apply("le", x, -3.0), 0.0, upper)

    return _graded(op, grad_output, self, formula)


@decomposes("aten.hardsigmoid_backward.default")
def hardsigmoid_backward(op: Lowering, grad_output: Tensor, self: Tensor) -> Tensor:
    """g / 6 strictly between -3 and 3, else 0."""

    def formula(op: Lowering, grad: Tensor, x: Tensor) -> Tensor:
        inside = op.prim("logical_and", op.apply("gt", x, -3.0), op.apply("lt", x, 3.0))
        return op.where(inside, op.apply("mul", grad, _SIXTH), 0.0)

    return _graded(op, grad_output, self, formula)


@decomposes("aten.hardtanh_backward.default")
def hardtanh_backward(
    op: Lowering, grad_output: Tensor, self: Tensor, min_val: Number, max_val: Number
) -> Tensor:
    """g strictly between the bounds, else 0; NaN passes the gradient on."""

    def formula(op: Lowering, grad: Tensor, x: Tensor) -> Tensor:
        low, high = (_rounded(op, bound, self.dtype) for bound in (min_val, max_val))
        outside = op.prim("logical_or", op.apply("le", x, low), op.apply("ge", x, high))
        return op.where(outside, 0.0, grad)

    return _graded(op, grad_output, self, formula)


@decomposes("aten.leaky_relu_backward.default")
def leaky_relu_backward(
    op: Lowering, grad_output: Tensor, self: Tensor, negative_slope: Number, self_is_result: bool
) -> Tensor:
    """g above zero, g times the slope below; the result has the operand's sign."""

    def formula(op: Lowering, grad: Tensor, x: Tensor) -> Tensor:
        return op.where(op.apply("gt", x, 0.0), grad, op.apply("mul", grad, negative_slope))

    return _graded(op, grad_output, self, formula)


@decomposes("aten.rrelu_with_noise_backward.default")
def rrelu_with_noise_backward(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    op: Lowering,
    grad_output: Tensor,
    self: Tensor,
    noise: Tensor,
    lower: Number,
    upper: Number,
    training: bool,
    self_is_result: bool,
) -> Tensor:
    """g times the slopes that were drawn; their mean outside of training."""
    low, high = _factor(lower), _factor(upper)
    if not training or high - low <= _SMALLEST_NOISE_RANGE:
        return leaky_relu_backward(op, grad_output, self, (low + high) / 2.0, self_is_result)
    product = op.apply("mul", op.widened(grad_output), op.widened(noise))
    return op.convert(product, op.promoted(grad_output, noise))


@decomposes("aten.elu_backward.default")
def elu_backward(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    op: Lowering,
    grad_output: Tensor,
    alpha: Number,
    scale: Number,
    input_scale: Number,
    is_result: bool,
    self_or_result: Tensor,
) -> Tensor:
    """The slope of elu, from its operand or its result."""
    negative, positive, inner = (
        _factor(alpha) * _factor(scale),
        _factor(scale),
        _factor(input_scale),
    )

    def formula(op: Lowering, grad: Tensor, x: Tensor) -> Tensor:
        if is_result:
            below = op.apply("mul", op.apply("mul", grad, inner), op.apply("add", x, negative))
        else:
            decayed = op.prim("exp", op.apply("mul", x, inner))
            below = op.apply("mul", op.apply("mul", grad, inner * negative), decayed)
        return op.where(op.apply("le", x, 0.0), below, op.apply("mul", grad, positive))

    return _graded(op, grad_output, self_or_result, formula)


@decomposes("aten.softplus_backward.default")
def softplus_backward(
    op: Lowering, grad_output: Tensor, self: Tensor, beta: Number, threshold: Number
) -> Tensor:
    """g * e / (e + 1) for e = exp(beta * x); g above the threshold."""

    def formula(op: Lowering, grad: Tensor, x: Tensor) -> Tensor:
        scaled = op.apply("mul", x, beta)
        e = op.prim("exp", scaled)
        soft = op.apply("div", op.apply("mul", grad, e), op.apply("add", e, 1.0))
        return op.where(op.apply("gt", scaled, threshold), grad, soft)

    return _graded(op, grad_output, self, formula)


@decomposes("aten.log_sigmoid_backward.default")
def log_sigmoid_backward(op: Lowering, grad_output: Tensor, self: Tensor, buffer: Tensor) -> Tensor:
    """g * e / (1 + e) above zero, g / (1 + e) below, for e = exp(-|x|)."""

    def formula(op: Lowering, grad: Tensor, x: Tensor) -> Tensor:
        e = op.prim("exp", op.prim("neg", op.prim("abs", x)))
        share = op.prim("div", e, op.apply("add", e, 1.0))
        below = op.apply("sub", 1.0, share)
        return op.apply("mul", grad, op.where(op.apply("lt", x, 0.0), below, share))

    return _graded(op, grad_output, self, formula)


@decomposes("aten.glu_backward.default")
def glu_backward(op: Lowering, grad_output: Tensor, self: Tensor, dim: int) -> Tensor:
    """Gradients of the value and of the gate, joined."""
    if not self.rank:
        raise InvalidGraphError("a tensor without axes; expected an axis to halve")
    axis = axis_of(dim, self.rank)
    half = self.shape[axis] // 2
    value = op.widened(op.slice_axis(self, axis, half - half, half))
    gate = op.prim("sigmoid", op.widened(op.slice_axis(self, axis, half, half * 2)))
    grad = op.widened(grad_output)
    left = op.apply("mul", gate, grad)
    right = op.apply("mul", op.prim("mul", op.apply("sub", 1.0, gate), gate), grad)
    right = op.apply("mul", right, value)
    return op.convert(op.prim("cat", left, right, dim=axis), self.dtype)


@decomposes("aten._prelu_kernel_backward.default")
def prelu_backward(
    op: Lowering, grad_output: Tensor, self: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """g above zero, g times the slope below; and the slope's gradient, element by element."""
    grad, x, slope = (op.widened(t) for t in (grad_output, self, weight))
    is_above = op.apply("gt", x, 0.0)
    of_self = op.where(is_above, grad, op.apply("mul", slope, grad))
    of_weight = op.where(is_above, 0.0, op.apply("mul", x, grad))
    return op.convert(of_self, self.dtype), op.convert(of_weight, self.dtype)


@decomposes("aten.hardshrink_backward.default")
def hardshrink_backward(op: Lowering, grad_out: Tensor, self: Tensor, lambd: Number) -> Tensor:
    """0 within [-lambd, lambd], else g."""
    return softshrink_backward(op, grad_out, self, lambd)


@decomposes("aten.softshrink_backward.default")
def softshrink_backward(op: Lowering, grad_output: Tensor, self: Tensor, lambd: Number) -> Tensor:
    """0 within [-lambd, lambd], else g."""

    def formula(op: Lowering, grad: Tensor, x: Tensor) -> Tensor:
        bound = _rounded(op, lambd, self.dtype)
        above = op.apply("ge", x, op.prim("neg", bound))
        inside = op.prim("logical_and", above, op.apply("le", x, bound))
        return op.where(inside, 0.0, grad)

    return _graded(op, grad_output, self, formula)


@decomposes("aten.native_dropout_backward.default")
def native_dropout_backward(
    op: Lowering, grad_output: Tensor, mask: Tensor, scale: float
) -> Tensor:
    """g where the mask held, times the scale."""
    result = op.promoted(grad_output, scale)
    grad = op.convert(grad_output, result.compute_dtype)
    kept = op.apply("mul", grad, op.convert(mask, grad.dtype))
    return op.convert(op.apply("mul", kept, scale), result)


@decomposes("aten._masked_scale.default")
def masked_scale(op: Lowering, self: Tensor, mask: Tensor, scale: float) -> Tensor:
    """x times a mask of numbers, times the scale."""
    x = op.widened(self)
    kept = op.apply("mul", x, op.convert(mask, x.dtype))
    return op.convert(op.apply("mul", kept, scale), self.dtype)


@decomposes("aten._softmax_backward_data.default")
def softmax_backward(
    op: Lowering, grad_output: Tensor, output: Tensor, dim: int, input_dtype: DType
) -> Tensor:
    """(g - sum(g * y)) * y for the result y."""
    grad, y = op.widened(grad_output), op.widened(output)
    product = op.apply("mul", grad, y)
    total = op.reduce("sum", product, _axes(product, dim), keepdim=True)
    return op.convert(op.apply("mul", op.apply("sub", grad, total), y), input_dtype)


@decomposes("aten._log_softmax_backward_data.default")
def log_softmax_backward(
    op: Lowering, grad_output: Tensor, output: Tensor, dim: int, input_dtype: DType
) -> Tensor:
    """g - exp(y) * sum(g) for the result y."""
    grad, y = op.widened(grad_output), op.widened(output)
    total = op.reduce("sum", grad, _axes(grad, dim), keepdim=True)
    return op.convert(op.apply("sub", grad, op.apply("mul", op.prim("exp", y), total)), input_dtype)


def _axes(x: Tensor, dim: int) -> tuple[int, ...]:
    axis = axis_of(dim, x.rank)
    return (axis,) if x.rank else ()
