"""Functions that Triton lacks, as Triton source, and the combine functions of reductions.

Vendors' math libraries differ in names and results, and Ascend's adapter knows none. Therefore
these functions use only `tl.exp`, `tl.log` and arithmetic. A number alone on the right of `=`
becomes an f32. If its use may be f64, the number is written in an operation with a tensor, whose
type it takes.

Each entry is the text of one function; a kernel's source contains those that it uses. Their
accuracy is a few units in the last place of f32 unless stated.
"""

from __future__ import annotations

import re

from codegen_svc.emitters.triton.float8 import FLOAT8_HELPERS
from codegen_svc.emitters.triton.narrow_formulas import FLUSHING_HELPERS, NARROW_HELPERS
from codegen_svc.emitters.triton.random_bits import kf_philox_text
from codegen_svc.emitters.triton.scatter import atomic_helpers
from codegen_svc.emitters.triton.sort import sort_helpers

_HELPER_NAME = re.compile(r"\bkf_\w+")

HELPERS: dict[str, str] = {
    "kf_floor_div": """
def kf_floor_div(a, b):
    # rounds to minus infinity; `//` rounds to zero
    quotient = a // b
    return tl.where(((a % b) != 0) & ((a < 0) != (b < 0)), quotient - 1, quotient)
""",
    "kf_floor_mod": """
def kf_floor_mod(a, b):
    # takes the divisor's sign; `%` takes the dividend's
    remainder = a % b
    return tl.where((remainder != 0) & ((remainder < 0) != (b < 0)), remainder + b, remainder)
""",
    "kf_floor_div_float": """
def kf_floor_div_float(a, b):
    # floor of the exact quotient, from the exact remainder
    remainder = a % b
    quotient = (a - remainder) / b
    quotient = tl.where((remainder != 0) & ((remainder < 0) != (b < 0)), quotient - 1.0, quotient)
    rounded = tl.floor(quotient)
    rounded = tl.where(quotient - rounded > 0.5, rounded + 1.0, rounded)
    rounded = tl.where(quotient == 0.0, kf_copysign(quotient, a / b), rounded)
    return tl.where(b == 0.0, a / b, rounded)
""",
    "kf_philox": kf_philox_text(),
    **FLOAT8_HELPERS,
    "kf_product": """
def kf_product(a, b):
    return a * b
""",
    "kf_square": """
def kf_square(x):
    return x * x
""",
    "kf_sum": """
def kf_sum(a, b):
    return a + b
""",
    "kf_add_exp": """
def kf_add_exp(top, total, x):
    # a sum of exp(value - top), after one more value that may be the new top
    apart = tl.where(x == top, 0.0, x - top)
    scale = tl.exp(-tl.abs(apart))
    return tl.where(apart > 0.0, total * scale + 1.0, total + scale)
""",
    "kf_add_exps": """
def kf_add_exps(top, total, x, tops):
    # a sum of exp(value - top), after several more values, among which the new top may be
    is_least = tops == float("-inf")
    base = tl.where(is_least, 0.0, tops)
    new = tl.sum(tl.exp(x - base[:, None, :]), 1)
    return total * tl.exp(top - base) + tl.where(is_least, 1.0, new)
""",
    "kf_softmax_total": """
def kf_softmax_total(tops, totals, top):
    # the lanes' sums against the top of all; an infinite top makes NaN, no values make 0
    apart = tl.where(tops == top, 0.0, tops - top)
    total = tl.sum(totals * tl.exp(apart), 1, keep_dims=True)
    return tl.where((tl.abs(top) == float("inf")) & (total != 0.0), float("nan"), total)
""",
    "kf_again": """
def kf_again(x):
    # the same 16-bit values, but no compiler knows that: a launch has one plane of programs, whose
    # number is 0. So conversions are computed again, instead of held in twice as many registers.
    plane = tl.program_id(2)
    return tl.inline_asm_elementwise(
        "xor.b32 $0, $1, $2;", "=r,r,r,r", [x, plane], dtype=x.dtype, is_pure=True, pack=2
    )
""",
    "kf_again_word": """
def kf_again_word(x):
    # like kf_again, for values of 32 bits
    plane = tl.program_id(2)
    return tl.inline_asm_elementwise(
        "xor.b32 $0, $1, $2;", "=r,r,r", [x, plane], dtype=x.dtype, is_pure=True, pack=1
    )
""",
    "kf_welford": """
def kf_welford(mean, total, x, share):
    # the mean and the sum of squares about it, after one more value; share is 1 / count
    apart = x - mean
    after = mean + apart * share
    return after, total + apart * (x - after)
""",
    "kf_log_add_exp": """
def kf_log_add_exp(a, b):
    # an infinity stands for itself; NaN stays
    larger = kf_nan_max(a, b)
    apart = tl.exp(kf_nan_min(a, b) - larger)
    return tl.where(tl.abs(larger) == float("inf"), larger, larger + kf_log1p(apart))
""",
    "kf_last_max": """
def kf_last_max(a, i, b, j):
    # of equal ones the later; a NaN is above every number
    is_later = (b >= a) | (b != b)
    return tl.where(is_later, b, a), tl.where(is_later, j, i)
""",
    "kf_last_min": """
def kf_last_min(a, i, b, j):
    # of equal ones the later; a NaN is below every number
    is_later = (b <= a) | (b != b)
    return tl.where(is_later, b, a), tl.where(is_later, j, i)
""",
    "kf_nan_max": """
def kf_nan_max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "kf_nan_min": """
def kf_nan_min(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "kf_same": """
def kf_same(a, b):
    # equal, or both NaN
    return (a == b) | ((a != a) & (b != b))
""",
    "kf_above": """
def kf_above(a, b):
    # a beats b in an argmax; NaN beats every number
    return (a > b) | ((a != a) & (b == b))
""",
    "kf_below": """
def kf_below(a, b):
    # a beats b in an argmin; NaN beats every number
    return (a < b) | ((a != a) & (b == b))
""",
    "kf_signbit": """
def kf_signbit(x):
    if x.dtype == tl.float64:
        return x.to(tl.int64, bitcast=True) < 0
    else:
        return x.to(tl.int32, bitcast=True) < 0
""",
    "kf_copysign": """
def kf_copysign(magnitude, sign):
    return tl.where(kf_signbit(sign), -tl.abs(magnitude), tl.abs(magnitude))
""",
    "kf_trunc": """
def kf_trunc(x):
    return tl.where(x < 0.0, tl.ceil(x), tl.floor(x))
""",
    "kf_round_even": """
def kf_round_even(x):
    # adding 2**mantissa bits leaves no room for a fraction; the adder rounds half to even
    if x.dtype == tl.float64:
        big = 4503599627370496.0
    else:
        big = 8388608.0
    magnitude = tl.abs(x)
    rounded = kf_copysign((magnitude + big) - big, x)
    return tl.where(magnitude < big, rounded, x)
""",
    "kf_expm1": """
def kf_expm1(x):
    # Kahan: the error of u = exp(x) cancels in (u - 1) * x / log(u)
    u = tl.exp(x)
    small = (u - 1.0) * (x / tl.log(u))
    result = tl.where(u == 1.0, x, small)
    result = tl.where(tl.abs(x) > 1.0, u - 1.0, result)
    return result
""",
    "kf_log1p": """
def kf_log1p(x):
    # Kahan: the error of u = 1 + x cancels in log(u) * x / (u - 1)
    u = 1.0 + x
    small = tl.log(u) * (x / (u - 1.0))
    return tl.where(u == 1.0, x, tl.where(tl.abs(x) > 1.0, tl.log(u), small))
""",
    "kf_tanh": """
def kf_tanh(x):
    magnitude = tl.abs(x)
    if x.dtype == tl.float64:
        e = kf_expm1(2.0 * tl.minimum(magnitude, 40.0))
        result = e / (e + 2.0)
    else:
        # Cephes tanhf: a polynomial where 1 - 2/(exp(2x)+1) would cancel
        z = x * x
        p = -5.70498872745e-3
        p = p * z + 2.06390887954e-2
        p = p * z - 5.37397155531e-2
        p = p * z + 1.33314422036e-1
        p = p * z - 3.33332819422e-1
        large = 1.0 - 2.0 / (tl.exp(2.0 * magnitude) + 1.0)
        result = tl.where(magnitude < 0.625, magnitude + magnitude * z * p, large)
    result = tl.where(x != x, x, result)
    return kf_copysign(result, x)
""",
    "kf_sigmoid": """
def kf_sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))
""",
    "kf_sinh": """
def kf_sinh(x):
    magnitude = tl.abs(x)
    e = kf_expm1(magnitude)
    # beyond 20 the small term is below rounding; half the exponent avoids early overflow
    half = tl.exp(0.5 * magnitude)
    result = tl.where(magnitude > 20.0, (0.5 * half) * half, 0.5 * (e + e / (e + 1.0)))
    return kf_copysign(result, x)
""",
    "kf_cosh": """
def kf_cosh(x):
    half = tl.exp(0.5 * tl.abs(x))
    return (0.5 * half) * half + 0.5 / half / half
""",
    "kf_asinh": """
def kf_asinh(x):
    magnitude = tl.abs(x)
    square = magnitude * magnitude
    small = kf_log1p(magnitude + square / (1.0 + tl.sqrt(square + 1.0)))
    result = tl.where(magnitude > 1.0e9, tl.log(magnitude) + 0.6931471805599453, small)
    return kf_copysign(result, x)
""",
    "kf_acosh": """
def kf_acosh(x):
    t = x - 1.0
    small = kf_log1p(t + tl.sqrt(2.0 * t + t * t))
    return tl.where(x > 1.0e9, tl.log(x) + 0.6931471805599453, small)
""",
    "kf_atanh": """
def kf_atanh(x):
    magnitude = tl.abs(x)
    return kf_copysign(0.5 * kf_log1p(2.0 * magnitude / (1.0 - magnitude)), x)
""",
    "kf_atan": """
def kf_atan(x):
    # Cephes atan: reduction at tan(3 pi/8) and 0.66, then a rational function
    magnitude = tl.abs(x)
    is_large = magnitude > 2.414213562373095
    is_middle = (magnitude > 0.66) & (magnitude <= 2.414213562373095)
    reduced = tl.where(is_middle, (magnitude - 1.0) / (magnitude + 1.0), magnitude)
    reduced = tl.where(is_large, -1.0 / magnitude, reduced)
    zero = tl.zeros_like(x)
    offset = tl.where(is_middle, zero + 0.7853981633974483, zero)
    offset = tl.where(is_large, zero + 1.5707963267948966, offset)
    z = reduced * reduced
    p = -8.750608600031904122785e-1 * z - 1.615753718753365076637e1
    p = p * z - 7.500855792314704667340e1
    p = p * z - 1.228866684490136173410e2
    p = p * z - 6.485021904942025371773e1
    q = z + 2.485846490142306297962e1
    q = q * z + 1.650270098316988542046e2
    q = q * z + 4.328810604912902668951e2
    q = q * z + 4.853903996359136964868e2
    q = q * z + 1.945506571482613964425e2
    result = offset + (reduced + reduced * (z * p / q))
    return kf_copysign(tl.where(x != x, x, result), x)
""",
    "kf_atan2": """
def kf_atan2(y, x):
    # the quotient of two infinities or two zeros stands for its limit
    up, right = tl.abs(y), tl.abs(x)
    are_inf = (up == float("inf")) & (right == float("inf"))
    quotient = tl.where(are_inf, 1.0, up / right)
    quotient = tl.where((up == 0.0) & (right == 0.0), 0.0, quotient)
    angle = kf_atan(quotient)
    angle = tl.where(kf_signbit(x), 3.141592653589793 - angle, angle)
    angle = tl.where((x != x) | (y != y), x + y, angle)
    return kf_copysign(angle, y)
""",
    "kf_asin": """
def kf_asin(x):
    return kf_atan2(x, tl.sqrt((1.0 - x) * (1.0 + x)))
""",
    "kf_acos": """
def kf_acos(x):
    return 2.0 * kf_atan2(tl.sqrt(1.0 - x), tl.sqrt(1.0 + x))
""",
    "kf_erfc": """
def kf_erfc(x):
    if x.dtype == tl.float64:
        return kf_erfc_double(x)
    else:
        return kf_erfc_single(x)
""",
    "kf_erfc_single": """
def kf_erfc_single(x):
    # Numerical Recipes, section 6.2: relative error below 1.2e-7 everywhere
    magnitude = tl.abs(x)
    t = 1.0 / (1.0 + 0.5 * magnitude)
    p = 0.17087277
    p = p * t - 0.82215223
    p = p * t + 1.48851587
    p = p * t - 1.13520398
    p = p * t + 0.27886807
    p = p * t - 0.18628806
    p = p * t + 0.09678418
    p = p * t + 0.37409196
    p = p * t + 1.00002368
    p = p * t - 1.26551223
    result = t * tl.exp(p - magnitude * magnitude)
    return tl.where(x < 0.0, 2.0 - result, result)
""",
    "kf_erfc_double": """
def kf_erfc_double(x):
    # Cephes erfc: 1 - erf(x) near 0, else exp(-x*x) times one of two rational functions
    a = tl.abs(x)
    p = 2.46196981473530512524e-10 * a + 5.64189564831068821977e-1
    p = p * a + 7.46321056442269912687
    p = p * a + 4.86371970985681366614e1
    p = p * a + 1.96520832956077098242e2
    p = p * a + 5.26445194995477358631e2
    p = p * a + 9.34528527171957607540e2
    p = p * a + 1.02755188689515710272e3
    p = p * a + 5.57535335369399327526e2
    q = a + 1.32281951154744992508e1
    q = q * a + 8.67072140885989742329e1
    q = q * a + 3.54937778887819891062e2
    q = q * a + 9.75708501743205489753e2
    q = q * a + 1.82390916687909736289e3
    q = q * a + 2.24633760818710981792e3
    q = q * a + 1.65666309194161350182e3
    q = q * a + 5.57535340817727675546e2
    r = 5.64189583547755073984e-1 * a + 1.27536670759978104416
    r = r * a + 5.01905042251180477414
    r = r * a + 6.16021097993053585195
    r = r * a + 7.40974269950448939160
    r = r * a + 2.97886665372100240670
    s = a + 2.26052863220117276590
    s = s * a + 9.39603524938001434673
    s = s * a + 1.20489539808096656605e1
    s = s * a + 1.70814450747565897222e1
    s = s * a + 9.60896809063285878198
    s = s * a + 3.36907645100081516050
    tail = tl.exp(-a * a) * tl.where(a < 8.0, p / q, r / s)
    # beyond 28 the result underflows; infinities would make NaN of the quotients
    tail = tl.where(a > 28.0, 0.0, tail)
    tail = tl.where(x < 0.0, 2.0 - tail, tail)
    return tl.where(a < 1.0, 1.0 - tl.erf(x), tl.where(x != x, x, tail))
""",
    "kf_pow": """
def kf_pow(x, y):
    # in the type that WIDE names; exp2(y * log2|x|) loses digits in proportion to its exponent
    base = tl.abs(x)
    result = tl.exp2(y * tl.log2(base))
    is_integer = tl.floor(y) == y
    is_odd = is_integer & (tl.floor(y * 0.5) * 2.0 != y)
    result = tl.where(kf_signbit(x) & is_odd, -result, result)
    result = tl.where((x < 0.0) & (x > -float("inf")) & (is_integer == 0), float("nan"), result)
    result = tl.where((base == 1.0) & (tl.abs(y) == float("inf")), 1.0, result)
    return tl.where((y == 0.0) | (x == 1.0), 1.0, result)
""",
    **NARROW_HELPERS,
    **FLUSHING_HELPERS,
    **atomic_helpers(),
    **sort_helpers(),
}
"""Helper functions by name; each text is one function without its decorator."""


def used_helpers(text: str) -> tuple[str, ...]:
    """The names of the helpers that a text calls, directly or indirectly, callees first."""
    order: list[str] = []
    for name in _HELPER_NAME.findall(text):
        _visit(name, order)
    return tuple(order)


def _visit(name: str, order: list[str]) -> None:
    if name in order:
        return
    for callee in _HELPER_NAME.findall(HELPERS[name]):
        if callee != name:
            _visit(callee, order)
    if name not in order:
        order.append(name)
