"""The fitted functions for modified Bessel functions, each a function of u in [-1, 1]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath as mp


def small_i(order: int) -> Callable[[Any], Any]:
    """exp(-x) * I(x), divided by x for order 1, on 0 <= x <= 8; u = x / 4 - 1."""

    def function(u: Any) -> Any:
        x = 4 * (u + 1)
        return mp.exp(-x) * mp.besseli(order, x) / x**order

    return function


def large_i(order: int) -> Callable[[Any], Any]:
    """exp(-x) * I(x) * sqrt(x) on x >= 8; u = 16 / x - 1."""

    def function(u: Any) -> Any:
        x = 16 / (u + 1)
        return mp.exp(-x) * mp.besseli(order, x) * mp.sqrt(x)

    return function


def small_k(order: int) -> Callable[[Any], Any]:
    """K(x) without its logarithm, times x for order 1, on 0 < x <= 2; u = x * x / 2 - 1."""

    def function(u: Any) -> Any:
        x = mp.sqrt(2 * (u + 1))
        sign = -1 if order else 1
        rest = mp.besselk(order, x) + sign * mp.log(x / 2) * mp.besseli(order, x)
        return rest * x**order

    return function


def large_k(order: int) -> Callable[[Any], Any]:
    """exp(x) * K(x) * sqrt(x) on x >= 2; u = 4 / x - 1."""

    def function(u: Any) -> Any:
        x = 4 / (u + 1)
        return mp.exp(x) * mp.besselk(order, x) * mp.sqrt(x)

    return function


TABLES = {
    "I0_SMALL": small_i(0),
    "I0_LARGE": large_i(0),
    "I1_SMALL": small_i(1),
    "I1_LARGE": large_i(1),
    "K0_SMALL": small_k(0),
    "K0_LARGE": large_k(0),
    "K1_SMALL": small_k(1),
    "K1_LARGE": large_k(1),
}
