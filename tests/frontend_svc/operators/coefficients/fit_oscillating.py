"""The fitted functions for Bessel's and Airy's functions, each a function of u in [-1, 1]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath as mp


def small_j(order: int) -> Callable[[Any], Any]:
    """J(x) divided by x**order and by its first zeros, on 0 <= x <= 5; u = x * x / 12.5 - 1."""
    with mp.workdps(60):
        zeros = [mp.besseljzero(order, k) ** 2 for k in (1, 2)]
    if order:
        zeros.pop()

    def function(u: Any) -> Any:
        square = (u + 1) * mp.mpf("12.5")
        x = mp.sqrt(square)
        value = mp.besselj(order, x) / x**order
        for zero in zeros:
            value /= square - zero
        return value

    return function


def small_y(order: int) -> Callable[[Any], Any]:
    """Y(x) without logarithm and pole, divided by x**order, on 0 < x <= 5; u as above."""

    def function(u: Any) -> Any:
        x = mp.sqrt((u + 1) * mp.mpf("12.5"))
        rest = mp.bessely(order, x) - 2 / mp.pi * mp.log(x) * mp.besselj(order, x)
        return (rest + 2 / (mp.pi * x)) / x if order else rest

    return function


def phase(order: int, *, is_sine: bool) -> Callable[[Any], Any]:
    """P(x), or Q(x) * x, of x >= 5 with u = 50 / x**2 - 1.

    J(x) = sqrt(2 / (pi * x)) * (P * cos(angle) - Q * sin(angle)),
    Y(x) = sqrt(2 / (pi * x)) * (P * sin(angle) + Q * cos(angle)),
    angle = x - pi / 4 - order * pi / 2.

    Source: M. Abramowitz and I. A. Stegun, Handbook of Mathematical Functions, 9.2.5.
    """

    def function(u: Any) -> Any:
        x = mp.sqrt(50 / (u + 1))
        angle = x - mp.pi / 4 - order * mp.pi / 2
        j, y = mp.besselj(order, x), mp.bessely(order, x)
        scale = mp.sqrt(mp.pi * x / 2)
        if is_sine:
            return scale * (y * mp.cos(angle) - j * mp.sin(angle)) * x
        return scale * (j * mp.cos(angle) + y * mp.sin(angle))

    return function


def airy_near(low: float, high: float) -> Callable[[Any], Any]:
    """Ai(x) on [low, high], linear in u."""

    def function(u: Any) -> Any:
        return mp.airyai((high - low) / mp.mpf(2) * u + (high + low) / mp.mpf(2))

    return function


def airy_above(u: Any) -> Any:
    """Ai(x) * 2 * sqrt(pi) * x**(1/4) * exp(z), z = 2/3 * x**1.5 >= 2; u = 4 / z - 1."""
    z = 4 / (u + 1)
    x = (z * 3 / 2) ** (mp.mpf(2) / 3)
    return mp.airyai(x) * 2 * mp.sqrt(mp.pi) * mp.root(x, 4) * mp.exp(z)


def airy_below(*, is_cosine: bool) -> Callable[[Any], Any]:
    """F, or G * z, of Ai(-x) = (F * sin(a) - G * cos(a)) / (sqrt(pi) * x**(1/4)).

    a = z + pi / 4, z = 2/3 * x**1.5 >= 6; u = 72 / z**2 - 1.

    Source: M. Abramowitz and I. A. Stegun, Handbook of Mathematical Functions, 10.4.60.
    """

    def function(u: Any) -> Any:
        z = mp.sqrt(72 / (u + 1))
        x = (z * 3 / 2) ** (mp.mpf(2) / 3)
        angle = z + mp.pi / 4
        ai, bi = mp.airyai(-x), mp.airybi(-x)
        scale = mp.sqrt(mp.pi) * mp.root(x, 4)
        if is_cosine:
            return scale * (bi * mp.sin(angle) - ai * mp.cos(angle)) * z
        return scale * (ai * mp.sin(angle) + bi * mp.cos(angle))

    return function


TABLES = {
    "J0_SMALL": small_j(0),
    "J1_SMALL": small_j(1),
    "Y0_SMALL": small_y(0),
    "Y1_SMALL": small_y(1),
    "P0": phase(0, is_sine=False),
    "Q0": phase(0, is_sine=True),
    "P1": phase(1, is_sine=False),
    "Q1": phase(1, is_sine=True),
    "AIRY_NEAR_BELOW": airy_near(-4.5, 0),
    "AIRY_NEAR_ABOVE": airy_near(0, 2.1),
    "AIRY_ABOVE": airy_above,
    "AIRY_BELOW_SINE": airy_below(is_cosine=False),
    "AIRY_BELOW_COSINE": airy_below(is_cosine=True),
}
