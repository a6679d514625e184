"""erf and erfc, and the table of all elementary functions."""

from __future__ import annotations

from typing import Final

from codegen_svc.emitters.llvm.math_functions import coefficients as fitted
from codegen_svc.emitters.llvm.math_functions.exp import EXP_FUNCTIONS
from codegen_svc.emitters.llvm.math_functions.library import Math, MathFunction
from codegen_svc.emitters.llvm.math_functions.trig import TRIG_FUNCTIONS
from codegen_svc.emitters.llvm.text import Value


def erf_f32(m: Math, x: Value) -> Value:
    """erf of an f32: a polynomial below 1, 1 - 2^(-x p(x)) elsewhere.

    The power's exponent is between -28 and -2, so it is added to the polynomial's own. NaN takes
    the first branch, which keeps it.
    """
    a = m.abs(x)
    # The first coefficient less 1, because the 1 is added exactly.
    rest = (fitted.ERF_F32[0] - 1.0, *fitted.ERF_F32[1:])
    near = m.fma(a, m.polynomial(rest, m.mul(a, a)), a)
    t = m.at_most(a, 3.95)
    exponent = m.mul(t, m.polynomial(fitted.ERF_TAIL_F32, t))
    shifted = m.add(exponent, m.format.round_shift)
    r = m.sub(exponent, m.sub(shifted, m.format.round_shift))
    steps = m.int_op("shl", m.as_bits(shifted), m.format.mantissa_bits)
    power = m.as_bits(m.polynomial(fitted.EXP2_F32, r))
    far = m.sub(1.0, m.from_bits(m.fn.op("add", power, steps)))
    return m.copysign(m.select(m.test("ult", a, 1.0), near, far), x)


def _erfc_of_magnitude(m: Math, a: Value) -> Value:
    """erfc(a) for a >= 0: exp(-a^2) from the square's two halves, times a polynomial."""
    a = m.at_most(a, 28.0)
    t = m.div(m.sub(a, 4.0), m.add(a, 4.0))
    ratio = m.div(m.polynomial(fitted.ERFC_F64, t), m.fma(a, 2.0, 1.0))
    square = m.mul(a, a)
    lost = m.fma(a, a, m.neg(square))
    e = m.call("exp", m.neg(square))
    return m.mul(m.fma(m.neg(e), lost, e), ratio)


def erf_f64(m: Math, x: Value) -> Value:
    """erf in f64."""
    a = m.abs(x)
    near = m.mul(a, m.polynomial(fitted.ERF_F64, m.mul(a, a)))
    far = m.sub(1.0, _erfc_of_magnitude(m, a))
    return m.copysign(m.select(m.test("olt", a, 1.0), near, far), x)


def erfc_f64(m: Math, x: Value) -> Value:
    """1 - erf(x) without cancellation."""
    core = _erfc_of_magnitude(m, m.abs(x))
    return m.select(m.test("olt", x, 0.0), m.sub(2.0, core), core)


MATH_FUNCTIONS: Final[dict[str, MathFunction]] = {
    **EXP_FUNCTIONS,
    **TRIG_FUNCTIONS,
    "erf": MathFunction(erf_f64, erf_f32, 1.5, 1.5),
    "erfc": MathFunction(erfc_f64, None, 0.6, 5.0),
}
"""Every elementary function by the name of its scalar operation."""
