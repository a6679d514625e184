"""The fitted functions for the logarithm of gamma, each a function of u in [-1, 1]."""

from __future__ import annotations

from typing import Any

import mpmath as mp


def near(u: Any) -> Any:
    """log(gamma(1 + t)) / (t * (t - 1)) on 0 <= t <= 1; u = 2 * t - 1."""
    t = (u + 1) / 2
    return mp.loggamma(1 + t) / (t * (t - 1))


def stirling(u: Any) -> Any:
    """x times the error of Stirling's formula, on x >= 8; u = 128 / x**2 - 1."""
    x = 8 * mp.sqrt(2 / (u + 1))
    formula = (x - mp.mpf(1) / 2) * mp.log(x) - x + mp.log(2 * mp.pi) / 2
    return x * (mp.loggamma(x) - formula)


def digamma_tail(u: Any) -> Any:
    """x**2 times (digamma(x) - log(x) + 1 / (2 * x)) on x >= 8; u = 128 / x**2 - 1."""
    x = 8 * mp.sqrt(2 / (u + 1))
    return x**2 * (mp.digamma(x) - mp.log(x) + 1 / (2 * x))


TABLES = {
    "LOG_GAMMA_NEAR": near,
    "LOG_GAMMA_STIRLING": stirling,
    "DIGAMMA_TAIL": digamma_tail,
}
