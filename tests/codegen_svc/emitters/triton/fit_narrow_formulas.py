"""Polynomials of `codegen_svc/emitters/triton/narrow_formulas.py`, fitted by Lawson's iteration.

`python -m tests.codegen_svc.emitters.triton.fit_narrow_formulas` prints the coefficients, lowest
power first, and the largest relative error of what they are for. The last digits depend on NumPy.

Source: Lawson, "Contributions to the theory of linear least maximum approximation", 1961.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial, chebyshev
from numpy.typing import NDArray

Values = NDArray[np.float64]
POINTS = 1200
ITERATIONS = 150
# The last argument at which the tail of erf is fitted, and the argument up to which it is tight.
TAIL_END, TAIL_TIGHT = 5.0, 3.0


def main() -> None:
    """Prints the three polynomials."""
    x = _nodes(0.0, TAIL_END)
    exponent = np.array([math.log2(math.erfc(a)) for a in x])
    looseness = 2.0 ** np.interp(x, [0.0, TAIL_TIGHT, TAIL_END], [0.0, 0.0, 4.0])
    _print("log2(erfc(a)) / a", *_fit(exponent / x, x, x * math.log(2.0) / looseness, 6))
    square = _nodes(0.0, 0.16)
    ratio = np.array([math.erf(math.sqrt(z)) / math.sqrt(z) for z in square])
    _print("erf(x) / x of x * x", *_fit(ratio, square, 1.0 / ratio, 2))
    t = _nodes(0.0, 1.0)
    share = np.log1p(t) / t
    _print("log1p(t) / t", *_fit(share, t, 1.0 / share, 5))


def _nodes(low: float, high: float) -> Values:
    angles = np.pi * (np.arange(POINTS) + 0.5) / POINTS
    nodes: Values = (low + high) / 2 + (high - low) / 2 * np.cos(angles)
    return nodes


def _fit(values: Values, x: Values, weights: Values, degree: int) -> tuple[list[float], float]:
    """Coefficients with the smallest largest weighted error, and that error."""
    low, high = round(float(x.min()), 3), round(float(x.max()), 3)
    basis = chebyshev.chebvander((2 * x - low - high) / (high - low), degree)
    shares = np.full(len(x), 1.0 / len(x))
    for _ in range(ITERATIONS):
        scale = np.sqrt(shares) * weights
        found = np.linalg.lstsq(basis * scale[:, None], values * scale, rcond=None)[0]
        errors = np.abs((basis @ found - values) * weights)
        shares = shares * errors / np.sum(shares * errors)
    series = Chebyshev(found, domain=[low, high]).convert(kind=Polynomial)
    return [float(c) for c in series.coef], float(errors.max())


def _print(name: str, coefficients: list[float], error: float) -> None:
    print(f"{name}: 2^{math.log2(error):.2f}", *(f"{c:.9g}" for c in coefficients))


if __name__ == "__main__":
    main()
