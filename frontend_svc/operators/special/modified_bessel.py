"""Modified Bessel functions of orders 0 and 1, by Chebyshev series in the computing type."""

from __future__ import annotations

import math

from frontend_svc.operators.coefficients import bessel as tables
from frontend_svc.operators.core.real_formulas import Real, decomposes_real, decomposes_real_x
from frontend_svc.operators.special.series import chebyshev_series

_SMALL_I = 8.0
_SMALL_K = 2.0


def _scaled_i(x: Real, order: int) -> Real:
    """exp(-|x|) * I(x)."""
    small, large = (
        (tables.I1_SMALL, tables.I1_LARGE) if order else (tables.I0_SMALL, tables.I0_LARGE)
    )
    size = x.of("abs")
    near = chebyshev_series(size * 0.25 - 1.0, small)
    if order:
        near = near * size
    far = chebyshev_series(2 * _SMALL_I / size - 1.0, large) / size.of("sqrt")
    result = (size <= _SMALL_I).where(near, far)
    return (x < 0.0).where(-result, result) if order else result


def _plain_i(x: Real, order: int) -> Real:
    return x.of("abs").of("exp") * _scaled_i(x, order)


def _k(x: Real, order: int, *, is_scaled: bool) -> Real:
    """K(x), times exp(x) if scaled; infinite at 0, NaN for negative x."""
    small, large = (
        (tables.K1_SMALL, tables.K1_LARGE) if order else (tables.K0_SMALL, tables.K0_LARGE)
    )
    near = chebyshev_series(x * x * 0.5 - 1.0, small)
    product = (x * 0.5).of("log") * _plain_i(x, order)
    near = near / x + product if order else near - product
    far = chebyshev_series(2 * _SMALL_K / x - 1.0, large) / x.of("sqrt")
    if is_scaled:
        near = near * x.of("exp")
    else:
        far = far * (-x).of("exp")
    result = (x <= _SMALL_K).where(near, far)
    result = x.is_(0.0).where(math.inf, result)
    return (x < 0.0).where(math.nan, result)


@decomposes_real("i0", "special_modified_bessel_i0")
def bessel_i0(x: Real) -> Real:
    """I0, the modified Bessel function of the first kind of order 0."""
    return _plain_i(x, 0)


@decomposes_real("special_i1", "special_modified_bessel_i1")
def bessel_i1(x: Real) -> Real:
    """I1, the modified Bessel function of the first kind of order 1."""
    return _plain_i(x, 1)


@decomposes_real("special_i0e")
def scaled_bessel_i0(x: Real) -> Real:
    """exp(-|x|) * I0(x)."""
    return _scaled_i(x, 0)


@decomposes_real("special_i1e")
def scaled_bessel_i1(x: Real) -> Real:
    """exp(-|x|) * I1(x)."""
    return _scaled_i(x, 1)


@decomposes_real("special_modified_bessel_k0")
def bessel_k0(x: Real) -> Real:
    """K0, the modified Bessel function of the second kind of order 0."""
    return _k(x, 0, is_scaled=False)


@decomposes_real("special_modified_bessel_k1")
def bessel_k1(x: Real) -> Real:
    """K1, the modified Bessel function of the second kind of order 1."""
    return _k(x, 1, is_scaled=False)


@decomposes_real_x("special_scaled_modified_bessel_k0")
def scaled_bessel_k0(x: Real) -> Real:
    """exp(x) * K0(x)."""
    return _k(x, 0, is_scaled=True)


@decomposes_real_x("special_scaled_modified_bessel_k1")
def scaled_bessel_k1(x: Real) -> Real:
    """exp(x) * K1(x)."""
    return _k(x, 1, is_scaled=True)
