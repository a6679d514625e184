"""The fitted functions for functions related to erf, each a function of u in [-1, 1]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath as mp


def scaled_complement(u: Any) -> Any:
    """(1 + 2 * x) * exp(x * x) * erfc(x) on x >= 0; u = (x - 3.75) / (x + 3.75).

    Source: M. M. Shepherd and J. G. Laframboise, Chebyshev approximation of
    (1 + 2x)exp(x^2)erfc x in 0 <= x < infinity, Mathematics of Computation 36 (1981).
    """
    x = mp.mpf("3.75") * (1 + u) / (1 - u)
    if x > 1e4:
        # The asymptotic series: erfc itself underflows.
        return (
            (1 + 2 * x)
            * sum(mp.fac2(2 * n - 1) * (-1) ** n / (2 * x * x) ** n for n in range(6))
            / (x * mp.sqrt(mp.pi))
        )
    return (1 + 2 * x) * mp.exp(x * x) * mp.erfc(x)


def inverse(low: float, high: float) -> Callable[[Any], Any]:
    """erfinv(x) / x where -log(1 - x * x) is in [low, high], linear in u."""

    def function(u: Any) -> Any:
        w = (high - low) / mp.mpf(2) * u + (high + low) / mp.mpf(2)
        return _quotient(w)

    return function


def inverse_of_root(low: float, high: float) -> Callable[[Any], Any]:
    """erfinv(x) / x where sqrt(-log(1 - x * x)) is in [low, high], linear in u."""

    def function(u: Any) -> Any:
        root = (high - low) / mp.mpf(2) * u + (high + low) / mp.mpf(2)
        return _quotient(root * root)

    return function


def _quotient(w: Any) -> Any:
    """erfinv(x) / x, by Newton's method on log(erfc), at -log(1 - x * x) = w."""
    # With q = 1 - x: q * (2 - q) = exp(-w).
    power = mp.exp(-w)
    q = power / (1 + mp.sqrt(1 - power))
    if q > mp.mpf(1) / 8:
        return mp.erfinv(1 - q) / (1 - q)
    y = mp.sqrt(w)
    for _ in range(40):
        complement = mp.erfc(y)
        step = (mp.log(complement) - mp.log(q)) * complement * mp.sqrt(mp.pi) / 2 * mp.exp(y * y)
        y += step
        if abs(step) < mp.mpf(10) ** -45:
            break
    return y / (1 - q)


TABLES = {
    "SCALED_COMPLEMENT": scaled_complement,
    "INVERSE_NEAR": inverse(0, 6.25),
    "INVERSE_MIDDLE": inverse_of_root(2.5, 4),
    "INVERSE_FAR": inverse_of_root(4, 8),
    "INVERSE_FARTHEST": inverse_of_root(8, 28),
}
