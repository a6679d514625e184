"""Values of f16 and bf16: products of rows, and roundings that kernels leave out or keep."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

from tests.gpu.case import Case, Tensors, case, floats

HALF_TYPES = (torch.float16, torch.bfloat16)
ROWS = (1, 4, 16)
WIDTHS = ((1024, 768), (777, 1001))
"""Rows and columns of weights (n, k) of at least 1 MiB; the second fit no block."""
MANY = ((130, 1000, 264), (1000, 4096, 1024), (5000, 384, 96))
"""Rows of x, and rows and columns of weights, for tensor maps: the first and last fit no block."""


def half_type_cases() -> Iterator[Case]:
    """What kernels compute in other ways if values have 16 bits."""
    for dtype in HALF_TYPES:
        yield from _product_cases(dtype)
        yield from _many_row_cases(dtype)
        yield from _rounding_cases(dtype)


def _product_cases(dtype: torch.dtype) -> Iterator[Case]:
    word = str(dtype).removeprefix("torch.")
    product = partial(case, has_products=True)
    for m in ROWS:
        for n, k in WIDTHS:
            yield product(
                f"{m} rows by {n} x {k} in {word}",
                F.linear,
                partial(_operands, dtype, (m, k), (n, k)),
            )
        yield product(
            f"{m} rows by two weights, gated, in {word}",
            lambda x, w, u: F.silu(F.linear(x, w)) * F.linear(x, u),
            partial(_operands, dtype, (m, 768), (1024, 768), (1024, 768)),
        )
        yield product(
            f"{m} rows and a residual in {word}",
            lambda x, w, r: r + F.linear(x, w),
            partial(_operands, dtype, (m, 768), (1024, 768), (m, 1024)),
        )
        yield product(
            f"{m} normed rows in {word}",
            lambda x, w, g: F.linear(F.rms_norm(x, (768,), g), w),
            partial(_operands, dtype, (m, 768), (1024, 768), (768,)),
        )


def _many_row_cases(dtype: torch.dtype) -> Iterator[Case]:
    """Products with what follows; a second call has buffers at other addresses."""
    word = str(dtype).removeprefix("torch.")
    for m, n, k in MANY:
        where = f"{m} rows by {n} x {k} in {word}"
        shapes = {"x": (m, k), "w": (n, k), "t": (k, n), "b": (n,), "r": (m, n), "u": (n, k)}
        for names, text, function in (
            ("xwb", "bias and GELU", lambda x, w, b: F.gelu(F.linear(x, w, b))),
            ("xtb", "columns, bias and GELU", lambda x, t, b: F.gelu(torch.addmm(b, x, t))),
            ("xwr", "residual", lambda x, w, r: r + F.linear(x, w)),
            ("xwu", "gated", lambda x, w, u: F.silu(F.linear(x, w)) * F.linear(x, u)),
        ):
            made = partial(_operands, dtype, *(shapes[name] for name in names))
            for has_products in (False, True):
                by = "kernels" if has_products else "expected times"
                name = f"{where}, {text}, by {by}"
                yield case(name, function, made, made, has_products=has_products)


def _rounding_cases(dtype: torch.dtype) -> Iterator[Case]:
    word = str(dtype).removeprefix("torch.")
    yield case(
        f"decisions by rounded values in {word}",
        _decided,
        partial(_operands, dtype, (65, 257), (65, 257)),
        is_exact=True,
    )
    yield case(
        f"stored and read values in {word}",
        _stored,
        partial(_operands, dtype, (65, 257), (65, 257)),
    )
    yield case(
        f"gradients of GELU and a bias in {word}",
        lambda x, b: F.gelu(x + b, approximate="tanh"),
        partial(_operands, dtype, (130, 96), (96,)),
        has_gradients=True,
    )


def _decided(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    mixed = x * y + x
    return mixed > y, mixed.amax(-1), mixed.argmax(-1), (mixed * 3).float(), mixed.sort(-1).values


def _stored(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    active = F.silu(x * y + x)
    return active, (active * y - x) / 3, active.sum(-1), active.float().mean(0)


def _operands(dtype: torch.dtype, *shapes: tuple[int, ...]) -> Tensors:
    return tuple(floats(*shape, dtype=dtype, seed=n) for n, shape in enumerate(shapes))
