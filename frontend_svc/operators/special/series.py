"""Sums of many terms in one variable: Chebyshev series and polynomials."""

from __future__ import annotations

from collections.abc import Sequence

from frontend_svc.operators.core.real_formulas import Real
from kernelfarm.dtypes import DType

_EPSILON = {DType.F64: 2.0**-53, DType.F32: 2.0**-24}


def chebyshev_series(u: Real, series: Sequence[float]) -> Real:
    """A Chebyshev series at u in [-1, 1], with as many terms as affect a result of the type of u.

    Source: C. W. Clenshaw, A note on the summation of Chebyshev series (1955).
    """
    least = max(map(abs, series)) * _EPSILON[u.dtype] / 4
    terms = list(series)
    while len(terms) > 2 and abs(terms[-1]) < least:
        terms.pop()
    twice = u * 2.0
    last: Real | None = None
    current = u.full(terms[-1])
    for term in reversed(terms[1:-1]):
        following = twice * current + term
        last, current = current, following if last is None else following - last
    total = u * current + terms[0]
    return total if last is None else total - last


def polynomial(x: Real, coefficients: Sequence[float]) -> Real:
    """A polynomial by Horner's rule; at least two coefficients, lowest power first."""
    result = x * coefficients[-1] + coefficients[-2]
    for coefficient in reversed(coefficients[:-2]):
        result = result * x + coefficient
    return result
