"""The Hurwitz zeta function, and the derivatives of digamma, which it gives."""

from __future__ import annotations

import math
from typing import Protocol

from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.promotion import float_dtype
from frontend_svc.operators.core.real_formulas import Real, RealFunction, computing, of_float
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Operand, Tensor
from frontend_svc.operators.special.gamma_functions import digamma
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, as_expr

_DIRECT_TERMS = 10
"""Terms that are summed directly before the formula for the rest holds, as in Cephes' zeta.c."""

_CORRECTIONS = {DType.F64: 12, DType.F32: 6}

_LARGEST_ORDER = 32
"""Factorials of larger numbers are not finite in f32."""

# The divisors of the corrections: (2 * k)! / B(2 * k), k = 1, 2, ...
_DIVISORS = (
    12.0,
    -720.0,
    30240.0,
    -1209600.0,
    47900160.0,
    -1307674368000 / 691,
    74724249600.0,
    -10670622842880000 / 3617,
    5109094217170944000 / 43867,
    -802857662698291200000 / 174611,
    14101100039391805440000 / 77683,
    -1693824136731743669452800000 / 236364091,
)


class _Exponent(Protocol):
    """The exponent s of q**-s."""

    def on_axis(self) -> _Exponent:
        """The same exponent for operands with a new last axis."""

    def power(self, base: Real, more: int = 0) -> Real:
        """base**(more - s)."""

    def plus(self, number: int) -> Real | float:
        """s + number."""


class _Stated:
    """An exponent that the graph states; powers are products."""

    def __init__(self, value: int) -> None:
        self._value = value

    def on_axis(self) -> _Stated:
        return self

    def power(self, base: Real, more: int = 0) -> Real:
        return 1.0 / _whole_power(base, self._value - more)

    def plus(self, number: int) -> float:
        return float(self._value + number)


class _Computed:
    """An exponent that is data."""

    def __init__(self, value: Real) -> None:
        self._value = value

    def on_axis(self) -> _Computed:
        return _Computed(_on_axis(self._value))

    def power(self, base: Real, more: int = 0) -> Real:
        return base.with_("pow", more - self._value)

    def plus(self, number: int) -> Real:
        return self._value + float(number)


def _zeta(s: _Exponent, q: Real, sign: Real | float) -> Real:
    """The sum for any q that is no pole; if q < 0, s must be an integer and `sign` (-1)**s.

    The terms below zero, mirrored, are a difference of two sums of terms above zero. The three sums
    and their terms are axes, so that one power is emitted instead of thirty.
    """
    builder, rank = q.builder, q.tensor.rank
    is_below = q < 0.0
    sign = is_below.where(q.full(1.0) * sign, 0.0)
    starts = _stacked(
        is_below.where(q - q.of("floor"), q),
        is_below.where(q.of("ceil") - q, 1.0),
        is_below.where(1.0 - q, 1.0),
    )
    signs = _stacked(q.full(1.0), sign, -sign)
    s = s.on_axis()
    tails = signs * _tail(s, starts + float(_DIRECT_TERMS - 1))
    steps = Real(builder, builder.convert(builder.iota(as_expr(_DIRECT_TERMS)), q.dtype))
    terms = _on_axis(signs) * s.on_axis().power(_on_axis(starts) + steps)
    direct = builder.reduce("sum", terms.tensor, [rank, rank + 1])
    return Real(builder, direct) + Real(builder, builder.reduce("sum", tails.tensor, [rank]))


def _tail(s: _Exponent, start: Real) -> Real:
    """The sum of (start + k)**-s over k >= 1.

    Source: the Euler-Maclaurin formula. For s >= 4 * start even the first of these terms is
    negligible beside (start - 9)**-s, and the formula need not converge.
    """
    term = s.power(start)
    total = s.power(start, 1) / s.plus(-1) - term * 0.5
    inverse_square = 1.0 / (start * start)
    correction = term * s.plus(0) / start
    for k in range(_CORRECTIONS[start.dtype]):
        if k:
            growth = s.plus(2 * k - 1) * s.plus(2 * k)
            correction = correction * (inverse_square * growth)
        total = total + correction * (1 / _DIVISORS[k])
    return (start * 4.0 < s.plus(0)).where(0.0, total)


def _on_axis(x: Real) -> Real:
    """The same elements with a new last axis."""
    return Real(x.builder, x.builder.reshape(x.tensor, (*x.tensor.shape, ONE)))


def _stacked(first: Real, second: Real, third: Real) -> Real:
    """Three reals of one shape along a new last axis."""
    number = Real(first.builder, first.builder.iota(as_expr(3)))
    later = number.is_(1).where(_on_axis(second), _on_axis(third))
    return number.is_(0).where(_on_axis(first), later)


@decomposes(
    "aten.special_zeta.default",
    "aten.special_zeta.other_scalar",
    "aten.special_zeta.self_scalar",
)
def special_zeta(builder: PrimsBuilder, self: Operand, other: Operand) -> Tensor:
    """The sum of (q + k)**-s over k >= 0: infinite at s = 1 and at poles q, NaN for s < 1.

    NaN also for a fractional s if q < 0.
    """
    dtype = float_dtype(builder.promoted(self, other))
    s, q = (computing(builder, builder.cast(x, dtype), dtype) for x in (self, other))
    shape = builder.extents.broadcast([s.tensor.shape, q.tensor.shape])
    s, q = (Real(builder, builder.expand(x.tensor, shape)) for x in (s, q))
    is_whole = s.is_(s.of("floor"))
    half = s * 0.5
    sign = half.is_(half.of("floor")).where(s.full(1.0), -1.0)
    result = _zeta(_Computed(s), q, sign)
    at_or_below = q <= 0.0
    result = (at_or_below & is_whole.of("logical_not")).where(math.nan, result)
    result = (at_or_below & q.is_(q.of("floor"))).where(math.inf, result)
    result = (s < 1.0).where(math.nan, result)
    return builder.convert(s.is_(1.0).where(math.inf, result).tensor, dtype)


@decomposes("aten.polygamma.default", note=f"extern above order {_LARGEST_ORDER}")
def polygamma(builder: PrimsBuilder, n: int, self: Tensor) -> Tensor:
    """The derivative of order n of digamma.

    Source: Abramowitz and Stegun, 6.4.10, for the zeta function.
    """
    if n < 0:
        raise InvalidGraphError(f"a derivative of order {n}; expected 0 or more")
    if n > _LARGEST_ORDER:
        raise NotDecomposedError(f"a derivative of order above {_LARGEST_ORDER}")
    function: RealFunction = {0: digamma, 1: _trigamma}.get(n, lambda x: _higher(n, x))
    return of_float(builder, self, function)


def _higher(n: int, x: Real) -> Real:
    """(-1)**(n + 1) * n! * zeta(n + 1, x)."""
    sign = (-1.0) ** (n + 1)
    sum_ = _zeta(_Stated(n + 1), x, sign)
    is_pole = (x <= 0.0) & x.is_(x.of("floor"))
    return is_pole.where(math.inf, sum_) * (sign * math.factorial(n))


def _whole_power(x: Real, exponent: int) -> Real:
    if exponent == 1:
        return x
    half = _whole_power(x, exponent // 2)
    return half * half * x if exponent % 2 else half * half


def _trigamma(x: Real) -> Real:
    """The derivative of digamma.

    Source: `trigamma` of PyTorch's ATen/native/Math.h. The sine of an argument that is not reduced
    makes poles below 0 large instead of infinite, as in PyTorch.
    """
    is_below = x < 0.5
    y = is_below.where(1.0 - x, x)
    sum_ = y.full(0.0)
    for _ in range(6):
        sum_ = sum_ + 1.0 / (y * y)
        y = y + 1.0
    square = 1.0 / (y * y)
    tail = square * (1 / 6 - square * (1 / 30 - square * (1 / 42)))
    sum_ = sum_ + (1.0 + 1.0 / (y * 2.0) + tail) / y
    sine = (x * math.pi).of("sin")
    return is_below.where(math.pi**2 / (sine * sine) - sum_, sum_)
