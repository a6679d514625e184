"""Sample calls of mathematical functions computed by series, recurrences or digits."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tests.support.single_operator import Call

INF, NAN = float("inf"), float("nan")

_UNARY = (
    "lgamma digamma erfinv special_ndtri special_erfcx special_log_ndtr special_airy_ai"
    " special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1"
    " special_spherical_bessel_j0"
)

_INEXACT_IN_EAGER = ("special_airy_ai", "special_bessel_j", "special_bessel_y")
"""In f64, PyTorch is off by 1e-8 here: `test_special_functions` has exact values."""


def function_calls() -> Iterator[Call]:
    """At least one call for each operator of these families."""
    yield from _functions()
    yield from _gamma()
    yield from _polynomials()
    yield from _parts()
    yield from _integers()


def _floats(*edges: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.cat([torch.linspace(-9, 9, 43), torch.tensor(edges)]).to(dtype)


def _functions() -> Iterator[Call]:
    edges = (NAN, INF, 0.0, 1.0, -1.0, 0.5, 1e-30, 0.3, -0.9)
    for name in _UNARY.split():
        for dtype in (torch.float32, torch.float64):
            if dtype is torch.float64 and name.startswith(_INEXACT_IN_EAGER):
                continue
            yield Call(f"aten.{name}.default", [_floats(*edges, dtype=dtype)])
        yield Call(f"aten.{name}.default", [torch.arange(5)])
    for name in ("lgamma", "digamma", "erfinv"):
        yield Call(f"aten.{name}.default", [_floats(*edges, dtype=torch.bfloat16)])


def _gamma() -> Iterator[Call]:
    x = torch.linspace(2.1, 12, 12).reshape(3, 4)
    for p in (1, 3, 5):
        yield Call("aten.mvlgamma.default", [x, p])
    yield Call("aten.mvlgamma.default", [torch.arange(3, 6), 2])
    for n in (0, 1, 2, 3, 4):
        for dtype in (torch.float32, torch.float64):
            # Negative integers are poles, where eager's order 1 depends on the last bit of a sine.
            yield Call("aten.polygamma.default", [n, _floats(0.0, NAN, dtype=dtype)[2:] + 0.2])
    s = torch.tensor([1.0, 0.5, 2.0, 3.5, 7.0, 2.0, 3.0, 2.5, NAN, 2.0, 30.0])
    q = torch.tensor([2.0, 1.0, 1.0, 0.2, 9.5, -0.4, -2.3, -1.5, 1.0, -3.0, 5.0])
    for dtype in (torch.float32, torch.float64):
        yield Call("aten.special_zeta.default", [s.to(dtype), q.to(dtype)])
    yield Call("aten.special_zeta.other_scalar", [s[:, None], 1.5])
    yield Call("aten.special_zeta.self_scalar", [2, torch.arange(1, 5)])


def _polynomials() -> Iterator[Call]:
    x = torch.tensor([-1.0, -0.7, 0.0, 0.31, 1.0, 0.95, 1.02, -1.1])
    degrees = torch.tensor([-1, 0, 1, 2, 5, 7, 9, 12])
    for prefix in ("", "shifted_"):
        for kind in "tuvw":
            name = f"aten.special_{prefix}chebyshev_polynomial_{kind}"
            for dtype in (torch.float64, torch.float32):
                yield Call(f"{name}.default", [x[:, None].to(dtype), degrees.to(dtype)])
            yield Call(f"{name}.n_scalar", [x, 4])
            yield Call(f"{name}.x_scalar", [0.25, degrees])
    for family in ("hermite_polynomial_h", "hermite_polynomial_he"):
        for degree in (-1, 0, 1, 6):
            yield Call(f"aten.special_{family}.n_scalar", [x, degree])
    for family in ("laguerre_polynomial_l", "legendre_polynomial_p"):
        for degree in (-1, 0, 1, 6):
            yield Call(f"aten.special_{family}.n_scalar", [x.double(), degree])


def _parts() -> Iterator[Call]:
    every_half = torch.arange(-(2**15), 2**15, 97).to(torch.int16)
    for dtype in (torch.float16, torch.bfloat16):
        x = every_half.view(dtype)
        yield Call("aten.frexp.Tensor", [x])
        yield Call("aten.nextafter.default", [x, torch.tensor([[INF], [-INF], [0.0]], dtype=dtype)])
    for bits, dtype in ((torch.int32, torch.float32), (torch.int64, torch.float64)):
        low, high = torch.iinfo(bits).min, torch.iinfo(bits).max
        x = torch.arange(low, high, high // 999, dtype=bits).view(dtype)
        edges = torch.tensor([0.0, -0.0, 1.0, -2.0, INF, -INF, NAN, 5e-324, 1e-45], dtype=dtype)
        x = torch.cat([x, edges])
        yield Call("aten.frexp.Tensor", [x])
        yield Call("aten.nextafter.default", [x, edges[:, None]])


def _integers() -> Iterator[Call]:
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
        low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        some = torch.tensor([low + 1, high, 0, 1, 2, 3, 7, 12, 60, 89, 55], dtype=dtype)
        if low:
            some = torch.cat([some, -some[3:]])
        yield Call("aten.pow.Tensor_Tensor", [some[:, None], some])
        yield Call("aten.pow.Scalar", [3, some])
        if dtype is torch.int64:
            continue
        yield Call("aten.gcd.default", [some[:, None], some])
        yield Call("aten.lcm.default", [some[:, None], some])
