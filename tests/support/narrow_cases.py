"""Functions of 16-bit results with their exact values, and the bound of their errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

EVERY = 1 << 16
DTYPES = (torch.bfloat16, torch.float16)
Function = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Precise:
    """A function, its exact value in float64 without cancellation, and the forms of its kernel."""

    function: Function
    exact: Function
    forms: tuple[str, ...]


def _wide(function: Function) -> Function:
    return lambda x: function(x.double())


def _gelu(x: torch.Tensor) -> torch.Tensor:
    x = x.double()
    return 0.5 * x * torch.special.erfc(-x * 0.5**0.5)


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    x = x.double()
    return x * torch.sigmoid((2 / torch.pi) ** 0.5 * 2 * (x + 0.044715 * x * x * x))


def _softplus(x: torch.Tensor) -> torch.Tensor:
    return torch.logaddexp(x.double(), torch.zeros_like(x).double())


CASES = {
    "erf": Precise(torch.erf, _wide(torch.erf), ("erf",)),
    "tanh": Precise(torch.tanh, _wide(torch.tanh), ("tanh",)),
    "expm1": Precise(torch.expm1, _wide(torch.expm1), ("expm1",)),
    "gelu": Precise(F.gelu, _gelu, ("1 + erf",)),
    "gelu by tanh": Precise(lambda x: F.gelu(x, approximate="tanh"), _gelu_tanh, ("1 + tanh",)),
    "softplus": Precise(F.softplus, _softplus, ("log1p(exp)",)),
    "mish": Precise(F.mish, lambda x: x * torch.tanh(_softplus(x)), ("tanh(log1p)",)),
    "elu": Precise(F.elu, _wide(F.elu), ("expm1",)),
    "log of sigmoid": Precise(F.logsigmoid, lambda x: -_softplus(-x), ("log1p(exp)",)),
    "silu": Precise(F.silu, _wide(F.silu), ()),
    "sigmoid": Precise(torch.sigmoid, _wide(torch.sigmoid), ()),
    "exp": Precise(torch.exp, _wide(torch.exp), ()),
    "log": Precise(torch.log, _wide(torch.log), ()),
    "sin": Precise(torch.sin, _wide(torch.sin), ()),
}
# Eager rounds the sum, kernels do not.
WITH_BIAS = {
    "gelu": Precise(
        lambda x, y: F.gelu(x + y), lambda x, y: _gelu(x.double() + y.double()), ("1 + erf",)
    ),
    "gelu by tanh": Precise(
        lambda x, y: F.gelu(x + y, approximate="tanh"),
        lambda x, y: _gelu_tanh(x.double() + y.double()),
        ("1 + tanh",),
    ),
}
GATED = {"gelu": CASES["gelu"], "silu": CASES["silu"], "mish": CASES["mish"]}


def every_value(dtype: torch.dtype) -> torch.Tensor:
    """All bit patterns of a type of 16 bits."""
    return torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)


def ulps(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The unit in the last place of a type at each value of float64."""
    info = torch.finfo(dtype)
    exponent = values.abs().clamp(min=info.tiny).log2().floor()
    return info.eps * torch.pow(2.0, exponent)


def check_result(case: Precise, result: torch.Tensor, *args: torch.Tensor) -> None:
    """At no value is a result more than half a unit farther from float64 than eager is."""
    dtype, got = result.dtype, result.double()
    eager = case.function(*args).double()
    exact = case.exact(*args)
    torch.testing.assert_close(got.isnan(), exact.isnan())
    special = ~eager.isfinite() | ~got.isfinite()
    nearest = exact.to(dtype).double()
    assert bool((special <= ((got == nearest) | (got == eager) | got.isnan())).all())
    excess = ((got - exact).abs() - (eager - exact).abs()) / ulps(exact, dtype)
    excess = torch.where(special, 0.0, excess)
    worst = int(excess.argmax())
    assert excess[worst] <= 0.5, (
        f"{excess[worst]:.3f} units at {[float(a[worst]) for a in args]}:"
        f" {got[worst]}, eager {eager[worst]}, exact {exact[worst]}"
    )


def numbers(dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(EVERY, generator=torch.Generator().manual_seed(3)).to(dtype)


def check_gated(
    single: Precise, result_of: Callable[..., torch.Tensor], dtype: torch.dtype
) -> None:
    """A function times a second input: the function's error, and half a unit of the product."""
    gated = replace(single, function=lambda x, y: single.function(x) * y)
    x, y = every_value(dtype), numbers(dtype)
    got = result_of(gated, x, y).double()
    inner = single.exact(x)
    exact = inner * y.double()
    inner_bound = (single.function(x).double() - inner).abs() + 0.5 * ulps(inner, dtype)
    bound = inner_bound * y.double().abs() + 0.5 * ulps(exact, dtype)
    wrong = (got - exact).abs() > bound
    assert not bool((wrong & got.isfinite()).any()), (x[wrong], y[wrong], got[wrong], exact[wrong])
    assert bool((exact.isfinite() | ~got.isfinite()).all())
