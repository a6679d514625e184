"""sin, cos, tan and the inverse functions.

Arguments are reduced so that the functions are accurate for every finite one. f32 is reduced in
f64: the exponent of a large argument selects one of a few remainders modulo 2 pi, without a branch
or a table in memory. f64 is multiplied by 2/pi modulo 4 (Payne and Hanek), which needs a 192-bit
integer product, as scalar code.
"""

from __future__ import annotations

import math
from typing import Final

from codegen_svc.emitters.llvm.math_functions import coefficients as fitted
from codegen_svc.emitters.llvm.math_functions.library import Math, MathFunction
from codegen_svc.emitters.llvm.text import DOUBLE, FLOAT, I64, Value, integer

HALF_PI: Final = math.pi / 2
# pi/2 - HALF_PI: the part of pi/2 that a double cannot hold.
HALF_PI_LOW: Final = 6.123233995736766e-17
QUARTER_PI: Final = math.pi / 4
QUARTER_PI_LOW: Final = 3.061616997868383e-17
I128: Final = "i128"


def _quadrant_value(m: Math, r: Value, quadrant: Value, *, is_short: bool) -> Value:
    """sin(r + quadrant pi/2) for |r| <= pi/4."""
    sin_tail, cos_tail = (
        (fitted.SIN_F32, fitted.COS_F32) if is_short else (fitted.SIN_F64, fitted.COS_F64)
    )
    z = m.mul(r, r)
    sine = m.fma(m.mul(r, z), m.polynomial(sin_tail, z), r)
    half = m.mul(z, 0.5)
    rounded = m.sub(1.0, half)
    lost = m.sub(m.sub(1.0, rounded), half)
    cosine = m.add(rounded, m.fma(m.mul(z, z), m.polynomial(cos_tail, z), lost))
    is_odd = m.fn.compare("icmp", "ne", m.int_op("and", quadrant, 1), m.int_const(0))
    value = m.select(is_odd, cosine, sine)
    is_low = m.fn.compare("icmp", "ne", m.int_op("and", quadrant, 2), m.int_const(0))
    return m.select(is_low, m.neg(value), value)


def _within_turns(m: Math, x: Value) -> tuple[Value, Value]:
    """(p, q) with p + q equal to an f32 `x` up to a multiple of 2 pi; `m` computes in f64.

    An argument below 2^44 is p itself, and q is 0. A larger one is an integer below 2^44 times a
    power of two, of which only the remainder modulo 2 pi matters.
    """
    size = m.abs(x)
    scale, high, low = m.const(1.0), m.const(1.0), m.const(0.0)
    for threshold, exponent, remainder_high, remainder_low in fitted.POWERS_MODULO_TURN:
        is_above = m.test("oge", size, 2.0**threshold)
        scale = m.select(is_above, 2.0**-exponent, scale)
        high = m.select(is_above, remainder_high, high)
        low = m.select(is_above, remainder_low, low)
    small = m.mul(x, scale)
    product = m.mul(small, high)
    return product, m.fma(small, low, m.fma(small, high, m.neg(product)))


def _sine_of_wide(m: Math, x: Value, *, is_cosine: bool) -> Value:
    """sin or cos of an f32 that `m` holds in f64.

    x = n pi + r with |r| <= pi/2, where n is an integer, or a half more than one for the cosine.
    Its lowest bit is the sign. The products with pi are exact in an FMA.
    """
    p, q = _within_turns(m, x)
    halves = m.fma(p, 1 / math.pi, -0.5 if is_cosine else 0.0)
    shifted = m.add(halves, m.format.round_shift)
    n = m.sub(shifted, m.format.round_shift)
    if is_cosine:
        n = m.add(n, 0.5)
    r = m.fma(n, -math.pi, p)
    r = m.add(m.fma(n, -2 * HALF_PI_LOW, r), q)
    z = m.mul(r, r)
    sine = m.fma(m.mul(r, z), m.polynomial(fitted.SIN_HALF_TURN, z), r)
    # cos(n pi + r) with n = k + 1/2 is -sin(r) for even k.
    number = m.as_bits(shifted)
    number = m.int_op("xor", number, 1) if is_cosine else number
    return m.from_bits(m.int_op("xor", m.as_bits(sine), m.int_op("shl", number, 63)))


def _reduce_f32(m: Math, x: Value) -> tuple[Value, Value]:
    """(r, quadrant) of an f32 argument; `m` computes in f64."""
    p, q = _within_turns(m, x)
    shifted = m.add(m.mul(p, 2 / math.pi), m.format.round_shift)
    n = m.sub(shifted, m.format.round_shift)
    r = m.fma(n, -HALF_PI, p)
    return m.add(m.fma(n, -HALF_PI_LOW, r), q), m.as_bits(shifted)


def _reduce_f64(m: Math, x: Value) -> tuple[Value, Value]:
    """(r, quadrant) of |x|: a product with the 192 bits of 2/pi that matter modulo 4."""
    fn = m.fn
    pattern = m.as_bits(m.abs(x))
    mantissa = m.int_op("or", m.int_op("and", pattern, (1 << 52) - 1), 1 << 52)
    exponent = m.int_op("sub", m.int_op("lshr", pattern, 52), 1023)
    position = fn.intrinsic("smax", m.int_op("add", exponent, 10), m.int_const(0))
    at = m.int_op("lshr", position, 6)
    words = [
        m.table_entry("kf.two_over_pi.words", I64, fitted.TWO_OVER_PI_WORDS, m.int_op("add", at, k))
        for k in range(4)
    ]
    shift = m.int_op("and", position, 63)
    window = [fn.intrinsic("fshl", words[k], words[k + 1], shift) for k in range(3)]
    wide = fn.cast("zext", mantissa, I128)
    low = fn.op("mul", wide, fn.cast("zext", window[2], I128))
    middle = fn.op("mul", wide, fn.cast("zext", window[1], I128))
    middle = fn.op("add", middle, fn.op("lshr", low, integer(64, I128)))
    top = m.int_op("mul", mantissa, window[0])
    carried = fn.cast("trunc", fn.op("lshr", middle, integer(64, I128)), I64)
    top = m.int_op("add", top, carried)
    next_word = fn.cast("trunc", middle, I64)
    quadrant = m.int_op("lshr", m.int_op("add", top, 1 << 61), 62)
    fraction_high = fn.intrinsic("fshl", top, next_word, m.int_const(2))
    fraction_low = fn.intrinsic("fshl", next_word, fn.cast("trunc", low, I64), m.int_const(2))
    high = m.mul(m.int_to_float(fraction_high), 2.0**-64)
    fraction = m.fma(fn.cast("uitofp", fraction_low, DOUBLE), 2.0**-128, high)
    r = m.mul(fraction, HALF_PI)
    is_small = m.test("olt", m.abs(x), QUARTER_PI)
    zero = m.int_const(0)
    return m.select(is_small, m.abs(x), r), fn.select(is_small, zero, quadrant)


def _nan_unless_finite(m: Math, x: Value, result: Value) -> Value:
    return m.select(m.test("one", m.abs(x), math.inf), result, math.nan)


def sin_f64(m: Math, x: Value) -> Value:
    """Sine in f64."""
    r, quadrant = _reduce_f64(m, x)
    size = _quadrant_value(m, r, quadrant, is_short=False)
    is_negative = m.fn.compare("icmp", "slt", m.as_bits(x), m.int_const(0))
    return _nan_unless_finite(m, x, m.select(is_negative, m.neg(size), size))


def cos_f64(m: Math, x: Value) -> Value:
    """Cosine in f64."""
    r, quadrant = _reduce_f64(m, x)
    size = _quadrant_value(m, r, m.int_op("add", quadrant, 1), is_short=False)
    return _nan_unless_finite(m, x, size)


def sin_f32(m: Math, x: Value) -> Value:
    """Sine of an f32; tiny arguments, minus zero among them, are their own sine."""
    wide = m.wider()
    sine = _sine_of_wide(wide, m.fn.cast("fpext", x, DOUBLE), is_cosine=False)
    return m.select(m.test("olt", m.abs(x), 2.0**-12), x, m.fn.cast("fptrunc", sine, FLOAT))


def cos_f32(m: Math, x: Value) -> Value:
    """Cosine of an f32."""
    wide = m.wider()
    cosine = _sine_of_wide(wide, m.fn.cast("fpext", x, DOUBLE), is_cosine=True)
    return m.fn.cast("fptrunc", cosine, FLOAT)


def _usual(m: Math, x: Value, ahead: int) -> Value:
    """sin(x + ahead pi/2) for |x| < 4096, in f32: twice as many lanes as in f64.

    x = n pi/2 + r - lost. The second term of pi/2 has so few bits that its product with n is exact,
    and so is what r loses of it: either r is so small that it has all bits, or it is within a
    factor of two of the number before. With z = r^2, sine and cosine of r have one form:

        sin r = r - rz/6 + rz * z * tail(z)    cos r = 1 - z/2 + z * z * tail(z)

    The sum of the first two terms is rounded once, and what it and the power lose is added later.
    """
    high, middle, low = fitted.QUARTER_TURN
    shifted = m.fma(x, 2 / math.pi, m.format.round_shift)
    n = m.sub(shifted, m.format.round_shift)
    first = m.fma(n, -high, x)
    r = m.fma(n, -middle, first)
    lost = m.fma(n, low, m.fma(n, middle, m.sub(r, first)))
    quadrant = m.as_bits(shifted)
    quadrant = m.int_op("add", quadrant, ahead) if ahead else quadrant
    is_cosine = m.fn.compare("icmp", "ne", m.int_op("and", quadrant, 1), m.int_const(0))

    z = m.mul(r, r)
    start = m.select(is_cosine, 1.0, r)
    factor = m.select(is_cosine, r, z)
    scale = m.select(is_cosine, 0.5, 1 / 6)
    power = m.mul(r, factor)
    rounded = m.fma(power, m.neg(scale), start)
    rest = m.fma(power, m.neg(scale), m.sub(start, rounded))
    rest = m.fma(m.fma(r, factor, m.neg(power)), m.neg(scale), rest)
    slope = m.select(is_cosine, r, m.fma(z, 0.5, -1.0))
    rest = m.fma(lost, slope, rest)
    coefficients = zip(fitted.SIN_SHORT, fitted.COS_SHORT, strict=True)
    lowest, *others = (m.select(is_cosine, cosine, sine) for sine, cosine in coefficients)
    tail = others[-1]
    for coefficient in (*reversed(others[:-1]), lowest):
        tail = m.fma(tail, z, coefficient)
    value = m.add(rounded, m.fma(m.mul(power, z), tail, rest))
    sign = m.int_op("shl", m.int_op("lshr", quadrant, 1), 31)
    return m.from_bits(m.int_op("xor", m.as_bits(value), sign))


def usual_sin(m: Math, x: Value) -> Value:
    """Sine of an f32 below 4096; the sum of its terms loses the sign of zero."""
    return m.select(m.test("oeq", x, 0.0), x, _usual(m, x, 0))


def usual_cos(m: Math, x: Value) -> Value:
    """Cosine of an f32 below 4096."""
    return _usual(m, x, 1)


def tan_f64(m: Math, x: Value) -> Value:
    """Tangent in f64."""
    return m.div(m.call("sin", x), m.call("cos", x))


def tan_f32(m: Math, x: Value) -> Value:
    """Tangent of an f32, divided in f64."""
    wide = m.wider()
    r, quadrant = _reduce_f32(wide, m.fn.cast("fpext", x, DOUBLE))
    sine = _quadrant_value(wide, r, quadrant, is_short=True)
    cosine = _quadrant_value(wide, r, wide.int_op("add", quadrant, 1), is_short=True)
    result = m.fn.cast("fptrunc", wide.div(sine, cosine), FLOAT)
    return m.select(m.test("olt", m.abs(x), 2.0**-12), x, result)


def atan(m: Math, x: Value) -> Value:
    """Arc tangent, reduced to |t| <= tan(pi/8)."""
    a = m.abs(x)
    is_far = m.test("ogt", a, 2.414213562373095)
    is_middle = m.test("ogt", a, 0.41421356237309503)
    top = m.select(is_far, -1.0, m.select(is_middle, m.sub(a, 1.0), a))
    bottom = m.select(is_far, a, m.select(is_middle, m.add(a, 1.0), 1.0))
    t = m.div(top, bottom)
    z = m.mul(t, t)
    base = m.select(is_far, HALF_PI, m.select(is_middle, QUARTER_PI, 0.0))
    base_low = m.select(is_far, HALF_PI_LOW, m.select(is_middle, QUARTER_PI_LOW, 0.0))
    small = m.fma(m.mul(t, z), m.polynomial(fitted.ATAN_F64, z), base_low)
    return m.copysign(m.add(base, m.add(t, small)), x)


def atan2(m: Math, y: Value, x: Value) -> Value:
    """The angle of the point (x, y)."""
    a, b = m.abs(x), m.abs(y)
    is_steep = m.test("ogt", b, a)
    small, large = m.select(is_steep, a, b), m.select(is_steep, b, a)
    ratio = m.div(small, large)
    ratio = m.select(m.test("oeq", small, large), 1.0, ratio)
    ratio = m.select(m.test("oeq", small, 0.0), 0.0, ratio)
    angle = m.call("atan", ratio)
    angle = m.select(is_steep, m.add(m.sub(HALF_PI, angle), HALF_PI_LOW), angle)
    is_left = m.fn.compare("icmp", "slt", m.as_bits(x), m.int_const(0))
    angle = m.select(is_left, m.add(m.sub(math.pi, angle), 2 * HALF_PI_LOW), angle)
    result = m.copysign(angle, y)
    return m.select(m.test("uno", x, y), math.nan, result)


def _asin_core(m: Math, x: Value) -> Value:
    z = m.mul(x, x)
    return m.fma(m.mul(x, z), m.polynomial(fitted.ASIN_F64, z), x)


def asin(m: Math, x: Value) -> Value:
    """Arc sine; above 1/2 by the half angle."""
    a = m.abs(x)
    is_far = m.test("ogt", a, 0.5)
    root = m.sqrt(m.mul(m.sub(1.0, a), 0.5))
    core = _asin_core(m, m.select(is_far, root, a))
    far = m.sub(HALF_PI, m.sub(m.add(core, core), HALF_PI_LOW))
    return m.copysign(m.select(is_far, far, core), x)


def acos(m: Math, x: Value) -> Value:
    """Arc cosine; outside -1/2..1/2 by the half angle."""
    a = m.abs(x)
    is_far = m.test("ogt", a, 0.5)
    root = m.sqrt(m.mul(m.sub(1.0, a), 0.5))
    core = _asin_core(m, m.select(is_far, root, x))
    near = m.sub(HALF_PI, m.sub(core, HALF_PI_LOW))
    twice = m.add(core, core)
    left = m.sub(math.pi, m.sub(twice, 2 * HALF_PI_LOW))
    far = m.select(m.test("olt", x, 0.0), left, twice)
    return m.select(is_far, far, near)


TRIG_FUNCTIONS: Final = {
    "sin": MathFunction(sin_f64, sin_f32, 0.6, 2.5, usual_sin),
    "cos": MathFunction(cos_f64, cos_f32, 0.6, 2.5, usual_cos),
    "tan": MathFunction(tan_f64, tan_f32, 0.6, 4.0),
    "asin": MathFunction(asin, None, 0.6, 2.5),
    "acos": MathFunction(acos, None, 0.6, 2.0),
    "atan": MathFunction(atan, None, 0.6, 2.0),
    "atan2": MathFunction(atan2, None, 0.6, 2.5),
}
