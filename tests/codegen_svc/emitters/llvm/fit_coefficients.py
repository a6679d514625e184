"""Polynomials fitted with 60 digits: `codegen_svc/emitters/llvm/math_functions/coefficients.py`.

Each polynomial interpolates its function at Chebyshev nodes, which is within a small factor of the
best one. It prints the module: `python -m tests.codegen_svc.emitters.llvm.fit_coefficients`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath as mp

mp.mp.dps = 60
Function = Callable[[Any], Any]


def fit(function: Function, low: Any, high: Any, degree: int) -> list[float]:
    """Coefficients, lowest power first, of the interpolant of `function` on [low, high]."""
    count = degree + 1
    low, high = mp.mpf(low), mp.mpf(high)
    middle, half = (low + high) / 2, (high - low) / 2
    nodes = [middle + half * mp.cos(mp.pi * (2 * k + 1) / (2 * count)) for k in range(count)]
    matrix = mp.matrix(count, count)
    values = mp.matrix(count, 1)
    for row, x in enumerate(nodes):
        values[row] = function(x)
        for column in range(count):
            matrix[row, column] = x**column
    return [float(c) for c in mp.lu_solve(matrix, values)]


LOG2_HALF = mp.log(2) / 2 * mp.mpf("1.001")
QUARTER = (mp.pi / 4) ** 2 * mp.mpf("1.001")
HALF = (mp.pi / 2) ** 2 * mp.mpf("1.01")
LOG_Z = ((mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)) ** 2 * mp.mpf("1.001")
ATAN_Z = (mp.sqrt(2) - 1) ** 2 * mp.mpf("1.001")


def exp_tail(r: Any) -> Any:
    if abs(r) < mp.mpf("1e-20"):  # a node lies at zero, where the quotient loses all digits
        return mp.mpf(1) / 2 + r / 6
    return (mp.expm1(r) - r) / r**2


def log_tail(z: Any) -> Any:
    s = mp.sqrt(z)
    return (2 * mp.atanh(s) / s - 2) / z


def sin_tail(z: Any) -> Any:
    r = mp.sqrt(z)
    return (mp.sin(r) - r) / r**3


def sin_short_tail(z: Any) -> Any:
    r = mp.sqrt(z)
    sixth = mp.nint(mp.mpf(2) ** 26 / 6) / mp.mpf(2) ** 26  # a sixth in f32
    return (mp.sin(r) - r + r**3 * sixth) / r**5


def cos_tail(z: Any) -> Any:
    r = mp.sqrt(z)
    return (mp.cos(r) - 1 + z / 2) / z**2


def atan_tail(z: Any) -> Any:
    x = mp.sqrt(z)
    return (mp.atan(x) - x) / x**3


def asin_tail(z: Any) -> Any:
    x = mp.sqrt(z)
    return (mp.asin(x) - x) / x**3


def erf_ratio(z: Any) -> Any:
    x = mp.sqrt(z)
    return mp.erf(x) / x


def scaled_erfc(t: Any) -> Any:
    """(1 + 2x) exp(x^2) erfc(x) where t = (x - 4) / (x + 4)."""
    x = 4 * (1 + t) / (1 - t)
    return (1 + 2 * x) * mp.exp(x * x) * mp.erfc(x)


def log2_erfc(x: Any) -> Any:
    return mp.log(mp.erfc(x), 2) / x


TABLE: list[tuple[str, str, Function, Any, Any, int]] = [
    ("EXP_F32", "(expm1(r) - r) / r^2", exp_tail, -LOG2_HALF, LOG2_HALF, 5),
    ("EXP_F64", "(expm1(r) - r) / r^2", exp_tail, -LOG2_HALF, LOG2_HALF, 10),
    ("EXP2_F32", "2^r, |r| <= 1/2", lambda r: mp.mpf(2) ** r, "-0.501", "0.501", 5),
    ("EXP2_NARROW", "the same", lambda r: mp.mpf(2) ** r, "-0.501", "0.501", 4),
    ("LOG_F32", "(2 atanh(s)/s - 2) / z, z = s^2", log_tail, mp.mpf("1e-30"), LOG_Z, 3),
    ("LOG_F64", "(2 atanh(s)/s - 2) / z, z = s^2", log_tail, mp.mpf("1e-30"), LOG_Z, 7),
    ("SIN_F32", "(sin(r) - r) / r^3 in z = r^2", sin_tail, mp.mpf("1e-30"), QUARTER, 4),
    ("SIN_HALF_TURN", "the same, |r| <= pi/2", sin_tail, mp.mpf("1e-30"), HALF, 5),
    (
        "SIN_SHORT",
        "(sin(r) - r + r^3 * f32(1/6)) / r^5 in z = r^2",
        sin_short_tail,
        "0.05",  # below, what f32(1/6) lacks does not matter
        QUARTER,
        2,
    ),
    ("COS_SHORT", "(cos(r) - 1 + z/2) / z^2 in z = r^2", cos_tail, mp.mpf("1e-20"), QUARTER, 2),
    ("SIN_F64", "(sin(r) - r) / r^3 in z = r^2", sin_tail, mp.mpf("1e-30"), QUARTER, 7),
    ("COS_F32", "(cos(r) - 1 + z/2) / z^2 in z = r^2", cos_tail, mp.mpf("1e-20"), QUARTER, 4),
    ("COS_F64", "(cos(r) - 1 + z/2) / z^2 in z = r^2", cos_tail, mp.mpf("1e-20"), QUARTER, 7),
    ("ATAN_F64", "(atan(x) - x) / x^3 in z = x^2", atan_tail, mp.mpf("1e-30"), ATAN_Z, 13),
    ("ASIN_F64", "(asin(x) - x) / x^3 in z = x^2", asin_tail, mp.mpf("1e-30"), "0.2501", 13),
    ("ERF_F32", "erf(x) / x in z = x^2, x < 1", erf_ratio, mp.mpf("1e-30"), "1.001", 6),
    ("ERF_F64", "erf(x) / x in z = x^2, x < 1", erf_ratio, mp.mpf("1e-30"), "1.001", 14),
    ("ERF_TAIL_F32", "log2(erfc(x)) / x, 1 <= x < 3.95", log2_erfc, "0.99", "3.96", 6),
    (
        "ERFC_F64",
        "(1 + 2x) exp(x^2) erfc(x) in t = (x-4)/(x+4), 0 <= x < 28",
        scaled_erfc,
        "-1",
        "0.7501",
        23,
    ),
]


# An f32 below this power of two is reduced as it is.
WITHIN = 44
# Bits of an f32 after its first one.
MANTISSA = 23


def powers_modulo_turn() -> list[tuple[int, int, float, float]]:
    """(t, e, high, low): an f32 of at least 2^t is an integer below 2^44 times 2^e.

    high + low = 2^e modulo 2 pi.
    """
    rows = []
    exponent = 0
    with mp.workdps(120):
        while exponent + WITHIN < 128:
            threshold = exponent + WITHIN
            exponent = threshold - MANTISSA
            power = mp.mpf(2) ** exponent
            rest = power - 2 * mp.pi * mp.nint(power / (2 * mp.pi))
            high = float(rest)
            rows.append((threshold, exponent, high, float(rest - high)))
    return rows


def quarter_turn_pieces() -> tuple[float, float, float]:
    """pi/2 in three terms of f32, of which the second one has 11 bits."""
    rest, pieces = mp.pi / 2, []
    for last in (-23, -35, -62):
        piece = mp.nint(rest * mp.mpf(2) ** -last) * mp.mpf(2) ** last
        pieces.append(float(piece))
        rest -= piece
    return pieces[0], pieces[1], pieces[2]


def two_over_pi_words() -> list[int]:
    """2/pi as 64-bit words, most significant first, after one word of zeros."""
    count = 20
    with mp.workdps(420):
        scaled = int(mp.floor(mp.mpf(2) / mp.pi * mp.mpf(2) ** (64 * count)))
    words = [(scaled >> (64 * (count - 1 - k))) & (2**64 - 1) for k in range(count)]
    return [0, *words]


def render() -> str:
    lines = [
        '"""Coefficients of the polynomials of elementary functions, lowest power first.',
        "",
        "Generated by `tests/codegen_svc/emitters/llvm/fit_coefficients.py`; do not edit.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        "from typing import Final",
        "",
    ]
    for name, meaning, function, low, high, degree in TABLE:
        lines += [f"# {meaning}", f"{name}: Final = ("]
        lines += [f"    {c!r}," for c in fit(function, low, high, degree)]
        lines += [")", ""]
    lines += [
        "# (t, e, high, low): from 2^t on, an f32 is an integer below 2^44 times 2^e, and",
        "# high + low = 2^e modulo 2 pi.",
        "POWERS_MODULO_TURN: Final = (",
    ]
    lines += [f"    ({t}, {e}, {high!r}, {low!r})," for t, e, high, low in powers_modulo_turn()]
    lines += [")", ""]
    lines += [
        "# pi/2 in three f32, of which the second one has 11 bits.",
        "QUARTER_TURN: Final = (",
    ]
    lines += [f"    {piece!r}," for piece in quarter_turn_pieces()]
    lines += [")", ""]
    lines += ["# 2/pi in 64-bit words, most significant first, after one word of zeros."]
    lines += ["TWO_OVER_PI_WORDS: Final = ("]
    lines += [f"    0x{word:016X}," for word in two_over_pi_words()]
    lines += [")", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(render(), end="")
