"""Special functions are as exact as their type (compared with 50 digits) and have their limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.single_operator import Call, interpreted

MOST_EPSILONS = 12
"""Chebyshev sums, a product and elementary functions: each has an error of a few epsilons."""


@dataclass(frozen=True)
class Function:
    """One function with its exact values on [low, high].

    `sensitivity` times the rounding unit is the error that is allowed. It has two sources: the
    rounding of the argument, or of a phase or an exponent that is computed from it; and sums whose
    terms are larger than the result, as near zeros of the function.
    """

    name: str
    exact: Callable[[Any], Any]
    low: float
    high: float
    sensitivity: Callable[[Any, Any], Any] = lambda x, y: abs(y)


def _of_one(x: Any, y: Any) -> Any:
    return abs(y) + 1


def _of_square(x: Any, y: Any) -> Any:
    return abs(y) * (1 + x * x)


def _of_phase(x: Any, y: Any) -> Any:
    return abs(y) + 1 + abs(x) ** 1.5 if x < 0 else abs(y) * (1 + x**1.5)


def _quantile(p: Any) -> Any:
    """By Newton's method on the lower tail's logarithm; symmetric."""
    if p > 0.5:
        return -_quantile(1 - p)
    x = -mp.sqrt(-2 * mp.log(p)) if p < 0.1 else mp.mpf(0)
    for _ in range(50):
        tail = mp.ncdf(x)
        step = mp.log(tail / p) * tail / mp.npdf(x)
        x -= step
        if abs(step) < mp.mpf(10) ** -40:
            break
    return x


def _log_tail(x: Any) -> Any:
    upper = mp.erfc(x / mp.sqrt(2)) / 2
    return mp.log1p(-upper) if x > 0 else mp.log(mp.erfc(-x / mp.sqrt(2)) / 2)


FUNCTIONS = (
    Function("lgamma", lambda x: mp.re(mp.loggamma(x)), 1e-30, 1e5),
    Function("lgamma", lambda x: mp.re(mp.loggamma(x)), -30, -1e-30, _of_one),
    Function("digamma", mp.digamma, -20, 1e5, _of_one),
    Function("erfinv", mp.erfinv, -1, 1),
    Function("special_ndtri", _quantile, 1e-30, 1),
    Function("special_erfcx", lambda x: mp.exp(x * x) * mp.erfc(x), -8, 30, _of_square),
    Function("special_log_ndtr", _log_tail, -30, 5, _of_square),
    Function("special_airy_ai", mp.airyai, -20, 12, _of_phase),
    Function("special_bessel_j0", lambda x: mp.besselj(0, x), -100, 100, _of_one),
    Function("special_bessel_j1", lambda x: mp.besselj(1, x), -100, 100, _of_one),
    Function("special_bessel_y0", lambda x: mp.bessely(0, x), 1e-30, 100, _of_one),
    Function("special_bessel_y1", lambda x: mp.bessely(1, x), 1e-30, 100, _of_one),
    Function("special_spherical_bessel_j0", mp.sinc, -100, 100, _of_one),
)


def computed(name: str, x: torch.Tensor) -> torch.Tensor:
    with np.errstate(all="ignore"):
        return interpreted(Call(f"aten.{name}.default", [x]))[0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f"{f.name}-{f.low}")
def test_a_function_is_within_rounding_of_its_exact_value(
    function: Function, dtype: torch.dtype
) -> None:
    width = 64 if dtype is torch.float64 else 32
    inside = st.floats(
        np.float32(function.low).item(), np.float32(function.high).item(), width=width
    ).filter(lambda x: abs(x) > 1e-30 and abs(x) != 1)

    @settings(max_examples=examples(15), deadline=None)
    @given(st.lists(inside, min_size=8, max_size=24))
    def check(points: list[float]) -> None:
        x = torch.tensor(points, dtype=dtype)
        for point, result in zip(x.tolist(), computed(function.name, x).tolist(), strict=True):
            assert_precise(function, point, result, torch.finfo(dtype).eps)

    with mp.workdps(50):
        check()


def assert_precise(function: Function, point: float, result: float, eps: float) -> None:
    try:
        exact = function.exact(mp.mpf(point))
    except ValueError:  # a pole
        return
    allowed = MOST_EPSILONS * eps * function.sensitivity(mp.mpf(point), exact)
    assert abs(mp.mpf(result) - exact) <= allowed, (function.name, point, result, exact)


INF, NAN = float("inf"), float("nan")

ENDS = {
    "lgamma": {0.0: INF, -1.0: INF, INF: INF, -INF: INF, NAN: NAN, 1.0: 0.0, 2.0: 0.0},
    "digamma": {0.0: -INF, -3.0: NAN, INF: INF, -INF: NAN, NAN: NAN},
    "erfinv": {0.0: 0.0, 1.0: INF, -1.0: -INF, 1.5: NAN, NAN: NAN},
    "special_ndtri": {0.0: -INF, 1.0: INF, 0.5: 0.0, -0.5: NAN, 1.5: NAN, NAN: NAN},
    "special_erfcx": {0.0: 1.0, INF: 0.0, -INF: INF, NAN: NAN},
    "special_log_ndtr": {INF: 0.0, -INF: -INF, NAN: NAN},
    "special_airy_ai": {INF: NAN, -INF: NAN, 1e4: 0.0, NAN: NAN},
    "special_bessel_j0": {0.0: 1.0, NAN: NAN},
    "special_bessel_j1": {0.0: 0.0, NAN: NAN},
    "special_bessel_y0": {0.0: -INF, -1.0: NAN, NAN: NAN},
    "special_bessel_y1": {0.0: -INF, -1.0: NAN, NAN: NAN},
    "special_spherical_bessel_j0": {0.0: 1.0, INF: 0.0, -INF: 0.0, NAN: NAN},
}


@pytest.mark.parametrize("name", sorted(ENDS))
def test_a_function_has_its_limits_at_the_ends(name: str) -> None:
    for dtype in (torch.float64, torch.float32):
        x = torch.tensor(list(ENDS[name]), dtype=dtype)
        expected = torch.tensor(list(ENDS[name].values()), dtype=dtype)
        torch.testing.assert_close(computed(name, x), expected, equal_nan=True, rtol=1e-6, atol=0)


def test_digamma_at_zero_has_the_sign_of_neither_side() -> None:
    x = torch.tensor([0.0, -0.0])
    assert computed("digamma", x).tolist() == torch.digamma(x).tolist() == [-INF, INF]


@given(st.integers(2, 8), st.lists(st.floats(-9.4, 9.4), min_size=4, max_size=16))
@settings(max_examples=examples(20), deadline=None)
def test_polygamma_is_equal_to_eager_between_its_poles(order: int, points: list[float]) -> None:
    x = torch.tensor(points, dtype=torch.float64)
    x = x[(x - x.round()).abs() > 1e-3]
    with np.errstate(all="ignore"):
        result = interpreted(Call("aten.polygamma.default", [order, x]))[0]
    # Terms of both signs may cancel; the largest is that of the nearest pole.
    factor = torch.special.gammaln(torch.tensor(order + 1.0, dtype=torch.float64)).exp()
    scale = factor * (1 + (x - x.round()).abs() ** -(order + 1.0))
    error = (result - torch.polygamma(order, x)).abs()
    assert bool((error <= 64 * torch.finfo(torch.float64).eps * scale).all())


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=8), st.integers(9, 10_000))
@settings(max_examples=examples(20), deadline=None)
def test_a_chebyshev_polynomial_of_high_order_needs_no_recurrence(
    points: list[float], order: int
) -> None:
    x = torch.tensor(points, dtype=torch.float64)
    for kind in ("t", "u"):
        call = Call(f"aten.special_chebyshev_polynomial_{kind}.n_scalar", [x, order])
        with np.errstate(all="ignore"):
            found = interpreted(call)[0]
        for point, result in zip(points, found.tolist(), strict=True):
            with mp.workdps(50):
                angle = mp.acos(mp.mpf(point) + mp.mpf(10) ** -45)
                first, second = mp.cos(order * angle), mp.sin((order + 1) * angle) / mp.sin(angle)
                value = mp.re(first if kind == "t" else second)
            if abs(value) > 1e307:
                continue
            # The order times the rounding of the angle; U itself is as many times larger.
            largest = max(abs(value), order + 1 if kind == "u" else 1)
            assert abs(result - value) <= 8 * order * 2.0**-52 * largest, (kind, point)
