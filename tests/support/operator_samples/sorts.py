"""Sample calls of operators that sort: ties, NaN, all types, short and empty rows."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tests.support.operator_samples.tensors import FLOATS, INTS, normal, special
from tests.support.single_operator import Call


def order_calls() -> Iterator[Call]:
    """At least one call for each operator of the family."""
    yield from _sorts()
    yield from _firsts()
    yield from _ranks()
    yield from _medians()
    yield from _modes()


def _distinct(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rows of distinct elements: eager does not define the order of equal ones."""
    count = torch.Size(shape).numel()
    generator = torch.Generator().manual_seed(count)
    return (torch.randperm(count, generator=generator) - count // 3).reshape(shape).to(dtype)


def _ties(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = normal(5, 12, dtype=torch.int64) % 4
    return x.to(dtype)


def _with_nan(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    rows = [special(dtype), special(dtype).flip(0), torch.full((11,), torch.nan, dtype=dtype)]
    return torch.stack(rows)


def _sorts() -> Iterator[Call]:
    for dtype in (*FLOATS, *INTS, torch.bool):
        for descending in (False, True):
            keywords = {"stable": True, "dim": 1, "descending": descending}
            yield Call("aten.sort.stable", [_ties(dtype)], keywords)
    for dtype in FLOATS:
        yield Call("aten.sort.stable", [_with_nan(dtype)], {"stable": True, "dim": 0})
        yield Call("aten.sort.stable", [_with_nan(dtype)], {"stable": True, "descending": True})
    yield Call("aten.sort.default", [_distinct(3, 4, 5)])
    yield Call("aten.sort.default", [_distinct(3, 4, 5), 0, True])
    yield Call("aten.sort.default", [_distinct(3, 1), 1])
    yield Call("aten.sort.default", [torch.tensor(3.0)])
    yield Call("aten.sort.default", [torch.ones(3, 0)])
    yield Call("aten.sort.default", [torch.ones(0, 3), 0])


def _firsts() -> Iterator[Call]:
    for dtype in (*FLOATS, *INTS):
        yield Call("aten.topk.default", [_distinct(4, 9, dtype=dtype), 3])
        yield Call("aten.topk.default", [_distinct(4, 9, dtype=dtype), 2, 0, False])
    yield Call("aten.topk.default", [_distinct(4, 9), 9])
    yield Call("aten.topk.default", [_distinct(4, 9), 0])
    yield Call("aten.topk.default", [torch.tensor(2.0), 1])


def _ranks() -> Iterator[Call]:
    for dtype in (*FLOATS, *INTS):
        yield Call("aten.kthvalue.default", [_distinct(4, 9, dtype=dtype), 3])
    yield Call("aten.kthvalue.default", [_distinct(4, 9), 4, 0, True])
    yield Call("aten.kthvalue.default", [torch.tensor(2.0), 1])
    yield Call("aten.kthvalue.default", [torch.tensor([[3.0, torch.nan, 1.0]]), 3])


def _medians() -> Iterator[Call]:
    one_nan = _distinct(3, 6)
    one_nan[1, 4] = torch.nan
    for name in ("median", "nanmedian"):
        for dtype in (*FLOATS, *INTS):
            yield Call(f"aten.{name}.dim", [_distinct(4, 9, dtype=dtype), 1])
            yield Call(f"aten.{name}.default", [_distinct(4, 8, dtype=dtype)])
        yield Call(f"aten.{name}.dim", [_distinct(4, 6), 0, True])
        yield Call(f"aten.{name}.dim", [one_nan, 1])
        yield Call(f"aten.{name}.dim", [torch.tensor(2.0), 0])
        yield Call(f"aten.{name}.default", [one_nan])
        yield Call(f"aten.{name}.default", [torch.tensor(2.0)])
    yield Call("aten.median.dim", [_with_nan(), 1])
    yield Call("aten.nanmedian.default", [_with_nan()])


def _modes() -> Iterator[Call]:
    for dtype in (*FLOATS, *INTS, torch.bool):
        yield Call("aten.mode.default", [_ties(dtype)])
        yield Call("aten.mode.default", [_ties(dtype), 0, True])
    yield Call("aten.mode.default", [torch.full((2, 3), torch.nan)])
    yield Call("aten.mode.default", [torch.tensor(2.0)])
    yield Call("aten.mode.default", [torch.ones(3, 1), 1])
