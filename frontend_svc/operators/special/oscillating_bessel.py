"""Bessel functions of orders 0 and 1, by Chebyshev series in the computing type."""

from __future__ import annotations

import math
from collections.abc import Sequence

from frontend_svc.operators.coefficients import oscillating as tables
from frontend_svc.operators.core.real_formulas import Real, decomposes_real, decomposes_real_x
from frontend_svc.operators.special.series import chebyshev_series, polynomial

_SMALL = 5.0
"""Below it series in x * x are used, above it series in 1 / (x * x)."""

# Squares of the zeros of J0 and of J1 below 5.
# Source: Abramowitz and Stegun, table 9.5.
_J0_ZEROS = (5.783185962946784, 30.471262343662087)
_J1_ZEROS = (14.681970642123893,)

_SINC_SERIES = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(7))


def _near_j(x: Real, series: Sequence[float], zeros: Sequence[float]) -> Real:
    """J0(x), or J1(x) / x, for small x."""
    square = x * x
    result = chebyshev_series(square * (2 / _SMALL**2) - 1.0, series)
    for zero in zeros:
        result = result * (square - zero)
    return result


def _far(x: Real, order: int, *, is_second: bool) -> Real:
    """J(x) or, if second, Y(x), for large x.

    The sine and cosine of x - (2 * order + 1) * pi / 4 are sums of those of x.
    """
    ratio = _SMALL / x
    u = ratio * ratio * 2.0 - 1.0
    p = chebyshev_series(u, tables.P1 if order else tables.P0)
    q = chebyshev_series(u, tables.Q1 if order else tables.Q0) / x
    sine, cosine = x.of("sin"), x.of("cos")
    sum_, difference = sine + cosine, sine - cosine
    cosine, sine = (difference, -sum_) if order else (sum_, difference)
    wave = p * sine + q * cosine if is_second else p * cosine - q * sine
    return wave / (x.of("sqrt") * math.sqrt(math.pi))


@decomposes_real("special_bessel_j0")
def special_bessel_j0(x: Real) -> Real:
    """The Bessel function of the first kind of order 0."""
    size = x.of("abs")
    near = _near_j(size, tables.J0_SMALL, _J0_ZEROS)
    return (size <= _SMALL).where(near, _far(size, 0, is_second=False))


@decomposes_real("special_bessel_j1")
def special_bessel_j1(x: Real) -> Real:
    """The Bessel function of the first kind of order 1, an odd function."""
    size = x.of("abs")
    near = _near_j(x, tables.J1_SMALL, _J1_ZEROS) * x
    far = _far(size, 1, is_second=False)
    return (size <= _SMALL).where(near, (x < 0.0).where(-far, far))


@decomposes_real("special_bessel_y0")
def special_bessel_y0(x: Real) -> Real:
    """The Bessel function of the second kind of order 0; NaN for negative x."""
    j = _near_j(x, tables.J0_SMALL, _J0_ZEROS)
    rest = chebyshev_series(x * x * (2 / _SMALL**2) - 1.0, tables.Y0_SMALL)
    near = x.of("log") * j * (2 / math.pi) + rest
    return _second_kind(x, near, _far(x, 0, is_second=True))


@decomposes_real("special_bessel_y1")
def special_bessel_y1(x: Real) -> Real:
    """The Bessel function of the second kind of order 1; NaN for negative x."""
    j = _near_j(x, tables.J1_SMALL, _J1_ZEROS)
    rest = chebyshev_series(x * x * (2 / _SMALL**2) - 1.0, tables.Y1_SMALL)
    near = (x.of("log") * j * (2 / math.pi) + rest) * x - (2 / math.pi) / x
    return _second_kind(x, near, _far(x, 1, is_second=True))


def _second_kind(x: Real, near: Real, far: Real) -> Real:
    result = (x <= _SMALL).where(near, far)
    result = x.is_(0.0).where(-math.inf, result)
    return (x < 0.0).where(math.nan, result)


@decomposes_real_x("special_spherical_bessel_j0")
def special_spherical_bessel_j0(x: Real) -> Real:
    """sin(x) / x; 1 at 0 and 0 at infinity."""
    near = polynomial(x * x, _SINC_SERIES)
    result = (x.of("abs") < 0.5).where(near, x.of("sin") / x)
    return x.of("isinf").where(0.0, result)
