"""Random numbers, element types and elementary functions."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

from tests.gpu.case import Case, case, floats, places


def random_cases() -> Iterator[Case]:
    """Random numbers of the farm's own: by Philox at each element's position."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        yield case(
            f"uniform and normal {dtype}",
            lambda x: (torch.rand_like(x), torch.randn_like(x)),
            lambda dtype=dtype: (floats(33, 70, dtype=dtype),),
            is_random=True,
        )
    yield case(
        "uniform",
        lambda x: (torch.rand_like(x), torch.rand(5, 999, device=x.device)),
        lambda: (floats(33, 70),),
        is_random=True,
        is_exact=True,
    )
    for share in (0.1, 0.5):
        yield case(
            f"dropout of {share}",
            lambda x, share=share: F.dropout(x * 2, share),
            lambda: (floats(65, 129),),
            is_random=True,
            is_exact=True,
        )
    yield case(
        "dropout within a block",
        lambda x, w: F.layer_norm(x + F.dropout(F.gelu(x), 0.2), (96,), w, w),
        lambda: (floats(50, 96), floats(96)),
        is_random=True,
    )
    yield case(
        "integers",
        lambda x: (torch.randint_like(x, 3, 50), torch.randint(0, 2, (77,), device=x.device)),
        lambda: (floats(9, 100),),
        is_random=True,
        is_exact=True,
    )
    yield case(
        "choices",
        lambda p: (torch.bernoulli(p), p.clone().bernoulli_(0.3)),
        lambda: (floats(40, 40).sigmoid(),),
        is_random=True,
        is_exact=True,
    )
    yield case(
        "distributions",
        lambda x: (x.clone().exponential_(), x.clone().uniform_(-2, 3), x.clone().normal_(1, 2)),
        lambda: (floats(1000),),
        is_random=True,
    )
    yield case(
        "dropout of any size",
        lambda x: F.dropout(x, 0.5),
        *(lambda n=n: (floats(n, 3),) for n in (50, 200, 333)),
        dynamic=True,
        is_random=True,
    )


def type_cases() -> Iterator[Case]:
    """Each element type, conversions, and functions whose code is our own."""
    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        yield case(
            f"arithmetic {dtype}",
            _integers,
            lambda dtype=dtype: (
                (places(500, below=100) - (0 if dtype is torch.uint8 else 50)).to(dtype),
                (places(500, below=9, seed=1) + 1).to(dtype),
            ),
            is_exact=True,
        )
    yield case(
        "logic",
        lambda a, b: (a & b, a ^ ~b, a.logical_or(b), a.int() + b, torch.where(a, 1.5, 2)),
        lambda: (floats(700) > 0, floats(700, seed=1) > 0),
        is_exact=True,
    )
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        yield case(
            f"conversions {dtype}",
            lambda x, dtype=dtype: (
                x.to(dtype).float(),
                (x.to(dtype).to(torch.bfloat16) * 2).to(dtype),
            ),
            lambda: (floats(30, 50, scale=8),),
            is_exact=True,
        )
        yield case(
            f"an input {dtype}",
            lambda x: x.float() * 0.5,
            lambda dtype=dtype: (floats(30, 50).to(dtype),),
            is_exact=True,
        )
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        yield case(
            f"functions {dtype}", _functions, lambda dtype=dtype: (floats(4000, dtype=dtype),)
        )
    yield case("special functions", _special, lambda: (floats(2000).abs() + 0.1,))
    yield case(
        "conversions",
        lambda x: (x.half(), x.bfloat16(), x.int(), x.to(torch.uint8), x.bool(), x.double()),
        lambda: (floats(999).abs() * 20,),
        is_exact=True,
    )
    yield case(
        "a large pointwise kernel",
        lambda x, y: F.silu(x) * y + torch.tanh(x - y),
        lambda: (floats(1025, 1023), floats(1025, 1023, seed=1)),
    )


def _integers(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    shifted = a << (b % 3), a >> (b % 3)
    return a // b, a % b, torch.fmod(a, b), a * b, -a, a.abs(), a.clamp(3, 20), *shifted, a > b


def _functions(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    near = x.tanh() * 0.99
    one = (
        x.exp(),
        x.sin(),
        x.cos(),
        x.tan(),
        x.erf(),
        x.tanh(),
        x.sigmoid(),
        x.expm1(),
        near.atanh(),
    )
    two = x.abs().log(), x.abs().log1p(), x.abs().sqrt(), near.asin(), x.atan(), x.abs().pow(1.7)
    return (
        *one,
        *two,
        F.gelu(x),
        F.softplus(x),
        F.mish(x),
        torch.atan2(x, x.flip(0)),
        x.remainder(0.7),
    )


def _special(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    special = torch.special
    bessel = special.bessel_j0(x), special.i0(x), special.i1e(x)
    return x.lgamma(), x.digamma(), special.erfcx(x), special.ndtri(x.tanh()), *bessel
