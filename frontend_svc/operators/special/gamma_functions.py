"""The logarithm of the gamma function, and its derivative."""

from __future__ import annotations

import math

from frontend_svc.operators.coefficients import gamma as tables
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.promotion import float_dtype
from frontend_svc.operators.core.real_formulas import Real, computing, decomposes_real
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Tensor
from frontend_svc.operators.special.series import chebyshev_series
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, as_expr

_LARGE = 8
"""The asymptotic series hold from this number on."""


def _inverse_square(x: Real) -> Real:
    """The argument of the asymptotic series."""
    ratio = float(_LARGE) / x
    return ratio * ratio * 2.0 - 1.0


def _positive(x: Real) -> Real:
    """log(gamma(x)) for x > 0.

    Below 8: gamma(x) = (x - 1) ... (1 + t) * gamma(1 + t), or gamma(1 + x) / x below 1.
    """
    is_small, is_large = x < 1.0, x >= float(_LARGE)
    t = is_small.where(x, x - x.of("floor"))
    near = t * (t - 1.0) * chebyshev_series(t * 2.0 - 1.0, tables.LOG_GAMMA_NEAR)
    product = (x - 1.0).with_("maximum", 1.0)
    for k in range(2, _LARGE - 1):
        product = product * (x - float(k)).with_("maximum", 1.0)
    logarithm = (is_small | is_large).where(x, product).of("log")
    below = near + is_small.where(-logarithm, logarithm)
    rest = chebyshev_series(_inverse_square(x), tables.LOG_GAMMA_STIRLING) / x
    constant = 0.5 * math.log(2 * math.pi) - 0.5
    stirling = (x - 0.5) * (logarithm - 1.0) + (rest + constant)
    return is_large.where(stirling, below)


@decomposes_real("lgamma")
def lgamma(x: Real) -> Real:
    """log(abs(gamma(x))); infinite at 0, -1, -2, ... and where x is infinite.

    Source: gamma(x) * gamma(-x) = -pi / (x * sin(pi * x)), Abramowitz and Stegun, 6.1.17.
    """
    size = x.of("abs")
    above = _positive(size)
    sine = ((size - size.of("round_even")) * math.pi).of("sin").of("abs")
    reflected = (math.pi / (size * sine)).of("log") - above
    # For tiny x the product underflows.
    reflected = (size < 1e-18).where(-size.of("log"), reflected)
    result = (x < 0.0).where(reflected, above)
    is_pole = (x < 0.0) & sine.is_(0.0)
    return (size.of("isinf") | is_pole).where(math.inf, result)


@decomposes_real("digamma")
def digamma(x: Real) -> Real:
    """The derivative of lgamma: NaN at -1, -2, ...; infinite at 0, with the opposite sign.

    Source: the reflection formula, Abramowitz and Stegun, 6.3.7.
    """
    is_below = x < 0.0
    y = is_below.where(1.0 - x, x)
    sum_ = y.full(0.0)
    for _ in range(_LARGE):
        is_small = y < float(_LARGE)
        sum_ = is_small.where(sum_ + 1.0 / y, sum_)
        y = is_small.where(y + 1.0, y)
    tail = chebyshev_series(_inverse_square(y), tables.DIGAMMA_TAIL) / y
    above = y.of("log") + (tail - 0.5) / y - sum_
    below = above - _cotangent(x - x.of("round_even")) * math.pi
    result = is_below.where(below, above)
    result = (is_below & x.is_(x.of("floor"))).where(math.nan, result)
    return x.is_(0.0).where(x.full(math.inf).with_("copysign", -x), result)


def _cotangent(x: Real) -> Real:
    """1 / tan(pi * x) for x in [-0.5, 0.5]; it is as precise at its zeros as at its pole."""
    size = x.of("abs")
    is_wide = size > 0.25
    tangent = (is_wide.where(0.5 - size, size) * math.pi).of("tan")
    return is_wide.where(tangent, 1.0 / tangent).with_("copysign", x)


@decomposes("aten.mvlgamma.default")
def mvlgamma(builder: PrimsBuilder, self: Tensor, p: int) -> Tensor:
    """The logarithm of the gamma function of p dimensions.

    That is p * (p - 1) / 4 * log(pi) + lgamma(x) + lgamma(x - 1 / 2) + ... (p terms). The terms are
    computed on a new axis.
    """
    if p < 1:
        raise InvalidGraphError(f"a gamma function of {p} dimensions; expected 1 or more")
    dtype = float_dtype(self.dtype)
    x = computing(builder, self, dtype)
    offsets = Real(builder, builder.convert(builder.iota(as_expr(p)), x.dtype)) * -0.5
    column = Real(builder, builder.reshape(x.tensor, (*self.shape, ONE)))
    terms = lgamma(column + offsets).tensor
    total = Real(builder, builder.reduce("sum", terms, [terms.rank - 1]))
    return builder.convert((total + p * (p - 1) / 4 * math.log(math.pi)).tensor, dtype)
