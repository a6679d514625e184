"""The error function's inverses and the tails of the normal distribution."""

from __future__ import annotations

import math

from frontend_svc.operators.coefficients import error as tables
from frontend_svc.operators.core.real_formulas import Real, decomposes_real
from frontend_svc.operators.special.series import chebyshev_series

_CENTRE = 3.75
_ROOT_HALF = math.sqrt(0.5)


def _inverse(x: Real, one_less: Real) -> Real:
    """erfinv(x), given 1 - x * x: near 1 that is far more precise than x.

    Source: M. Giles, Approximating the erfinv function, GPU Computing Gems (2011), for the choice
    of the variable; the intervals and series are our own.
    """
    depth = -one_less.of("log")
    root = depth.of("sqrt")
    quotient = chebyshev_series((root - 18.0) * 0.1, tables.INVERSE_FARTHEST)
    far = chebyshev_series((root - 6.0) * 0.5, tables.INVERSE_FAR)
    quotient = (root < 8.0).where(far, quotient)
    middle = chebyshev_series((root - 3.25) * (1 / 0.75), tables.INVERSE_MIDDLE)
    quotient = (root < 4.0).where(middle, quotient)
    near = chebyshev_series(depth * 0.32 - 1.0, tables.INVERSE_NEAR)
    quotient = (depth < 6.25).where(near, quotient)
    return x * one_less.is_(0.0).where(math.inf, quotient)


@decomposes_real("erfinv")
def erfinv(x: Real) -> Real:
    """The inverse of the error function; infinite at 1 and -1, NaN beyond."""
    size = x.of("abs")
    return _inverse(x, (1.0 - size) * (1.0 + size))


@decomposes_real("special_ndtri")
def special_ndtri(p: Real) -> Real:
    """The quantile of the standard normal distribution; NaN outside of [0, 1]."""
    return _inverse((p - 0.5) * 2.0, p * 4.0 * (1.0 - p)) * math.sqrt(2)


def _scaled_complement(x: Real) -> Real:
    """exp(x * x) * erfc(x) for x >= 0."""
    u = 1.0 - 2 * _CENTRE / (x + _CENTRE)
    return chebyshev_series(u, tables.SCALED_COMPLEMENT) * 0.5 / (x + 0.5)


@decomposes_real("special_erfcx")
def special_erfcx(x: Real) -> Real:
    """exp(x * x) * erfc(x); unbounded for negative x."""
    above = _scaled_complement(x.of("abs"))
    below = (x * x).of("exp") * 2.0 - above
    return (x < 0.0).where(below, above)


@decomposes_real("special_log_ndtr")
def special_log_ndtr(x: Real) -> Real:
    """The logarithm of the normal distribution's lower tail, precise in both tails."""
    t = x * _ROOT_HALF
    tail = (_scaled_complement(t.of("abs")) * 0.5).of("log") - t * t
    return (x < -1.0).where(tail, (t.of("erfc") * -0.5).of("log1p"))
