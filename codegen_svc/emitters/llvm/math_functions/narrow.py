"""Elementary functions at the precision of f16 and bf16 results, and the table of all functions.

Bound: relative error below 2^-16 in f32, with the exceptions that `narrow_functions` of
`codegen_svc/precision` states for `1 + erf(x)`. Special values are those of the full functions. The
polynomials of `1 + erf(x)`, `erf` and `log1p` are those of `emitters/triton/narrow_formulas.py`.
"""

from __future__ import annotations

import math
from typing import Final

from codegen_svc.emitters.llvm.math_functions import coefficients as fitted
from codegen_svc.emitters.llvm.math_functions.erf import MATH_FUNCTIONS
from codegen_svc.emitters.llvm.math_functions.exp import LOG2_E, scale, split
from codegen_svc.emitters.llvm.math_functions.library import Math, MathFunction
from codegen_svc.emitters.llvm.text import Value

_ULPS: Final = 2.0**-16 / 2.0**-24
# log2(erfc(a)) / a, erf(x) / x of x^2, log1p(t) / t.
_TAIL: Final = (
    *(-1.62804532, -0.917162538, -0.15229924, 3.38107347e-2),
    *(-5.18488092e-3, 4.78677131e-4, -1.97667141e-5),
)
_NEAR: Final = (1.12837585, -0.375754685, 0.106599117)
_LOG1P: Final = (
    *(0.999991598, -0.499361362, 0.325206659),
    *(-0.210048631, 0.101222217, -0.0238691248),
)


def power_of_two(m: Math, x: Value) -> Value:
    """2^x"""
    return _power_within(m, m.at_least(m.at_most(x, 129.0), -151.0))


def _power_within(m: Math, x: Value) -> Value:
    """2^x for -151 <= x <= 129, or -2^20 <= x where an instruction multiplies by powers of two."""
    n, n_int = split(m, x, 1.0)
    return scale(m, m.polynomial(fitted.EXP2_NARROW, m.sub(x, n)), n_int)


def exp(m: Math, x: Value) -> Value:
    """e^x"""
    return power_of_two(m, m.mul(x, LOG2_E))


def one_plus_erf(m: Math, x: Value) -> Value:
    """1 + erf(x) without cancellation: erfc(|x|) = 2^(|x| p(|x|))."""
    a = m.at_most(m.abs(x), 16.0)  # beyond, erfc is 0 and the polynomial's powers may overflow
    exponent = m.mul(m.polynomial(_TAIL, a), a)
    tail = _power_within(m, exponent if m.scales_by_powers else m.at_least(exponent, -151.0))
    return m.select(m.test("olt", x, 0.0), tail, m.sub(2.0, tail))


def erf(m: Math, x: Value) -> Value:
    """erf(x); near 0, the difference would cancel."""
    z = m.mul(x, x)
    small = m.mul(x, m.polynomial(_NEAR, z))
    return m.select(m.test("olt", z, 0.16), small, m.sub(one_plus_erf(m, x), 1.0))


def one_plus_tanh(m: Math, x: Value) -> Value:
    """2 / (1 + e^(-2x))"""
    return m.div(2.0, m.add(power_of_two(m, m.mul(x, -2.0 * LOG2_E)), 1.0))


def tanh(m: Math, x: Value) -> Value:
    """1 - 2 / (1 + e^(2x)); near 0, x - x^3 / 3."""
    small = m.fma(m.mul(m.mul(x, x), x), -1.0 / 3.0, x)
    large = m.sub(1.0, m.div(2.0, m.add(power_of_two(m, m.mul(x, 2.0 * LOG2_E)), 1.0)))
    return m.select(m.test("olt", m.abs(x), 0.0625), small, large)


def tanh_log1p(m: Math, x: Value) -> Value:
    """tanh(log1p(x)) = n / (n + 2) with n = x (x + 2); from 2^30 on it is 1."""
    n = m.mul(x, m.add(x, 2.0))
    return m.select(m.test("ogt", x, 2.0**30), 1.0, m.div(n, m.add(n, 2.0)))


def softplus(m: Math, x: Value) -> Value:
    """log(1 + e^x) = max(x, 0) + log1p(e^-|x|)"""
    t = exp(m, m.neg(m.abs(x)))
    positive = m.select(m.test("olt", x, 0.0), 0.0, x)
    return m.fma(t, m.polynomial(_LOG1P, t), positive)


def expm1(m: Math, x: Value) -> Value:
    """e^x - 1; near 0, the first terms of its series."""
    small = m.mul(m.polynomial((1.0, 0.5, 1.0 / 6.0, 1.0 / 24.0), x), x)
    return m.select(m.test("olt", m.abs(x), 0.125), small, m.sub(exp(m, x), 1.0))


NARROW_FUNCTIONS: Final[dict[str, MathFunction]] = {
    name: MathFunction(None, function, _ULPS, math.inf)
    for name, function in (
        ("narrow_polynomial_exp", exp),
        ("narrow_one_plus_erf", one_plus_erf),
        ("narrow_erf", erf),
        ("narrow_one_plus_tanh", one_plus_tanh),
        ("narrow_tanh", tanh),
        ("narrow_tanh_log1p", tanh_log1p),
        ("narrow_softplus", softplus),
        ("narrow_expm1", expm1),
    )
}
"""Functions of f32 alone, which `codegen_svc/precision/narrow_functions.py` puts into kernels."""

FUNCTIONS: Final = {**MATH_FUNCTIONS, **NARROW_FUNCTIONS}
"""Every function of kernels by the name of its scalar operation."""
