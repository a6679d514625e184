"""exp, log, pow and the functions that are computed from them.

`exp`: x = n ln2 + r with |r| <= ln2/2, a polynomial for exp(r), and a scaling by 2^n that is also
correct for denormal results and overflow: one instruction, or two multiplications. `log`: x = m 2^e
with m near 1 and log(m) = 2 atanh((m-1)/(m+1)), summed as in fdlibm's e_log.c.
"""

from __future__ import annotations

import math
from typing import Final

from codegen_svc.emitters.llvm.math_functions import coefficients as fitted
from codegen_svc.emitters.llvm.math_functions.library import Math, MathFunction
from codegen_svc.emitters.llvm.text import DOUBLE, FLOAT, I32, Value, mangled

INF: Final = math.inf
NAN: Final = math.nan
LOG2_E: Final = 1.4426950408889634
LN2: Final = 0.6931471805599453
LOG10_E: Final = 0.4342944819032518
# ln 2 as a sum; the first term has so few bits that its product with an exponent is exact (fdlibm).
LN2_PARTS: Final = {
    FLOAT: (0.693359375, -2.12194440054690583e-4),
    DOUBLE: (6.93147180369123816490e-01, 1.90821492927058770002e-10),
}
# Outside of this range, exp overflows or rounds to zero.
EXP_RANGE: Final = {FLOAT: (-104.0, 89.0), DOUBLE: (-746.0, 710.0)}


def _power_of_two(m: Math, n: Value) -> Value:
    biased = m.int_op("add", n, m.format.bias)
    return m.from_bits(m.int_op("shl", biased, m.format.mantissa_bits))


def scale(m: Math, value: Value, n: Value) -> Value:
    """value * 2^n; without an instruction, in two steps, so that both factors are normal."""
    if m.scales_by_powers:
        return m.fn.call_external(
            f"llvm.ldexp.{mangled(m.type)}.i32", m.type, value, m.fn.cast("trunc", n, I32)
        )
    first = m.int_op("ashr", n, 1)
    second = m.int_op("sub", n, first)
    return m.mul(m.mul(value, _power_of_two(m, first)), _power_of_two(m, second))


def split(m: Math, x: Value, factor: float) -> tuple[Value, Value]:
    """round(x * factor) as a number and as an integer; the integer is arbitrary for NaN."""
    shift = m.format.round_shift
    shifted = m.fma(x, factor, shift)
    n = m.sub(shifted, shift)
    return n, m.int_op("sub", m.as_bits(shifted), m.as_bits(m.const(shift)))


def _reduce(m: Math, x: Value, n: Value) -> Value:
    high, low = LN2_PARTS[m.type]
    return m.fma(n, -low, m.fma(n, -high, x))


def _expm1_reduced(m: Math, r: Value) -> Value:
    tail = m.polynomial(fitted.EXP_F32 if m.is_f32 else fitted.EXP_F64, r)
    return m.fma(m.mul(r, r), tail, r)


def exp(m: Math, x: Value) -> Value:
    """e^x"""
    low, high = EXP_RANGE[m.type]
    x = m.at_least(m.at_most(x, high), low)
    n, n_int = split(m, x, LOG2_E)
    return scale(m, m.add(_expm1_reduced(m, _reduce(m, x, n)), 1.0), n_int)


def exp2(m: Math, x: Value) -> Value:
    """2^x"""
    low, high = (-151.0, 129.0) if m.is_f32 else (-1076.0, 1025.0)
    x = m.at_least(m.at_most(x, high), low)
    n, n_int = split(m, x, 1.0)
    r = m.mul(m.sub(x, n), LN2)
    return scale(m, m.add(_expm1_reduced(m, r), 1.0), n_int)


def expm1(m: Math, x: Value) -> Value:
    """e^x - 1 without cancellation; computes half of it, so that 2^n does not overflow."""
    top = 89.0 if m.is_f32 else 710.0
    clamped = m.at_least(m.at_most(x, top), -50.0)
    n, n_int = split(m, clamped, LOG2_E)
    tail = _expm1_reduced(m, _reduce(m, clamped, n))
    power = _power_of_two(m, m.int_op("sub", n_int, 1))
    half = m.fma(power, tail, m.sub(power, 0.5))
    return m.copysign(m.add(half, half), x)


def _log_parts(m: Math, x: Value) -> tuple[Value, Value]:
    """(e, f) of x = 2^e (1 + f) with 1 + f between sqrt(1/2) and sqrt(2)."""
    bits = m.format.mantissa_bits
    is_tiny = m.test("olt", x, m.format.min_normal)
    scaled = m.select(is_tiny, m.mul(x, 2.0 ** (bits + 2)), x)
    pattern = m.as_bits(scaled)
    above = m.int_op("sub", pattern, m.as_bits(m.const(math.sqrt(0.5))))
    exponent = m.int_op("ashr", above, bits)
    mantissa = m.from_bits(m.int_op("sub", pattern, m.int_op("shl", exponent, bits)))
    correction = m.select(is_tiny, -float(bits + 2), 0.0)
    return m.add(m.int_to_float(exponent), correction), m.sub(mantissa, 1.0)


def _log_of_parts(m: Math, e: Value, f: Value) -> Value:
    """log(2^e (1 + f)); the order of the additions is fdlibm's."""
    high, low = LN2_PARTS[m.type]
    s = m.div(f, m.add(f, 2.0))
    z = m.mul(s, s)
    tail = m.mul(z, m.polynomial(fitted.LOG_F32 if m.is_f32 else fitted.LOG_F64, z))
    half_square = m.mul(m.mul(f, 0.5), f)
    inner = m.fma(s, m.add(half_square, tail), m.mul(e, low))
    return m.fma(e, high, m.sub(f, m.sub(half_square, inner)))


def _with_log_limits(m: Math, x: Value, result: Value) -> Value:
    result = m.select(m.test("oeq", x, INF), INF, result)
    result = m.select(m.test("oeq", x, 0.0), -INF, result)
    return m.select(m.test("ult", x, 0.0), NAN, result)


def log(m: Math, x: Value) -> Value:
    """Natural logarithm."""
    return _with_log_limits(m, x, _log_of_parts(m, *_log_parts(m, x)))


def log2(m: Math, x: Value) -> Value:
    """Logarithm to base 2; exact at powers of two."""
    e, f = _log_parts(m, x)
    fraction = _log_of_parts(m, m.const(0.0), f)
    return _with_log_limits(m, x, m.fma(fraction, LOG2_E, e))


def log10(m: Math, x: Value) -> Value:
    """Logarithm to base 10."""
    return m.mul(m.call("log", x), LOG10_E)


def log1p(m: Math, x: Value) -> Value:
    """log(1 + x), corrected by the first-order effect of the rounding error of 1 + x."""
    u = m.add(x, 1.0)
    lost_small = m.sub(x, m.sub(u, 1.0))
    lost_large = m.sub(1.0, m.sub(u, x))
    lost = m.select(m.test("olt", m.abs(x), 1.0), lost_small, lost_large)
    correction = m.div(lost, u)
    is_plain = m.test("olt", m.abs(correction), 1.0)
    result = m.add(m.call("log", u), m.select(is_plain, correction, 0.0))
    return m.select(m.test("oeq", x, 0.0), x, result)


def sigmoid(m: Math, x: Value) -> Value:
    """1 / (1 + e^-x), also accurate if the result is small."""
    e = m.call("exp", m.neg(m.abs(x)))
    s = m.div(1.0, m.add(e, 1.0))
    return m.select(m.test("olt", x, 0.0), m.mul(e, s), s)


def tanh(m: Math, x: Value) -> Value:
    """-t / (t + 2) with t = expm1(-2|x|)."""
    t = m.call("expm1", m.mul(m.abs(x), -2.0))
    return m.copysign(m.div(m.neg(t), m.add(t, 2.0)), x)


def sinh(m: Math, x: Value) -> Value:
    """(t + t / (t + 1)) / 2 with t = expm1(|x|); if that overflows, by exp(|x|/2) squared."""
    a = m.abs(x)
    t = m.call("expm1", m.at_most(a, 80.0 if m.is_f32 else 700.0))
    small = m.mul(m.add(t, m.div(t, m.add(t, 1.0))), 0.5)
    root = m.call("exp", m.mul(a, 0.5))
    large = m.mul(m.mul(root, 0.5), root)
    return m.copysign(m.select(m.test("ogt", a, 40.0), large, small), x)


def cosh(m: Math, x: Value) -> Value:
    """(e + 1/e) / 2 with e = exp(|x|); if that overflows, from exp(|x|/2)."""
    a = m.abs(x)
    e = m.call("exp", m.at_most(a, 80.0 if m.is_f32 else 700.0))
    small = m.fma(e, 0.5, m.div(0.5, e))
    root = m.call("exp", m.mul(a, 0.5))
    large = m.mul(m.mul(root, 0.5), root)
    return m.select(m.test("ogt", a, 40.0), large, small)


def asinh(m: Math, x: Value) -> Value:
    """log1p(a + a^2 / (1 + sqrt(a^2 + 1)))"""
    a = m.abs(x)
    square = m.mul(a, a)
    inner = m.add(a, m.div(square, m.add(m.sqrt(m.add(square, 1.0)), 1.0)))
    far = m.add(m.call("log", a), LN2)
    near = m.call("log1p", inner)
    return m.copysign(m.select(m.test("ogt", a, 2.0**28), far, near), x)


def acosh(m: Math, x: Value) -> Value:
    """log1p(t + sqrt(2t + t^2)) with t = x - 1"""
    t = m.sub(x, 1.0)
    near = m.call("log1p", m.add(t, m.sqrt(m.fma(t, t, m.add(t, t)))))
    far = m.add(m.call("log", x), LN2)
    result = m.select(m.test("ogt", x, 2.0**28), far, near)
    return m.select(m.test("ult", x, 1.0), NAN, result)


def atanh(m: Math, x: Value) -> Value:
    """log1p(2a / (1 - a)) / 2"""
    a = m.abs(x)
    ratio = m.div(m.add(a, a), m.sub(1.0, a))
    result = m.copysign(m.mul(m.call("log1p", ratio), 0.5), x)
    return m.select(m.test("ugt", a, 1.0), NAN, result)


def _power_of_magnitude(m: Math, a: Value, y: Value) -> Value:
    """a^y for a >= 0 in f64: the logarithm in two doubles, because y multiplies its error."""
    high, low = LN2_PARTS[m.type]
    e, f = _log_parts(m, a)
    d = m.add(f, 2.0)
    d_low = m.sub(f, m.sub(d, 2.0))
    s = m.div(f, d)
    s_low = m.div(m.sub(m.fma(m.neg(s), d, f), m.mul(s, d_low)), d)
    z = m.mul(s, s)
    cubic = m.mul(m.mul(s, z), m.polynomial(fitted.LOG_F64, z))
    whole = m.mul(e, high)
    double = m.add(s, s)
    log_high = m.add(whole, double)
    rest = m.add(m.sub(whole, log_high), double)
    log_low = m.add(rest, m.fma(e, low, m.add(m.add(s_low, s_low), cubic)))
    log_high = _with_log_limits(m, a, log_high)
    product = m.mul(y, log_high)
    residue = m.fma(y, log_low, m.fma(y, log_high, m.neg(product)))
    residue = m.select(m.test("olt", m.abs(product), 800.0), residue, 0.0)
    x = m.at_least(m.at_most(product, 710.0), -746.0)
    n, n_int = split(m, x, LOG2_E)
    r = m.add(_reduce(m, x, n), residue)
    return scale(m, m.add(_expm1_reduced(m, r), 1.0), n_int)


def pow_f64(m: Math, x: Value, y: Value) -> Value:
    """x^y in f64."""
    return _with_signs(m, x, y, _power_of_magnitude(m, m.abs(x), y))


def pow_f32(m: Math, x: Value, y: Value) -> Value:
    """x^y of f32, computed in f64, for which the plain logarithm is exact enough."""
    wide = m.wider()
    base, exponent = (m.fn.cast("fpext", v, DOUBLE) for v in (x, y))
    logarithm = wide.call("log", wide.abs(base))
    size = wide.call("exp", wide.mul(exponent, logarithm))
    return m.fn.cast("fptrunc", _with_signs(wide, base, exponent, size), FLOAT)


def _with_signs(m: Math, x: Value, y: Value, size: Value) -> Value:
    """x^y from |x|^y: signs and C's special cases."""
    a = m.abs(x)
    whole = m.fn.intrinsic("trunc", y)
    half = m.mul(y, 0.5)
    is_integer = m.test("oeq", whole, y)
    is_even = m.test("oeq", m.fn.intrinsic("trunc", half), half)
    is_odd = m.fn.op("and", is_integer, m.fn.op("xor", is_even, Value("true", "i1")))
    signed = m.select(is_odd, m.copysign(size, x), size)
    is_finite_negative = m.fn.op("and", m.test("olt", x, 0.0), m.test("one", a, INF))
    invalid = m.fn.op("and", is_finite_negative, m.test("one", whole, y))
    result = m.select(invalid, NAN, signed)
    unit = m.fn.op("and", m.test("oeq", a, 1.0), m.test("oeq", m.abs(y), INF))
    result = m.select(unit, 1.0, result)
    is_one = m.fn.op("or", m.test("oeq", y, 0.0), m.test("oeq", x, 1.0))
    return m.select(is_one, 1.0, result)


EXP_FUNCTIONS: Final = {
    "exp": MathFunction(exp, exp, 1.0, 1.0),
    "exp2": MathFunction(exp2, exp2, 1.5, 1.5),
    "expm1": MathFunction(expm1, expm1, 2.0, 2.0),
    "log": MathFunction(log, log, 1.0, 1.0),
    "log2": MathFunction(log2, None, 0.6, 3.0),
    "log10": MathFunction(log10, None, 0.6, 2.5),
    "log1p": MathFunction(log1p, log1p, 2.0, 2.0),
    "sigmoid": MathFunction(sigmoid, sigmoid, 3.0, 3.0),
    "tanh": MathFunction(tanh, tanh, 3.0, 3.0),
    "sinh": MathFunction(sinh, None, 0.6, 4.0),
    "cosh": MathFunction(cosh, None, 0.6, 3.0),
    "asinh": MathFunction(asinh, None, 0.6, 4.0),
    "acosh": MathFunction(acosh, None, 0.6, 4.0),
    "atanh": MathFunction(atanh, None, 0.6, 4.0),
    "pow": MathFunction(pow_f64, pow_f32, 0.6, 2.0),
}
