"""Elementary functions at the precision of f16 and bf16 results, as Triton source.

Bound: relative error below 2^-16 in f32, with the hardware's exponential and division, which err by
2 units in the last place of f32 each (NVIDIA, "PTX ISA", `ex2.approx` and `div.full`; AMD's err by
less). Where the result is subnormal in f32, the bound is 2^-16 of the smallest normal number, or
the result is 0. Two exceptions: `1 + erf(x)` keeps 2^-13 for x in -5..-3, and beyond -5 it is at
most the exact value; an f32 sum of 1 and erf(x) is 0 from -3.9 on. NaN and infinities give what the
full forms give.

The polynomials are minimax fits by `tests/codegen_svc/emitters/triton/fit_narrow_formulas.py`. All
formulas are arithmetic and `exp2`, which every vendor has: on an H200 an element of bf16 in and out
allows about 28 instructions at the speed of a copy.
"""

from __future__ import annotations

FLUSHING_HELPERS: dict[str, str] = {
    "kf_narrow_exp": """
def kf_narrow_exp(x):
    # PTX ISA, ex2: without .ftz, scaling for subnormal results takes three more instructions
    return kf_flushing_exp2(x * 1.44269504)
""",
    "kf_add_flushing_exp": """
def kf_add_flushing_exp(top, total, x):
    # like kf_add_exp: a lane's sum has a 1, beside which subnormal numbers change nothing
    apart = tl.where(x == top, 0.0, x - top)
    scale = kf_narrow_exp(-tl.abs(apart))
    return tl.where(apart > 0.0, total * scale + 1.0, total + scale)
""",
    "kf_add_flushing_exps": """
def kf_add_flushing_exps(top, total, x, tops):
    # like kf_add_exps: a lane's sum has a 1, beside which subnormal numbers change nothing
    is_least = tops == float("-inf")
    base = tl.where(is_least, 0.0, tops)
    new = tl.sum(kf_narrow_exp(x - base[:, None, :]), 1)
    return total * kf_narrow_exp(top - base) + tl.where(is_least, 1.0, new)
""",
    "kf_flushing_exp2": """
def kf_flushing_exp2(x):
    return tl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )
""",
    "kf_flushing_reciprocal": """
def kf_flushing_reciprocal(x):
    return tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )
""",
    "kf_narrow_over_one_plus_exp": """
def kf_narrow_over_one_plus_exp(a, x):
    # a / (1 + exp(x)), all by 4, so that the reciprocal of the largest sum is no subnormal number
    total = 0.25 + kf_flushing_exp2(x * 1.44269504 - 2.0)
    return (a * 0.25) * kf_flushing_reciprocal(total)
""",
    "kf_narrow_exp_share": """
def kf_narrow_exp_share(x, total):
    # exp(x) / total, at most 1: 2**24 times as much is subnormal only where the share is below the
    # smallest number. The logarithm is one for a row.
    return kf_flushing_exp2(x * 1.44269504 + (24.0 - tl.log2(total))) * 5.9604644775390625e-8
""",
    "kf_narrow_share": """
def kf_narrow_share(a, total):
    # one reciprocal for a row: the total is at least 1
    return a * (1.0 / total)
""",
}
"""Helpers in PTX for chips that take it; they err as the full forms do, by units of f32."""

NARROW_HELPERS: dict[str, str] = {
    "kf_narrow_one_plus_erf": """
def kf_narrow_one_plus_erf(x):
    # erfc(a) = 2**(a * p(a)) for a = |x|; the leading coefficient is negative, so infinity gives 0
    a = tl.abs(x)
    p = -1.97667141e-5
    p = p * a + 4.78677131e-4
    p = p * a - 5.18488092e-3
    p = p * a + 3.38107347e-2
    p = p * a - 0.15229924
    p = p * a - 0.917162538
    p = p * a - 1.62804532
    tail = tl.exp2(p * a)
    return tl.where(x < 0.0, tail, 2.0 - tail)
""",
    "kf_narrow_erf": """
def kf_narrow_erf(x):
    # near 0 the difference would cancel
    z = x * x
    small = x * ((0.106599117 * z - 0.375754685) * z + 1.12837585)
    return tl.where(z < 0.16, small, kf_narrow_one_plus_erf(x) - 1.0)
""",
    "kf_narrow_one_plus_tanh": """
def kf_narrow_one_plus_tanh(x):
    # 2 / (1 + exp(-2x))
    return 2.0 / (1.0 + tl.exp2(-2.88539008 * x))
""",
    "kf_narrow_tanh": """
def kf_narrow_tanh(x):
    # near 0 the difference would cancel; the next term of the series is below 2**-18
    small = x - x * x * (x * 0.333333333)
    large = 1.0 - 2.0 / (1.0 + tl.exp2(2.88539008 * x))
    return tl.where(tl.abs(x) < 0.0625, small, large)
""",
    "kf_narrow_tanh_log1p": """
def kf_narrow_tanh_log1p(x):
    # ((1 + x)**2 - 1) / ((1 + x)**2 + 1); from 2**30 on it is 1, and the square may overflow
    n = x * (x + 2.0)
    return tl.where(x > 1073741824.0, 1.0, n / (n + 2.0))
""",
    "kf_narrow_softplus": """
def kf_narrow_softplus(x):
    # log(1 + exp(x)) = max(x, 0) + log1p(t) for t = exp(-|x|), which is at most 1
    t = tl.exp(-tl.abs(x))
    p = -0.0238691248
    p = p * t + 0.101222217
    p = p * t - 0.210048631
    p = p * t + 0.325206659
    p = p * t - 0.499361362
    p = p * t + 0.999991598
    return tl.maximum(x, 0.0) + t * p
""",
    "kf_narrow_expm1": """
def kf_narrow_expm1(x):
    # near 0 the difference would cancel; the next term of the series is below 2**-18
    p = 0.0416666667 * x + 0.166666667
    p = p * x + 0.5
    p = p * x + 1.0
    return tl.where(tl.abs(x) < 0.125, p * x, tl.exp(x) - 1.0)
""",
}
"""Helper functions by name, as in `math_functions.HELPERS`; arguments are f32."""
