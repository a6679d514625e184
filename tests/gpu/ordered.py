"""Sorts, running forms, reductions and rows in one pass."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

from tests.gpu.case import Case, apart, case, distinct, floats, places

HALVES = (torch.float16, torch.bfloat16)
FLOATS = (torch.float32, *HALVES)


def order_cases() -> Iterator[Case]:
    """Sorts of every width that a block holds, and what is built on them."""
    for dtype in (*FLOATS, torch.float64, torch.int64, torch.int8):
        make = partial(distinct, 6, 100, dtype=dtype)
        yield case(
            f"sort {dtype}",
            lambda x: (*x.sort(-1), *x.sort(dim=0, descending=True, stable=True)),
            lambda make=make: (make(),),
            is_exact=True,
        )
    for width in (1, 7, 64, 1000, 1024):
        yield case(
            f"sort of {width}",
            lambda x: (*x.sort(dim=-1, stable=True), x.argsort(-1)),
            lambda width=width: (distinct(9, width),),
            is_exact=True,
        )
    yield case(
        "sort with NaN and infinities",
        lambda x: x.sort(dim=-1, stable=True),
        lambda: (torch.tensor([[3.0, torch.nan, -torch.inf, 0.0, torch.inf, -0.0, torch.nan]]),),
        is_exact=True,
    )
    yield case(
        "topk",
        lambda x: (*x.topk(5), *x.topk(3, largest=False), *x.t().topk(4)),
        lambda: (apart(50, 300),),
        is_exact=True,
    )
    yield case(
        "median and kthvalue",
        lambda x: (*x.median(-1), *x.kthvalue(5, 0), *x.nanmedian(-1)),
        lambda: (apart(33, 70),),
        is_exact=True,
    )
    yield case("quantile", lambda x: (x.quantile(0.3, 0), x.msort()), lambda: (floats(200, 11),))
    yield case("router of experts", _router, lambda: (floats(64, 16),))
    yield case("nucleus sampling's sums", _nucleus, lambda: (distinct(8, 700) / 100,))


def _router(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    weights, experts = torch.softmax(x, -1).topk(2)
    return weights / weights.sum(-1, keepdim=True), experts


def _nucleus(x: torch.Tensor) -> torch.Tensor:
    logits, tokens = x.sort(dim=1, descending=True, stable=True)
    return torch.zeros_like(x).scatter(1, tokens, torch.softmax(logits, -1).cumsum(-1))


def scan_cases() -> Iterator[Case]:
    """Running sums, products and maxima along both axes."""
    for width in (1, 10, 1000, 5000):
        yield case(
            f"scans of {width}",
            lambda x: (x.cumsum(-1), x.logcumsumexp(-1), *x.cummax(-1), *x.cummin(-1)),
            lambda width=width: (distinct(7, width) / 64,),
        )
    yield case(
        "scans of integers",
        lambda x: (x.cumsum(0), x.sign().cumprod(1), (x > 3).cumsum(1)),
        lambda: (places(40, 333, below=9),),
        is_exact=True,
    )
    for dtype in HALVES:
        yield case(
            f"scans {dtype}",
            lambda x: (x.cumsum(0), x.logcumsumexp(0)),
            lambda dtype=dtype: (floats(50, 20, dtype=dtype),),
        )
    yield case(
        "positions of a padding mask",
        lambda m: m.long().cumsum(1) * m.long() + 1,
        lambda: (floats(9, 130) > 0,),
        is_exact=True,
    )


def row_cases() -> Iterator[Case]:
    """Statistics of rows: held, or read once where they are long."""
    for width in (100, 1000, 5000, 40000, 200000):
        for dtype in FLOATS:
            yield case(
                f"softmax and norm of {width} {dtype}",
                _row_forms,
                lambda width=width, dtype=dtype: (floats(5, width, dtype=dtype, scale=3),),
            )
    yield case(
        "columns", lambda x: (x.softmax(0), x.var(0), x.logsumexp(0)), lambda: (floats(3000, 40),)
    )
    yield case(
        "a far mean",
        lambda x: (x.var(-1), F.layer_norm(x, x.shape[-1:])),
        lambda: (floats(4, 70000) + 30,),
    )
    yield case("attention's softmax under a mask", _masked, lambda: (floats(2, 4, 65, 65),))
    yield case(
        "group and instance norms",
        lambda x, w: (F.group_norm(x, 4, w, w), F.instance_norm(x), F.rms_norm(x, (17, 17))),
        lambda: (floats(2, 16, 17, 17), floats(16)),
    )


def _row_forms(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.softmax(-1), x.logsumexp(-1), x.var(-1), F.layer_norm(x, x.shape[-1:])


def _masked(scores: torch.Tensor) -> torch.Tensor:
    mask = torch.full(scores.shape[-2:], -torch.inf, device=scores.device).triu(1)
    return (scores + mask).softmax(-1)


def reduction_cases() -> Iterator[Case]:
    """Reductions over each axis and over everything."""
    for dtype in (*FLOATS, torch.float64):
        yield case(
            f"sums {dtype}",
            lambda x: (x.sum(), x.mean(0), x.sum((0, 2)), x.norm(dim=-1)),
            lambda dtype=dtype: (floats(9, 100, 50, dtype=dtype),),
        )
    for dtype in (*FLOATS, torch.int32):
        yield case(
            f"short reductions across memory {dtype}",
            lambda x: (x.sum(2), x.amax(1), x.amin((1, 2)), x[:, :2].sum((1, 2)), x.prod(2)),
            lambda dtype=dtype: (places(7, 4, 3, 1000, below=9).to(dtype) - 4,),
        )
    yield case(
        "places of extremes",
        lambda x: (x.argmax(), x.argmin(0), x.amax(1), *x.max(-1)),
        lambda: (distinct(20, 999),),
        is_exact=True,
    )
    yield case(
        "truths and counts",
        lambda x: (x.any(), x.all(1), (x > 2).sum(), x.count_nonzero(0)),
        lambda: (places(70, 90, below=5),),
        is_exact=True,
    )
    yield case(
        "one large sum", lambda x: (x.sum(), x.square().mean()), lambda: (floats(3_000_001),)
    )
    yield case("products", lambda x: (x.prod(1), x.prod()), lambda: (floats(10, 30).sign() * 1.01,))
